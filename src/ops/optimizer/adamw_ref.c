/* adamw_ref.c - adamw: the oracle. One element at a time, in f64; 8-bit moments are encoded a
 * block at a time. Never optimized. */
#include <math.h>

#include "ops/optimizer/adamw.h"
#include "ops/ref.h"
#include "quant/quant.h"

typedef struct element {
    double p, g, m, v;
} element;

static void step(const nbl__adamw *a, const nbl__adamw_factors *f, element *e)
{
    double g = e->g * nbl__adamw_scale(a);
    e->m = a->beta1 * e->m + (1 - a->beta1) * g;
    e->v = a->beta2 * e->v + (1 - a->beta2) * g * g;
    e->p *= 1 - f->shrink_before;
    e->p -= f->step_size * e->m / (sqrt(e->v) * f->root_scale + a->eps);
    e->p *= 1 - f->shrink_after;
}

static void update_32(const nbl__adamw *a, const nbl__adamw_factors *f, const nbl__adamw_tensor *t)
{
    for (int64_t i = 0; i < nbl__tensor_elements(&t->p); i++) {
        element e = {nbl__ref_get(&t->p, i), nbl__ref_get(&t->g, i), nbl__ref_get(&t->m, i),
                     nbl__ref_get(&t->v, i)};
        step(a, f, &e);
        nbl__ref_set(&t->p, i, e.p);
        nbl__ref_set(&t->m, i, e.m);
        nbl__ref_set(&t->v, i, e.v);
    }
}

/* n moments to codes and their scale. */
static void encode(const float *map, bool is_signed, const float *values, int64_t n, uint8_t *codes,
                   float *scale)
{
    nbl__dynamic8_encode(NBL_ISA_SCALAR, map, NBL_ADAMW_BLOCK, values, n, codes, scale);
    for (int64_t i = 0; is_signed && i < n; i++)
        if (*scale > 0 && codes[i] == 127 && signbit(values[i])) codes[i] = 126; /* 127 is +0 */
}

static void update_8(const nbl__adamw *a, const nbl__adamw_factors *f, const nbl__adamw_tensor *t)
{
    int64_t elements = nbl__tensor_elements(&t->p);
    uint8_t *codes_m = t->m.data, *codes_v = t->v.data;
    float *absmax_m = t->m_absmax.data, *absmax_v = t->v_absmax.data;
    for (int64_t b = 0, i = 0; i < elements; b++, i += NBL_ADAMW_BLOCK) {
        int64_t n = nbl__min_i64(NBL_ADAMW_BLOCK, elements - i);
        float m[NBL_ADAMW_BLOCK], v[NBL_ADAMW_BLOCK];
        for (int64_t j = 0; j < n; j++) {
            element e = {nbl__ref_get(&t->p, i + j), nbl__ref_get(&t->g, i + j),
                         (double)(nbl__dynamic_map_signed[codes_m[i + j]] * absmax_m[b]),
                         (double)(nbl__dynamic_map_unsigned[codes_v[i + j]] * absmax_v[b])};
            if (isfinite(e.g)) {
                step(a, f, &e);
                nbl__ref_set(&t->p, i + j, e.p);
            } else {
                e.m = e.v = 0;
            }
            m[j] = (float)e.m;
            v[j] = (float)e.v;
        }
        encode(nbl__dynamic_map_signed, true, m, n, codes_m + i, &absmax_m[b]);
        encode(nbl__dynamic_map_unsigned, false, v, n, codes_v + i, &absmax_v[b]);
    }
}

static nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__adamw *a = arguments;
    nbl__adamw_factors f = nbl__adamw_factors_of(a);
    (void)call;
    if (isnan(nbl__adamw_scale(a))) return NBL_OK;
    for (int64_t i = 0; i < a->count; i++)
        if (a->bits == 8) update_8(a, &f, &a->tensors[i]);
        else update_32(a, &f, &a->tensors[i]);
    return NBL_OK;
}

const nbl__impl nbl__adamw_ref = {"adamw_ref", NBL_ISA_SCALAR, NULL, NULL, run};
