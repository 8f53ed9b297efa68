/* tokenizer_json_ends.c - reads the parts of tokenizer.json that act before and after the model:
 * added tokens, truncation, padding and the post-processor.
 *
 * A post-processor puts fixed ids around a single sequence. So it runs only once, when the file is
 * read, on a sequence that consists of the placeholder -1. The result is a frame, for example {101,
 * -1, 102} for [CLS] A [SEP]. Encoding copies the frame and replaces -1 by the ids of the text.
 * There are two frames: with special tokens and without. */
#include "text/tokenizer/tokenizer.h"

enum { MAX_PARTS = 256, MAX_ITEMS = 1 << 16 }; /* sequences; ids of one sequence */

/* ---- added tokens ---- */

/* Reads one added token. Its text is normalized here, once, if it is searched in normalized
 * text. */
static nbl_status read_added_token(nbl__tokenizer_reader *r, nbl__tokenizer_worker *worker,
                                   const nbl__json *value, int32_t *next_id)
{
    static const char part[] = "added_tokens";
    nbl_tokenizer *t = r->tokenizer;
    nbl__added_token token = {0};
    uint64_t id;
    NBL_CHECK(r->ctx, nbl__json_is(value, NBL_JSON_OBJECT), NBL_ERROR_FORMAT,
              "%s: added_tokens: an entry is not an object", r->where);
    NBL_TRY(nbl__get_text(r, part, value, "content", NBL_PRESENCE_REQUIRED, &token.content));
    NBL_TRY(nbl__get_natural(r, part, value, "id", NBL_PRESENCE_REQUIRED, &id));
    NBL_CHECK(r->ctx, id <= UINT32_MAX, NBL_ERROR_FORMAT, "%s: added_tokens: the id of \"%s\" is too large",
              r->where, token.content.text);
    NBL_TRY(nbl__get_bool(r, part, value, "single_word", NBL_PRESENCE_REQUIRED, &token.single_word));
    NBL_TRY(nbl__get_bool(r, part, value, "lstrip", NBL_PRESENCE_REQUIRED, &token.left_strip));
    NBL_TRY(nbl__get_bool(r, part, value, "rstrip", NBL_PRESENCE_REQUIRED, &token.right_strip));
    NBL_TRY(nbl__get_bool(r, part, value, "normalized", NBL_PRESENCE_REQUIRED, &token.normalized));
    NBL_TRY(nbl__get_bool(r, part, value, "special", NBL_PRESENCE_REQUIRED, &token.special));
    if (token.content.size == 0) return NBL_OK; /* as upstream: an empty token is ignored */
    if (token.normalized && t->normalizer_count) {
        nbl__normal text = {token.content.text, token.content.size, 0};
        NBL_TRY(nbl__normalize(t->normalizers, t->normalizer_count, &worker->normalizer, &text));
        if (text.size != token.content.size || memcmp(text.text, token.content.text, text.size) != 0) {
            char *copy = nbl__arena_alloc(r->arena, text.size + 1);
            if (copy == NULL) return NBL_ERROR_MEMORY;
            if (text.size) memcpy(copy, text.text, text.size);
            token.normal = (nbl__slice){copy, text.size};
        }
    }
    nbl__added_add(&t->added, &t->model, &token, next_id);
    return NBL_OK;
}

nbl_status nbl__read_added_tokens(nbl__tokenizer_reader *r, const nbl__json *value)
{
    nbl_tokenizer *t = r->tokenizer;
    NBL_CHECK(r->ctx, value == NULL || value->type == NBL_JSON_ARRAY, NBL_ERROR_FORMAT,
              "%s: \"added_tokens\" is not a list", r->where);
    int64_t count = value ? value->count : 0;
    NBL_CHECK(r->ctx, count + t->model.size < INT32_MAX, NBL_ERROR_UNSUPPORTED, "%s: too many added_tokens",
              r->where);
    NBL_TRY(nbl__added_open(r->ctx, &t->added, (size_t)count));
    int32_t next_id = (int32_t)t->model.size;
    for (int64_t i = 0; i < count; i++)
        NBL_TRY(read_added_token(r, &t->workers[0], &value->items[i], &next_id));
    return nbl__added_finish(&t->added, r->where);
}

/* ---- truncation and padding ---- */

/* Reads the side on which ids are cut off or padding is added. */
static nbl_status read_side(nbl__tokenizer_reader *r, const char *part, const nbl__json *value,
                            nbl__presence need, nbl__side *side)
{
    nbl__slice text = {"Right", 5};
    NBL_TRY(nbl__get_text(r, part, value, "direction", need, &text));
    *side = strcmp(text.text, "Left") == 0 ? NBL_SIDE_LEFT : NBL_SIDE_RIGHT;
    NBL_CHECK(r->ctx, *side == NBL_SIDE_LEFT || strcmp(text.text, "Right") == 0, NBL_ERROR_FORMAT,
              "%s: %s: the direction \"%s\" is not known", r->where, part, text.text);
    return NBL_OK;
}

nbl_status nbl__read_truncation(nbl__tokenizer_reader *r, const nbl__json *value)
{
    static const char part[] = "truncation";
    nbl__truncation *cut = &r->tokenizer->truncation;
    nbl__slice strategy;
    if (value == NULL || value->type == NBL_JSON_NULL) return NBL_OK;
    NBL_TRY(read_side(r, part, value, NBL_PRESENCE_DEFAULT, &cut->side));
    NBL_TRY(nbl__get_natural(r, part, value, "max_length", NBL_PRESENCE_REQUIRED, &cut->max));
    NBL_TRY(nbl__get_natural(r, part, value, "stride", NBL_PRESENCE_REQUIRED, &cut->stride));
    NBL_TRY(nbl__get_text(r, part, value, "strategy", NBL_PRESENCE_REQUIRED, &strategy));
    if (strcmp(strategy.text, "OnlySecond") == 0) cut->of = NBL_TRUNCATE_SECOND;
    else
        NBL_CHECK(
            r->ctx, strcmp(strategy.text, "LongestFirst") == 0 || strcmp(strategy.text, "OnlyFirst") == 0,
            NBL_ERROR_FORMAT, "%s: truncation: the strategy \"%s\" is not known", r->where, strategy.text);
    cut->on = true;
    return NBL_OK;
}

nbl_status nbl__read_padding(nbl__tokenizer_reader *r, const nbl__json *value)
{
    static const char part[] = "padding";
    nbl__padding *pad = &r->tokenizer->padding;
    nbl__slice ignored;
    uint64_t type_id; /* checked only: nibble has no token type ids */
    if (value == NULL || value->type == NBL_JSON_NULL) return NBL_OK;
    const nbl__json *strategy = nbl__json_get(value, "strategy");
    const nbl__json *fixed = nbl__json_get(strategy, "Fixed");
    if (fixed) {
        NBL_TRY(nbl__get_natural(r, part, strategy, "Fixed", NBL_PRESENCE_REQUIRED, &pad->fixed));
        pad->is_fixed = true;
    } else {
        NBL_CHECK(r->ctx,
                  nbl__json_is(strategy, NBL_JSON_STRING) && strcmp(strategy->string, "BatchLongest") == 0,
                  NBL_ERROR_FORMAT,
                  "%s: padding: \"strategy\" is neither \"BatchLongest\" nor {\"Fixed\": n}", r->where);
    }
    NBL_TRY(read_side(r, part, value, NBL_PRESENCE_REQUIRED, &pad->side));
    NBL_TRY(nbl__get_natural(r, part, value, "pad_to_multiple_of", NBL_PRESENCE_OPTIONAL, &pad->multiple));
    NBL_TRY(nbl__get_natural(r, part, value, "pad_type_id", NBL_PRESENCE_REQUIRED, &type_id));
    NBL_TRY(nbl__get_text(r, part, value, "pad_token", NBL_PRESENCE_REQUIRED, &ignored));
    NBL_CHECK(r->ctx, nbl__json_id(nbl__json_get(value, "pad_id"), &pad->id), NBL_ERROR_FORMAT,
              "%s: padding: \"pad_id\" is not the id of a token", r->where);
    NBL_CHECK(r->ctx, pad->fixed <= 1 << 24 && pad->multiple <= 1 << 24, NBL_ERROR_UNSUPPORTED,
              "%s: padding to more than 16777216 tokens", r->where);
    pad->on = true;
    return NBL_OK;
}

/* ---- post-processor ----
 *
 * Upstream's post-processors map a list of sequences to a list of sequences. The list starts with
 * one sequence, {-1}. Each processor reads `now`, writes `next` and swaps the two. */

/* Sequences of ids; -1 is the placeholder. */
typedef struct parts {
    nbl__frame items[MAX_PARTS];
    int count;
} parts;

typedef struct processing {
    nbl__tokenizer_reader *reader;
    parts *now, *next;
    bool special;   /* add special tokens */
    uint64_t added; /* special tokens that the processors add, counted also if !special */
} processing;

static const char post[] = "post_processor";

/* Appends a copy of a sequence to `next`. */
static nbl_status add_part(processing *p, const int32_t *items, int64_t count)
{
    nbl__tokenizer_reader *r = p->reader;
    NBL_CHECK(r->ctx, p->next->count < MAX_PARTS && count < MAX_ITEMS, NBL_ERROR_UNSUPPORTED,
              "%s: %s: too many parts", r->where, post);
    int32_t *copy = nbl__arena_alloc(r->arena, (size_t)count * sizeof *copy);
    if (copy == NULL) return NBL_ERROR_MEMORY;
    if (count) memcpy(copy, items, (size_t)count * sizeof *copy);
    p->next->items[p->next->count++] = (nbl__frame){copy, count};
    return NBL_OK;
}

/* Ends a processor: `next` becomes `now`, and the new `next` is empty. */
static void turn(processing *p)
{
    parts *swap = p->now;
    p->now = p->next;
    p->next = swap;
    p->next->count = 0;
}

/* Finds the entry `name` of special_tokens and checks its list of ids. */
static nbl_status read_special(processing *p, const nbl__json *tokens, const char *name,
                               const nbl__json **ids)
{
    nbl__tokenizer_reader *r = p->reader;
    const nbl__json *entry = nbl__json_get(tokens, name);
    NBL_CHECK(r->ctx, entry, NBL_ERROR_FORMAT,
              "%s: %s: the template names \"%s\", which special_tokens does not have", r->where, post, name);
    *ids = nbl__json_get(entry, "ids");
    bool good = nbl__json_is(*ids, NBL_JSON_ARRAY) && (*ids)->count < MAX_ITEMS;
    int32_t id;
    for (int64_t i = 0; good && i < (*ids)->count; i++) good = nbl__json_id(&(*ids)->items[i], &id);
    NBL_CHECK(r->ctx, good, NBL_ERROR_FORMAT, "%s: %s: the \"ids\" of \"%s\" are not a list of ids", r->where,
              post, name);
    return NBL_OK;
}

/* Adds the ids of a special token, unless the frame is the one without special tokens. They are
 * counted in any case, because truncation leaves room for them. */
static nbl_status add_special(processing *p, const nbl__json *ids)
{
    p->added += (uint64_t)ids->count;
    if (!p->special) return NBL_OK;
    int32_t *items = nbl__arena_alloc(p->reader->arena, (size_t)ids->count * sizeof *items);
    if (items == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < ids->count; i++) nbl__json_id(&ids->items[i], &items[i]);
    return add_part(p, items, ids->count);
}

/* Reads the list `key` ("single" or "pair") of a template. Its sequences are appended if `used`;
 * the other list is only checked. */
static nbl_status read_template(processing *p, const nbl__json *value, const char *key, bool used)
{
    nbl__tokenizer_reader *r = p->reader;
    const nbl__json *list = nbl__json_get(value, key), *ids = NULL;
    NBL_CHECK(r->ctx, nbl__json_is(list, NBL_JSON_ARRAY), NBL_ERROR_FORMAT, "%s: %s: \"%s\" is not a list",
              r->where, post, key);
    for (int64_t i = 0; i < list->count; i++) {
        const nbl__json *special = nbl__json_get(&list->items[i], "SpecialToken");
        const nbl__json *sequence = nbl__json_get(&list->items[i], "Sequence");
        const char *name = nbl__json_text(special ? special : sequence, "id");
        uint64_t type_id;
        NBL_CHECK(r->ctx, name && (special || strcmp(name, "A") == 0 || strcmp(name, "B") == 0),
                  NBL_ERROR_FORMAT,
                  "%s: %s: \"%s\": entry %" PRId64 " is neither a SpecialToken nor a Sequence", r->where,
                  post, key, i);
        NBL_TRY(nbl__get_natural(r, post, special ? special : sequence, "type_id", NBL_PRESENCE_REQUIRED,
                                 &type_id));
        if (special) {
            NBL_TRY(read_special(p, nbl__json_get(value, "special_tokens"), name, &ids));
            if (used) NBL_TRY(add_special(p, ids));
        } else if (used) {
            int which = name[0] == 'B';
            NBL_CHECK(r->ctx, which < p->now->count, NBL_ERROR_UNSUPPORTED,
                      "%s: %s: \"%s\" uses a second sequence, and there is one only", r->where, post, key);
            NBL_TRY(add_part(p, p->now->items[which].items, p->now->items[which].count));
        }
    }
    return NBL_OK;
}

/* TemplateProcessing: "single" builds the result from the one sequence, "pair" from two. */
static nbl_status run_template(processing *p, const nbl__json *value)
{
    nbl__tokenizer_reader *r = p->reader;
    NBL_CHECK(r->ctx, nbl__json_is(nbl__json_get(value, "special_tokens"), NBL_JSON_OBJECT), NBL_ERROR_FORMAT,
              "%s: %s: \"special_tokens\" is not an object", r->where, post);
    NBL_CHECK(r->ctx, p->now->count <= 2, NBL_ERROR_UNSUPPORTED,
              "%s: %s: a template after another is not supported", r->where, post);
    int first = p->now->count == 1;
    NBL_TRY(read_template(p, value, "single", first));
    NBL_TRY(read_template(p, value, "pair", !first));
    turn(p);
    return NBL_OK;
}

/* Reads the id of a pair such as ["[SEP]", 102]. */
static nbl_status read_pair(nbl__tokenizer_reader *r, const nbl__json *value, const char *key, int32_t *id)
{
    const nbl__json *pair = nbl__json_get(value, key);
    NBL_CHECK(r->ctx,
              nbl__json_is(pair, NBL_JSON_ARRAY) && pair->count == 2 &&
                  pair->items[0].type == NBL_JSON_STRING && nbl__json_id(&pair->items[1], id),
              NBL_ERROR_FORMAT, "%s: %s: \"%s\" is not a text and an id", r->where, post, key);
    return NBL_OK;
}

/* BertProcessing: [CLS] A [SEP], and B [SEP] for further sequences. RobertaProcessing: <s> A </s>,
 * and </s> B </s> for further sequences. */
static nbl_status run_classic(processing *p, const nbl__json *value, bool roberta)
{
    nbl__tokenizer_reader *r = p->reader;
    int32_t cls, sep;
    NBL_TRY(read_pair(r, value, "cls", &cls));
    NBL_TRY(read_pair(r, value, "sep", &sep));
    p->added += 2;
    if (!p->special) return NBL_OK;
    for (int i = 0; i < p->now->count; i++) {
        const nbl__frame *in = &p->now->items[i];
        int32_t *items = nbl__arena_alloc(r->arena, (size_t)(in->count + 2) * sizeof *items);
        if (items == NULL) return NBL_ERROR_MEMORY;
        int64_t n = 0;
        if (i == 0) items[n++] = cls;
        else if (roberta) items[n++] = sep;
        memcpy(items + n, in->items, (size_t)in->count * sizeof *items);
        n += in->count;
        items[n++] = sep;
        NBL_TRY(add_part(p, items, n));
    }
    turn(p);
    return NBL_OK;
}

/* Runs one post-processor, or a sequence of them. */
static nbl_status run_processor(processing *p, const nbl__json *value, int depth)
{
    nbl__tokenizer_reader *r = p->reader;
    const char *type;
    bool ignored;
    NBL_TRY(nbl__get_type(r, post, value, &type));
    if (strcmp(type, "TemplateProcessing") == 0) return run_template(p, value);
    if (strcmp(type, "BertProcessing") == 0) return run_classic(p, value, false);
    if (strcmp(type, "RobertaProcessing") == 0) {
        NBL_TRY(nbl__get_bool(r, post, value, "trim_offsets", NBL_PRESENCE_REQUIRED, &ignored));
        NBL_TRY(nbl__get_bool(r, post, value, "add_prefix_space", NBL_PRESENCE_REQUIRED, &ignored));
        return run_classic(p, value, true);
    }
    if (strcmp(type, "ByteLevel") == 0) { /* changes offsets into the text only, never ids */
        NBL_TRY(nbl__get_bool(r, post, value, "trim_offsets", NBL_PRESENCE_REQUIRED, &ignored));
        return nbl__get_bool(r, post, value, "add_prefix_space", NBL_PRESENCE_REQUIRED, &ignored);
    }
    NBL_CHECK(r->ctx, strcmp(type, "Sequence") == 0, NBL_ERROR_UNSUPPORTED,
              "%s: %s: the type \"%s\" is not known", r->where, post, type);
    const nbl__json *list = nbl__json_get(value, "processors");
    NBL_CHECK(r->ctx, nbl__json_is(list, NBL_JSON_ARRAY), NBL_ERROR_FORMAT,
              "%s: %s: \"processors\" is not a list", r->where, post);
    NBL_CHECK(r->ctx, depth < 16, NBL_ERROR_UNSUPPORTED, "%s: %s: sequences nested more than 16 deep",
              r->where, post);
    for (int64_t i = 0; i < list->count; i++) NBL_TRY(run_processor(p, &list->items[i], depth + 1));
    return NBL_OK;
}

/* Runs the post-processor on {-1} and joins the resulting sequences into one frame. */
static nbl_status make_frame(nbl__tokenizer_reader *r, const nbl__json *value, bool special, parts *memory,
                             nbl__frame *frame)
{
    static const int32_t holder = -1;
    processing p = {r, &memory[0], &memory[1], special, 0};
    memory[0].count = memory[1].count = 0;
    NBL_TRY(add_part(&p, &holder, 1));
    turn(&p);
    if (value && value->type != NBL_JSON_NULL) NBL_TRY(run_processor(&p, value, 0));
    int64_t count = 0;
    for (int i = 0; i < p.now->count; i++) count += p.now->items[i].count;
    frame->items = nbl__arena_alloc(r->arena, (size_t)count * sizeof *frame->items);
    if (frame->items == NULL) return NBL_ERROR_MEMORY;
    for (int i = 0; i < p.now->count; i++)
        for (int64_t k = 0; k < p.now->items[i].count; k++)
            frame->items[frame->count++] = p.now->items[i].items[k];
    r->tokenizer->frame_tokens = p.added;
    return NBL_OK;
}

nbl_status nbl__read_post_processor(nbl__tokenizer_reader *r, const nbl__json *value)
{
    parts *memory = nbl__arena_alloc(r->arena, 2 * sizeof *memory);
    if (memory == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(make_frame(r, value, false, memory, &r->tokenizer->plain));
    return make_frame(r, value, true, memory, &r->tokenizer->framed);
}
