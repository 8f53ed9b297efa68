/* nested.c - double quantisation: the scales of a weight, minus their mean, in 8 bits with the signed
 * dynamic map, blocks of 256.
 *
 * One scale serves 32 to 4096 elements: only the search for the codes (dynamic8.c) has vector paths. */
#include "quant/quant.h"

float nbl__nested_offset(const float *scales, int64_t n)
{
    if (n <= 0) return 0;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += scales[i];
    return (float)(sum / (double)n);
}

void nbl__nested_encode(nbl_isa isa, const float *scales, int64_t n, float offset, uint8_t *codes,
                        float *nested_scales)
{
    enum { PIECE = 16 * NBL_NESTED_BLOCK };
    float shifted[PIECE];
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t count = nbl__min_i64(PIECE, n - i);
        for (int64_t k = 0; k < count; k++) shifted[k] = scales[i + k] - offset;
        nbl__dynamic8_encode(isa, nbl__dynamic_map_signed, NBL_NESTED_BLOCK, shifted, count, codes + i,
                             nested_scales + i / NBL_NESTED_BLOCK);
    }
}

void nbl__nested_decode(const nbl_weight *weight, int64_t first, int64_t n, float *scales)
{
    const float *table = weight->nested_table;
    int64_t group = first / weight->nested_block, left = weight->nested_block - first % weight->nested_block;
    for (int64_t i = 0; i < n; i++, left--) {
        if (left == 0) {
            group++;
            left = weight->nested_block;
        }
        float product = table[weight->scale_codes[first + i]] * weight->nested_scales[group];
        scales[i] = product + weight->nested_offset;
    }
}
