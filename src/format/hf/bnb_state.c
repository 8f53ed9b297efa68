/* bnb_state.c - parses, prints and checks bitsandbytes' 4-bit states. See bnb_state.h. */
#include "format/hf/bnb_state.h"

#include <math.h>

#include "quant/quant.h"

#define CHECK(condition, ...) NBL_CHECK(ctx, condition, NBL_ERROR_FORMAT, __VA_ARGS__)

static nbl_status read_json(nbl_context *ctx, const char *name, const nbl__json *root, nbl__bnb_json *state)
{
    const char *type = nbl__json_text(root, "quant_type"), *dtype = nbl__json_text(root, "dtype");
    CHECK(type && (strcmp(type, "nf4") == 0 || strcmp(type, "fp4") == 0),
          "tensor \"%s\": quant_type is \"%s\", not nf4 or fp4", name, type ? type : "missing");
    nbl_format_parse(type, &state->format);
    CHECK(dtype && nbl__dtype_from_torch_name(dtype, &state->dtype),
          "tensor \"%s\": the state's dtype is \"%s\"", name, dtype ? dtype : "missing");
    CHECK(nbl__json_natural(nbl__json_get(root, "blocksize"), &state->block) &&
              nbl__block_valid(state->block),
          "tensor \"%s\": its block size is missing or not one of 32, 64, … 4096", name);
    const nbl__json *shape = nbl__json_get(root, "shape");
    CHECK(nbl__json_shape(shape, &state->rank, state->shape, &state->elements) && state->rank > 0,
          "tensor \"%s\": the state's shape is missing, malformed or too large", name);

    const nbl__json *offset = nbl__json_get(root, "nested_offset");
    state->nested = offset || nbl__json_get(root, "nested_blocksize");
    if (!state->nested) return NBL_OK;
    CHECK(nbl__json_natural(nbl__json_get(root, "nested_blocksize"), &state->nested_block) &&
              state->nested_block > 0 && state->nested_block <= 1 << 20,
          "tensor \"%s\": its nested block size is missing or out of range", name);
    double number;
    CHECK(nbl__json_number(offset, &number), "tensor \"%s\": its nested offset is missing or not a number",
          name);
    state->nested_offset = (float)number;
    CHECK(isfinite(state->nested_offset), "tensor \"%s\": its nested offset is not finite", name);
    const char *nested_dtype = nbl__json_text(root, "nested_dtype");
    CHECK(nested_dtype == NULL || strcmp(nested_dtype, "float32") == 0,
          "tensor \"%s\": nested scales of dtype \"%s\", only float32 is known", name, nested_dtype);
    return NBL_OK;
}

nbl_status nbl__bnb_json_parse(nbl__arena *arena, const char *name, const void *text, size_t size,
                               nbl__bnb_json *state)
{
    const nbl__json *root;
    *state = (nbl__bnb_json){0};
    const char *where = nbl__arena_printf(arena, "tensor \"%s\": its quant_state", name);
    if (where == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(nbl__json_parse(arena, where, text, size, NBL_JSON_STRICT, &root));
    return read_json(arena->ctx, name, root, state);
}

void nbl__bnb_json_print(nbl__text *text, const nbl__bnb_json *state)
{
    nbl__text_printf(text,
                     "{\"quant_type\": \"%s\", \"blocksize\": %" PRId64 ", \"dtype\": \"%s\", \"shape\": [",
                     nbl_format_name(state->format), state->block, nbl__dtype_torch_name(state->dtype));
    for (int i = 0; i < state->rank; i++)
        nbl__text_printf(text, i ? ", %" PRId64 : "%" PRId64, state->shape[i]);
    nbl__text_add(text, "]", 1);
    if (state->nested) {
        nbl__text_printf(
            text, ", \"nested_blocksize\": %" PRId64 ", \"nested_dtype\": \"float32\", \"nested_offset\": ",
            state->nested_block);
        nbl__text_real(text, (double)state->nested_offset);
    }
    nbl__text_add(text, "}", 1);
}

/* ---- the parts together ---- */

/* Checks that a part exists and has this dtype and number of elements. */
static nbl_status check_part(nbl_context *ctx, const char *name, const char *part, const nbl__stored *stored,
                             nbl_dtype dtype, int64_t elements)
{
    CHECK(stored, "tensor \"%s\": its %s is missing", name, part);
    CHECK(stored->dtype == dtype, "tensor \"%s\": its %s is %s, %s was expected", name, part,
          nbl_dtype_name(stored->dtype), nbl_dtype_name(dtype));
    CHECK(stored->elements == elements,
          "tensor \"%s\": its %s has %" PRId64 " entries, %" PRId64 " were expected", name, part,
          stored->elements, elements);
    return NBL_OK;
}

/* bitsandbytes dequantizes with its built-in table and ignores the stored one. A file with other
 * values (beyond a rounding to 16 bits) would be dequantized to something that its maker did not
 * mean. */
static bool is_builtin_table(nbl_format format, const nbl__stored *map)
{
    const float *table = format == NBL_FORMAT_NF4 ? nbl__nf4_table : nbl__fp4_table;
    for (int i = 0; i < 16; i++) {
        float value;
        memcpy(&value, map->data + 4 * i, 4);
        if (!(fabsf(value - table[i]) <= fabsf(table[i]) / 256)) return false;
    }
    return true;
}

nbl_status nbl__bnb_describe(nbl__arena *arena, const char *name, const nbl__bnb_parts *p, nbl_weight *weight)
{
    nbl_context *ctx = arena->ctx;
    nbl__bnb_json state;
    CHECK(p->state->dtype == NBL_DTYPE_U8, "tensor \"%s\": its quant_state is %s, u8 was expected", name,
          nbl_dtype_name(p->state->dtype));
    NBL_TRY(nbl__bnb_json_parse(arena, name, p->state->data, p->state->bytes, &state));
    CHECK(strcmp(strrchr(p->state->name, '_') + 1, nbl_format_name(state.format)) == 0,
          "tensor \"%s\": stored as \"%s\", but its state says %s", name, strrchr(p->state->name, '.') + 1,
          nbl_format_name(state.format));
    CHECK(p->packed, "tensor \"%s\": its packed weight is missing", name);
    uint64_t packed_bytes = (uint64_t)nbl__ceil_div(state.elements, 2);
    CHECK(p->packed->bytes == packed_bytes,
          "tensor \"%s\": %" PRIu64 " packed bytes, its %" PRId64 " elements need %" PRIu64, name,
          p->packed->bytes, state.elements, packed_bytes);
    int64_t blocks = nbl__ceil_div(state.elements, state.block);
    NBL_TRY(check_part(ctx, name, "quant_map", p->quant_map, NBL_DTYPE_F32, 16));
    CHECK(is_builtin_table(state.format, p->quant_map), "tensor \"%s\": its quant_map is not the table of %s",
          name, nbl_format_name(state.format));
    NBL_TRY(check_part(ctx, name, "absmax", p->absmax, state.nested ? NBL_DTYPE_U8 : NBL_DTYPE_F32, blocks));

    *weight = (nbl_weight){
        .format = state.format, .dtype = state.dtype, .rank = state.rank, .block = state.block};
    memcpy(weight->shape, state.shape, sizeof state.shape);
    weight->data = p->packed->data;
    if (!state.nested) {
        CHECK(!p->nested_absmax && !p->nested_quant_map,
              "tensor \"%s\": nested scales, but its state does not say so", name);
        return nbl__stored_floats(arena, p->absmax, &weight->scales);
    }
    int64_t groups = nbl__ceil_div(blocks, state.nested_block);
    NBL_TRY(check_part(ctx, name, "nested_absmax", p->nested_absmax, NBL_DTYPE_F32, groups));
    NBL_TRY(check_part(ctx, name, "nested_quant_map", p->nested_quant_map, NBL_DTYPE_F32, 256));
    weight->scale_codes = p->absmax->data;
    weight->nested_block = state.nested_block;
    weight->nested_offset = state.nested_offset;
    NBL_TRY(nbl__stored_floats(arena, p->nested_quant_map, &weight->nested_table));
    return nbl__stored_floats(arena, p->nested_absmax, &weight->nested_scales);
}
