/* linear_cuda_train.c - linear layers in training: bf16, more than NBL_CUDA_SMALL_BATCH tokens, any
 * storage format, LoRA or no adapter. See linear_cuda.h.
 *
 * The terms of rank r join the base products in one of two ways:
 *
 *     folded    NBL_CUDA_FOLDED_SM90, if memory is aligned to 16 bytes: y = x·Wᵀ + t·Bᵀ and
 *               dx = Σ dy_i·W_i + u·A, each in one K loop of gemm_sm90 (linear_cuda_folded.c).
 *               Results are written and rounded once. With dropout the loop of dx ends with the
 *               masked u_i·A_i.
 *     before    NBL_CUDA_CUBLASLT: y = t·Bᵀ, then y += x·Wᵀ; dx = u·A, then dx += dy_i·W_i. A
 *               result is written more than once and rounded each time. A rounding is 1.1e-3 of
 *               the norm, so the error is 1.6e-3 for y and up to 2.5e-3 for the dx of four layers.
 *
 * A bias goes along as two columns of the adapter: its bf16 value, and the rest that the rounding
 * lost. t has ones there. A dense weight in bf16 is used directly. Packed weights are dequantized
 * one after another into the same piece of scratch; for folded products side by side.
 *
 * Dropout: masks are computed once, as bits. Forward keeps them with t for backward. The products apply
 * them in registers: no masked copy of x is written.
 *
 * Scratch: B of each layer | A of all | weights | t (forward) or u | masks | backward: t, shares, dA,
 * sums */
#include "ops/linear/cuda/linear_cuda_train.h"

#include <cuda_runtime_api.h>

#include "ops/dequantize/dequantize_cuda.h"
#include "ops/linear/cuda/dropout_cuda.h"
#include "ops/linear/cuda/linear_helpers.h"
#include "ops/gemm/cuda/gemm_lowrank_sm90.h"
#include "ops/gemm/cuda/gemm_masked.h"
#include "ops/gemm/cuda/gemm_tall_skinny.h"

/* Columns of t (forward) or u (backward) that a layer needs: a multiple of 16. Forward adds two for
 * a bias. */
static int64_t columns_of(const nbl__linear *a, bool backward)
{
    int64_t columns = nbl__linear_rank(a) + (!backward && nbl__given(&a->bias) ? 2 : 0);
    return (columns + 15) / 16 * 16;
}

const char *nbl__cuda_train_can(const nbl__linear *members, int count, bool backward)
{
    int64_t in = members->w.shape[1], wide = 0;
    bool small = false; /* a bias: its kernel takes at most NBL_TALL_SKINNY_MAX columns */
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
        small |= !backward && nbl__given(&a->bias);
        wide += columns_of(a, backward);
    }
    if (backward && members->dx.dtype != NBL_DTYPE_BF16) return bf16;
    return !small || wide <= NBL_TALL_SKINNY_MAX ? NULL : "adapters of too large a rank beside a bias";
}

const char *nbl__cuda_cublaslt_can(const nbl__linear *members, int count, bool backward)
{
    int64_t wide = 0;
    bool drops = false;
    const char *why = nbl__cuda_train_can(members, count, backward);
    if (why || !backward) return why;
    for (int i = 0; i < count; i++) {
        wide += columns_of(&members[i], true);
        drops |= members[i].dropout > 0;
    }
    return !drops || wide <= NBL_MAX_EXPAND ? NULL : "adapters of too large a rank beside a mask";
}

/* Does the layer's adapter see a masked x? */
static bool is_masked(const nbl__linear *a)
{
    return nbl__linear_rank(a) > 0 && a->dropout > 0;
}

/* Words of a mask. */
static int64_t mask_words(const nbl__linear *a, int64_t tokens)
{
    return is_masked(a) ? tokens * nbl__mask_words(a->w.shape[1]) : 0;
}

/* t of all layers, [tokens, wide] in bf16, then their masks; 0 if another way runs. */
size_t nbl__cuda_fast_kept(const nbl__linear *members, int count)
{
    int64_t wide = 0, words = 0, tokens = nbl__tensor_rows(&members->x);
    if (nbl__cuda_train_can(members, count, false)) return 0;
    for (int i = 0; i < count; i++) {
        wide += columns_of(&members[i], false);
        words += mask_words(&members[i], tokens);
    }
    return (size_t)(tokens * wide) * 2 + (size_t)words * 4;
}

/* A piece of bf16 elements; NULL if it is not needed. */
static void *cut(nbl__cut *c, bool needed, int64_t elements)
{
    return needed ? nbl__cut_bytes(c, (size_t)elements * 2) : NULL;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Scratch of a low-rank GEMM over matrices of these columns; 0 if it cannot run. */
static size_t for_lowrank(const nbl__cuda *cuda, int64_t rows, int64_t wide, const int64_t *columns,
                          int count)
{
    nbl__gemm_lowrank s = {.rows = rows, .wide = wide, .count = count};
    for (int i = 0; i < count; i++) s.parts[i].columns = columns[i];
    bool taken = cuda->major == 9 && (wide == 16 || wide == 32 || wide == 48);
    return taken ? nbl__gemm_lowrank_scratch(cuda, &s) : 0;
}

/* Backward: t, then scratch of low-rank GEMMs, dA of all layers, and parts of sums over tokens. */
static void cut_backward(nbl__fast *j, const nbl__cuda *cuda, nbl__cut *c, int64_t max)
{
    bool bias = false;
    int adapted = 0;
    int64_t outs[NBL_CUDA_LINEAR_MAX], wide = 0;
    size_t shares = for_lowrank(cuda, j->tokens, j->wide, &j->in, 1);
    j->t = cut(c, j->wide > 0, j->tokens * j->wide);
    j->over_x = j->count == 1 && j->in > j->outs && !j->drops;
    for (int i = 0; i < j->count; i++) {
        nbl__linear_train *l = &j->layers[i];
        shares = larger(shares, for_lowrank(cuda, j->tokens, l->wide, &l->out, 1));
        shares = larger(shares, for_lowrank(cuda, j->tokens, l->wide, &j->in, 1));
        if (l->wide > 0) outs[adapted++] = l->out, wide = l->wide;
        l->sums = nbl__given(&l->a->bias) ? nbl__cut_bytes(c, (size_t)l->out * sizeof *l->sums) : NULL;
        bias |= l->sums != NULL;
    }
    if (j->drops) shares = larger(shares, nbl__gemm_masked_scratch(cuda, j->in));
    /* If all have the same width. */
    shares = larger(shares, for_lowrank(cuda, j->tokens, wide, outs, adapted));
    j->shares = nbl__cut_bytes(c, shares);
    if (j->count > 1 && j->wide > 0 && !j->drops) NBL_CUT(c, j->da, j->wide * j->in);
    if (bias) NBL_CUT(c, j->parts, nbl__cuda_sums_parts(j->tokens, max));
}

/* t and the masks are in the memory that forward keeps for backward, if the call has it; else in
 * scratch. In backward the columns of t are those that forward had, with the bias. */
static void assign_t(nbl__fast *j, uint32_t *masks, bool backward)
{
    void *kept = j->call ? j->call->kept : NULL;
    j->t_ld = 0;
    for (int i = 0; i < j->count; i++) {
        nbl__linear_train *l = &j->layers[i];
        l->t_first = j->t_ld;
        j->t_ld += kept ? columns_of(l->a, false) : l->wide;
    }
    if (kept && j->wide > 0) j->t = kept;
    if (kept) masks = (uint32_t *)((uint8_t *)kept + (size_t)(j->tokens * j->t_ld) * 2);
    for (int i = 0; i < j->count; i++) {
        nbl__linear_train *l = &j->layers[i];
        l->mask = is_masked(l->a) ? masks : NULL;
        masks += mask_words(l->a, j->tokens);
    }
    j->has_t = backward && kept && j->wide > 0;
    if (j->has_t) j->over_x = false;
}

/* Lays out a job. scratch NULL: stand-in addresses, for measuring and for conditions. */
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
    int64_t max = 0, dequantized = 0, dequantized_all = 0, words = 0;
    j->mask_ld = nbl__mask_words(j->in);
    for (int i = 0; i < count; i++) {
        nbl__linear_train *l = &j->layers[i];
        *l = (nbl__linear_train){
            .a = &members[i], .out = members[i].w.shape[0], .rank = nbl__linear_rank(&members[i])};
        l->wide = columns_of(l->a, backward);
        l->first = j->wide;
        j->wide += l->wide;
        j->outs += l->out;
        j->drops |= is_masked(l->a);
        words += mask_words(&members[i], j->tokens);
        max = nbl__max_i64(max, l->out);
        if (nbl__fast_packed(&l->a->w))
            dequantized = nbl__max_i64(dequantized, l->out), dequantized_all += l->out, any_packed = true;
    }
    /* Only folded products read several dequantized weights in one launch. */
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
    uint32_t *masks;
    NBL_CUT(&c, masks, words);
    if (backward) cut_backward(j, cuda, &c, max);
    assign_t(j, masks, backward);
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

/* The moves of B and (forward) of the bias behind it, in bf16: [out, wide], or transposed. Returns
 * their number. */
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

nbl_status nbl__fast_make_masks(const nbl__fast *j)
{
    nbl__mask_part parts[NBL_MAX_MASKS];
    int count = 0;
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_train *l = &j->layers[i];
        if (l->mask) parts[count++] = (nbl__mask_part){nbl__linear_seed(l->a), l->a->dropout, l->mask};
    }
    return nbl__cuda_masks(j->call, parts, count, j->tokens, j->in, j->layers[0].a->first_row);
}

/* t of columns first … first + wide - 1 of u's layout, in one pass over x: 64 columns at most. Columns
 * of a bias become ones. */
static nbl_status project(const nbl__fast *j, int64_t first, int64_t wide, bool with_bias)
{
    nbl__project p = {.rows = j->tokens,
                      .columns = j->in,
                      .x = j->x.data,
                      .a = nbl__fast_at(j->lora_a, first * j->in),
                      .wide = (int)wide,
                      .to = nbl__fast_at(j->t, first),
                      .to_ld = j->t_ld,
                      .bits_ld = j->mask_ld};
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_train *l = &j->layers[i];
        const nbl__linear *a = l->a;
        int64_t begin = nbl__max_i64(l->first, first), end = nbl__min_i64(l->first + l->wide, first + wide);
        assert(first % 16 == 0 && wide <= NBL_TALL_SKINNY_MAX && l->first % 16 == 0);
        float scale = a->scale * (l->mask ? nbl__dropout_factor(a) : 1);
        for (int64_t c = begin; c < end; c += 8) p.scales[(c - first) / 8] = scale;
        for (int64_t c = begin; c < end; c += 16) p.masks[(c - first) / 16] = l->mask;
        if (!with_bias || !nbl__given(&a->bias)) continue;
        for (int64_t c = l->first + l->rank; c < l->first + l->rank + 2; c++)
            if (c >= begin && c < end) p.ones |= (uint64_t)1 << (c - first);
    }
    return nbl__cuda_project(j->call, &p);
}

nbl_status nbl__linear_train_t(const nbl__fast *j, const nbl__linear_train *l)
{
    if (l->wide == 0) return NBL_OK;
    return nbl__fast_multiply(j, l->a->scale,
                              (nbl__gemm){.c_dtype = NBL_DTYPE_BF16,
                                          .m = j->tokens,
                                          .n = l->wide,
                                          .k = j->in,
                                          .a = j->x.data,
                                          .b = nbl__fast_at(j->lora_a, l->first * j->in),
                                          .b_transposed = true,
                                          .c = nbl__fast_at(j->t, l->t_first),
                                          .ldc = j->t_ld});
}

/* With a bias or dropout by the tall-skinny GEMM, which writes ones and applies masks; else by cuBLASLt,
 * in one pass over x if all layers have the same scale. */
nbl_status nbl__fast_make_t(const nbl__fast *j, bool with_bias)
{
    bool bias = false, same = true;
    for (int i = 0; i < j->count; i++) {
        bias |= with_bias && nbl__given(&j->layers[i].a->bias);
        same &= j->layers[i].a->scale == j->layers[0].a->scale;
    }
    if (j->drops || bias) {
        for (int64_t first = 0; first < j->wide; first += NBL_TALL_SKINNY_MAX)
            NBL_TRY(project(j, first, nbl__min_i64(j->wide - first, NBL_TALL_SKINNY_MAX), with_bias));
        return NBL_OK;
    }
    if (same) {
        nbl__linear_train all = j->layers[0];
        all.wide = j->wide;
        return nbl__linear_train_t(j, &all);
    }
    for (int i = 0; i < j->count; i++) NBL_TRY(nbl__linear_train_t(j, &j->layers[i]));
    return NBL_OK;
}

nbl_status nbl__fast_dequantize(const nbl__fast *j, const nbl__linear_train *l, void *to)
{
    return nbl__cuda_dequantize(j->call->ctx, &l->a->w, 0, l->out, NBL_DTYPE_BF16, 0, to,
                                nbl__call_cuda(j->call)->stream);
}

/* ---- forward ---- */

/* One layer of the way `before`: the adapter's product, then the base product added to it. */
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

/* Forward: adapters to bf16, t, then the products. */
nbl_status nbl__cuda_fast_run(const nbl__call *call, const nbl__linear *members, int count, bool folded)
{
    nbl__fast j;
    NBL_TRY(nbl__fast_open(&j, call, members, count, false));
    if (j.drops) NBL_TRY(nbl__fast_make_masks(&j));
    if (j.wide > 0) {
        NBL_TRY(nbl__fast_pack(&j, false));
        NBL_TRY(nbl__fast_make_t(&j, true));
    }
    if (folded) return nbl__fold_forward(&j);
    for (int i = 0; i < count; i++) NBL_TRY(forward_before(&j, &j.layers[i]));
    return NBL_OK;
}
