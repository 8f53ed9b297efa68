/* mask.c - turns an example text and its ids into labels: which tokens are trained. See example.h.
 *
 * A label is its own token's id, or -100: not trained. By rule of the part:
 *
 *     NONE, ALL   no token, every token
 *     MARKS       tokens that overlap a span; align.c gives the bytes of each token
 *     TURNS       tokens that differ from those of a probe, and end tokens after them:
 *
 *         ids      <|im_start|> assistant \n Hello there <|im_end|>
 *         probe    <|im_start|> assistant \n [[ dummy _message ]] <|im_end|>
 *                  common prefix             the turn      common suffix
 *
 * train_on_eos and train_on_eot say which end tokens are trained: all, those of trained turns,
 * only the last one, or none. */
#include "text/chars.h"
#include "data/example.h"

enum { NEAR = 3 /* an end token belongs to a turn if at most NEAR tokens lie between them */ };

/* ---- nbl__labelled ---- */

void nbl__labelled_free(nbl__labelled *l)
{
    nbl__free(l->ctx, l->ids, (size_t)l->room * sizeof *l->ids);
    nbl__free(l->ctx, l->labels, (size_t)l->room * sizeof *l->labels);
    *l = (nbl__labelled){.ctx = l->ctx};
}

/* Makes room for `count` ids in all. An error leaves the list unchanged. */
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

/* ---- spans to tokens ---- */

/* The tokens of one part, with the bytes [begins[i], ends[i]) of each where they are known. */
typedef struct token_spans {
    const int32_t *ids;
    int32_t *labels;
    const size_t *begins, *ends;
    int64_t count;
} token_spans;

static void train(const token_spans *p, int64_t i)
{
    p->labels[i] = p->ids[i];
}

/* The first token that overlaps the bytes [begin, end), or count. */
static int64_t token_of(const token_spans *p, size_t begin, size_t end)
{
    int64_t i = 0;
    while (i < p->count && !(p->begins[i] < end && p->ends[i] > begin)) i++;
    return i;
}

/* ---- turns ---- */

bool nbl__token_cuts(const nbl_tokenizer *tokenizer, int32_t id)
{
    const nbl__added_token *added = nbl__added_get(&tokenizer->added, id);
    bool unknown = tokenizer->model.has_unknown && tokenizer->model.unknown == id;
    return added && !added->normalized && !added->single_word && !unknown;
}

static bool is_one_of(int32_t id, const int32_t *list, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (list[i] == id) return true;
    return false;
}

/* The index of the first token of `list` among tokens from .. from + NEAR; -1: none. `from`: the
 * end of a turn. */
static int64_t end_behind(const token_spans *p, int64_t from, const int32_t *list, int64_t count)
{
    for (int64_t i = from; i < p->count && i <= from + NEAR; i++)
        if (is_one_of(p->ids[i], list, count)) return i;
    return -1;
}

/* Compares ids [begin, end) of the conversation with a probe's. [*from, *to): the ids between
 * the common prefix and the common suffix. False: there are none, as for an empty turn. */
static bool find_turn(const token_spans *p, int64_t begin, int64_t end, const nbl_ids *probe, int64_t *from,
                      int64_t *to)
{
    int64_t min = nbl__min_i64(end - begin, probe->count), before = 0, behind = 0;
    while (before < min && p->ids[begin + before] == probe->ids[before]) before++;
    while (behind < min && p->ids[end - 1 - behind] == probe->ids[probe->count - 1 - behind]) behind++;
    *from = begin + before;
    *to = end - behind;
    return before < min && behind < min && *from < *to;
}

/* One kind of end token: end-of-turn tokens, or EOS. last: index of the last one found; -1:
 * none. */
typedef struct ends {
    const int32_t *list;
    int64_t count;
    nbl__train_on_eos rule;
    int64_t last;
} ends;

/* *count: tokens of the text before byte `at`, where an added token begins or ends, or the text
 * does. */
static nbl_status count_before(const nbl__row_encoder *s, const nbl__part *part, size_t at, int64_t *count)
{
    nbl_ids ids;
    NBL_TRY(nbl_tokenizer_encode(s->tokenizer, part->text, at, 0, &ids));
    *count = ids.count;
    nbl_ids_free(s->ctx, &ids);
    return NBL_OK;
}

/* *cuts: indices of all ids that are cutting tokens (nbl__token_cuts), in the arena. */
static nbl_status find_cuts(const nbl__row_encoder *s, nbl__arena *arena, const token_spans *p,
                            int64_t **cuts, int64_t *count)
{
    *count = 0;
    *cuts = nbl__arena_alloc(arena, (size_t)p->count * sizeof **cuts);
    if (*cuts == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < p->count; i++)
        if (nbl__token_cuts(s->tokenizer, p->ids[i])) (*cuts)[(*count)++] = i;
    return NBL_OK;
}

/* [*begin, *end): the ids that the probe's range of bytes became. Cutting tokens are counted in
 * the text and in the ids. If the counts are equal, the n-th in the text is the n-th in the ids.
 * If not, the text before the range is tokenized again to count its ids. */
static nbl_status find_range(const nbl__row_encoder *s, const nbl__part *text, const nbl__probe *probe,
                             const int64_t *cuts, int64_t cut_count, int64_t *begin, int64_t *end)
{
    if (cut_count == text->cut_count) {
        if (probe->first >= 0) *begin = cuts[probe->first];
        if (probe->last >= 0) *end = cuts[probe->last] + 1;
        return NBL_OK;
    }
    if (probe->first >= 0) NBL_TRY(count_before(s, text, probe->begin, begin));
    return probe->last >= 0 ? count_before(s, text, probe->end, end) : NBL_OK;
}

/* Labels a conversation by its probes, parts[1 .. part_count). Counts in `out` the trained turns
 * whose end token should be trained, and those that have one. */
static nbl_status label_turns(const nbl__row_encoder *s, const nbl__dataset_config *dataset,
                              nbl__arena *arena, const nbl__part *parts, int64_t part_count,
                              const nbl_ids *lists, const token_spans *p, nbl__labelled *out)
{
    ends kinds[] = {{s->eots, s->eot_count, nbl__train_on_eot(dataset), -1},
                    {&s->eos, s->eos >= 0, dataset->train_on_eos, -1}};
    int64_t *cuts, cut_count;
    NBL_TRY(find_cuts(s, arena, p, &cuts, &cut_count));
    for (int64_t k = 1; k < part_count; k++) {
        const nbl__probe *probe = &parts[k].probe;
        int64_t begin = 0, end = p->count, from, to;
        bool asked = false, ended = false;
        NBL_TRY(find_range(s, parts, probe, cuts, cut_count, &begin, &end));
        if (end > p->count || !find_turn(p, begin, end, &lists[k], &from, &to)) continue;
        for (int64_t i = from; probe->trained && i < to; i++) train(p, i);
        for (int e = 0; e < 2; e++) {
            nbl__train_on_eos rule = kinds[e].rule;
            bool now = rule == NBL_EOS_ALL || (rule == NBL_EOS_TURN && probe->trained);
            int64_t at = end_behind(p, to, kinds[e].list, kinds[e].count);
            asked |= now;
            if (at < 0) continue;
            kinds[e].last = at;
            ended |= now;
            if (now) train(p, at);
        }
        out->turns += probe->trained && asked;
        out->ended += probe->trained && ended;
    }
    for (int e = 0; e < 2; e++)
        if (kinds[e].rule == NBL_EOS_LAST && kinds[e].last >= 0) train(p, kinds[e].last);
    return NBL_OK;
}

/* ---- marks ---- */

/* Trains the tokens of one span, as transformers' assistant mask does: from the first token that
 * overlaps the first character to the first token that overlaps the last character. Returns true
 * if an end-of-turn token is among them. */
static bool train_mark(const nbl__row_encoder *s, const token_spans *p, const char *text, size_t size,
                       nbl__text_span mark)
{
    bool ended = false;
    if (mark.begin >= mark.end) return false;
    size_t after = mark.begin + (size_t)nbl__utf8_length(text + mark.begin, text + size), last = mark.end - 1;
    while (last > mark.begin && !nbl__is_char_start(text[last])) last--;
    int64_t from = token_of(p, mark.begin, after), to = token_of(p, last, mark.end);
    for (int64_t i = from; i <= to && i < p->count; i++) {
        train(p, i);
        ended |= is_one_of(p->ids[i], s->eots, s->eot_count);
    }
    return ended;
}

/* Labels a part by its spans. */
static nbl_status label_marks(const nbl__row_encoder *s, nbl__arena *arena, const nbl__part *part,
                              const token_spans *p, nbl__labelled *out)
{
    size_t *begins = nbl__arena_alloc(arena, (size_t)p->count * 2 * sizeof *begins);
    if (begins == NULL) return NBL_ERROR_MEMORY;
    token_spans q = *p;
    q.begins = begins;
    q.ends = begins + p->count;
    nbl__align_tokens(s->tokenizer, part->text, part->size, p->ids, p->count, begins, begins + p->count);
    for (int64_t i = 0; i < part->span_count; i++) {
        out->ended += train_mark(s, &q, part->text, part->size, part->spans[i]);
        out->turns++;
    }
    return NBL_OK;
}

/* ---- parts ---- */

/* Adds the tokens that the tokenizer puts before the text, or `behind` it. frame->items holds
 * ids, with a negative number for the text. The model's own BOS is replaced with that of
 * special_tokens. */
static nbl_status add_frame(const nbl__row_encoder *s, bool behind, bool trained, nbl__labelled *out)
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

/* Adds the tokens and labels of one part. count: 1 + the number of probes that follow it. list:
 * the ids of the part and its probes. */
static nbl_status add_part(const nbl__row_encoder *s, const nbl__dataset_config *dataset, nbl__arena *arena,
                           const nbl__part *part, int64_t count, const nbl_ids *list, nbl__labelled *out)
{
    bool trained = part->mask == NBL_LOSS_MASK_ALL;
    if (part->opens) NBL_TRY(add_frame(s, false, trained, out));
    int64_t first = out->count;
    NBL_TRY(reserve(out, first + list->count));
    for (int64_t i = 0; i < list->count; i++) NBL_TRY(nbl__labelled_add(out, list->ids[i], trained));
    token_spans p = {.ids = out->ids + first, .labels = out->labels + first, .count = list->count};
    if (part->mask == NBL_LOSS_MASK_MARKS) NBL_TRY(label_marks(s, arena, part, &p, out));
    if (part->mask == NBL_LOSS_MASK_TURNS)
        NBL_TRY(label_turns(s, dataset, arena, part, count, list, &p, out));
    if (!part->closes) return NBL_OK;
    NBL_TRY(add_frame(s, true, trained, out));
    if (out->count == 0 || out->ids[out->count - 1] != s->eos)
        NBL_TRY(nbl__labelled_add(out, s->eos, trained));
    return NBL_OK;
}

nbl_status nbl__example_label(const nbl__row_encoder *s, const nbl__dataset_config *dataset,
                              nbl__arena *arena, const nbl__example_text *example_text, const nbl_ids *lists,
                              nbl__labelled *out)
{
    out->count = out->turns = out->ended = 0;
    if (example_text->ids) {
        NBL_TRY(reserve(out, example_text->id_count));
        memcpy(out->ids, example_text->ids, (size_t)example_text->id_count * sizeof *out->ids);
        memcpy(out->labels, example_text->labels, (size_t)example_text->id_count * sizeof *out->labels);
        out->count = example_text->id_count;
        return NBL_OK;
    }
    for (int64_t i = 0, next; i < example_text->part_count; i = next) {
        for (next = i + 1;
             next < example_text->part_count && example_text->parts[next].mask == NBL_LOSS_MASK_PROBE;
             next++) {}
        NBL_TRY(add_part(s, dataset, arena, &example_text->parts[i], next - i, &lists[i], out));
    }
    for (int64_t i = 0; i < out->count; i++)
        NBL_CHECK(s->ctx, out->ids[i] < s->vocabulary, NBL_ERROR_FORMAT,
                  "the tokenizer makes the token %d, the model's vocabulary has %" PRId64, out->ids[i],
                  s->vocabulary);
    return NBL_OK;
}
