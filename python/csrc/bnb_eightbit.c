/* bnb_eightbit.c - 8-bit codes of a table of 256 values, in blocks of the flattened tensor, as bitsandbytes'
 * CPU library chooses them.
 *
 *     y = x * RN(1 / absmax), limited to [-1, 1]
 *     code = the nearest entry to -1 + 2 i / 65535, i = trunc(65535 (y + 1) / 2 + 1/2)
 *
 * So codes are those of a grid of 65,536 points. The code of each point is looked up. A tie of entries goes
 * to the lower one, NaN has the code of -1, a block of zeros has codes 0.
 *
 * The way back is a load and a product for each value. bitsandbytes' own kernel does it as fast. */
#include "bnb.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

enum { TABLE = 256, GRID = 65536, PADDING = 4 /* a gather reads 4 bytes */, GRIDS = 4 };

/* The codes of the points of the grid, for one table. */
typedef struct code_grid {
    float table[TABLE];
    uint8_t codes[GRID + PADDING];
} code_grid;

/* Grids of the first tables that come, mostly the two dynamic maps. A grid that is made never changes. */
static pthread_mutex_t grids_lock = PTHREAD_MUTEX_INITIALIZER;
static code_grid grids[GRIDS];
static int grid_count;

static void make_grid(const float *table, code_grid *grid)
{
    int code = 0;
    memcpy(grid->table, table, sizeof grid->table);
    for (int i = 0; i < GRID; i++) {
        float point = -1 + 2 * (float)i / (GRID - 1);
        while (code < TABLE - 1 && 0.5f * (table[code] + table[code + 1]) < point) code++;
        grid->codes[i] = (uint8_t)code;
    }
    memset(grid->codes + GRID, 0, PADDING);
}

/* The grid of a table, in the process's list or in scratch. NULL after a failure. */
static const code_grid *grid_of(torch_call *c, const float *table)
{
    const code_grid *found = NULL;
    pthread_mutex_lock(&grids_lock);
    for (int i = 0; i < grid_count && found == NULL; i++)
        if (memcmp(grids[i].table, table, sizeof grids[i].table) == 0) found = &grids[i];
    if (found == NULL && grid_count < GRIDS) {
        make_grid(table, &grids[grid_count]);
        found = &grids[grid_count++];
    }
    pthread_mutex_unlock(&grids_lock);
    if (found) return found;
    code_grid *own = call_scratch(c, sizeof *own);
    if (own) make_grid(table, own);
    return own;
}

typedef struct eightbit {
    nbl_dtype dtype; /* of the values */
    const void *values;
    int64_t n, block;
    const float *table;
    const uint8_t *grid;
    uint8_t *codes;
    float *absmax;
    bool avx2;
} eightbit;

static uint8_t code_of(const uint8_t *grid, float y)
{
    y = y > -1 ? y : -1; /* and NaN */
    y = y < 1 ? y : 1;
    return grid[(int)fmaf((y + 1) * 0.5f, GRID - 1, 0.5f)];
}

#if defined(__x86_64__)

BNB_AVX2 static int64_t encode_avx2(const uint8_t *grid, const float *x, int64_t n, float factor,
                                    uint8_t *codes)
{
    const __m256 one = _mm256_set1_ps(1), half = _mm256_set1_ps(0.5f), steps = _mm256_set1_ps(GRID - 1);
    const __m256i byte = _mm256_set1_epi32(255);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i lanes[4];
        for (int k = 0; k < 4; k++) {
            __m256 y = _mm256_mul_ps(_mm256_loadu_ps(x + i + 8 * k), _mm256_set1_ps(factor));
            y = _mm256_max_ps(y, _mm256_set1_ps(-1)); /* NaN becomes -1 */
            y = _mm256_min_ps(y, one);
            y = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_add_ps(y, one), half), steps, half);
            __m256i four = _mm256_i32gather_epi32((const int *)(const void *)grid, _mm256_cvttps_epi32(y), 1);
            lanes[k] = _mm256_and_si256(four, byte);
        }
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), bnb_bytes_avx2(lanes, false));
    }
    return i;
}

#endif

static void encode_blocks(int64_t begin, int64_t end, void *argument)
{
    const eightbit *e = argument;
    float room[BNB_PIECE];
    for (int64_t b = begin; b < end; b++) {
        int64_t first = b * e->block, stop = e->n - first < e->block ? e->n : first + e->block, n;
        bnb_magnitude m = {0};
        for (int64_t i = first; i < stop; i += n) {
            n = stop - i < BNB_PIECE ? stop - i : BNB_PIECE;
            bnb_measure(e->avx2, bnb_widen(e->avx2, e->dtype, e->values, i, n, room), n, &m);
        }
        e->absmax[b] = m.max;
        if (m.max == 0) {
            memset(e->codes + first, 0, (size_t)(stop - first));
            continue;
        }
        float factor = 1 / m.max;
        for (int64_t i = first; i < stop; i += n) {
            n = stop - i < BNB_PIECE ? stop - i : BNB_PIECE;
            const float *x = bnb_widen(e->avx2, e->dtype, e->values, i, n, room);
            int64_t done = 0;
#if defined(__x86_64__)
            if (e->avx2) done = encode_avx2(e->grid, x, n, factor, e->codes + i);
#endif
            for (; done < n; done++) e->codes[i + done] = code_of(e->grid, x[done] * factor);
        }
    }
}

static int64_t blocks_of(torch_call *c, int64_t n, int64_t block)
{
    if (block <= 0) call_fail(c, "block is %lld, not positive", (long long)block);
    return c->failed ? 0 : (n - 1) / block + 1;
}

static int64_t grain_of(int64_t block)
{
    return block < 65536 ? 65536 / block : 1;
}

static const float *table_of(torch_call *c)
{
    nbl_tensor table = call_tensor(c, "table");
    if (table.data == NULL || table.dtype != NBL_DTYPE_F32 || call_elements(&table) != TABLE)
        call_fail(c, "table is not 256 elements of f32");
    return table.data;
}

static bool is_compute_dtype(nbl_dtype dtype)
{
    return dtype == NBL_DTYPE_F32 || dtype == NBL_DTYPE_F16 || dtype == NBL_DTYPE_BF16;
}

void op_bnb_quantize_8bit(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    (void)inputs, (void)outputs;
    call_begin(&c, "bnb_quantize_8bit", stack);
    nbl_tensor values = call_tensor(&c, "values");
    eightbit e = {.dtype = values.dtype, .values = values.data};
    e.table = table_of(&c);
    e.block = call_int(&c);
    if (values.data == NULL) call_fail(&c, "values have no elements");
    else if (!is_compute_dtype(values.dtype))
        call_fail(&c, "values are %s, not f32, f16 or bf16", nbl_dtype_name(values.dtype));
    e.n = c.failed ? 0 : call_elements(&values);
    int64_t blocks = blocks_of(&c, e.n, e.block);
    nbl_tensor codes = call_shape_of(&values, NBL_DTYPE_U8), absmax = nbl_vector(NBL_DTYPE_F32, blocks, NULL);
    call_output(&c, &codes);
    call_output(&c, &absmax);
    const code_grid *grid = c.failed ? NULL : grid_of(&c, e.table);
    e.avx2 = bnb_has_avx2(&c);
    if (!c.failed && grid) {
        e.grid = grid->codes;
        e.codes = codes.data;
        e.absmax = absmax.data;
        bnb_parallel(blocks, grain_of(e.block), encode_blocks, &e);
    }
    call_end(&c);
}
