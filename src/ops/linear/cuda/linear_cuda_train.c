/* linear_cuda_train.c - layers as they are trained: bf16, more than a few tokens, any storage, LoRA or none. See linear_cuda.h.
 *
 * The terms of rank r join the base products in one of two ways:
 *
 *     folded    NBL_CUDA_FOLDED_SM90, where memory is aligned to 16 bytes: y = x·Wᵀ + t·Bᵀ and dx = Σ dy_i·W_i + u·A each in one K
 *               loop of our own product (linear_cuda_folded.c). Results are written and rounded once; with dropout dx begins
 *               with what the masks leave of u·A, and the loop adds to that.
 *     before    NBL_CUDA_CUBLASLT: y = t·Bᵀ, then y += x·Wᵀ; dx = u·A, then dx += dy_i·W_i. A result is written more than
 *               once and rounded each time: 1.1e-3 of its norm, so 1.6e-3 for y and up to 2.5e-3 for the dx of four
 *               layers.
 *
 * A bias goes along as two columns of the adapter, its bf16 value and what that lost, times 1. A dense weight in bf16 is
 * used where it lies. Weights are decoded one after another into one place; folded, side by side. */
#include "ops/linear/cuda/linear_cuda_train.h"

#include <cuda_runtime_api.h>

#include "ops/dequantize/dequantize_cuda.h"
#include "ops/linear/cuda/dropout_cuda.h"
#include "ops/linear/cuda/linear_helpers.h"
#include "ops/gemm/cuda/gemm_tall_skinny.h"
#include "ops/gemm/cuda/gemm_lowrank_sm90.h"

static int64_t columns_of(const nbl__linear *a, bool backward)
{
    int64_t columns = nbl__linear_rank(a) + (!backward && nbl__given(&a->bias) ? 2 : 0);
    return (columns + 15) / 16 * 16;
}

const char *nbl__cuda_train_can(const nbl__linear *members, int count, bool backward)
{
    int64_t in = members->w.shape[1], wide = 0;
    bool small = false; /* results of adapters: what the kernels of biases and masks take */
    static const char bf16[] = "needs bf16", eights[] = "needs rows and columns by the eight";
    if (members->dtype != NBL_DTYPE_BF16 || members->x.dtype != NBL_DTYPE_BF16) return bf16;
    if (nbl__tensor_rows(&members->x) <= NBL_CUDA_SMALL_BATCH) return "16 tokens or fewer";
    if (in == 0 || in % 8 != 0) return eights;
    for (int i = 0; i < count; i++) {
        const nbl__linear *a = &members[i];
        if (a->w.shape[0] == 0 || a->w.shape[0] % 8 != 0) return eights;
        if (nbl__given(&a->magnitude)) return "DoRA";
        if (!backward && nbl__linear_by_codes(a)) return "int8 codes multiply as integers";
        if (!nbl__fast_packed(&a->w) && a->w.dtype != NBL_DTYPE_BF16) return bf16;
        if ((backward ? a->dy.dtype : a->y.dtype) != NBL_DTYPE_BF16) return bf16;
        small |= (!backward && nbl__given(&a->bias)) || (backward && a->dropout > 0);
        wide += columns_of(a, backward);
    }
    if (backward && members->dx.dtype != NBL_DTYPE_BF16) return bf16;
    return !small || wide <= NBL_TALL_SKINNY_MAX ? NULL
                                                 : "adapters of too large a rank beside a bias or a mask";
}

size_t nbl__cuda_fast_kept(const nbl__linear *members, int count)
{
    int64_t wide = 0;
    if (nbl__cuda_train_can(members, count, false)) return 0;
    for (int i = 0; i < count; i++) wide += columns_of(&members[i], false);
    return (size_t)(nbl__tensor_rows(&members->x) * wide) * 2;
}

static void *cut(nbl__cut *c, bool needed, int64_t elements)
{
    return needed ? nbl__cut_bytes(c, (size_t)elements * 2) : NULL;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* What a sweep over matrices of so many columns needs, if there can be one. */
static size_t for_lowrank(const nbl__cuda *cuda, int64_t rows, int64_t wide, const int64_t *columns,
                          int count)
{
    nbl__gemm_lowrank s = {.rows = rows, .wide = wide, .count = count};
    for (int i = 0; i < count; i++) s.parts[i].columns = columns[i];
    bool taken = cuda->major == 9 && (wide == 16 || wide == 32 || wide == 48);
    return taken ? nbl__gemm_lowrank_scratch(cuda, &s) : 0;
}

/* Backward: t, then what sweeps, gradients of A and sums over tokens need. */
static void cut_backward(nbl__fast *j, const nbl__cuda *cuda, nbl__cut *c, int64_t max)
{
    bool bias = false;
    int adapted = 0;
    int64_t outs[NBL_CUDA_LINEAR_MAX], wide = 0;
    size_t shares = for_lowrank(cuda, j->tokens, j->wide, &j->in, 1);
    j->t = cut(c, j->wide > 0, j->tokens * j->wide);
    j->over_x = j->count == 1 && j->in > j->outs;
    for (int i = 0; i < j->count; i++) {
        nbl__linear_train *l = &j->layers[i];
        shares = larger(shares, for_lowrank(cuda, j->tokens, l->wide, &l->out, 1));
        shares = larger(shares, for_lowrank(cuda, j->tokens, l->wide, &j->in, 1));
        if (l->wide > 0) outs[adapted++] = l->out, wide = l->wide;
        l->sums = nbl__given(&l->a->bias) ? nbl__cut_bytes(c, (size_t)l->out * sizeof *l->sums) : NULL;
        bias |= l->sums != NULL;
    }
    shares = larger(shares, for_lowrank(cuda, j->tokens, wide, outs, adapted)); /* if they are as wide all */
    j->shares = nbl__cut_bytes(c, shares);
    if (j->count > 1 && j->wide > 0 && !j->drops) NBL_CUT(c, j->da, j->wide * j->in);
    if (bias) NBL_CUT(c, j->parts, nbl__cuda_sums_parts(j->tokens, max));
}

/* t is what forward leaves for backward, if there is room for that; else scratch. */
static void assign_t(nbl__fast *j, bool backward)
{
    void *kept = j->call ? j->call->kept : NULL;
    j->t_ld = 0;
    for (int i = 0; i < j->count; i++) {
        nbl__linear_train *l = &j->layers[i];
        l->t_first = j->t_ld;
        j->t_ld += kept ? columns_of(l->a, false) : l->wide;
    }
    if (kept && j->wide > 0) j->t = kept;
    j->has_t = backward && kept && j->wide > 0;
    if (j->has_t) j->over_x = false;
}

static void open_job(nbl__fast *j, const nbl__cuda *cuda, const nbl__call *call, const nbl__linear *members,
                     int count, bool backward, uint8_t *scratch)
{
    enum { STAND_IN = 64 };
    nbl__cut c = {scratch ? scratch : (uint8_t *)(uintptr_t)STAND_IN, 0};
    *j = (nbl__fast){.call = call, .x = members->x, .dx = members->dx, .count = count};
    assert(count >= 1 && count <= NBL_CUDA_LINEAR_MAX);
    j->tokens = nbl__tensor_rows(&j->x);
    j->in = members->w.shape[1];
    bool any_packed = false;
    int64_t max = 0, dequantized = 0, dequantized_all = 0;
    for (int i = 0; i < count; i++) {
        nbl__linear_train *l = &j->layers[i];
        *l = (nbl__linear_train){
            .a = &members[i], .out = members[i].w.shape[0], .rank = nbl__linear_rank(&members[i])};
        l->wide = columns_of(l->a, backward);
        l->first = j->wide;
        j->wide += l->wide;
        j->outs += l->out;
        j->drops |= l->rank > 0 && l->a->dropout > 0;
        max = nbl__max_i64(max, l->out);
        if (nbl__fast_packed(&l->a->w))
            dequantized = nbl__max_i64(dequantized, l->out), dequantized_all += l->out, any_packed = true;
    }
    j->side_by_side = cuda->major == 9 && (j->wide > 0 || (backward && count > 1));
    for (int i = 0; i < count; i++) {
        nbl__linear_train *l = &j->layers[i];
        l->lora_b = cut(&c, l->wide > 0, l->wide * l->out);
    }
    j->lora_a = cut(&c, j->wide > 0, j->wide * j->in);
    j->w = cut(&c, any_packed, (j->side_by_side ? dequantized_all : dequantized) * j->in);
    int64_t row = 0;
    for (int i = 0; i < count; i++) {
        nbl__linear_train *l = &j->layers[i];
        bool packed = nbl__fast_packed(&l->a->w);
        l->w = packed ? nbl__fast_at(j->w, row * j->in) : (void *)(uintptr_t)l->a->w.data;
        if (packed && j->side_by_side) row += l->out;
    }
    void **joined = backward ? &j->u : &j->t;
    *joined = cut(&c, j->wide > 0, j->tokens * j->wide);
    j->dropped = cut(&c, j->drops, j->tokens * j->in);
    if (backward) cut_backward(j, cuda, &c, max);
    assign_t(j, backward);
    j->used = c.used;
}

size_t nbl__cuda_fast_scratch(const nbl__cuda *cuda, const nbl__linear *members, int count, bool backward)
{
    nbl__fast j;
    nbl__fast_sketch(&j, cuda, members, count, backward);
    return j.used;
}

void nbl__fast_sketch(nbl__fast *j, const nbl__cuda *cuda, const nbl__linear *members, int count,
                      bool backward)
{
    open_job(j, cuda, NULL, members, count, backward, NULL);
}

nbl_status nbl__fast_open(nbl__fast *j, const nbl__call *call, const nbl__linear *members, int count,
                          bool backward)
{
    open_job(j, nbl__call_cuda(call), call, members, count, backward, call->scratch);
    NBL_CHECK(call->ctx, j->used <= call->scratch_bytes, NBL_ERROR_INTERNAL,
              "%s: scratch of %zu bytes; %zu are needed", call->op, call->scratch_bytes, j->used);
    return NBL_OK;
}

/* ---- steps ---- */

/* B and, forward, the bias behind it, in bf16: [out, wide], or turned. Returns how many moves that takes. */
static int moves_of_b(const nbl__linear_train *l, bool transposed, bool with_bias, void *to, int64_t ld,
                      nbl__move moves[2])
{
    const nbl__linear *a = l->a;
    int64_t columns = with_bias ? l->rank : l->wide;
    nbl__move b = {.from = a->lora_b.data,
                   .from_dtype = a->lora_b.dtype,
                   .to_dtype = NBL_DTYPE_BF16,
                   .rows = l->out,
                   .columns = l->rank,
                   .from_ld = l->rank,
                   .transposed = transposed,
                   .to = to,
                   .to_rows = transposed ? columns : l->out,
                   .to_columns = transposed ? l->out : columns,
                   .to_ld = ld};
    moves[0] = moves[1] = b;
    if (!with_bias) return 1;
    assert(l->wide >= l->rank + 2); /* the columns of the bias: columns_of */
    nbl__move *bias = &moves[1];
    bias->from = a->bias.data;
    bias->from_dtype = a->bias.dtype;
    bias->columns = bias->from_ld = 1;
    bias->split = true;
    bias->to = nbl__fast_at(to, transposed ? l->rank * ld : l->rank);
    *(transposed ? &bias->to_rows : &bias->to_columns) = l->wide - l->rank;
    return 2;
}

nbl_status nbl__fast_pack(const nbl__fast *j, bool backward)
{
    nbl__move moves[3 * NBL_CUDA_LINEAR_MAX];
    int count = 0;
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_train *l = &j->layers[i];
        const nbl__linear *a = l->a;
        if (l->wide == 0) continue;
        moves[count++] = (nbl__move){.from = a->lora_a.data,
                                     .from_dtype = a->lora_a.dtype,
                                     .to_dtype = NBL_DTYPE_BF16,
                                     .rows = l->rank,
                                     .columns = j->in,
                                     .from_ld = j->in,
                                     .to = nbl__fast_at(j->lora_a, l->first * j->in),
                                     .to_rows = l->wide,
                                     .to_columns = j->in,
                                     .to_ld = j->in};
        if (backward) count += moves_of_b(l, true, false, l->lora_b, l->out, &moves[count]);
        else count += moves_of_b(l, false, nbl__given(&a->bias), l->lora_b, l->wide, &moves[count]);
    }
    return nbl__cuda_move(j->call, moves, count);
}

nbl_status nbl__fast_multiply(const nbl__fast *j, float alpha, nbl__gemm g)
{
    g.dtype = NBL_DTYPE_BF16;
    g.alpha = alpha;
    return nbl__cuda_gemm(j->call, &g);
}

nbl_status nbl__fast_see(const nbl__fast *j, const nbl__linear_train *l, const void **x)
{
    *x = j->x.data;
    if (l->rank == 0 || l->a->dropout == 0) return NBL_OK;
    *x = j->dropped;
    return nbl__cuda_drop(j->call, nbl__linear_seed(l->a), l->a->dropout, l->a->first_row, j->tokens, j->in,
                          j->x.data, NBL_DTYPE_BF16, j->dropped, NBL_DTYPE_BF16);
}

/* t of layers [first, end), which follow each other, in one pass over x. */
static nbl_status project(const nbl__fast *j, int first, int end, bool with_bias, const void *x)
{
    int64_t column = j->layers[first].first;
    nbl__project p = {.rows = j->tokens,
                      .columns = j->in,
                      .x = x,
                      .a = nbl__fast_at(j->lora_a, column * j->in),
                      .to = nbl__fast_at(j->t, j->layers[first].t_first),
                      .to_ld = j->t_ld};
    for (int i = first; i < end; i++) {
        const nbl__linear_train *l = &j->layers[i];
        int64_t at = l->first - column;
        assert(at % 8 == 0 && l->wide % 8 == 0 && at + l->wide <= 64); /* the bits of p.ones */
        for (int64_t r = at / 8; r < (at + l->wide) / 8; r++) p.scales[r] = l->a->scale;
        if (with_bias && nbl__given(&l->a->bias)) p.ones |= (uint64_t)3 << (at + l->rank);
        p.wide += (int)l->wide;
    }
    return nbl__cuda_project(j->call, &p);
}

nbl_status nbl__linear_train_t(const nbl__fast *j, const nbl__linear_train *l, bool with_bias, const void *x)
{
    if (l->wide == 0) return NBL_OK;
    if (with_bias && nbl__given(&l->a->bias)) {
        int index = (int)(l - j->layers);
        return project(j, index, index + 1, true, x);
    }
    return nbl__fast_multiply(j, l->a->scale,
                              (nbl__gemm){.c_dtype = NBL_DTYPE_BF16,
                                          .m = j->tokens,
                                          .n = l->wide,
                                          .k = j->in,
                                          .a = x,
                                          .b = nbl__fast_at(j->lora_a, l->first * j->in),
                                          .b_transposed = true,
                                          .c = nbl__fast_at(j->t, l->t_first),
                                          .ldc = j->t_ld});
}

nbl_status nbl__fast_make_t(const nbl__fast *j, bool with_bias)
{
    bool bias = false, same = true;
    for (int i = 0; i < j->count; i++) {
        bias |= with_bias && nbl__given(&j->layers[i].a->bias);
        same &= j->layers[i].a->scale == j->layers[0].a->scale;
    }
    if (!j->drops && bias) return project(j, 0, j->count, with_bias, j->x.data);
    if (!j->drops && same) {
        nbl__linear_train all = j->layers[0];
        all.wide = j->wide;
        return nbl__linear_train_t(j, &all, false, j->x.data);
    }
    for (int i = 0; i < j->count; i++) {
        const void *x;
        NBL_TRY(nbl__fast_see(j, &j->layers[i], &x));
        NBL_TRY(nbl__linear_train_t(j, &j->layers[i], with_bias, x));
    }
    return NBL_OK;
}

nbl_status nbl__fast_dequantize(const nbl__fast *j, const nbl__linear_train *l, void *to)
{
    return nbl__cuda_dequantize(j->call->ctx, &l->a->w, 0, l->out, NBL_DTYPE_BF16, 0, to,
                                nbl__call_cuda(j->call)->stream);
}

/* ---- forward ---- */

static nbl_status forward_before(const nbl__fast *j, const nbl__linear_train *l)
{
    if (nbl__fast_packed(&l->a->w)) NBL_TRY(nbl__fast_dequantize(j, l, l->w));
    if (l->wide > 0)
        NBL_TRY(nbl__fast_multiply(j, 1,
                                   (nbl__gemm){.c_dtype = NBL_DTYPE_BF16,
                                               .m = j->tokens,
                                               .n = l->out,
                                               .k = l->wide,
                                               .a = nbl__fast_at(j->t, l->t_first),
                                               .lda = j->t_ld,
                                               .b = l->lora_b,
                                               .b_transposed = true,
                                               .c = l->a->y.data}));
    return nbl__fast_multiply(j, 1,
                              (nbl__gemm){.c_dtype = NBL_DTYPE_BF16,
                                          .m = j->tokens,
                                          .n = l->out,
                                          .k = j->in,
                                          .a = j->x.data,
                                          .b = l->w,
                                          .b_transposed = true,
                                          .c = l->a->y.data,
                                          .beta = l->wide > 0 ? 1 : 0});
}

nbl_status nbl__cuda_fast_run(const nbl__call *call, const nbl__linear *members, int count, bool folded)
{
    nbl__fast j;
    NBL_TRY(nbl__fast_open(&j, call, members, count, false));
    if (j.wide > 0) {
        NBL_TRY(nbl__fast_pack(&j, false));
        NBL_TRY(nbl__fast_make_t(&j, true));
    }
    if (folded) return nbl__fold_forward(&j);
    for (int i = 0; i < count; i++) NBL_TRY(forward_before(&j, &j.layers[i]));
    return NBL_OK;
}
