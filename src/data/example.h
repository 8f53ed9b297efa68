/* example.h - a row between file and tokens: the texts it becomes, and which of their bytes are trained.
 *
 *   row ──format_*.c──▶ draft ──tokenizer──▶ ids ──mask.c──▶ ids and labels
 *
 * Drafts are made row by row; their texts are then encoded many at once. A format that refuses a row says why
 * without naming the place: the caller puts file and line in front. */
#ifndef NBL_EXAMPLE_H
#define NBL_EXAMPLE_H

#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"
#include "run/run_config.h"

typedef struct nbl__tensor_span {
    size_t begin, end; /* bytes of a part's text */
} nbl__tensor_span;

/* A turn of a conversation: its text with a dummy in place of the content. It replaces the bytes [begin, end) of the
 * conversation's text, which reach from one added token that cuts the text to another, both included. */
typedef struct nbl__probe {
    size_t begin, end;
    int64_t first,
        last; /* those tokens, counted from 0 (see nbl__token_cuts); -1: begin or end of the text */
    bool trained;
} nbl__probe;

typedef enum nbl__mask_rule {
    NBL_MASK_NONE,  /* nothing is trained */
    NBL_MASK_ALL,   /* everything */
    NBL_MASK_MARKS, /* the stretches that {% generation %} covers */
    NBL_MASK_TURNS, /* what differs from the probes behind it, and end tokens by train_on_eos */
    NBL_MASK_PROBE  /* no tokens of the example: see nbl__probe */
} nbl__mask_rule;

typedef struct nbl__part {
    const char *text;
    size_t size;
    bool opens;  /* the tokens that the tokenizer puts before a text come first (BOS) */
    bool closes; /* those it puts behind it, and EOS unless it is there already, come last */
    nbl__mask_rule mask;
    const nbl__tensor_span *spans; /* of NBL_MASK_MARKS */
    int64_t span_count;
    nbl__probe probe;  /* of NBL_MASK_PROBE */
    int64_t cut_count; /* of NBL_MASK_TURNS: added tokens that cut the text */
} nbl__part;

typedef struct nbl__example_text {
    nbl__part *parts;
    int64_t part_count;
    const int32_t *ids, *labels; /* of a row that is tokens already; then there are no parts */
    int64_t id_count;
} nbl__example_text;

/* What formats and masks need to know; one for all rows of a run. */
typedef struct nbl__row_encoder {
    nbl_context *ctx;
    const nbl__run_config *config;
    nbl_tokenizer *tokenizer;    /* NULL: all rows are tokens already */
    nbl_chat_template *template; /* NULL: no dataset needs one */
    bool marks;                  /* the template has {% generation %} */
    int64_t vocabulary;
    int32_t eos, bos, own_bos; /* -1: none; own_bos: the model's, where bos is another */
    int32_t *ends;             /* tokens that end a turn: EOS and those that end generation */
    int64_t end_count;
    int32_t *eots; /* tokens that end a turn in the data: those of eot_tokens, or `ends` */
    int64_t eot_count;
} nbl__row_encoder;

/* Whether an added token always cuts a text there and its id comes from nothing else: what is before it and what is
 * behind it are then encoded alone. */
bool nbl__token_cuts(const nbl_tokenizer *tokenizer, int32_t id);
/* train_on_eot, which is train_on_eos unless it is given. */
static inline nbl__train_on_eos nbl__train_on_eot(const nbl__dataset_config *dataset)
{
    return dataset->train_on_eot ? (nbl__train_on_eos)(dataset->train_on_eot - 1) : dataset->train_on_eos;
}

/* Makes the draft of a row in the arena. */
nbl_status nbl__example_row(const nbl__row_encoder *encoder, const nbl__dataset_config *dataset,
                            nbl__arena *arena, const nbl__json *row, nbl__example_text *example_text);
nbl_status nbl__example_chat(const nbl__row_encoder *encoder, const nbl__dataset_config *dataset,
                             nbl__arena *arena, const nbl__json *row, nbl__example_text *example_text);
nbl_status nbl__example_tokens(const nbl__row_encoder *encoder, nbl__arena *arena, const nbl__json *row,
                               nbl__example_text *example_text);

/* The byte ranges [begins[i], ends[i]) of a text that its tokens stand for. A tokenizer that changes the text
 * (Unicode forms, spaces) is followed from one place where both agree to the next. */
void nbl__align_tokens(const nbl_tokenizer *tokenizer, const char *text, size_t size, const int32_t *ids,
                       int64_t count, size_t *begins, size_t *ends);

/* Ids and labels that grow; zero it, set ctx. */
typedef struct nbl__labelled {
    nbl_context *ctx;
    int32_t *ids, *labels;
    int64_t count, room;
    int64_t turns, ended; /* of the row: turns that are trained, and those whose end token is */
} nbl__labelled;
void nbl__labelled_free(nbl__labelled *l);
nbl_status nbl__labelled_add(nbl__labelled *l, int32_t id, bool trained);

/* A draft with the ids of its parts' texts (plain, without frame) becomes ids with labels, in place of what
 * `out` held. */
nbl_status nbl__example_label(const nbl__row_encoder *encoder, const nbl__dataset_config *dataset,
                              nbl__arena *arena, const nbl__example_text *example_text, const nbl_ids *lists,
                              nbl__labelled *out);

#endif
