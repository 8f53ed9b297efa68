/* mask.c - labels: which tokens of a draft are trained. See draft.h. */
#include "text/chars.h"
#include "train/draft.h"

enum { NEAR = 3 /* an end token at most so many tokens behind a message is that message's */ };

/* ---- growing ---- */

void nbl__labelled_free(nbl__labelled *l)
{
    nbl__free(l->ctx, l->ids, (size_t)l->room * sizeof *l->ids);
    nbl__free(l->ctx, l->labels, (size_t)l->room * sizeof *l->labels);
    *l = (nbl__labelled){.ctx = l->ctx};
}

static nbl_status reserve(nbl__labelled *l, int64_t count)
{
    if (count <= l->room) return NBL_OK;
    int64_t room = nbl__max_i64(count, l->room * 2 + 256);
    int32_t *ids, *labels;
    NBL_TRY(NBL_ALLOC(l->ctx, ids, room));
    nbl_status status = NBL_ALLOC(l->ctx, labels, room);
    if (status != NBL_OK) {
        nbl__free(l->ctx, ids, (size_t)room * sizeof *ids);
        return status;
    }
    if (l->count) {
        memcpy(ids, l->ids, (size_t)l->count * sizeof *ids);
        memcpy(labels, l->labels, (size_t)l->count * sizeof *labels);
    }
    nbl__free(l->ctx, l->ids, (size_t)l->room * sizeof *ids);
    nbl__free(l->ctx, l->labels, (size_t)l->room * sizeof *labels);
    l->ids = ids;
    l->labels = labels;
    l->room = room;
    return NBL_OK;
}

nbl_status nbl__labelled_add(nbl__labelled *l, int32_t id, bool trained)
{
    NBL_TRY(reserve(l, l->count + 1));
    l->ids[l->count] = id;
    l->labels[l->count++] = trained ? id : -100;
    return NBL_OK;
}

/* ---- stretches to tokens ---- */

typedef struct places {
    const int32_t *ids;
    int32_t *labels;
    const size_t *begins, *ends;
    int64_t count;
} places;

static void train(const places *p, int64_t i)
{
    p->labels[i] = p->ids[i];
}

/* The first token that holds some of the bytes [begin, end), or count. */
static int64_t token_of(const places *p, size_t begin, size_t end)
{
    int64_t i = 0;
    while (i < p->count && !(p->begins[i] < end && p->ends[i] > begin)) i++;
    return i;
}

/* As transformers' assistant mask: from the first token that holds the first character to the first one that holds
 * the last. */
static void train_mark(const places *p, const char *text, size_t size, nbl__stretch mark)
{
    if (mark.begin >= mark.end) return;
    size_t after = mark.begin + (size_t)nbl__utf8_length(text + mark.begin, text + size), last = mark.end - 1;
    while (last > mark.begin && !nbl__is_char_start(text[last])) last--;
    int64_t from = token_of(p, mark.begin, after), to = token_of(p, last, mark.end);
    for (int64_t i = from; i <= to && i < p->count; i++) train(p, i);
}

static bool is_end(const nbl__scribe *s, int32_t id)
{
    for (int64_t i = 0; i < s->end_count; i++)
        if (s->ends[i] == id) return true;
    return false;
}

/* The end token that belongs to a message: right behind it, or nearly. -1: none. */
static int64_t end_behind(const nbl__scribe *s, const places *p, int64_t from)
{
    for (int64_t i = from; i < p->count && i <= from + NEAR; i++)
        if (is_end(s, p->ids[i])) return i;
    return -1;
}

static void train_turns(const nbl__scribe *s, nbl__train_on_eos eos, const places *p, const nbl__part *part)
{
    int64_t i = 0, last_end = -1;
    for (int64_t k = 0; k < part->stretch_count; k++) {
        nbl__stretch turn = part->stretches[k];
        while (i < p->count && p->ends[i] <= turn.begin) i++;
        for (; i < p->count && p->begins[i] < turn.end; i++)
            if (turn.trained) train(p, i);
        int64_t end = end_behind(s, p, i);
        if (end < 0) continue;
        last_end = end;
        if (eos == NBL_EOS_ALL || (eos == NBL_EOS_TURN && turn.trained)) train(p, end);
    }
    if (eos == NBL_EOS_LAST && last_end >= 0) train(p, last_end);
}

static nbl_status label_stretches(const nbl__scribe *s, nbl__train_on_eos eos, nbl__arena *arena,
                                  const nbl__part *part, const int32_t *ids, int32_t *labels, int64_t count)
{
    size_t *begins = nbl__arena_alloc(arena, (size_t)count * 2 * sizeof *begins);
    if (begins == NULL) return NBL_ERROR_MEMORY;
    places p = {ids, labels, begins, begins + count, count};
    nbl__align_tokens(s->tokenizer, part->text, part->size, ids, count, begins, begins + count);
    if (part->mask == NBL_MASK_TURNS) return train_turns(s, eos, &p, part), NBL_OK;
    for (int64_t i = 0; i < part->stretch_count; i++)
        train_mark(&p, part->text, part->size, part->stretches[i]);
    return NBL_OK;
}

/* ---- parts ---- */

/* The tokens of the frame before (or behind) the text. */
static nbl_status add_frame(const nbl__scribe *s, bool behind, bool trained, nbl__labelled *out)
{
    const nbl__frame *frame = &s->tokenizer->framed;
    bool passed = false;
    for (int64_t i = 0; i < frame->count; i++) {
        int32_t id = frame->items[i];
        if (id < 0) passed = true;
        else if (passed == behind) NBL_TRY(nbl__labelled_add(out, id == s->own_bos ? s->bos : id, trained));
    }
    return NBL_OK;
}

static nbl_status add_part(const nbl__scribe *s, const nbl__dataset_config *dataset, nbl__arena *arena,
                           const nbl__part *part, const nbl_ids *list, nbl__labelled *out)
{
    bool trained = part->mask == NBL_MASK_ALL;
    if (part->opens) NBL_TRY(add_frame(s, false, trained, out));
    int64_t first = out->count;
    NBL_TRY(reserve(out, first + list->count));
    for (int64_t i = 0; i < list->count; i++) NBL_TRY(nbl__labelled_add(out, list->ids[i], trained));
    if (part->mask == NBL_MASK_MARKS || part->mask == NBL_MASK_TURNS)
        NBL_TRY(label_stretches(s, dataset->train_on_eos, arena, part, out->ids + first, out->labels + first,
                                list->count));
    if (!part->closes) return NBL_OK;
    NBL_TRY(add_frame(s, true, trained, out));
    if (out->count == 0 || out->ids[out->count - 1] != s->eos)
        NBL_TRY(nbl__labelled_add(out, s->eos, trained));
    return NBL_OK;
}

nbl_status nbl__draft_label(const nbl__scribe *s, const nbl__dataset_config *dataset, nbl__arena *arena,
                            const nbl__draft *draft, const nbl_ids *lists, nbl__labelled *out)
{
    out->count = 0;
    if (draft->ids) {
        NBL_TRY(reserve(out, draft->id_count));
        memcpy(out->ids, draft->ids, (size_t)draft->id_count * sizeof *out->ids);
        memcpy(out->labels, draft->labels, (size_t)draft->id_count * sizeof *out->labels);
        out->count = draft->id_count;
        return NBL_OK;
    }
    for (int64_t i = 0; i < draft->part_count; i++)
        NBL_TRY(add_part(s, dataset, arena, &draft->parts[i], &lists[i], out));
    for (int64_t i = 0; i < out->count; i++)
        NBL_CHECK(s->ctx, out->ids[i] < s->vocabulary, NBL_ERROR_FORMAT,
                  "the tokenizer makes the token %d, the model's vocabulary has %" PRId64, out->ids[i],
                  s->vocabulary);
    return NBL_OK;
}
