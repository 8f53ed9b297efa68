/* run.c - reads the tensors and attributes of a file, and runs operators; see run.h.
 *
 * A weight has the names that checkpoints give it: NAME alone is dense; with NAME.absmax and a
 * quant_state it is nf4 or fp4, with NAME.SCB int8, and NAME_blocks with NAME_scales is mxfp4. */
#include "run.h"

#include <stdio.h>

#include "device.h"
#include "format/hf/bnb_state.h"
#include "format/hf/result_file.h"

/* Finds a tensor and counts it as read. */
static const nbl__stored *find(const run *r, const char *name)
{
    for (int64_t i = 0; i < r->stored_count; i++) {
        if (strcmp(r->stored[i].name, name) != 0) continue;
        r->read[i] = true;
        return &r->stored[i];
    }
    return NULL;
}

/* Finds a part of a weight: NAME and an ending. */
static const nbl__stored *find_part(const run *r, const char *name, const char *part)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", name, part);
    return find(r, full);
}

bool run_has(const run *r, const char *name)
{
    return find(r, name) != NULL;
}

/* A copy aligned to 64 bytes; never NULL, also when it is empty. */
static nbl_status copy_of(run *r, const nbl__stored *s, void **data)
{
    uint8_t *copy = nbl__arena_alloc(&r->arena, s->bytes + 64);
    if (copy == NULL) return NBL_ERROR_MEMORY;
    copy = (uint8_t *)(((uintptr_t)copy + 63) / 64 * 64);
    if (s->bytes) memcpy(copy, s->data, s->bytes);
    *data = copy;
    return NBL_OK;
}

/* A tensor that the file may lack: rank 0 then. */
nbl_status run_optional(run *r, const char *name, nbl_tensor *tensor)
{
    const nbl__stored *s = find(r, name);
    *tensor = (nbl_tensor){0};
    if (s == NULL) return NBL_OK;
    *tensor = (nbl_tensor){.dtype = s->dtype, .rank = s->rank};
    memcpy(tensor->shape, s->shape, sizeof tensor->shape);
    return copy_of(r, s, &tensor->data);
}

nbl_status run_tensor(run *r, const char *name, nbl_tensor *tensor)
{
    NBL_CHECK(r->ctx, run_has(r, name), NBL_ERROR_NOT_FOUND, "%s: no tensor \"%s\"", r->op, name);
    return run_optional(r, name, tensor);
}

/* Checks codes and row scales and describes them as a weight. The codes stay in the mapped file. */
static nbl_status int8_weight(run *r, const char *name, const nbl__stored *codes, const nbl__stored *scales,
                              nbl_weight *w)
{
    bool fits = codes && codes->dtype == NBL_DTYPE_I8 && (codes->rank == 2 || codes->rank == 3);
    NBL_CHECK(r->ctx, fits, NBL_ERROR_FORMAT,
              "%s: \"%s\" has scales (SCB), but is not a matrix of i8, or a stack", r->op, name);
    int64_t rows = codes->shape[0] * (codes->rank == 3 ? codes->shape[1] : 1);
    NBL_CHECK(r->ctx, scales->dtype == NBL_DTYPE_F32 && scales->elements == rows, NBL_ERROR_FORMAT,
              "%s: \"%s.SCB\" is not one f32 per row", r->op, name);
    *w = (nbl_weight){
        .format = NBL_FORMAT_INT8, .dtype = NBL_DTYPE_F16, .rank = codes->rank, .data = codes->data};
    memcpy(w->shape, codes->shape, sizeof w->shape);
    return nbl__stored_floats(&r->arena, scales, &w->scales);
}

/* The same for blocks and scales of mxfp4. */
static nbl_status mxfp4_weight(run *r, const char *name, const nbl__stored *blocks, const nbl__stored *scales,
                               nbl_weight *w)
{
    bool fits = scales && blocks->dtype == NBL_DTYPE_U8 && scales->dtype == NBL_DTYPE_U8 &&
                (scales->rank == 2 || scales->rank == 3) && blocks->rank == scales->rank + 1 &&
                blocks->shape[scales->rank] == 16;
    for (int i = 0; fits && i < scales->rank; i++) fits = scales->shape[i] == blocks->shape[i];
    NBL_CHECK(
        r->ctx, fits, NBL_ERROR_FORMAT,
        "%s: \"%s_blocks\" [out, in/32, 16] and \"%s_scales\" [out, in/32], or stacks of such, do not fit",
        r->op, name, name);
    *w = (nbl_weight){.format = NBL_FORMAT_MXFP4,
                      .dtype = NBL_DTYPE_BF16,
                      .rank = scales->rank,
                      .block = 32,
                      .data = blocks->data,
                      .scale_codes = scales->data};
    memcpy(w->shape, scales->shape, sizeof w->shape);
    w->shape[w->rank - 1] *= 32;
    return NBL_OK;
}

bool run_has_weight(const run *r, const char *name)
{
    return find(r, name) || find_part(r, name, "_blocks");
}

/* Reads a weight in any storage format. All of its parts count as read. */
nbl_status run_weight(run *r, const char *name, nbl_weight *w)
{
    nbl__bnb_parts parts = {.packed = find(r, name),
                            .absmax = find_part(r, name, ".absmax"),
                            .quant_map = find_part(r, name, ".quant_map"),
                            .nested_absmax = find_part(r, name, ".nested_absmax"),
                            .nested_quant_map = find_part(r, name, ".nested_quant_map"),
                            .state = find_part(r, name, ".quant_state.bitsandbytes__nf4")};
    if (parts.state == NULL) parts.state = find_part(r, name, ".quant_state.bitsandbytes__fp4");
    if (parts.state) return nbl__bnb_describe(&r->arena, name, &parts, w);
    NBL_CHECK(r->ctx, parts.absmax == NULL, NBL_ERROR_FORMAT, "%s: \"%s\" has scales, but no quant_state",
              /* scales alone do not say how the codes are to be read */
              r->op, name);
    const nbl__stored *scb = find_part(r, name, ".SCB"), *blocks = find_part(r, name, "_blocks");
    if (scb) return int8_weight(r, name, parts.packed, scb, w);
    if (blocks) return mxfp4_weight(r, name, blocks, find_part(r, name, "_scales"), w);
    NBL_CHECK(r->ctx, parts.packed, NBL_ERROR_NOT_FOUND, "%s: no weight \"%s\"", r->op, name);
    *w = (nbl_weight){.format = NBL_FORMAT_DENSE,
                      .dtype = parts.packed->dtype,
                      .rank = parts.packed->rank,
                      .data = parts.packed->data};
    memcpy(w->shape, parts.packed->shape, sizeof w->shape);
    return NBL_OK;
}

/* ---- attributes ---- */

/* Returns an attribute and counts it as used; NULL: absent or null. */
const nbl__json *run_attribute(run *r, const char *name)
{
    const nbl__json *value = nbl__json_get(r->attrs, name);
    if (value) r->used[value - r->attrs->items] = true;
    return nbl__json_is(value, NBL_JSON_NULL) ? NULL : value;
}

nbl_status run_number(run *r, const char *name, double missing, double *value)
{
    const nbl__json *it = run_attribute(r, name);
    *value = missing;
    NBL_CHECK(r->ctx, it == NULL || nbl__json_number(it, value), NBL_ERROR_ARGUMENT,
              "%s: attribute %s is not a number", r->op, name);
    return NBL_OK;
}

/* Booleans of JSON; a text "true" is an error. */
nbl_status run_flag(run *r, const char *name, bool missing, bool *value)
{
    const nbl__json *it = run_attribute(r, name);
    *value = it ? it->type == NBL_JSON_TRUE : missing;
    NBL_CHECK(r->ctx, it == NULL || it->type == NBL_JSON_TRUE || it->type == NBL_JSON_FALSE,
              NBL_ERROR_ARGUMENT, "%s: attribute %s is not true or false", r->op, name);
    return NBL_OK;
}

nbl_status run_word(run *r, const char *name, const char *missing, const char **value)
{
    const nbl__json *it = run_attribute(r, name);
    *value = it && it->type == NBL_JSON_STRING ? it->string : missing;
    NBL_CHECK(r->ctx, it == NULL || it->type == NBL_JSON_STRING, NBL_ERROR_ARGUMENT,
              "%s: attribute %s is not text", r->op, name);
    return NBL_OK;
}

nbl_status run_integer(run *r, const char *name, double missing, double min, double *value)
{
    NBL_TRY(run_number(r, name, missing, value));
    NBL_CHECK(r->ctx, *value >= min && *value < 0x1p53 && *value == (double)(int64_t)*value,
              NBL_ERROR_ARGUMENT, "%s: attribute %s is not a whole number in range", r->op, name);
    return NBL_OK;
}

nbl_status run_choice(run *r, const char *name, const char *const *words, int missing, int *value)
{
    const char *word;
    NBL_TRY(run_word(r, name, words[missing], &word));
    for (*value = 0; words[*value]; (*value)++)
        if (strcmp(words[*value], word) == 0) return NBL_OK;
    return nbl__fail(r->ctx, NBL_ERROR_ARGUMENT, "%s: attribute %s is \"%s\", not one of \"%s\" and the like",
                     r->op, name, word, words[0]);
}

nbl_status run_dtype(run *r, const char *name, nbl_dtype *dtype)
{
    const char *word;
    NBL_TRY(run_word(r, name, NULL, &word));
    NBL_CHECK(r->ctx, word && nbl_dtype_parse(word, dtype) && nbl__is_compute(*dtype), NBL_ERROR_DTYPE,
              "%s: attribute %s is \"%s\", not f32, f16 or bf16", r->op, name, word ? word : "missing");
    return NBL_OK;
}

/* ---- running ---- */

/* Memory filled with NaN bytes, aligned to 64 bytes. */
nbl_status run_memory(run *r, const char *name, nbl_tensor *tensor)
{
    uint64_t bytes;
    NBL_CHECK(r->ctx,
              nbl__dtype_bytes(tensor->dtype, (uint64_t)nbl__tensor_elements(tensor), &bytes) &&
                  bytes <= PTRDIFF_MAX - 64,
              NBL_ERROR_SHAPE, "%s: %s is too large", r->op, name);
    uint8_t *memory = nbl__arena_alloc(&r->arena, bytes + 64);
    if (memory == NULL) return NBL_ERROR_MEMORY;
    tensor->data = (uint8_t *)(((uintptr_t)memory + 63) / 64 * 64);
    memset(tensor->data, 0xff, bytes);
    return NBL_OK;
}

/* An output of the file: memory, and an entry for the writer. */
nbl_status run_output(run *r, const char *name, nbl_tensor *tensor)
{
    NBL_CHECK(r->ctx, r->output_count < RUN_MAX_OUTPUTS, NBL_ERROR_INTERNAL, "%s: too many outputs", r->op);
    NBL_TRY(run_memory(r, name, tensor));
    nbl__stored *o = &r->outputs[r->output_count];
    *o = (nbl__stored){.name = nbl__arena_strdup(&r->arena, name),
                       .dtype = tensor->dtype,
                       .rank = tensor->rank,
                       .elements = nbl__tensor_elements(tensor),
                       .data = tensor->data};
    if (o->name == NULL) return NBL_ERROR_MEMORY;
    memcpy(o->shape, tensor->shape, sizeof o->shape);
    nbl__dtype_bytes(o->dtype, (uint64_t)o->elements, &o->bytes);
    r->output_count++;
    return NBL_OK;
}

/* Runs an operator on the context's device. r->impl is the implementation that ran. */
nbl_status run_op(run *r, const nbl__family *family, const nbl__op *op, const void *arguments)
{
    const nbl__impl *impl = NULL;
    if (nbl__device_of(r->ctx)->separate_memory) {
        nbl_status done = device_run(r->ctx, family, op, NULL, r->force, arguments, DEVICE_PLAIN, &impl);
        r->impl = impl ? impl->name : NULL;
        return done;
    }
    /* the CPU: scratch is poisoned, so that an implementation cannot rely on zeros in it */
    NBL_TRY(nbl__op_choose(r->ctx, op, arguments, r->force, &impl));
    size_t bytes = nbl__op_scratch(r->ctx, impl, arguments);
    uint8_t *scratch = nbl__alloc(r->ctx, bytes);
    if (scratch == NULL) return NBL_ERROR_MEMORY;
    memset(scratch, 0xff, bytes);
    nbl_status status = nbl__op_run(r->ctx, op, impl, arguments, scratch, bytes);
    nbl__free(r->ctx, scratch, bytes);
    r->impl = impl->name;
    return status;
}

/* Reads the metadata from the head of the safetensors file, whose first 8 bytes are its length. */
static nbl_status read_metadata(run *r, const char *path, const nbl__file *file)
{
    uint64_t length = 0;
    const nbl__json *header;
    for (int i = 7; i >= 0; i--) length = length << 8 | file->data[i]; /* it parsed before: it is sound */
    NBL_TRY(nbl__json_parse(&r->arena, path, (const char *)file->data + 8, length, NBL_JSON_STRICT, &header));
    const char *attrs = nbl__json_text(r->metadata = nbl__json_get(header, "__metadata__"), "attrs");
    r->op = nbl__json_text(r->metadata, "op");
    NBL_CHECK(r->ctx, r->op, NBL_ERROR_FORMAT, "%s: no metadata \"op\"", path);
    NBL_TRY(nbl__json_parse(&r->arena, "attrs", attrs ? attrs : "{}", attrs ? strlen(attrs) : 2,
                            NBL_JSON_PYTHON, &r->attrs));
    NBL_CHECK(r->ctx, r->attrs->count <= RUN_MAX_ATTRIBUTES, NBL_ERROR_FORMAT, "%s: too many attributes",
              r->op);
    return NBL_OK;
}

/* The order matters: a tensor or attribute is unknown only if the binding did not read it. */
nbl_status run_input(run *r, const char *in, const nbl__file *file)
{
    NBL_TRY(nbl__safetensors_parse(&r->arena, in, file->data, file->size, &r->stored, &r->stored_count));
    NBL_TRY(read_metadata(r, in, file));
    r->read = nbl__arena_alloc(&r->arena, (size_t)r->stored_count + 1);
    if (r->read == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < r->stored_count; i++)
        r->read[i] = strncmp(r->stored[i].name, RUN_EXPECT, strlen(RUN_EXPECT)) == 0;
    NBL_TRY(run_bound(r));
    for (int64_t i = 0; i < r->attrs->count; i++)
        NBL_CHECK(r->ctx, r->used[i], NBL_ERROR_ARGUMENT, "%s: unknown attribute \"%s\"", r->op,
                  r->attrs->items[i].key);
    for (int64_t i = 0; i < r->stored_count; i++)
        NBL_CHECK(r->ctx, r->read[i], NBL_ERROR_ARGUMENT, "%s: unknown tensor \"%s\"", r->op,
                  r->stored[i].name);
    return NBL_OK;
}

/* OUT is checked first, so that nothing is computed for a file that must not be replaced. */
static nbl_status run_file(run *r, const char *in, const char *out, const nbl__file *file)
{
    NBL_TRY(nbl__result_file_check(r->ctx, out, true));
    NBL_TRY(run_input(r, in, file));
    return nbl__result_file_write(&r->arena, out, true, r->outputs, r->output_count);
}

nbl_status run_pair(nbl_context *ctx, const char *in, const char *out, const char *force, char op[64],
                    char impl[64])
{
    run r = {.ctx = ctx, .arena = nbl__arena_make(ctx), .force = force};
    nbl__file file;
    nbl_status status = nbl__file_map(ctx, in, &file);
    if (status == NBL_OK) status = run_file(&r, in, out, &file);
    snprintf(op, 64, "%s", r.op ? r.op : "");
    snprintf(impl, 64, "%s", r.impl ? r.impl : "");
    nbl__file_unmap(&file);
    nbl__arena_free(&r.arena);
    return status;
}
