/* gemv.c - see gemv.h. */
#include "ops/cpu/gemv.h"

#include "quant/quant.h"

enum { PIECE = 256 };

static void read_f32(nbl_isa isa, nbl_dtype dtype, const void *from, float *to, int64_t n)
{
    nbl__to_f32(isa, dtype, from, to, n);
}

void nbl__gemv(nbl_isa isa, const nbl__term *term, int64_t m, int64_t n_begin, int64_t n_end, float *tile,
               int64_t tile_stride)
{
    float w[PIECE], x[PIECE];
    uint32_t raw[PIECE];
    size_t size = nbl__size_of(term->a.dtype);
    for (int64_t n = n_begin; n < n_end; n++)
        for (int64_t k = 0; k < term->k; k += PIECE) {
            int64_t count = nbl__min_i64(PIECE, term->k - k), first = n * term->k + k;
            nbl__decode(isa, term->b.weight, first, first + count, term->compute, raw, false);
            read_f32(isa, term->compute, raw, w, count);
            for (int64_t i = 0; i < m; i++) {
                read_f32(isa, term->a.dtype,
                         (const uint8_t *)term->a.data + (size_t)(i * term->a.stride + k) * size, x, count);
                float sum = 0;
                for (int64_t c = 0; c < count; c++) sum += x[c] * w[c];
                tile[i * tile_stride + n - n_begin] += term->alpha * sum;
            }
        }
}
