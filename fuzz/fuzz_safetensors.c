/* fuzz_safetensors.c - a whole .safetensors file: header, grouping into weights, decoding. Whatever
 * opens must decode without touching a byte outside the file. */
#include "convert/convert.h"
#include "fuzz.h"

static void dequantize(const nbl_tensor_info *tensor)
{
    enum { MAX = 1 << 14 };
    static float out[MAX];
    int64_t n = nbl__elements(tensor), unit = nbl__span_unit(tensor);
    if (!nbl__is_decodable(tensor) || n == 0 || unit > MAX) return;
    int64_t span = nbl__min_i64(n, MAX / unit * unit), last = (n - 1) / unit * unit;
    nbl__span_dequantize(NBL_ISA_SCALAR, tensor, 0, span, NBL_DTYPE_F32, out);
    nbl__span_dequantize(nbl__isa(fuzz_context()), tensor, nbl__max_i64(last - span + unit, 0) / unit * unit,
                         n, NBL_DTYPE_BF16, out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nbl_context *ctx = fuzz_context();
    nbl_checkpoint c = {.ctx = ctx, .arena = nbl__arena_make(ctx), .mode = NBL_OPEN_TOLERANT, .path = "fuzz"};
    c.problems.arena = &c.arena;
    if (nbl__safetensors_parse(&c.arena, "fuzz.safetensors", data, size, &c.stored, &c.stored_count) ==
            NBL_OK &&
        nbl__checkpoint_group(&c) == NBL_OK)
        for (int64_t i = 0; i < c.tensor_count; i++) dequantize(&c.tensors[i]);
    nbl__arena_free(&c.arena);
    return 0;
}
