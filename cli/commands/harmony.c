/* harmony.c - takes the messages of OpenAI's harmony format apart; see harmony.h. */
#include "commands/harmony.h"

#include <stdlib.h>
#include <string.h>

#include "output.h"

void cli_growing_add(cli_growing *g, nbl_string text)
{
    if (g->size + text.size >= g->room) {
        size_t room = 2 * (g->size + text.size) + 256;
        char *larger = realloc(g->text, room);
        if (larger == NULL) cli_no_memory();
        g->text = larger;
        g->room = room;
    }
    if (text.size) memcpy(g->text + g->size, text.text, text.size);
    g->size += text.size;
    g->text[g->size] = '\0';
}

static int32_t find(const nbl_tokenizer *tokenizer, const char *text)
{
    return nbl_tokenizer_find(tokenizer, text, strlen(text));
}

void cli_harmony_open(cli_harmony *h, const nbl_tokenizer *tokenizer)
{
    *h = (cli_harmony){.start = find(tokenizer, "<|start|>"),
                       .channel = find(tokenizer, "<|channel|>"),
                       .message = find(tokenizer, "<|message|>"),
                       .end = find(tokenizer, "<|end|>"),
                       .constrain = find(tokenizer, "<|constrain|>")};
    h->known = h->start >= 0 && h->channel >= 0 && h->message >= 0 && h->end >= 0;
}

int cli_harmony_ends(const nbl_tokenizer *tokenizer, int32_t ids[CLI_HARMONY_ENDS])
{
    static const char *const texts[CLI_HARMONY_ENDS] = {"<|return|>", "<|call|>", "<|endoftext|>"};
    cli_harmony h;
    int count = 0;
    cli_harmony_open(&h, tokenizer);
    for (int i = 0; h.known && i < CLI_HARMONY_ENDS; i++) {
        int32_t id = find(tokenizer, texts[i]);
        if (id >= 0) ids[count++] = id;
    }
    return count;
}

static void clear(cli_growing *g)
{
    g->size = 0;
    cli_growing_add(g, (nbl_string){"", 0});
}

/* The last token of the format decides: <|start|> and <|channel|> begin a header, <|message|> a
 * body. */
void cli_harmony_begin(cli_harmony *h, const nbl_ids *prompt)
{
    clear(&h->header);
    clear(&h->thinking);
    h->on = false;
    h->part = CLI_HARMONY_ANSWER;
    for (int64_t i = prompt->count; h->known && i-- > 0;) {
        int32_t id = prompt->ids[i];
        if (id == h->end) return;
        if (id != h->start && id != h->channel && id != h->message) continue;
        h->on = true;
        if (id != h->message) h->part = CLI_HARMONY_HEADER;
        if (id == h->channel) cli_growing_add(&h->header, (nbl_string){"\n", 1});
        return;
    }
}

/* The part of a body, by its header: "assistant\nfinal", "\nanalysis", " to=functions.f\ncommentary
 * json". */
static cli_harmony_part body_of(const cli_harmony *h)
{
    const char *line = strrchr(h->header.text, '\n');
    size_t size = line ? strcspn(line + 1, " ") : 0;
    bool tool = strstr(h->header.text, "to=") != NULL;
    if (line == NULL) return CLI_HARMONY_ANSWER; /* no channel */
    if (size == 5 && memcmp(line + 1, "final", 5) == 0) return CLI_HARMONY_ANSWER;
    bool commentary = size == 10 && memcmp(line + 1, "commentary", 10) == 0;
    return commentary && !tool ? CLI_HARMONY_ANSWER : CLI_HARMONY_THINKING;
}

cli_harmony_part cli_harmony_token(cli_harmony *h, int32_t id)
{
    cli_harmony_part part = h->part;
    if (!h->on) return CLI_HARMONY_ANSWER;
    if (id == h->start) {
        clear(&h->header);
        h->part = CLI_HARMONY_HEADER;
    } else if (id == h->channel) {
        if (part != CLI_HARMONY_HEADER) clear(&h->header);
        cli_growing_add(&h->header, (nbl_string){"\n", 1});
        h->part = CLI_HARMONY_HEADER;
    } else if (id == h->message) {
        h->part = body_of(h);
    } else if (id == h->end) {
        clear(&h->header);
        h->part = CLI_HARMONY_HEADER;
    }
    return part;
}

/* A line end would look like <|channel|>: it is left out. Real headers are short. */
void cli_harmony_header(cli_harmony *h, nbl_string text)
{
    for (size_t i = 0; i < text.size && h->header.size < 1000; i++)
        if (text.text[i] != '\n') cli_growing_add(&h->header, (nbl_string){text.text + i, 1});
}

void cli_harmony_close(cli_harmony *h)
{
    free(h->header.text);
    free(h->thinking.text);
    *h = (cli_harmony){0};
}
