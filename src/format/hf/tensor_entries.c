/* tensor_entries.c - groups stored tensors into logical weights, and summarises the checkpoint.
 *
 * A packed weight is recognised by its companions, never by its dtype alone. The table says which
 * companion decides, [...] is optional:
 *
 *   kind   main part        companions
 *   4-bit  W                W.absmax W.quant_map [W.nested_absmax W.nested_quant_map]
 *                           W.quant_state.bitsandbytes__nf4 | __fp4      (the one that decides)
 *   8-bit  M.weight (I8)    M.SCB (decides), M.weight_format
 *   MXFP4  W_blocks         W_scales; the weight's name is W
 *
 * A companion without its main part, or a main part without a companion, is a problem: codes read
 * as numbers would give a wrong model without an error.
 *
 * Steps (nbl__checkpoint_group): sort by name; group packed weights; find companions that are left
 * over; every other stored tensor is a dense weight; name the text model's weights; summarise. */
#include <stdlib.h>

#include "format/hf/bnb_state.h"
#include "format/hf/checkpoint.h"
#include "format/hf/text_part.h"
#include "quant/quant.h"

typedef struct slot {
    const nbl__stored *stored;
    bool part;             /* a companion of another stored tensor */
    bool main;             /* the main part of a weight, which `info` describes */
    nbl_tensor_info *info; /* the checkpoint's entry of the same index; gaps are closed at the end */
} slot;

typedef struct grouping {
    nbl_checkpoint *c;
    slot *slots;    /* [count], as c->stored */
    slot **by_name; /* [count] */
    int64_t count;
} grouping;

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(slot *const *)a)->stored->name, (*(slot *const *)b)->stored->name);
}

/* The slot of this name; NULL: none. Binary search. */
static slot *find(const grouping *g, const char *name)
{
    int64_t low = 0, high = g->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(name, g->by_name[middle]->stored->name);
        if (order == 0) return g->by_name[middle];
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

/* *stem: the name without `end`, in the arena; NULL if the name does not end with `end`. */
static nbl_status strip(grouping *g, const char *name, const char *end, const char **stem)
{
    *stem = NULL;
    if (!nbl__ends_with(name, end) || strlen(name) == strlen(end)) return NBL_OK;
    *stem = nbl__arena_printf(&g->c->arena, "%.*s", (int)(strlen(name) - strlen(end)), name);
    return *stem ? NBL_OK : NBL_ERROR_MEMORY;
}

/* *stored: the companion called stem + end, which is marked as a part; NULL: none. Adds its size to
 * *bytes. */
static nbl_status take(grouping *g, const char *stem, const char *end, const nbl__stored **stored,
                       uint64_t *bytes)
{
    const char *name = nbl__arena_printf(&g->c->arena, "%s%s", stem, end);
    if (name == NULL) return NBL_ERROR_MEMORY;
    slot *s = find(g, name);
    *stored = s ? s->stored : NULL;
    if (s == NULL) return NBL_OK;
    s->part = true;
    *bytes += s->stored->bytes;
    return NBL_OK;
}

/* Makes `s` the main part of a weight. transposed: the logical shape has the last two dimensions
 * exchanged. */
static void set_entry(slot *s, const char *name, const nbl_weight *weight, uint64_t bytes, bool transposed)
{
    nbl_tensor_info *info = s->info;
    *info = (nbl_tensor_info){.name = name,
                              .file = s->stored->file,
                              .rank = weight->rank,
                              .bytes = bytes,
                              .weight = *weight,
                              .transposed = transposed};
    memcpy(info->shape, weight->shape, sizeof info->shape);
    if (transposed) {
        info->shape[info->rank - 1] = weight->shape[info->rank - 2];
        info->shape[info->rank - 2] = weight->shape[info->rank - 1];
    }
    s->main = true;
    s->part = false;
}

/* ---- 4-bit ---- */

/* Groups a 4-bit weight, found by its quant_state. */
static nbl_status group_fourbit(grouping *g, slot *state, const char *name)
{
    slot *base = find(g, name);
    nbl__bnb_parts parts = {.packed = base ? base->stored : NULL, .state = state->stored};
    uint64_t bytes = state->stored->bytes + (base ? base->stored->bytes : 0);
    state->part = true;
    NBL_TRY(take(g, name, ".absmax", &parts.absmax, &bytes));
    NBL_TRY(take(g, name, ".quant_map", &parts.quant_map, &bytes));
    NBL_TRY(take(g, name, ".nested_absmax", &parts.nested_absmax, &bytes));
    NBL_TRY(take(g, name, ".nested_quant_map", &parts.nested_quant_map, &bytes));
    NBL_CHECK(g->c->ctx, base == NULL || !base->main, NBL_ERROR_FORMAT, "tensor \"%s\": two quant states",
              name);
    nbl_weight weight;
    NBL_TRY(nbl__bnb_describe(&g->c->arena, name, &parts, &weight));
    set_entry(base, base->stored->name, &weight, bytes, false);
    return NBL_OK;
}

/* The error for a 4-bit companion whose weight has no quant_state. */
static nbl_status orphan_companion(grouping *g, slot *s)
{
    static const char *const ends[] = {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"};
    for (int i = 0; i < 4; i++) {
        const char *name;
        NBL_TRY(strip(g, s->stored->name, ends[i], &name));
        NBL_CHECK(g->c->ctx, name == NULL || find(g, name) == NULL, NBL_ERROR_FORMAT,
                  "tensor \"%s\": it has %s, but no quant_state", name, ends[i]);
    }
    return NBL_OK;
}

/* ---- 8-bit ---- */

/* True if config.json says that linear layers are int8. */
static bool says_8bit(const nbl_checkpoint *c)
{
    return c->config.quantization &&
           nbl__json_is(nbl__json_get(c->config.quantization, "load_in_8bit"), NBL_JSON_TRUE);
}

/* Groups an I8 matrix with its row scales: value = code · SCB[row] / 127. Without companions it is
 * plain I8. */
static nbl_status group_int8(grouping *g, slot *s, const char *module)
{
    nbl_context *ctx = g->c->ctx;
    const char *name = s->stored->name;
    const nbl__stored *scales, *format;
    uint64_t bytes = s->stored->bytes;
    NBL_TRY(take(g, module, ".SCB", &scales, &bytes));
    NBL_TRY(take(g, module, ".weight_format", &format, &bytes));
    if (scales == NULL && format == NULL && !says_8bit(g->c)) return NBL_OK; /* plain bytes */
    NBL_CHECK(ctx, scales, NBL_ERROR_FORMAT, "tensor \"%s\": 8-bit codes without their scales (SCB)", name);
    NBL_CHECK(ctx, s->stored->dtype == NBL_DTYPE_I8 && s->stored->rank == 2, NBL_ERROR_FORMAT,
              "tensor \"%s\": it has scales (SCB), but is %s of rank %d, not i8 of rank 2", name,
              nbl_dtype_name(s->stored->dtype), s->stored->rank);
    NBL_CHECK(ctx, scales->dtype == NBL_DTYPE_F32 && scales->elements == s->stored->shape[0],
              NBL_ERROR_FORMAT, "tensor \"%s\": %" PRId64 " scales of %s for %" PRId64 " rows", name,
              scales->elements, nbl_dtype_name(scales->dtype), s->stored->shape[0]);
    NBL_CHECK(ctx, format == NULL || (format->bytes == 1 && format->data[0] == 0), NBL_ERROR_UNSUPPORTED,
              "tensor \"%s\": a legacy 8-bit layout (weight_format is not 0, row)", name);
    nbl_weight weight = {
        .format = NBL_FORMAT_INT8, .dtype = NBL_DTYPE_F16, .rank = 2, .data = s->stored->data};
    memcpy(weight.shape, s->stored->shape, sizeof weight.shape);
    NBL_TRY(nbl__stored_floats(&g->c->arena, scales, &weight.scales));
    set_entry(s, name, &weight, bytes, false);
    return NBL_OK;
}

/* ---- MXFP4 ---- */

static bool says_mxfp4(const nbl_checkpoint *c)
{
    const char *method = nbl__config_method(&c->config);
    return method && strcmp(method, "mxfp4") == 0;
}

/* Groups MXFP4 blocks [..., in / 32, 16] with their scales [..., in / 32]; 16 bytes are 32 codes.
 * The weight is [..., in]. Experts of rank 3 are stored [expert, out, in], while the logical weight
 * is [expert, in, out]. */
static nbl_status group_mxfp4(grouping *g, slot *s, const char *name)
{
    nbl_context *ctx = g->c->ctx;
    const nbl__stored *b = s->stored, *scales;
    uint64_t bytes = b->bytes;
    NBL_TRY(take(g, name, "_scales", &scales, &bytes));
    if (scales == NULL && !says_mxfp4(g->c)) return NBL_OK; /* just a name */
    NBL_CHECK(ctx, scales, NBL_ERROR_FORMAT, "tensor \"%s_scales\" is missing: MXFP4 blocks without scales",
              name);
    NBL_CHECK(ctx, b->dtype == NBL_DTYPE_U8 && scales->dtype == NBL_DTYPE_U8, NBL_ERROR_FORMAT,
              "tensor \"%s\": MXFP4 blocks and scales are u8, not %s and %s", name, nbl_dtype_name(b->dtype),
              nbl_dtype_name(scales->dtype));
    bool fits = b->rank >= 3 && b->shape[b->rank - 1] == 16 && scales->rank == b->rank - 1;
    for (int i = 0; fits && i < scales->rank; i++) fits = scales->shape[i] == b->shape[i];
    NBL_CHECK(ctx, fits, NBL_ERROR_FORMAT, "tensor \"%s\": MXFP4 blocks and scales do not fit each other",
              name);
    nbl_weight weight = {.format = NBL_FORMAT_MXFP4,
                         .dtype = NBL_DTYPE_BF16,
                         .rank = b->rank - 1,
                         .block = 32,
                         .data = b->data,
                         .scale_codes = scales->data};
    for (int i = 0; i < weight.rank; i++) weight.shape[i] = b->shape[i];
    int64_t *last = &weight.shape[weight.rank - 1];
    NBL_CHECK(ctx, !__builtin_mul_overflow(*last, 32, last) && *last <= INT64_MAX / 64, NBL_ERROR_FORMAT,
              "tensor \"%s\": its shape overflows", name);
    set_entry(s, name, &weight, bytes, weight.rank == 3);
    return NBL_OK;
}

/* ---- all of them ---- */

/* Groups one stored tensor with its companions if its name says that it may be packed. */
static nbl_status group_one(grouping *g, slot *s)
{
    const char *name;
    static const char *const states[] = {".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"};
    for (int i = 0; i < 2; i++) {
        NBL_TRY(strip(g, s->stored->name, states[i], &name));
        if (name) return group_fourbit(g, s, name);
    }
    NBL_TRY(strip(g, s->stored->name, "_blocks", &name));
    if (name) return group_mxfp4(g, s, name);
    NBL_TRY(strip(g, s->stored->name, ".weight", &name));
    bool byte = s->stored->dtype == NBL_DTYPE_I8 && s->stored->rank == 2;
    if (name && byte) return group_int8(g, s, name);
    return NBL_OK;
}

/* The error for a companion that no weight has taken. */
static nbl_status find_orphans(grouping *g, slot *s)
{
    if (s->part || s->main) return NBL_OK;
    nbl_context *ctx = g->c->ctx;
    const char *name;
    NBL_TRY(orphan_companion(g, s));
    NBL_TRY(strip(g, s->stored->name, ".SCB", &name));
    NBL_CHECK(ctx, name == NULL, NBL_ERROR_FORMAT, "tensor \"%s.weight\": scales (SCB) without 8-bit codes",
              name);
    NBL_TRY(strip(g, s->stored->name, "_scales", &name));
    NBL_CHECK(ctx, name == NULL || !says_mxfp4(g->c), NBL_ERROR_FORMAT,
              "tensor \"%s_blocks\" is missing: MXFP4 scales without blocks", name);
    return NBL_OK;
}

static void set_dense(slot *s)
{
    const nbl__stored *t = s->stored;
    nbl_weight weight = {.format = NBL_FORMAT_DENSE, .dtype = t->dtype, .rank = t->rank, .data = t->data};
    memcpy(weight.shape, t->shape, sizeof weight.shape);
    set_entry(s, t->name, &weight, t->bytes, false);
}

/* ---- the summary ---- */

/* Adds the module of a dense matrix to the list of modules that are not quantized. */
static nbl_status log_skipped(nbl_checkpoint *c, const nbl_tensor_info *t)
{
    bool matrix = t->weight.format == NBL_FORMAT_DENSE && t->rank == 2 && nbl__is_compute(t->weight.dtype);
    if (!matrix || !nbl__ends_with(t->name, ".weight")) return NBL_OK;
    const char *module = nbl__arena_printf(&c->arena, "%.*s", (int)strlen(t->name) - 7, t->name);
    return module ? nbl__names_add(c, &c->skipped, module) : NBL_ERROR_MEMORY;
}

/* Grouping may create a duplicate name: W_blocks becomes W, and the file may have a W already. */
static nbl_status check_mxfp4_names(grouping *g)
{
    for (int64_t i = 0; i < g->count; i++) {
        const slot *s = &g->slots[i];
        if (!s->main || s->info->weight.format != NBL_FORMAT_MXFP4) continue;
        NBL_CHECK(g->c->ctx, find(g, s->info->name) == NULL, NBL_ERROR_FORMAT,
                  "tensor \"%s\": stored both plain and as MXFP4 blocks", s->info->name);
    }
    return NBL_OK;
}

/* Fills the summary: sizes, the most frequent packed format, disagreements between weights and
 * config.json. */
static nbl_status summarise(nbl_checkpoint *c)
{
    nbl_checkpoint_summary *s = &c->summary;
    s->architecture = c->config.architecture ? c->config.architecture : c->config.model_type;
    s->tensors = c->tensor_count;
    int64_t packed[5] = {0}, total_packed = 0;
    for (int64_t i = 0; i < c->tensor_count; i++) {
        const nbl_tensor_info *t = &c->tensors[i];
        int64_t n = 1;
        for (int d = 0; d < t->rank; d++) n *= t->shape[d];
        if (__builtin_add_overflow(s->parameters, n, &s->parameters)) s->parameters = INT64_MAX;
        s->bytes += t->bytes;
        if (t->weight.format == NBL_FORMAT_DENSE) continue;
        if (total_packed++ == 0) s->block = t->weight.block;
        if (s->block != t->weight.block) s->block = 0;
        s->nested |= t->weight.nested_scales != NULL;
        packed[t->weight.format]++;
    }
    if (total_packed > 0) {
        int max = NBL_FORMAT_NF4;
        for (int f = max; f < 5; f++) max = packed[f] > packed[max] ? f : max;
        s->quantization = nbl_format_name((nbl_format)max);
        for (int64_t i = 0; i < c->tensor_count; i++) NBL_TRY(log_skipped(c, &c->tensors[i]));
    } else {
        s->quantization = nbl__config_method(&c->config);
    }
    if (total_packed && c->config.quantization && (packed[NBL_FORMAT_NF4] || packed[NBL_FORMAT_FP4]))
        s->compute_dtype = nbl__json_text(c->config.quantization, "bnb_4bit_compute_dtype");

    bool ours = s->quantization &&
                (strcmp(s->quantization, "bitsandbytes") == 0 || strcmp(s->quantization, "mxfp4") == 0);
    if (c->mode == NBL_OPEN_TOLERANT && ours && total_packed == 0)
        NBL_TRY(nbl__checkpoint_problem(c, nbl__fail(c->ctx, NBL_ERROR_FORMAT,
                                                     "config.json says %s, but no weight is packed",
                                                     s->quantization)));
    if (c->mode == NBL_OPEN_TOLERANT && total_packed && c->config.root && c->config.quantization == NULL)
        NBL_TRY(nbl__checkpoint_problem(
            c, nbl__fail(c->ctx, NBL_ERROR_FORMAT,
                         "weights are packed, but config.json has no quantization_config")));
    s->skipped = c->skipped.count;
    s->problems = c->problems.count;
    return NBL_OK;
}

/* Fills in text_names. */
static nbl_status name_text(nbl_checkpoint *c)
{
    bool parts = nbl__text_part_of(c->config.root) != NULL;
    c->text_names = nbl__arena_alloc(&c->arena, (size_t)(c->tensor_count + 1) * sizeof *c->text_names);
    if (c->text_names == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < c->tensor_count; i++) {
        const char *stored = c->tensors[i].name;
        if (parts && nbl__text_part_is_other(stored)) continue;
        c->text_names[i] = parts ? nbl__text_name(&c->arena, stored) : stored;
        if (c->text_names[i] == NULL) return NBL_ERROR_MEMORY;
    }
    return NBL_OK;
}

nbl_status nbl__checkpoint_group(nbl_checkpoint *c)
{
    grouping g = {.c = c, .count = c->stored_count};
    nbl_status status = NBL_OK;
    NBL_TRY(NBL_ALLOC(c->ctx, g.slots, g.count));
    NBL_GO(NBL_ALLOC(c->ctx, g.by_name, g.count));
    status = NBL_ERROR_MEMORY;
    c->tensors = nbl__arena_alloc(&c->arena, (size_t)(g.count + 1) * sizeof *c->tensors);
    if (c->tensors == NULL) goto done;
    for (int64_t i = 0; i < g.count; i++) {
        g.slots[i].info = &c->tensors[i];
        g.slots[i].stored = &c->stored[i];
        g.by_name[i] = &g.slots[i];
    }
    /* Sort by name; a duplicate can only come from two files, as each file was checked. */
    qsort(g.by_name, (size_t)g.count, sizeof *g.by_name, compare_names);
    for (int64_t i = 1; i < g.count; i++)
        if (strcmp(g.by_name[i - 1]->stored->name, g.by_name[i]->stored->name) == 0) {
            const nbl__stored *s = g.by_name[i]->stored;
            NBL_GO(nbl__fail(c->ctx, NBL_ERROR_FORMAT, "tensor \"%s\" is in two files, one of them %s",
                             s->name, s->file));
        }
    for (int64_t i = 0; i < g.count; i++) {
        NBL_GO(nbl__checkpoint_problem(c, group_one(&g, &g.slots[i])));
        /* Quant states and tables are small and far apart, and the kernel maps 16 pages around
         * each: drop them. */
        if (i % 64 == 63 || i == g.count - 1) nbl__checkpoint_drop_file(c, g.slots[i].stored->data);
    }
    for (int64_t i = 0; i < g.count; i++) NBL_GO(nbl__checkpoint_problem(c, find_orphans(&g, &g.slots[i])));
    NBL_GO(nbl__checkpoint_problem(c, check_mxfp4_names(&g)));

    /* Every stored tensor that is no companion is a weight; close the gaps that companions
     * leave. */
    for (int64_t i = 0; i < g.count; i++) {
        if (g.slots[i].part) continue;
        if (!g.slots[i].main) set_dense(&g.slots[i]);
        c->tensors[c->tensor_count++] = *g.slots[i].info;
    }
    NBL_GO(name_text(c));
    NBL_GO(summarise(c));
done:
    nbl__free(c->ctx, g.slots, (size_t)g.count * sizeof *g.slots);
    nbl__free(c->ctx, g.by_name, (size_t)g.count * sizeof *g.by_name);
    return status;
}
