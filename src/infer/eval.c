/* eval.c - evaluates a model on sequences: the sum of losses, and how often the most likely token
 * is right.
 *
 *     sequences, packed ─ body ─▶ hidden [tokens, hidden]
 *     tiles of its rows ─ head ─▶ logits [tile, vocabulary] ─▶ loss and argmax per row
 *
 * Two sessions. The body runs over several short sequences at once, up to PACKED_TOKENS, or over
 * one long one. The head runs over a tile of the rows whose next token is counted, so at most
 * TILE_BYTES of f32 logits exist at a time (more if MIN_TILE rows take more).
 *
 * Example: the sequence [5, 8, 2] with its own tokens as labels has two counted rows: row 0
 * predicts 8, row 1 predicts 2. Row 2 predicts nothing, and the token 5 is predicted by no row.
 *
 * Numerics: logits have the compute dtype, as in transformers. Sums over the vocabulary and over
 * tokens are f64. The result does not depend on the number of threads. */
#include <math.h>

#include "base/team.h"
#include "model/language_model.h"
#include "ops/loss/cross_entropy_rows.h"
#include "ops/loss/cross_entropy.h"

enum {
    PACKED_TOKENS = 1024,   /* short sequences share a pass up to this many tokens */
    PACKED_SEQUENCES = 256, /* and this many sequences */
    TILE_BYTES = 32 << 20,  /* of f32 logits */
    MIN_TILE = 16,          /* rows; fewer would dequantize the head's weight too often */
    SPAN = 1024,            /* logits per call of nbl__logits_fold */
    ROWS_PER_ITEM = 4       /* rows that a thread takes at once */
};

/* One call of nbl_model_evaluate. All memory is allocated once, for the largest pass and tile. */
typedef struct evaluation {
    nbl_model *model;
    nbl__session body, head;
    int64_t tile;
    const nbl_ids *labels;    /* of the sequences; NULL: their own tokens */
    float *logits;            /* [tile, vocabulary] */
    double *losses;           /* [tile] */
    uint8_t *hits;            /* [tile] */
    int64_t *rows;            /* of the pass: index of each token whose next token is counted */
    int32_t *wanted;          /* of the pass: the label of that next token */
    const int64_t *tile_rows; /* the tile's part of rows and wanted: tile_count entries */
    const int32_t *tile_wanted;
    int64_t tile_count;
} evaluation;

/* Thread task: loss and hit of ROWS_PER_ITEM rows. loss = log Σ exp(z) - z[wanted], computed with
 * the largest logit subtracted. Of equal logits the first counts as the guess. */
static nbl_status judge_rows(void *argument, int64_t item, int worker)
{
    evaluation *e = argument;
    int64_t vocabulary = e->model->decoder.vocabulary;
    int64_t end = nbl__min_i64(e->tile_count, (item + 1) * ROWS_PER_ITEM);
    (void)worker;
    for (int64_t r = item * ROWS_PER_ITEM; r < end; r++) {
        float *z = e->logits + r * vocabulary;
        nbl__logit_sums sums = {.largest = -INFINITY};
        for (int64_t v = 0; v < vocabulary; v += SPAN)
            nbl__logits_fold(nbl__isa(e->model->ctx), z + v, nbl__min_i64(SPAN, vocabulary - v),
                             e->model->decoder.final_cap, false, &sums);
        int64_t best = 0;
        while (best < vocabulary && z[best] != sums.largest) best++;
        e->losses[r] = (double)sums.largest + log(sums.sum) - (double)z[e->tile_wanted[r]];
        e->hits[r] = best == e->tile_wanted[r];
    }
    return NBL_OK;
}

/* Gathers the tile's hidden rows, runs the head over them and computes losses and hits. */
static nbl_status run_head(evaluation *e, const uint8_t *hidden)
{
    nbl__session *s = &e->head;
    size_t row = (size_t)e->model->decoder.hidden * nbl__size_of(e->model->dtype);
    uint8_t *input = (uint8_t *)nbl__session_input(s, s->build.hidden, e->tile_count);
    for (int64_t r = 0; r < e->tile_count; r++)
        memcpy(input + (size_t)r * row, hidden + (size_t)e->tile_rows[r] * row, row);
    NBL_TRY(nbl__session_resize(s));
    NBL_TRY(nbl__plan_run(&s->plan));
    nbl__to_f32(nbl__isa(e->model->ctx), e->model->dtype, nbl__plan_data(&s->plan, s->build.logits),
                e->logits, e->tile_count * e->model->decoder.vocabulary);
    return nbl__team_run(e->model->ctx, nbl__ceil_div(e->tile_count, ROWS_PER_ITEM), judge_rows, e, NULL);
}

/* Fills rows and wanted for `count` sequences from `first`. Returns their number. A label at t is
 * predicted from row t - 1, so the first token of a sequence is never counted. */
static int64_t find_rows(evaluation *e, const nbl_ids *sequences, int64_t first, int64_t count)
{
    int64_t rows = 0, at = 0;
    for (int64_t i = first; i < first + count; i++) {
        const int32_t *wanted = e->labels ? e->labels[i].ids : sequences[i].ids;
        for (int64_t t = 1; t < sequences[i].count; t++) {
            if (wanted[t] == NBL_LABEL_IGNORED) continue;
            e->rows[rows] = at + t - 1;
            e->wanted[rows++] = wanted[t];
        }
        at += sequences[i].count;
    }
    return rows;
}

/* Runs one pass over `count` sequences from `first` and adds their losses and hits to *sum. */
static nbl_status run_pass(evaluation *e, const nbl_ids *sequences, int64_t first, int64_t count,
                           nbl_evaluation *sum)
{
    nbl__session *s = &e->body;
    int64_t rows = find_rows(e, sequences, first, count);
    if (rows == 0) return NBL_OK;
    NBL_TRY(nbl__session_load(s, sequences + first, count, NULL));
    NBL_TRY(nbl__plan_run(&s->plan));
    const uint8_t *hidden = nbl__plan_data(&s->plan, s->build.hidden);
    for (int64_t at = 0; at < rows; at += e->tile_count) {
        e->tile_count = nbl__min_i64(e->tile, rows - at);
        e->tile_rows = e->rows + at;
        e->tile_wanted = e->wanted + at;
        NBL_TRY(run_head(e, hidden));
        for (int64_t r = 0; r < e->tile_count; r++) {
            NBL_CHECK(e->model->ctx, isfinite(e->losses[r]), NBL_ERROR_FORMAT,
                      "%s: the loss of token %" PRId64 " of the sequences from %" PRId64
                      " is %g; a weight is not finite, or %s is too narrow",
                      e->model->path, e->tile_rows[r], first, e->losses[r], nbl_dtype_name(e->model->dtype));
            sum->loss_sum += e->losses[r];
            sum->hits += e->hits[r];
            sum->tokens++;
        }
    }
    return NBL_OK;
}

/* Chooses the size of a tile, opens both sessions and allocates the memory for one pass. */
static nbl_status open_sessions(evaluation *e, nbl__arena *arena, int64_t tokens, int64_t count)
{
    nbl_model *m = e->model;
    int64_t fitting = TILE_BYTES / ((int64_t)sizeof(float) * m->decoder.vocabulary);
    e->tile = nbl__min_i64(tokens, nbl__max_i64(MIN_TILE, fitting));
    /* The body comes first: opening a session fails for tensors that no graph has asked for, and
     * the head's graph asks for almost none. */
    NBL_TRY(nbl__session_open(
        m, &(nbl__session_options){.mode = NBL_MODE_HIDDEN, .tokens = tokens, .sequences = count}, &e->body));
    NBL_TRY(nbl__session_open(
        m, &(nbl__session_options){.mode = NBL_MODE_HEAD, .tokens = e->tile, .sequences = 1}, &e->head));
    e->logits = nbl__arena_alloc(arena, (size_t)(e->tile * m->decoder.vocabulary) * sizeof *e->logits);
    e->losses = nbl__arena_alloc(arena, (size_t)e->tile * sizeof *e->losses);
    e->hits = nbl__arena_alloc(arena, (size_t)e->tile * sizeof *e->hits);
    e->rows = nbl__arena_alloc(arena, (size_t)tokens * sizeof *e->rows);
    e->wanted = nbl__arena_alloc(arena, (size_t)tokens * sizeof *e->wanted);
    return e->logits && e->losses && e->hits && e->rows && e->wanted ? NBL_OK : NBL_ERROR_MEMORY;
}

/* Packs consecutive sequences into passes of at most `room` tokens and runs them. */
static nbl_status run_all(evaluation *e, const nbl_ids *sequences, int64_t count,
                          const nbl_evaluate_options *options, int64_t room, int64_t total,
                          nbl_evaluation *sum)
{
    int64_t done = 0;
    for (int64_t first = 0, taken; first < count; first += taken) {
        int64_t tokens = sequences[first].count;
        for (taken = 1; first + taken < count && taken < PACKED_SEQUENCES; taken++) {
            if (tokens + sequences[first + taken].count > room) break;
            tokens += sequences[first + taken].count;
        }
        NBL_TRY(run_pass(e, sequences, first, taken, sum));
        done += tokens;
        if (options->progress && options->progress(options->user, done, total))
            return nbl__fail(e->model->ctx, NBL_ERROR_CANCELLED, "stopped");
    }
    return NBL_OK;
}

nbl_status nbl_model_evaluate(nbl_model *m, const nbl_ids *sequences, int64_t count,
                              const nbl_evaluate_options *given, nbl_evaluation *result)
{
    NBL_CHECK(m->ctx, result, NBL_ERROR_ARGUMENT, "nbl_model_evaluate: a NULL argument");
    NBL_TRY(NBL_RESULT_BEGIN(m->ctx, nbl_evaluation, result));
    nbl_evaluate_options options;
    NBL_TRY(NBL_OPTIONS_READ(m->ctx, nbl_evaluate_options, given, &options));
    NBL_TRY(nbl__check_sequences(m, sequences, count));
    const nbl_ids *labels = options.labels;
    if (labels) NBL_TRY(nbl__check_labels(m, sequences, labels, count));
    int64_t total = 0, longest = 0;
    for (int64_t i = 0; i < count; i++) {
        total += sequences[i].count;
        longest = nbl__max_i64(longest, sequences[i].count);
    }
    /* A pass must fit the longest sequence; short ones are packed up to PACKED_TOKENS. */
    int64_t room = nbl__max_i64(longest, nbl__min_i64(total, PACKED_TOKENS));
    nbl__arena arena = nbl__arena_make(m->ctx);
    evaluation e = {.model = m, .labels = labels};
    nbl_evaluation sum = {0};
    nbl_status status = open_sessions(&e, &arena, room, nbl__min_i64(count, PACKED_SEQUENCES));
    if (status == NBL_OK) status = run_all(&e, sequences, count, &options, room, total, &sum);
    if (e.head.model) nbl__session_close(&e.head);
    if (e.body.model) nbl__session_close(&e.body);
    nbl__arena_free(&arena);
    if (status == NBL_OK) NBL_RESULT_PUT(nbl_evaluation, result, &sum);
    return status;
}
