/* run_folder.h - the files of a small, valid training run, and edits of them. Part of fuzz_run.c.
 *
 * The folder has a model (config.json, model.safetensors, tokenizer.json, tokenizer_config.json), rows of chats, run.yml
 * and, made by training that run once, an adapter with its checkpoint. Every file's bytes are kept in memory: an input
 * edits copies of them, and the folder is written again for every input. */
#ifndef NBL_FUZZ_RUN_FOLDER_H
#define NBL_FUZZ_RUN_FOLDER_H

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json/json.h"
#include "format/hf/safetensors.h"
#include "fuzz.h"

enum {
    RUN_HIDDEN = 8,
    RUN_INNER = 12,
    RUN_HEADS = 2,
    RUN_KV_HEADS = 1,
    RUN_HEAD_DIM = 4,
    RUN_LAYERS = 2,
    RUN_VOCABULARY = 260, /* a token per byte and four special ones */
    RUN_MAX_FILES = 64,
    RUN_MAX_TENSORS = 32
};

typedef struct run_file {
    char name[160]; /* below the folder */
    uint8_t *data;
    size_t size;
} run_file;

static struct {
    char root[64];
    run_file files[RUN_MAX_FILES];
    int count;
} run_folder;

/* root/name in one of a few rotating buffers. */
static const char *run_path(const char *name)
{
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    MUST(snprintf(path, sizeof paths[0], "%s/%s", run_folder.root, name) < (int)sizeof paths[0]);
    return path;
}

static void run_remove(const char *path)
{
    DIR *list = opendir(path);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        char inner[512];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= (int)sizeof inner) continue;
        if (unlink(inner) != 0) run_remove(inner);
    }
    if (list) closedir(list);
    (void)rmdir(path);
}

static void run_remove_all(void)
{
    run_remove(run_folder.root);
}

static void run_write(const char *name, const void *data, size_t size)
{
    FILE *file = fopen(run_path(name), "wb");
    MUST(file && fwrite(data, 1, size, file) == size);
    MUST(fclose(file) == 0);
}

/* Keeps a file's bytes as those of the valid run. */
static void run_keep(const char *name, const void *data, size_t size)
{
    MUST(run_folder.count < RUN_MAX_FILES && strlen(name) < sizeof run_folder.files[0].name);
    run_file *file = &run_folder.files[run_folder.count++];
    strcpy(file->name, name);
    file->size = size;
    file->data = malloc(size + 1);
    MUST(file->data);
    memcpy(file->data, data, size);
}

static void run_keep_text(const char *name, const char *text)
{
    run_keep(name, text, strlen(text));
}

/* Keeps the regular files of the folder `from` of the disk as those of the folder `name`. */
static void run_keep_folder(const char *from, const char *name)
{
    struct dirent **entries;
    int count = scandir(run_path(from), &entries, NULL, alphasort);
    MUST(count > 0);
    for (int i = 0; i < count; i++) {
        char source[160], target[160];
        struct stat info;
        MUST(snprintf(source, sizeof source, "%s/%s", from, entries[i]->d_name) < (int)sizeof source);
        MUST(snprintf(target, sizeof target, "%s/%s", name, entries[i]->d_name) < (int)sizeof target);
        free(entries[i]);
        if (stat(run_path(source), &info) != 0 || !S_ISREG(info.st_mode)) continue;
        uint8_t *data = malloc((size_t)info.st_size + 1);
        FILE *file = fopen(run_path(source), "rb");
        MUST(data && file && fread(data, 1, (size_t)info.st_size, file) == (size_t)info.st_size);
        MUST(fclose(file) == 0);
        run_keep(target, data, (size_t)info.st_size);
        free(data);
    }
    free(entries);
}

static void run_add_tensor(nbl__arena *arena, nbl__stored *t, const char *name, int64_t rows, int64_t columns)
{
    *t = (nbl__stored){.name = nbl__arena_strdup(arena, name), .dtype = NBL_DTYPE_F32};
    if (rows) t->shape[t->rank++] = rows;
    t->shape[t->rank++] = columns;
    t->elements = (rows ? rows : 1) * columns;
    t->bytes = (uint64_t)t->elements * 4;
    float *data = nbl__arena_alloc(arena, t->bytes);
    MUST(t->name && data);
    for (int64_t i = 0; i < t->elements; i++) data[i] = rows ? (float)(i * 37 % 19 - 9) / 32 : 1;
    t->data = (const uint8_t *)data;
}

static void run_keep_weights(nbl_context *ctx)
{
    static const struct {
        const char *name;
        int64_t rows, columns;
    } layer[] = {{"input_layernorm", 0, RUN_HIDDEN},
                 {"post_attention_layernorm", 0, RUN_HIDDEN},
                 {"self_attn.q_proj", RUN_HEADS * RUN_HEAD_DIM, RUN_HIDDEN},
                 {"self_attn.k_proj", RUN_KV_HEADS * RUN_HEAD_DIM, RUN_HIDDEN},
                 {"self_attn.v_proj", RUN_KV_HEADS * RUN_HEAD_DIM, RUN_HIDDEN},
                 {"self_attn.o_proj", RUN_HIDDEN, RUN_HEADS * RUN_HEAD_DIM},
                 {"mlp.gate_proj", RUN_INNER, RUN_HIDDEN},
                 {"mlp.up_proj", RUN_INNER, RUN_HIDDEN},
                 {"mlp.down_proj", RUN_HIDDEN, RUN_INNER}};
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__text image = {.ctx = ctx};
    nbl__stored tensors[RUN_MAX_TENSORS];
    int64_t count = 0;
    char name[96];
    run_add_tensor(&arena, &tensors[count++], "model.embed_tokens.weight", RUN_VOCABULARY, RUN_HIDDEN);
    run_add_tensor(&arena, &tensors[count++], "model.norm.weight", 0, RUN_HIDDEN);
    for (int n = 0; n < RUN_LAYERS; n++)
        for (size_t i = 0; i < sizeof layer / sizeof *layer; i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", n, layer[i].name);
            run_add_tensor(&arena, &tensors[count++], name, layer[i].rows, layer[i].columns);
        }
    MUST(count <= RUN_MAX_TENSORS);
    MUST(nbl__safetensors_build(&arena, tensors, count, &image) == NBL_OK);
    run_keep("model/model.safetensors", image.text, image.size);
    nbl__text_free(&image);
    nbl__arena_free(&arena);
}

static void run_keep_tokenizer(void)
{
    static const char *const special[] = {"<s>", "</s>", "<|im_start|>", "<|im_end|>"};
    char text[16384];
    size_t n = (size_t)sprintf(text, "{\"version\": \"1.0\", \"added_tokens\": [");
    for (int i = 0; i < 4; i++)
        n += (size_t)sprintf(text + n,
                             "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
                             "\"rstrip\": false, \"normalized\": false, \"special\": true}",
                             i ? ", " : "", 256 + i, special[i]);
    n += (size_t)sprintf(
        text + n, "], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                  "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}, "
                  "\"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
                  "true, \"trim_offsets\": true, \"use_regex\": true}, \"model\": {\"type\": \"BPE\", "
                  "\"merges\": [], \"vocab\": {");
    for (int b = 0, other = 0; b < 256; b++) {
        bool shown = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        n += (size_t)sprintf(text + n, "%s\"\\u%04x\": %d", b ? ", " : "", shown ? b : 256 + other++, b);
    }
    sprintf(text + n, "}}}");
    run_keep_text("model/tokenizer.json", text);
}

/* The valid run, before it was trained. */
static void run_keep_inputs(nbl_context *ctx)
{
    char text[1024];
    run_keep_weights(ctx);
    run_keep_tokenizer();
    run_keep_text(
        "model/tokenizer_config.json",
        "{\"bos_token\": \"<s>\", \"eos_token\": \"<|im_end|>\", \"chat_template\": \"{% for m in "
        "messages %}{{ '<|im_start|>' + m['role'] + '\\\\n' + m['content'] + '<|im_end|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\\\n' }}{% endif %}\"}");
    snprintf(
        text, sizeof text,
        "{\"model_type\": \"llama\", \"vocab_size\": %d, \"hidden_size\": %d, \"intermediate_size\": %d, "
        "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, "
        "\"head_dim\": %d, \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-6, \"rope_theta\": "
        "10000.0, \"hidden_act\": \"silu\", \"tie_word_embeddings\": true, \"torch_dtype\": \"float32\"}",
        RUN_VOCABULARY, RUN_HIDDEN, RUN_INNER, RUN_LAYERS, RUN_HEADS, RUN_KV_HEADS, RUN_HEAD_DIM);
    run_keep_text("model/config.json", text);
    run_keep_text(
        "rows.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
        "\"content\": \"bc\"}]}\n{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, "
        "{\"role\": \"user\", \"content\": \"d\"}, {\"role\": \"assistant\", \"content\": \"e\"}]}\n");
    snprintf(text, sizeof text,
             "base_model: %s/model\ndatasets:\n  - path: %s/rows.jsonl\n    type: chat_template\n"
             "adapter: lora\nlora_r: 2\nlora_alpha: 4\nlora_dropout: 0.1\nlora_target_linear: true\n"
             "sequence_len: 64\nmicro_batch_size: 1\nmax_steps: 4\nsave_steps: 2\nlearning_rate: 0.01\n"
             "seed: 5\nmemory: 8MiB\n",
             run_folder.root, run_folder.root);
    run_keep_text("run.yml", text);
}

static void run_make_root(void)
{
    struct stat info;
    bool in_memory = stat("/dev/shm", &info) == 0 && S_ISDIR(info.st_mode); /* fsync costs nothing there */
    snprintf(run_folder.root, sizeof run_folder.root, "%s/nibble-fuzz-run-XXXXXX",
             in_memory ? "/dev/shm" : "/tmp");
    MUST(mkdtemp(run_folder.root));
    (void)atexit(run_remove_all);
}

/* Writes every file as it is kept; what an earlier input left is removed. */
static void run_restore(void)
{
    static const char *const folders[] = {"model", "out", "out/checkpoint-2", "start"};
    run_remove(run_path("out"));
    run_remove(run_path("merged"));
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) (void)mkdir(run_path(folders[i]), 0700);
    for (int i = 0; i < run_folder.count; i++)
        run_write(run_folder.files[i].name, run_folder.files[i].data, run_folder.files[i].size);
}

/* Replaces `removed` bytes of a file from `position` on. Positions beyond the end mean the end. */
static void run_edit(const run_file *file, size_t position, size_t removed, const uint8_t *added, size_t size)
{
    uint8_t text[1 << 17];
    if (position > file->size) position = file->size;
    if (removed > file->size - position) removed = file->size - position;
    if (file->size + size > sizeof text) return;
    memcpy(text, file->data, position);
    if (size) memcpy(text + position, added, size);
    memcpy(text + position + size, file->data + position + removed, file->size - position - removed);
    run_write(file->name, text, file->size - removed + size);
}

#endif
