/* nested.c - double quantization: the f32 scales of a weight, minus their mean, become 8-bit
 * codes of the signed dynamic map in blocks of 256, each with an f32 scale.
 *
 *     encode      offset = mean(scales); nested_scale = max |scale - offset| of a block
 *                 code = nearest((scale - offset) / nested_scale)
 *     dequantize  scale = RN_32(RN_32(map[code] · nested_scale) + offset)
 *
 * One scale serves 32 to 4096 elements, so only the search for codes (dynamic8.c) has vector
 * paths. */
#include <float.h>
#include <math.h>

#include "quant/quant.h"

float nbl__nested_offset(const float *scales, int64_t n)
{
    if (n <= 0) return 0;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += scales[i];
    return (float)(sum / (double)n);
}

/* The code selection of bitsandbytes' CPU code: it rounds the value to a grid of 65,536 points
 * and takes the code for that point; ties go down. Near the middle between two codes, and where
 * codes are closer together than the grid, that is not the nearest code. */
static void encode_by_grid(const float *values, int64_t n, uint8_t *codes, float *scales)
{
    const float *map = nbl__dynamic_map_signed, steps = 65535;
    for (int64_t b = 0; b < n; b += NBL_NESTED_BLOCK) {
        int64_t length = nbl__min_i64(NBL_NESTED_BLOCK, n - b);
        float largest = 0;
        for (int64_t i = b; i < b + length; i++) largest = fmaxf(largest, fabsf(values[i]));
        *scales++ = largest < FLT_MIN ? 0 : largest;
        for (int64_t i = b; i < b + length; i++) {
            if (largest < FLT_MIN) {
                codes[i] = 0;
                continue;
            }
            float y = fminf(fmaxf(values[i] * (1 / largest), -1), 1);
            float point = -1 + 2 * (float)(int)fmaf((y + 1) * 0.5f, steps, 0.5f) / steps;
            int code = 0;
            for (int step = 128; step > 0; step /= 2)
                if (code + step < 256 && (map[code + step - 1] + map[code + step]) * 0.5f < point)
                    code += step;
            codes[i] = (uint8_t)code;
        }
    }
}

/* In pieces of 16 blocks: subtract the offset, then encode. */
void nbl__nested_encode(nbl_isa isa, bool by_grid, const float *scales, int64_t n, float offset,
                        uint8_t *codes, float *nested_scales)
{
    enum { PIECE = 16 * NBL_NESTED_BLOCK };
    float shifted[PIECE];
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t count = nbl__min_i64(PIECE, n - i);
        for (int64_t k = 0; k < count; k++) shifted[k] = scales[i + k] - offset;
        float *to = nested_scales + i / NBL_NESTED_BLOCK;
        if (by_grid) encode_by_grid(shifted, count, codes + i, to);
        else
            nbl__dynamic8_encode(isa, nbl__dynamic_map_signed, NBL_NESTED_BLOCK, shifted, count, codes + i,
                                 to);
    }
}

/* `left`: scales until the next block of scales begins. */
void nbl__nested_dequantize(const nbl_weight *weight, int64_t first, int64_t n, float *scales)
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
