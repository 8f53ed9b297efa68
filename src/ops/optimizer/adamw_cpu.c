/* adamw_cpu.c - adamw for all tensors in one pass, a span of 16384 elements at a time
 * (tensor_spans.h).
 *
 *   for each span (an item), for each PIECE:   8 bits: codes -> f32;  the step;  8 bits: f32 -> codes
 *
 * 32 bits: reads p, g, m, v and writes p, m, v: 28 bytes per element in f32. Limit: memory. 8
 * bits: moments are f32 for one PIECE only, in the L1 cache: 16 bytes per element. Limit: the
 * search for codes.
 *
 * The result of an element depends on itself and, with 8 bits, on its block. Any number of threads
 * gives the same bits. */
#include <math.h>

#include "base/team.h"
#include "ops/optimizer/adamw.h"
#include "ops/optimizer/tensor_spans.h"
#include "ops/common/vmath.h"
#include "quant/quant.h"

enum { PIECE = 2048 }; /* a multiple of NBL_ADAMW_BLOCK */

/* The constants of a step in f32. Weight decay subtracts p's share instead of multiplying by 1 -
 * lr·weight_decay: the rounding of that factor to f32 would be the same in every step, and add up. */
typedef struct constants {
    float grad_scale, beta1, rest1, beta2, rest2, eps, root_scale, step_size, shrink_before, shrink_after;
} constants;

typedef struct job {
    const nbl__adamw *a;
    nbl_isa isa;
    constants c;
    int64_t *first; /* [count + 1], see tensor_spans.h */
} job;

static constants constants_of(const nbl__adamw *a)
{
    nbl__adamw_factors f = nbl__adamw_factors_of(a);
    return (constants){.grad_scale = (float)nbl__adamw_scale(a),
                       .beta1 = (float)a->beta1,
                       .rest1 = (float)(1 - a->beta1),
                       .beta2 = (float)a->beta2,
                       .rest2 = (float)(1 - a->beta2),
                       .eps = (float)a->eps,
                       .root_scale = (float)f.root_scale,
                       .step_size = (float)f.step_size,
                       .shrink_before = (float)f.shrink_before,
                       .shrink_after = (float)f.shrink_after};
}

static void adamw_scalar(const constants *c, nbl_dtype p_dtype, uint8_t *p_at, nbl_dtype g_dtype,
                         const uint8_t *g_at, float *m, float *v, int64_t n, bool skip)
{
    size_t p_size = nbl__size_of(p_dtype), g_size = nbl__size_of(g_dtype);
    for (int64_t i = 0; i < n; i++) {
        float p, g;
        nbl__to_f32(NBL_ISA_SCALAR, p_dtype, p_at + (size_t)i * p_size, &p, 1);
        nbl__to_f32(NBL_ISA_SCALAR, g_dtype, g_at + (size_t)i * g_size, &g, 1);
        if (skip && !isfinite(g)) {
            m[i] = v[i] = 0;
            continue;
        }
        g *= c->grad_scale;
        m[i] = c->beta1 * m[i] + c->rest1 * g;
        v[i] = c->beta2 * v[i] + c->rest2 * g * g;
        float moved = c->step_size * (m[i] / (sqrtf(v[i]) * c->root_scale + c->eps));
        p -= p * c->shrink_before + moved;
        p -= p * c->shrink_after;
        nbl__from_f32(NBL_ISA_SCALAR, &p, p_dtype, p_at + (size_t)i * p_size, 1);
    }
}

#if defined(__x86_64__)
#define KERNELS "ops/optimizer/adamw_kernels.inc"
#include "ops/common/x86_widths.inc"
#endif

/* The step for n elements of a tensor from element i on, with their moments in m and v. */
static void update(const job *j, const nbl__adamw_tensor *t, int64_t i, int64_t n, float *m, float *v)
{
    uint8_t *p = (uint8_t *)t->p.data + (size_t)i * nbl__size_of(t->p.dtype);
    const uint8_t *g = (const uint8_t *)t->g.data + (size_t)i * nbl__size_of(t->g.dtype);
    bool skip = j->a->bits == 8;
#if defined(__x86_64__)
    if (j->isa >= NBL_ISA_AVX512) {
        adamw_avx512(&j->c, t->p.dtype, p, t->g.dtype, g, m, v, n, skip);
        return;
    }
    if (j->isa >= NBL_ISA_AVX2) {
        adamw_avx2(&j->c, t->p.dtype, p, t->g.dtype, g, m, v, n, skip);
        return;
    }
#endif
    adamw_scalar(&j->c, t->p.dtype, p, t->g.dtype, g, m, v, n, skip);
}

/* ---- 8 bits ---- */

#if defined(__x86_64__)
/* Skips elements whose code needs no change, 32 at a time, since codes near zero are rare. Returns
 * how many. */
NBL_TARGET_AVX2 static int64_t pass_signs_avx2(const float *values, int64_t n, const uint8_t *codes)
{
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i zero = _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)(const void *)(codes + i)),
                                         _mm256_set1_epi8(127));
        uint32_t signs = 0;
        for (int k = 0; k < 4; k++)
            signs |= (uint32_t)_mm256_movemask_ps(_mm256_loadu_ps(values + i + 8 * k)) << 8 * k;
        if (signs & (uint32_t)_mm256_movemask_epi8(zero)) break;
    }
    return i;
}
#endif

/* Code 127 of the signed map is +0. A negative value with that code gets the next code below, and
 * so keeps its sign. */
static void keep_signs(nbl_isa isa, const float *values, int64_t n, uint8_t *codes)
{
    for (int64_t i = 0; i < n;) {
#if defined(__x86_64__)
        if (isa >= NBL_ISA_AVX2) i += pass_signs_avx2(values + i, n - i, codes + i);
#else
        (void)isa;
#endif
        for (int64_t end = nbl__min_i64(i + 32, n); i < end; i++)
            if (codes[i] == 127 && signbit(values[i])) codes[i] = 126;
    }
}

static void update_8(const job *j, const nbl__adamw_tensor *t, int64_t begin, int64_t count)
{
    const float *map_m = nbl__dynamic_map_signed, *map_v = nbl__dynamic_map_unsigned;
    for (int64_t i = begin; i < begin + count; i += PIECE) {
        float m[PIECE], v[PIECE];
        int64_t n = nbl__min_i64(PIECE, begin + count - i), block = NBL_ADAMW_BLOCK;
        uint8_t *codes_m = (uint8_t *)t->m.data + i, *codes_v = (uint8_t *)t->v.data + i;
        float *absmax_m = (float *)t->m_absmax.data + i / block,
              *absmax_v = (float *)t->v_absmax.data + i / block;
        nbl__dynamic8_dequantize(j->isa, map_m, block, codes_m, absmax_m, n, m);
        nbl__dynamic8_dequantize(j->isa, map_v, block, codes_v, absmax_v, n, v);
        update(j, t, i, n, m, v);
        nbl__dynamic8_encode(j->isa, map_m, block, m, n, codes_m, absmax_m);
        nbl__dynamic8_encode(j->isa, map_v, block, v, n, codes_v, absmax_v);
        keep_signs(j->isa, m, n, codes_m);
    }
}

static nbl_status step_span(void *argument, int64_t item, int worker)
{
    const job *j = argument;
    (void)worker;
    nbl__tensor_span s = nbl__tensor_span_at(j->first, j->a->count, item, &j->a->tensors->p,
                                             sizeof *j->a->tensors);
    const nbl__adamw_tensor *t = &j->a->tensors[s.tensor];
    if (j->a->bits == 8) update_8(j, t, s.begin, s.n);
    else update(j, t, s.begin, s.n, (float *)t->m.data + s.begin, (float *)t->v.data + s.begin);
    return NBL_OK;
}

static size_t scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return (size_t)(((const nbl__adamw *)arguments)->count + 1) * sizeof(int64_t);
}

static nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__adamw *a = arguments;
    job j = {a, nbl__isa(call->ctx), constants_of(a), (int64_t *)(void *)call->scratch};
    if (a->count == 0 || isnan(j.c.grad_scale)) return NBL_OK;
    int64_t items = nbl__tensor_spans(&a->tensors->p, sizeof *a->tensors, a->count, j.first);
    return nbl__team_run(call->ctx, items, step_span, &j, NULL);
}

const nbl__impl nbl__adamw_cpu = {"adamw_cpu", NBL_ISA_SCALAR, NULL, scratch, run};
