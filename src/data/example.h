/* example.h - a row between file and tokens: its example text, and which bytes of it are trained.
 *
 *   row ──format_*.c──▶ example text ──tokenizer──▶ ids ──mask.c──▶ ids and labels
 *
 * An example text is a list of parts: texts that are tokenized one by one. Rows become example
 * texts one at a time; the parts of many rows are then tokenized in one batch, on all threads.
 * Errors about a row do not name file and line: the caller adds them. */
#ifndef NBL_EXAMPLE_H
#define NBL_EXAMPLE_H

#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"
#include "run/run_config.h"

typedef struct nbl__text_span {
    size_t begin, end; /* bytes [begin, end) of a part's text */
} nbl__text_span;

/* A probe finds the tokens of one turn (conversation_probe.c). Its text is bytes [begin, end) of
 * the conversation's text with the turn's content replaced by a dummy. The tokens that differ are
 * the turn's.
 *
 *     text     ...<|im_start|>assistant\nHello, how are you<|im_end|>...
 *     probe       <|im_start|>assistant\n[[dummy_message]]<|im_end|>
 *                 ^ token `first`                         ^ token `last`
 *
 * The range begins and ends with an added token that cuts the text (nbl__token_cuts), so the
 * tokens inside do not depend on the text outside. */
typedef struct nbl__probe {
    size_t begin, end;
    int64_t first, last; /* index among the text's cutting tokens; -1: begin or end of the text */
    bool trained;        /* the turn's content is trained */
} nbl__probe;

typedef enum nbl__loss_mask {
    NBL_LOSS_MASK_NONE,  /* no token is trained */
    NBL_LOSS_MASK_ALL,   /* every token is trained */
    NBL_LOSS_MASK_MARKS, /* trained: the spans, which {% generation %} covers in the template */
    /* trained: what differs from the probes that follow, and end tokens by train_on_eos */
    NBL_LOSS_MASK_TURNS,
    NBL_LOSS_MASK_PROBE /* a probe of the preceding part; its tokens are not part of the example */
} nbl__loss_mask;

typedef struct nbl__part {
    const char *text;
    size_t size;
    bool opens; /* begins with the tokens that the tokenizer puts before a text (BOS) */
    /* ends with those it puts after a text, and with EOS unless that is the last one */
    bool closes;
    nbl__loss_mask mask;
    const nbl__text_span *spans; /* NBL_LOSS_MASK_MARKS only */
    int64_t span_count;
    nbl__probe probe;  /* NBL_LOSS_MASK_PROBE only */
    int64_t cut_count; /* NBL_LOSS_MASK_TURNS only: number of cutting tokens found in the text */
} nbl__part;

typedef struct nbl__example_text {
    nbl__part *parts;
    int64_t part_count;
    const int32_t *ids, *labels; /* of a row that is token ids already; then part_count is 0 */
    int64_t id_count;
} nbl__example_text;

/* Tokenizer, chat template and special tokens: what formats and masks need. One for all rows of
 * a run. Opened by row_encoder.h. Ids are -1 where there is no such token. */
typedef struct nbl__row_encoder {
    nbl_context *ctx;
    const nbl__run_config *config;
    nbl_tokenizer *tokenizer;    /* NULL: all rows are token ids already */
    nbl_chat_template *template; /* NULL: no dataset needs one */
    bool marks;                  /* the template has a {% generation %} block */
    int64_t vocabulary;
    /* own_bos: the model's BOS if special_tokens sets another; it is replaced */
    int32_t eos, bos, own_bos;
    /* tokens that end a turn: EOS, eos_token_id of the model, eot_tokens */
    int32_t *ends;
    int64_t end_count;
    int32_t *eots; /* tokens that end a turn in the data: eot_tokens, or `ends` */
    int64_t eot_count;
} nbl__row_encoder;

/* True if `id` is an added token that always cuts a text where it occurs, and no other text
 * gives this id. The text before it and the text after it are then tokenized independently. */
bool nbl__token_cuts(const nbl_tokenizer *tokenizer, int32_t id);
/* The value of train_on_eot; train_on_eos if it is not given. */
static inline nbl__train_on_eos nbl__train_on_eot(const nbl__dataset_config *dataset)
{
    return dataset->train_on_eot ? (nbl__train_on_eos)(dataset->train_on_eot - 1) : dataset->train_on_eos;
}

/* Convert a row to its example text, in the arena. nbl__example_row chooses by the dataset's
 * type. A row that does not fit the type is NBL_ERROR_FORMAT, or NBL_ERROR_UNSUPPORTED. */
nbl_status nbl__example_row(const nbl__row_encoder *encoder, const nbl__dataset_config *dataset,
                            nbl__arena *arena, const nbl__json *row, nbl__example_text *example_text);
nbl_status nbl__example_chat(const nbl__row_encoder *encoder, const nbl__dataset_config *dataset,
                             nbl__arena *arena, const nbl__json *row, nbl__example_text *example_text);
nbl_status nbl__example_tokens(const nbl__row_encoder *encoder, nbl__arena *arena, const nbl__json *row,
                               nbl__example_text *example_text);

/* Computes the bytes [begins[i], ends[i]) of the text that token i stands for. Where the
 * tokenizer changes the text (Unicode normalization, spaces), ranges are exact only from the
 * next position where both agree. */
void nbl__align_tokens(const nbl_tokenizer *tokenizer, const char *text, size_t size, const int32_t *ids,
                       int64_t count, size_t *begins, size_t *ends);

/* A growing list of ids with labels. Initialise to zero and set ctx. */
typedef struct nbl__labelled {
    nbl_context *ctx;
    int32_t *ids, *labels;
    int64_t count, room;
    int64_t turns, ended; /* of the row: trained turns, and those whose end token is trained too */
} nbl__labelled;
void nbl__labelled_free(nbl__labelled *l);
nbl_status nbl__labelled_add(nbl__labelled *l, int32_t id, bool trained);

/* Combines an example text and the ids of its parts to ids with labels; `out` is overwritten.
 * lists[i]: the ids of parts[i], tokenized without BOS and EOS. */
nbl_status nbl__example_label(const nbl__row_encoder *encoder, const nbl__dataset_config *dataset,
                              nbl__arena *arena, const nbl__example_text *example_text, const nbl_ids *lists,
                              nbl__labelled *out);

/* True if the text occurs in the chat template. Linear in the template's size. */
bool nbl__template_has(const nbl__row_encoder *encoder, const char *text);

#endif
