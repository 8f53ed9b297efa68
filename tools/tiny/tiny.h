/* tiny.h - what the parts of make_tiny share: random numbers, chats, the tokenizer's and the
 * weights' makers.
 *
 * make_tiny writes everything that nibble-tiny is trained from:
 *
 *     words.c        words and how they belong together
 *     base_chats.c   questions and answers made of them, by patterns
 *     sums.c         the data of the example that fine-tunes the model
 *     bpe.c          the tokenizer, trained on the chats
 *     checkpoint.c   the model with random weights
 *
 * It uses the C library alone, integers wherever a choice is made and no function of <math.h>: the
 * same arguments give the same bytes on every machine. */
#ifndef TINY_H
#define TINY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { TEXT_SIZE = 256, VOCABULARY = 512 };

/* One question and its answer. There is no third message and no system prompt. */
typedef struct chat {
    char question[TEXT_SIZE], answer[TEXT_SIZE];
} chat;

/* ---- support.c ---- */

_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *allocate(size_t size); /* zeroed; never NULL */
FILE *create(const char *folder, const char *name);
void finish(FILE *file, const char *name);
void write_chat(FILE *file, const chat *c); /* one row of JSONL */
uint64_t hash_text(const char *text);       /* FNV-1a */

uint64_t next_random(uint64_t *state); /* splitmix64 */
int below(uint64_t *state, int n);     /* 0 … n-1 */

/* Slots {a} … {e} of a pattern are replaced by the texts; {A} … {E} with a capital. */
enum { SLOTS = 5 };
typedef struct slots {
    char text[SLOTS][96];
} slots;
void fill(char out[TEXT_SIZE], const char *pattern, const slots *s);
void put(slots *s, int slot, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- words.c ---- */

/* Two words that belong together; what that means depends on the list. */
typedef struct word_pair {
    const char *a, *b;
} word_pair;
typedef struct word_list {
    const word_pair *pairs;
    int count;
} word_list;
extern const word_list nouns, opposites, colours, sounds, homes, names, places, small_talk, refusals;
extern const char *const days[7], *const months[12], *const numbers[21];
const char *any_word(uint64_t *state); /* for copying and spelling */

/* ---- base_chats.c, sums.c ---- */

/* A chat of any kind that the model learns. */
void draw_chat(uint64_t *state, chat *c);
/* Questions are held out by their hash: they are in no training data. */
bool is_held_out(const chat *c);

/* The ways to ask for a sum: the first TRAINED_WAYS are fine-tuned, the others are new to the
 * fine-tuned model. */
enum { SUM_WAYS = 13, TRAINED_WAYS = 10 };
void ask_sum(int way, int a, int b, chat *c);
bool is_held_out_pair(int a, int b);
void write_sums(const char *folder);

/* ---- bpe.c, checkpoint.c ---- */

/* Derives the merges from chats and writes tokenizer.json, tokenizer_config.json and
 * chat_template.jinja. */
void write_tokenizer(const char *folder, const chat *chats, int count);
/* Writes config.json, generation_config.json and model.safetensors with random weights. `shape`:
 * "llama", "gpt_oss" or "qwen3_5". */
void write_checkpoint(const char *folder, const char *shape, uint64_t seed);

enum { END_OF_TEXT = VOCABULARY - 3, CHAT_START, CHAT_END };

#endif
