/* main.c - make_tiny: what nibble-tiny is trained from, and the data of examples/train; see tiny.h.
 *
 * Each part has a seed of its own (tokenizer 1, weights 2, training 3, held-out 4). So the number
 * of rows does not change the other parts. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tiny.h"

static const char help[] =
    "Usage: make_tiny base OUT [ROWS]     the model before training, with its tokenizer, in OUT/start, and\n"
    "                                     OUT/chats.jsonl (ROWS chats), OUT/held-out.jsonl (chats for "
    "checking)\n"
    "       make_tiny start OUT SHAPE     a model before training, with that tokenizer, in OUT; SHAPE: "
    "llama,\n"
    "                                     gpt_oss or qwen3_5\n"
    "       make_tiny sums OUT            OUT/sums.jsonl, OUT/sums-new-wordings.jsonl, "
    "OUT/sums-new-pairs.jsonl\n";

enum { ROWS = 110000, MAX_ROWS = 10000000, HELD_OUT_ROWS = 500, TOKENIZER_ROWS = 20000 };

/* A folder that exists already is fine. */
static void make_folder(const char *path)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST) fail("%s: %s", path, strerror(errno));
}

/* Writes the training data: chats are drawn until `rows` are not held out. */
static void write_training(const char *out, uint64_t seed, int rows)
{
    FILE *file = create(out, "chats.jsonl");
    for (int i = 0; i < rows;) {
        chat c;
        draw_chat(&seed, &c);
        if (is_held_out(&c)) continue;
        write_chat(file, &c);
        i++;
    }
    finish(file, "chats.jsonl");
}

/* Every question once. */
static void write_held_out(const char *out, uint64_t seed)
{
    uint64_t *seen = allocate(HELD_OUT_ROWS * sizeof *seen);
    FILE *file = create(out, "held-out.jsonl");
    for (int i = 0; i < HELD_OUT_ROWS;) {
        chat c;
        draw_chat(&seed, &c);
        if (!is_held_out(&c)) continue;
        int k = 0;
        for (seen[i] = hash_text(c.question); seen[k] != seen[i];) k++;
        if (k < i) continue;
        write_chat(file, &c);
        i++;
    }
    finish(file, "held-out.jsonl");
    free(seen);
}

/* Makes the folder of a model before training: tokenizer and weights. */
static void write_start(const char *folder, const char *shape)
{
    make_folder(folder);
    chat *chats = allocate(TOKENIZER_ROWS * sizeof *chats);
    uint64_t state = 1;
    for (int i = 0; i < TOKENIZER_ROWS; i++) draw_chat(&state, &chats[i]);
    write_tokenizer(folder, chats, TOKENIZER_ROWS);
    free(chats);
    write_checkpoint(folder, shape, 2);
}

/* Makes nibble-tiny before training, and the data. */
static void write_base(const char *out, int rows)
{
    char start[4096];
    if (snprintf(start, sizeof start, "%s/start", out) >= (int)sizeof start) fail("%s: too long a name", out);
    make_folder(out);
    write_start(start, "llama");
    write_training(out, 3, rows);
    write_held_out(out, 4);
}

int main(int count, char **words)
{
    if (count >= 3 && count <= 4 && strcmp(words[1], "base") == 0) {
        char *end = "";
        long rows = count == 4 ? strtol(words[3], &end, 10) : ROWS;
        if (*end || rows < 1 || rows > MAX_ROWS) fail("%s is not a number of rows", words[3]);
        write_base(words[2], (int)rows);
        return 0;
    }
    if (count == 4 && strcmp(words[1], "start") == 0) {
        write_start(words[2], words[3]);
        return 0;
    }
    if (count == 3 && strcmp(words[1], "sums") == 0) {
        make_folder(words[2]);
        write_sums(words[2]);
        return 0;
    }
    fputs(help, stderr);
    return 2;
}
