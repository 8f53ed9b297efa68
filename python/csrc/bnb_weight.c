/* bnb_weight.c - nibble::bnb_dequantize_4bit and nibble::bnb_gemm_4bit: nibble::dequantize and
 * nibble::linear for weights in bitsandbytes' layout, with the arguments that bitsandbytes has. */
#include "bnb.h"

#include <sys/mman.h>

DEFINE_RUN(linear)

/* The weight [rows, columns] of packed codes of 4 bits. `codes`: the scales are double-quantized, and absmax
 * are the scales of their codes. */
static nbl_weight weight_of(torch_call *c, const nbl_tensor *data, const nbl_tensor *absmax,
                            const nbl_tensor *codes, const nbl_tensor *table, const nbl_tensor *offset,
                            int64_t rows, int64_t columns)
{
    nbl_weight w = {.rank = 2, .shape = {rows, columns}, .dtype = NBL_DTYPE_BF16, .nested_block = 256};
    int64_t format = call_int(c), size = 1;
    w.block = call_int(c);
    if (format != NBL_FORMAT_NF4 && format != NBL_FORMAT_FP4)
        call_fail(c, "format is %lld, allowed are %d (nf4) and %d (fp4)", (long long)format, NBL_FORMAT_NF4,
                  NBL_FORMAT_FP4);
    else w.format = (nbl_format)format;
    if (data->data && data->dtype == NBL_DTYPE_F32) size = 4;
    else if (data->data && (data->dtype == NBL_DTYPE_BF16 || data->dtype == NBL_DTYPE_F16)) size = 2;
    else if (data->data == NULL || data->dtype != NBL_DTYPE_U8)
        call_fail(c, "data is not packed codes in u8, bf16, f16 or f32");
    if (c->failed) return w;
    int64_t n = 0, held = call_elements(data) * size;
    if (rows < 0 || __builtin_mul_overflow(rows, columns, &n) || n / 2 + n % 2 > held) {
        call_fail(c, "data has %lld bytes, too few for codes of shape [%lld, %lld]", (long long)held,
                  (long long)rows, (long long)columns);
        return w;
    }
    w.data = data->data;
    w.given.data_bytes = (uint64_t)held;
    if (codes == NULL || codes->data == NULL) {
        w.scales = absmax->data;
        w.given.scales = call_elements(absmax);
        w.given.scales_dtype = absmax->dtype;
        return w;
    }
    if (codes->dtype != NBL_DTYPE_U8) call_fail(c, "codes are %s, not u8", nbl_dtype_name(codes->dtype));
    w.scale_codes = codes->data;
    w.nested_scales = absmax->data;
    w.nested_table = table->data;
    w.given.scale_codes = call_elements(codes);
    w.given.nested_scales = call_elements(absmax);
    w.given.nested_table = call_elements(table);
    w.given.nested_scales_dtype = absmax->dtype;
    w.given.nested_table_dtype = table->dtype;
    if (offset->data == NULL || offset->dtype != NBL_DTYPE_F32 || call_elements(offset) != 1)
        call_fail(c, "offset is not one element of f32");
    else if (call_on_cuda(c)) w.nested_offset_at = offset->data; /* read when the kernel runs */
    else w.nested_offset = *(const float *)offset->data;
    return w;
}

/* ---- dequantize ---- */

/* Memory of this size is mapped for each tensor alone (mallopt's M_MMAP_THRESHOLD is 32 MiB at most). To map
 * 4 KiB at a time costs several times what dequantizing does. */
static const size_t huge_bytes = (size_t)32 << 20;

/* Asks for huge pages within memory that nobody has written to. */
static void expect_writes(void *data, size_t bytes)
{
#if defined(MADV_HUGEPAGE)
    const uintptr_t page = 4096;
    uintptr_t begin = ((uintptr_t)data + page - 1) & ~(page - 1),
              end = ((uintptr_t)data + bytes) & ~(page - 1);
    if (bytes >= huge_bytes && begin < end) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
    (void)data, (void)bytes, (void)huge_bytes;
#endif
}

void op_bnb_dequantize_4bit(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    (void)inputs, (void)outputs;
    call_begin(&c, "bnb_dequantize_4bit", stack);
    nbl_tensor data = call_tensor(&c, "data"), absmax = call_tensor(&c, "absmax");
    int handles = c.handle_count;
    nbl_tensor out = call_tensor(&c, "out");
    if (c.handle_count > handles + 1) call_fail(&c, "out is not contiguous"); /* this is a copy of it */
    int64_t n = call_elements(&out), columns = out.data ? out.shape[out.rank - 1] : 1;
    nbl_weight w = weight_of(&c, &data, &absmax, NULL, NULL, NULL, n / columns, columns);
    bool is_fresh = call_bool(&c);
    if (out.data == NULL) call_fail(&c, "out has no elements");
    nbl_context *ctx = call_context(&c);
    if (!c.failed && is_fresh && !call_on_cuda(&c))
        expect_writes(out.data, (size_t)n * (out.dtype == NBL_DTYPE_F32 ? 4 : 2));
    if (!c.failed) call_status(&c, nbl_dequantize(ctx, &w, 0, w.shape[0], out.dtype, false, out.data));
    call_end(&c);
}

/* ---- gemm ---- */

void op_bnb_gemm_4bit(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_linear layer = {.scale = 1};
    (void)inputs, (void)outputs;
    call_begin(&c, "bnb_gemm_4bit", stack);
    layer.x = call_rows(&c, "x", 1);
    nbl_tensor data = call_tensor(&c, "data"), absmax = call_tensor(&c, "absmax");
    nbl_tensor codes = call_tensor(&c, "codes"), table = call_tensor(&c, "table");
    nbl_tensor offset = call_tensor(&c, "offset");
    layer.bias = call_tensor(&c, "bias");
    int64_t rows = call_int(&c), columns = layer.x.rank > 0 ? layer.x.shape[layer.x.rank - 1] : 0;
    layer.w = weight_of(&c, &data, &absmax, &codes, &table, &offset, rows, columns);
    layer.dtype = layer.x.dtype;
    layer.y = call_like(&layer.x, rows, layer.dtype);
    call_output(&c, &layer.y);
    call_flatten(1, (nbl_tensor *[]){&layer.x, &layer.y, NULL});
    run_linear(&c, &layer, false);
    call_end(&c);
}
