/* linear_cuda_large.c - linear layers in training: bf16, more than NBL_CUDA_SMALL_BATCH tokens, any
 * storage format, LoRA or no adapter. See linear_cuda.h.
 *
 * The terms of rank r join the base products in one of two ways:
 *
 *     folded    NBL_CUDA_LINEAR_ALGO_FOLDED_SM90, if memory is aligned to 16 bytes: y = x·Wᵀ + t·Bᵀ and
 *               dx = Σ dy_i·W_i + u·A, each in one K loop of gemm_sm90 (linear_cuda_folded.c).
 *               Results are written and rounded once. With dropout the loop of dx ends with the
 *               masked u_i·A_i.
 *     before    NBL_CUDA_LINEAR_ALGO_CUBLASLT: y = t·Bᵀ, then y += x·Wᵀ; dx = u·A, then dx += dy_i·W_i. A
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
#include "ops/linear/cuda/linear_cuda_large.h"

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
    int64_t columns = nbl__linear_rank(a) + (!backward && nbl__has_data(&a->bias) ? 2 : 0);
    return (columns + 15) / 16 * 16;
}

const char *nbl__cuda_large_can(const nbl__linear *members, int count, bool backward)
{
    int64_t in = members->w.shape[1], rank_padded = 0;
    bool small = false; /* a bias: its kernel takes at most NBL_MAX_TALL_SKINNY columns */
    static const char bf16[] = "needs bf16", eights[] = "needs rows and columns by the eight";
    if (members->dtype != NBL_DTYPE_BF16 || members->x.dtype != NBL_DTYPE_BF16) return bf16;
    if (nbl__tensor_rows(&members->x) <= NBL_CUDA_SMALL_BATCH) return "16 tokens or fewer";
    if (in == 0 || in % 8 != 0) return eights;
    for (int i = 0; i < count; i++) {
        const nbl__linear *a = &members[i];
        if (a->w.shape[0] == 0 || a->w.shape[0] % 8 != 0) return eights;
        if (nbl__has_data(&a->magnitude)) return "DoRA";
        if (!backward && nbl__linear_by_codes(a)) return "int8 codes multiply as integers";
        if (!nbl__linear_large_is_packed(&a->w) && a->w.dtype != NBL_DTYPE_BF16) return bf16;
        if ((backward ? a->dy.dtype : a->y.dtype) != NBL_DTYPE_BF16) return bf16;
        small |= !backward && nbl__has_data(&a->bias);
        rank_padded += columns_of(a, backward);
    }
    if (backward && members->dx.dtype != NBL_DTYPE_BF16) return bf16;
    return !small || rank_padded <= NBL_MAX_TALL_SKINNY ? NULL : "adapters of too large a rank beside a bias";
}

const char *nbl__cuda_cublaslt_can(const nbl__linear *members, int count, bool backward)
{
    int64_t rank_padded = 0;
    bool drops = false;
    const char *why = nbl__cuda_large_can(members, count, backward);
    if (why || !backward) return why;
    for (int i = 0; i < count; i++) {
        rank_padded += columns_of(&members[i], true);
        drops |= members[i].dropout > 0;
    }
    return !drops || rank_padded <= NBL_MAX_LORA_DX_RANK ? NULL
                                                         : "adapters of too large a rank beside a mask";
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

/* t of all layers, [tokens, rank_padded] in bf16, then their masks; 0 if another way runs. */
size_t nbl__cuda_large_saved_bytes(const nbl__linear *members, int count)
{
    int64_t rank_padded = 0, words = 0, tokens = nbl__tensor_rows(&members->x);
    if (nbl__cuda_large_can(members, count, false)) return 0;
    for (int i = 0; i < count; i++) {
        rank_padded += columns_of(&members[i], false);
        words += mask_words(&members[i], tokens);
    }
    return (size_t)(tokens * rank_padded) * 2 + (size_t)words * 4;
}

/* A piece of bf16 elements; NULL if it is not needed. */
static void *alloc_if(nbl__bump *c, bool needed, int64_t elements)
{
    return needed ? nbl__bump_alloc(c, (size_t)elements * 2) : NULL;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Scratch of a low-rank GEMM over matrices of these columns; 0 if it cannot run. */
static size_t for_lowrank(const nbl__cuda *cuda, int64_t rows, int64_t rank_padded, const int64_t *columns,
                          int count)
{
    nbl__gemm_lowrank s = {.rows = rows, .rank_padded = rank_padded, .count = count};
    for (int i = 0; i < count; i++) s.parts[i].columns = columns[i];
    bool taken = cuda->major == 9 && (rank_padded == 16 || rank_padded == 32 || rank_padded == 48);
    return taken ? nbl__gemm_lowrank_scratch(cuda, &s) : 0;
}

/* Backward: t, then scratch of low-rank GEMMs, dA of all layers, and parts of sums over tokens. */
static void cut_backward(nbl__linear_large *j, const nbl__cuda *cuda, nbl__bump *c, int64_t max)
{
    bool bias = false;
    int adapted = 0;
    int64_t outs[NBL_MAX_CUDA_LINEARS], rank_padded = 0;
    size_t shares = for_lowrank(cuda, j->tokens, j->rank_padded, &j->in, 1);
    j->t = alloc_if(c, j->rank_padded > 0, j->tokens * j->rank_padded);
    j->over_x = j->count == 1 && j->in > j->outs && !j->drops;
    for (int i = 0; i < j->count; i++) {
        nbl__linear_large_layer *l = &j->layers[i];
        shares = larger(shares, for_lowrank(cuda, j->tokens, l->rank_padded, &l->out, 1));
        shares = larger(shares, for_lowrank(cuda, j->tokens, l->rank_padded, &j->in, 1));
        if (l->rank_padded > 0) outs[adapted++] = l->out, rank_padded = l->rank_padded;
        l->sums = nbl__has_data(&l->a->bias) ? nbl__bump_alloc(c, (size_t)l->out * sizeof *l->sums) : NULL;
        bias |= l->sums != NULL;
    }
    if (j->drops) shares = larger(shares, nbl__gemm_masked_scratch(cuda, j->in));
    /* If all have the same width. */
    shares = larger(shares, for_lowrank(cuda, j->tokens, rank_padded, outs, adapted));
    j->shares = nbl__bump_alloc(c, shares);
    if (j->count > 1 && j->rank_padded > 0 && !j->drops) NBL_BUMP_ALLOC(c, j->da, j->rank_padded * j->in);
    if (bias) NBL_BUMP_ALLOC(c, j->parts, nbl__cuda_sums_parts(j->tokens, max));
}

/* t and the masks are in the memory that forward keeps for backward, if the call has it; else in
 * scratch. In backward the columns of t are those that forward had, with the bias. */
static void assign_t(nbl__linear_large *j, uint32_t *masks, bool backward)
{
    void *saved = j->call ? j->call->saved : NULL;
    j->t_ld = 0;
    for (int i = 0; i < j->count; i++) {
        nbl__linear_large_layer *l = &j->layers[i];
        l->t_first = j->t_ld;
        j->t_ld += saved ? columns_of(l->a, false) : l->rank_padded;
    }
    if (saved && j->rank_padded > 0) j->t = saved;
    if (saved) masks = (uint32_t *)((uint8_t *)saved + (size_t)(j->tokens * j->t_ld) * 2);
    for (int i = 0; i < j->count; i++) {
        nbl__linear_large_layer *l = &j->layers[i];
        l->mask = is_masked(l->a) ? masks : NULL;
        masks += mask_words(l->a, j->tokens);
    }
    j->has_t = backward && saved && j->rank_padded > 0;
    if (j->has_t) j->over_x = false;
}

/* Lays out a job. scratch NULL: stand-in addresses, for measuring and for conditions. */
static void open_job(nbl__linear_large *j, const nbl__cuda *cuda, const nbl__call *call,
                     const nbl__linear *members, int count, bool backward, uint8_t *scratch)
{
    enum { STAND_IN = 64 };
    nbl__bump c = {scratch ? scratch : (uint8_t *)(uintptr_t)STAND_IN, 0};
    *j = (nbl__linear_large){.call = call, .x = members->x, .dx = members->dx, .count = count};
    assert(count >= 1 && count <= NBL_MAX_CUDA_LINEARS);
    j->tokens = nbl__tensor_rows(&j->x);
    j->in = members->w.shape[1];
    bool any_packed = false;
    int64_t max = 0, dequantized = 0, dequantized_all = 0, words = 0;
    j->mask_ld = nbl__mask_words(j->in);
    for (int i = 0; i < count; i++) {
        nbl__linear_large_layer *l = &j->layers[i];
        *l = (nbl__linear_large_layer){
            .a = &members[i], .out = members[i].w.shape[0], .rank = nbl__linear_rank(&members[i])};
        l->rank_padded = columns_of(l->a, backward);
        l->first = j->rank_padded;
        j->rank_padded += l->rank_padded;
        j->outs += l->out;
        j->drops |= is_masked(l->a);
        words += mask_words(&members[i], j->tokens);
        max = nbl__max_i64(max, l->out);
        if (nbl__linear_large_is_packed(&l->a->w))
            dequantized = nbl__max_i64(dequantized, l->out), dequantized_all += l->out, any_packed = true;
    }
    /* Only folded products read several dequantized weights in one launch. */
    j->side_by_side = cuda->major == 9 && (j->rank_padded > 0 || (backward && count > 1));
    for (int i = 0; i < count; i++) {
        nbl__linear_large_layer *l = &j->layers[i];
        l->lora_b = alloc_if(&c, l->rank_padded > 0, l->rank_padded * l->out);
    }
    j->lora_a = alloc_if(&c, j->rank_padded > 0, j->rank_padded * j->in);
    j->w = alloc_if(&c, any_packed, (j->side_by_side ? dequantized_all : dequantized) * j->in);
    int64_t row = 0;
    for (int i = 0; i < count; i++) {
        nbl__linear_large_layer *l = &j->layers[i];
        bool packed = nbl__linear_large_is_packed(&l->a->w);
        l->w = packed ? nbl__linear_large_at(j->w, row * j->in) : (void *)(uintptr_t)l->a->w.data;
        if (packed && j->side_by_side) row += l->out;
    }
    void **joined = backward ? &j->u : &j->t;
    *joined = alloc_if(&c, j->rank_padded > 0, j->tokens * j->rank_padded);
    uint32_t *masks;
    NBL_BUMP_ALLOC(&c, masks, words);
    if (backward) cut_backward(j, cuda, &c, max);
    assign_t(j, masks, backward);
    j->used = c.used;
}

size_t nbl__cuda_large_scratch(const nbl__cuda *cuda, const nbl__linear *members, int count, bool backward)
{
    nbl__linear_large j;
    nbl__linear_large_measure(&j, cuda, members, count, backward);
    return j.used;
}

void nbl__linear_large_measure(nbl__linear_large *j, const nbl__cuda *cuda, const nbl__linear *members,
                               int count, bool backward)
{
    open_job(j, cuda, NULL, members, count, backward, NULL);
}

nbl_status nbl__linear_large_open(nbl__linear_large *j, const nbl__call *call, const nbl__linear *members,
                                  int count, bool backward)
{
    open_job(j, nbl__call_cuda(call), call, members, count, backward, call->scratch);
    NBL_CHECK(call->ctx, j->used <= call->scratch_bytes, NBL_ERROR_INTERNAL,
              "%s: scratch of %zu bytes; %zu are needed", call->op, call->scratch_bytes, j->used);
    return NBL_OK;
}

/* ---- steps ---- */

/* The moves of B and (forward) of the bias behind it, in bf16: [out, rank_padded], or transposed.
 * Returns their number. */
static int cast_copies_of_b(const nbl__linear_large_layer *l, bool transposed, bool with_bias, void *to,
                            int64_t ld, nbl__cast_copy copies[2])
{
    const nbl__linear *a = l->a;
    int64_t columns = with_bias ? l->rank : l->rank_padded;
    nbl__cast_copy b = {.from = a->lora_b.data,
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
    copies[0] = copies[1] = b;
    if (!with_bias) return 1;
    assert(l->rank_padded >= l->rank + 2); /* the columns of the bias: columns_of */
    nbl__cast_copy *bias = &copies[1];
    bias->from = a->bias.data;
    bias->from_dtype = a->bias.dtype;
    bias->columns = bias->from_ld = 1;
    bias->split = true;
    bias->to = nbl__linear_large_at(to, transposed ? l->rank * ld : l->rank);
    *(transposed ? &bias->to_rows : &bias->to_columns) = l->rank_padded - l->rank;
    return 2;
}

nbl_status nbl__linear_large_pack(const nbl__linear_large *j, bool backward)
{
    nbl__cast_copy copies[3 * NBL_MAX_CUDA_LINEARS];
    int count = 0;
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_large_layer *l = &j->layers[i];
        const nbl__linear *a = l->a;
        if (l->rank_padded == 0) continue;
        copies[count++] = (nbl__cast_copy){.from = a->lora_a.data,
                                           .from_dtype = a->lora_a.dtype,
                                           .to_dtype = NBL_DTYPE_BF16,
                                           .rows = l->rank,
                                           .columns = j->in,
                                           .from_ld = j->in,
                                           .to = nbl__linear_large_at(j->lora_a, l->first * j->in),
                                           .to_rows = l->rank_padded,
                                           .to_columns = j->in,
                                           .to_ld = j->in};
        if (backward) count += cast_copies_of_b(l, true, false, l->lora_b, l->out, &copies[count]);
        else
            count += cast_copies_of_b(l, false, nbl__has_data(&a->bias), l->lora_b, l->rank_padded,
                                      &copies[count]);
    }
    return nbl__cuda_cast_copy(j->call, copies, count);
}

nbl_status nbl__linear_large_multiply(const nbl__linear_large *j, float alpha, nbl__cublaslt_gemm g)
{
    g.dtype = NBL_DTYPE_BF16;
    g.alpha = alpha;
    return nbl__cuda_gemm(j->call, &g);
}

nbl_status nbl__linear_large_make_masks(const nbl__linear_large *j)
{
    nbl__mask_part parts[NBL_MAX_MASKS];
    int count = 0;
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_large_layer *l = &j->layers[i];
        if (l->mask) parts[count++] = (nbl__mask_part){nbl__linear_seed(l->a), l->a->dropout, l->mask};
    }
    return nbl__cuda_masks(j->call, parts, count, j->tokens, j->in, j->layers[0].a->first_row);
}

/* t of columns first … first + rank_padded - 1 of u's layout, in one pass over x: 64 columns at most. Columns
 * of a bias become ones. */
static nbl_status project(const nbl__linear_large *j, int64_t first, int64_t rank_padded, bool with_bias)
{
    nbl__project p = {.rows = j->tokens,
                      .columns = j->in,
                      .x = j->x.data,
                      .a = nbl__linear_large_at(j->lora_a, first * j->in),
                      .rank_padded = (int)rank_padded,
                      .to = nbl__linear_large_at(j->t, first),
                      .to_ld = j->t_ld,
                      .bits_ld = j->mask_ld};
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_large_layer *l = &j->layers[i];
        const nbl__linear *a = l->a;
        int64_t begin = nbl__max_i64(l->first, first),
                end = nbl__min_i64(l->first + l->rank_padded, first + rank_padded);
        assert(first % 16 == 0 && rank_padded <= NBL_MAX_TALL_SKINNY && l->first % 16 == 0);
        float scale = a->scale * (l->mask ? nbl__dropout_factor(a) : 1);
        for (int64_t c = begin; c < end; c += 8) p.scales[(c - first) / 8] = scale;
        for (int64_t c = begin; c < end; c += 16) p.masks[(c - first) / 16] = l->mask;
        if (!with_bias || !nbl__has_data(&a->bias)) continue;
        for (int64_t c = l->first + l->rank; c < l->first + l->rank + 2; c++)
            if (c >= begin && c < end) p.ones |= (uint64_t)1 << (c - first);
    }
    return nbl__cuda_project(j->call, &p);
}

nbl_status nbl__linear_large_layer_t(const nbl__linear_large *j, const nbl__linear_large_layer *l)
{
    if (l->rank_padded == 0) return NBL_OK;
    return nbl__linear_large_multiply(
        j, l->a->scale,
        (nbl__cublaslt_gemm){.c_dtype = NBL_DTYPE_BF16,
                             .m = j->tokens,
                             .n = l->rank_padded,
                             .k = j->in,
                             .a = j->x.data,
                             .b = nbl__linear_large_at(j->lora_a, l->first * j->in),
                             .b_transposed = true,
                             .c = nbl__linear_large_at(j->t, l->t_first),
                             .ldc = j->t_ld});
}

/* With a bias or dropout by the tall-skinny GEMM, which writes ones and applies masks; else by cuBLASLt,
 * in one pass over x if all layers have the same scale. */
nbl_status nbl__linear_large_make_t(const nbl__linear_large *j, bool with_bias)
{
    bool bias = false, same = true;
    for (int i = 0; i < j->count; i++) {
        bias |= with_bias && nbl__has_data(&j->layers[i].a->bias);
        same &= j->layers[i].a->scale == j->layers[0].a->scale;
    }
    if (j->drops || bias) {
        for (int64_t first = 0; first < j->rank_padded; first += NBL_MAX_TALL_SKINNY)
            NBL_TRY(project(j, first, nbl__min_i64(j->rank_padded - first, NBL_MAX_TALL_SKINNY), with_bias));
        return NBL_OK;
    }
    if (same) {
        nbl__linear_large_layer all = j->layers[0];
        all.rank_padded = j->rank_padded;
        return nbl__linear_large_layer_t(j, &all);
    }
    for (int i = 0; i < j->count; i++) NBL_TRY(nbl__linear_large_layer_t(j, &j->layers[i]));
    return NBL_OK;
}

nbl_status nbl__linear_large_dequantize(const nbl__linear_large *j, const nbl__linear_large_layer *l,
                                        void *to)
{
    return nbl__cuda_dequantize(j->call->ctx, &l->a->w, 0, l->out, NBL_DTYPE_BF16, 0, to,
                                nbl__call_cuda(j->call)->stream);
}

/* ---- forward ---- */

/* One layer of the algorithm `before`: the adapter's product, then the base product added to it. */
static nbl_status forward_before(const nbl__linear_large *j, const nbl__linear_large_layer *l)
{
    if (nbl__linear_large_is_packed(&l->a->w)) NBL_TRY(nbl__linear_large_dequantize(j, l, l->w));
    if (l->rank_padded > 0)
        NBL_TRY(nbl__linear_large_multiply(j, 1,
                                           (nbl__cublaslt_gemm){.c_dtype = NBL_DTYPE_BF16,
                                                                .m = j->tokens,
                                                                .n = l->out,
                                                                .k = l->rank_padded,
                                                                .a = nbl__linear_large_at(j->t, l->t_first),
                                                                .lda = j->t_ld,
                                                                .b = l->lora_b,
                                                                .b_transposed = true,
                                                                .c = l->a->y.data}));
    return nbl__linear_large_multiply(j, 1,
                                      (nbl__cublaslt_gemm){.c_dtype = NBL_DTYPE_BF16,
                                                           .m = j->tokens,
                                                           .n = l->out,
                                                           .k = j->in,
                                                           .a = j->x.data,
                                                           .b = l->w,
                                                           .b_transposed = true,
                                                           .c = l->a->y.data,
                                                           .beta = l->rank_padded > 0 ? 1 : 0});
}

/* Forward: adapters to bf16, t, then the products. */
nbl_status nbl__cuda_large_run(const nbl__call *call, const nbl__linear *members, int count, bool folded)
{
    nbl__linear_large j;
    NBL_TRY(nbl__linear_large_open(&j, call, members, count, false));
    if (j.drops) NBL_TRY(nbl__linear_large_make_masks(&j));
    if (j.rank_padded > 0) {
        NBL_TRY(nbl__linear_large_pack(&j, false));
        NBL_TRY(nbl__linear_large_make_t(&j, true));
    }
    if (folded) return nbl__linear_folded_forward(&j);
    for (int i = 0; i < count; i++) NBL_TRY(forward_before(&j, &j.layers[i]));
    return NBL_OK;
}
