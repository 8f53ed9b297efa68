/* expert_act.c - see expert_act.h. A row goes through spans of gates and ups on the stack, so that both layouts of
 * gate_up share the kernels: those of gate_f32.h, and the clamped product of expert_act.inc.
 *
 * Bound by memory: 12 bytes per inner feature forward, 24 backward. */
#include "ops/moe/cpu/expert_act.h"

#include <math.h>

#include "ops/common/vmath.h"
#include "ops/linear/cpu/gate_f32.h"

enum { SPAN = 256 };

#if defined(__x86_64__)
#define KERNELS "ops/moe/cpu/expert_act.inc"
#include "ops/common/x86_widths.inc"
#endif

/* The clamped product of a span, as nbl__gate_forward: g = h. */
static void clamped_forward(nbl_isa isa, float limit, float alpha, float *g, const float *u, int64_t n)
{
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) {
        clamped_forward_avx512(limit, alpha, g, u, n);
        return;
    }
    if (isa >= NBL_ISA_AVX2) {
        clamped_forward_avx2(limit, alpha, g, u, n);
        return;
    }
#endif
    (void)isa;
    for (int64_t i = 0; i < n; i++) {
        float gate = g[i] > limit ? limit : g[i], up = u[i] > limit ? limit : u[i] < -limit ? -limit : u[i];
        g[i] = (up + 1) * gate / (1 + expf(-alpha * gate));
    }
}

/* The same backward, as nbl__gate_backward: g, u and d become dgate, dup and h. */
static void clamped_backward(nbl_isa isa, float limit, float alpha, float *g, float *u, float *d, int64_t n)
{
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) {
        clamped_backward_avx512(limit, alpha, g, u, d, n);
        return;
    }
    if (isa >= NBL_ISA_AVX2) {
        clamped_backward_avx2(limit, alpha, g, u, d, n);
        return;
    }
#endif
    (void)isa;
    for (int64_t i = 0; i < n; i++) {
        float gate = g[i] > limit ? limit : g[i], up = u[i] > limit ? limit : u[i] < -limit ? -limit : u[i];
        float s = 1 / (1 + expf(-alpha * gate)), dh = d[i];
        g[i] = g[i] > limit ? 0 : dh * (up + 1) * s * (1 + alpha * gate * (1 - s));
        u[i] = fabsf(u[i]) > limit ? 0 : dh * gate * s;
        d[i] = (up + 1) * gate * s;
    }
}

/* Gates and ups [begin, begin + n) of a row, from and to their layout. */
static void split(const nbl__expert_mlp *a, int64_t inner, int64_t begin, int64_t n, const float *gu,
                  float *g, float *u)
{
    if (!a->interleaved) {
        memcpy(g, gu + begin, (size_t)n * sizeof *g);
        memcpy(u, gu + inner + begin, (size_t)n * sizeof *u);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        g[i] = gu[2 * (begin + i)];
        u[i] = gu[2 * (begin + i) + 1];
    }
}

static void join(const nbl__expert_mlp *a, int64_t inner, int64_t begin, int64_t n, const float *g,
                 const float *u, float *gu)
{
    if (!a->interleaved) {
        memcpy(gu + begin, g, (size_t)n * sizeof *g);
        memcpy(gu + inner + begin, u, (size_t)n * sizeof *u);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        gu[2 * (begin + i)] = g[i];
        gu[2 * (begin + i) + 1] = u[i];
    }
}

void nbl__expert_act(nbl_isa isa, const nbl__expert_mlp *a, int64_t inner, const float *gu, float *h)
{
    float g[SPAN], u[SPAN];
    for (int64_t begin = 0; begin < inner; begin += SPAN) {
        int64_t n = nbl__min_i64(SPAN, inner - begin);
        split(a, inner, begin, n, gu, g, u);
        if (a->limit > 0) clamped_forward(isa, a->limit, a->alpha, g, u, n);
        else nbl__gate_forward(isa, (nbl__act)a->act, g, u, n);
        memcpy(h + begin, g, (size_t)n * sizeof *h);
    }
}

double nbl__expert_act_backward(nbl_isa isa, const nbl__expert_mlp *a, int64_t inner, float w, float *gu,
                                float *q)
{
    float g[SPAN], u[SPAN], d[SPAN];
    double sum = 0;
    for (int64_t begin = 0; begin < inner; begin += SPAN) {
        int64_t n = nbl__min_i64(SPAN, inner - begin);
        split(a, inner, begin, n, gu, g, u);
        for (int64_t i = 0; i < n; i++) d[i] = w * q[begin + i];
        if (a->limit > 0) clamped_backward(isa, a->limit, a->alpha, g, u, d, n);
        else nbl__gate_backward(isa, (nbl__act)a->act, g, u, d, n);
        join(a, inner, begin, n, g, u, gu);
        for (int64_t i = 0; i < n; i++) {
            sum += (double)d[i] * (double)q[begin + i];
            q[begin + i] = w * d[i];
        }
    }
    return sum;
}
