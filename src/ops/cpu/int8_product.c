/* int8_product.c - see int8_product.h. */
#include "ops/cpu/int8_product.h"

#include <math.h>

static float value_at(nbl_dtype dtype, const void *x, int64_t i)
{
    float value;
    nbl__to_f32(NBL_ISA_SCALAR, dtype, (const uint8_t *)x + (size_t)i * nbl__size_of(dtype), &value, 1);
    return value;
}

void nbl__int8_outliers(nbl_isa isa, nbl_dtype dtype, const void *x, int64_t stride, int64_t rows,
                        int64_t columns, float threshold, uint8_t *outlier)
{
    (void)isa;
    memset(outlier, 0, (size_t)columns);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t c = 0; c < columns; c++)
            if (!(fabsf(value_at(dtype, x, row * stride + c)) < threshold)) outlier[c] = 1;
}

void nbl__int8_rows(nbl_isa isa, nbl_dtype dtype, const void *x, int64_t stride, int64_t row_begin,
                    int64_t row_end, int64_t columns, const uint8_t *outlier, int8_t *codes, float *scales)
{
    (void)isa;
    for (int64_t row = row_begin; row < row_end; row++) {
        float largest = 0;
        for (int64_t c = 0; c < columns; c++)
            if (!outlier[c]) largest = fmaxf(largest, fabsf(value_at(dtype, x, row * stride + c)));
        scales[row] = largest;
        for (int64_t c = 0; c < columns; c++) {
            float value = outlier[c] || !(largest > 0) ? 0 : value_at(dtype, x, row * stride + c);
            codes[row * columns + c] = (int8_t)(value == 0 ? 0 : nearbyintf(value * 127 / largest));
        }
    }
}
