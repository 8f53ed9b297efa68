/* expert_load.c - see expert_load.h. */
#include "report/expert_load.h"

nbl_status nbl__expert_load_make(nbl__arena *arena, int64_t rows, int64_t experts, nbl__expert_load *load)
{
    size_t count = (size_t)rows * (size_t)experts; /* both are sizes of a model that fits in memory */
    *load = (nbl__expert_load){0};
    if (rows == 0) return NBL_OK;
    load->layers = nbl__arena_alloc(arena, (size_t)rows * sizeof *load->layers);
    load->step = nbl__arena_alloc(arena, count * sizeof *load->step);
    load->run = nbl__arena_alloc(arena, count * sizeof *load->run);
    if (load->layers == NULL || load->step == NULL || load->run == NULL) return NBL_ERROR_MEMORY;
    load->rows = rows;
    load->experts = experts;
    return NBL_OK;
}

void nbl__expert_load_begin(nbl__expert_load *load)
{
    for (int64_t i = 0; i < load->rows * load->experts; i++) load->step[i] = 0;
}

void nbl__expert_load_add(nbl__expert_load *load, const int32_t *offsets)
{
    for (int64_t row = 0; row < load->rows; row++, offsets += load->experts + 1)
        for (int64_t e = 0; e < load->experts; e++) {
            int32_t tokens = offsets[e + 1] - offsets[e];
            assert(tokens >= 0);
            load->step[row * load->experts + e] += (uint64_t)tokens;
            load->run[row * load->experts + e] += (uint64_t)tokens;
        }
}

double nbl__expert_load_row_peak(const nbl__expert_load *load, const uint64_t *sums, int64_t row)
{
    const uint64_t *of = sums + row * load->experts;
    uint64_t max = 0, sum = 0;
    for (int64_t e = 0; e < load->experts; e++) {
        sum += of[e];
        if (of[e] > max) max = of[e];
    }
    return sum ? (double)max * (double)load->experts / (double)sum : 0;
}

double nbl__expert_load_peak(const nbl__expert_load *load, const uint64_t *sums)
{
    double peak = 0;
    for (int64_t row = 0; row < load->rows; row++) {
        double of_row = nbl__expert_load_row_peak(load, sums, row);
        if (of_row > peak) peak = of_row;
    }
    return peak;
}
