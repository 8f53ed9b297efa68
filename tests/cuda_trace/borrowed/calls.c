/* calls.c - see calls.h. */
#include "calls.h"

static struct {
    uint8_t *memory[64];
    int count;
    uint8_t *scratch;
    nbl_linear layer, row;
    nbl_linear_group group;
    nbl_mlp mlp;
    nbl_dora_norm dora;
    nbl_rmsnorm rmsnorm;
    nbl_norm_rope norm_rope;
    nbl_cross_entropy loss;
    nbl_adamw_tensor trained;
    nbl_tensor gradient, values;
} all;

static void *device_memory(size_t bytes)
{
    void *memory;
    assert_int_equal(cudaMalloc(&memory, bytes), cudaSuccess);
    assert_true(all.count < 64);
    return all.memory[all.count++] = memory;
}

static nbl_tensor vector(nbl_dtype dtype, int64_t n)
{
    return nbl_vector(dtype, n, device_memory((size_t)n * 8));
}

static nbl_tensor matrix(nbl_dtype dtype, int64_t rows, int64_t columns)
{
    return nbl_matrix(dtype, rows, columns, device_memory((size_t)(rows * columns) * 4));
}

static nbl_weight packed_weight(int64_t rows, int64_t columns)
{
    int64_t blocks = rows * columns / 64;
    return (nbl_weight){.format = NBL_FORMAT_NF4,
                        .dtype = NBL_DTYPE_BF16,
                        .rank = 2,
                        .shape = {rows, columns},
                        .data = device_memory((size_t)(rows * columns / 2)),
                        .block = 64,
                        .scale_codes = device_memory((size_t)blocks),
                        .nested_scales = device_memory((size_t)(blocks + 255) / 256 * 4),
                        .nested_table = device_memory(1024),
                        .nested_block = 256,
                        .nested_offset_at = device_memory(4)};
}

static nbl_linear layer_of(int64_t tokens, int64_t in, int64_t out, bool adapter)
{
    nbl_linear a = {.dtype = NBL_DTYPE_BF16,
                    .x = matrix(NBL_DTYPE_BF16, tokens, in),
                    .w = packed_weight(out, in),
                    .scale = 2,
                    .y = matrix(NBL_DTYPE_BF16, tokens, out)};
    if (!adapter) return a;
    a.lora_a = matrix(NBL_DTYPE_F32, RANK, in);
    a.lora_b = matrix(NBL_DTYPE_F32, out, RANK);
    a.dropout = 0.1f;
    a.seeds = vector(NBL_DTYPE_I64, 1);
    a.dy = matrix(NBL_DTYPE_BF16, tokens, out);
    a.dx = matrix(NBL_DTYPE_BF16, tokens, in);
    a.dlora_a = matrix(NBL_DTYPE_F32, RANK, in);
    a.dlora_b = matrix(NBL_DTYPE_F32, out, RANK);
    return a;
}

/* What the other members of a group do not have. */
static nbl_linear member_of(nbl_linear a)
{
    a.x = a.dx = a.seeds = (nbl_tensor){0};
    a.dropout = 0;
    return a;
}

void calls_open(void)
{
    nbl_tensor none = {0};
    memset(&all, 0, sizeof all);
    all.layer = layer_of(TOKENS, IN, OUT, true);
    all.row = layer_of(1, IN, OUT, false);
    all.group.members[0] = all.layer;
    all.group.members[1] = member_of(all.layer);
    all.group.members[1].y = matrix(NBL_DTYPE_BF16, TOKENS, OUT);
    all.mlp = (nbl_mlp){.gate = all.layer, .up = member_of(all.layer), .down = member_of(all.layer)};
    all.mlp.gate.y = all.mlp.up.y = none;
    all.mlp.gate.dy = all.mlp.up.dy = none;
    all.dora = (nbl_dora_norm){.dtype = NBL_DTYPE_BF16,
                               .w = all.layer.w,
                               .lora_a = all.layer.lora_a,
                               .lora_b = all.layer.lora_b,
                               .scale = 2,
                               .norm = vector(NBL_DTYPE_F32, OUT)};
    all.rmsnorm = (nbl_rmsnorm){.dtype = NBL_DTYPE_BF16,
                                .eps = 1e-5f,
                                .x = all.layer.x,
                                .w = vector(NBL_DTYPE_F32, IN),
                                .y = matrix(NBL_DTYPE_BF16, TOKENS, IN),
                                .dy = matrix(NBL_DTYPE_BF16, TOKENS, IN),
                                .dx = matrix(NBL_DTYPE_BF16, TOKENS, IN),
                                .dw = vector(NBL_DTYPE_F32, IN)};
    nbl_tensor heads = matrix(NBL_DTYPE_BF16, TOKENS, HEADS * HEAD_DIM);
    heads = (nbl_tensor){NBL_DTYPE_BF16, 3, {TOKENS, HEADS, HEAD_DIM}, heads.data, 0};
    all.norm_rope = (nbl_norm_rope){.dtype = NBL_DTYPE_BF16,
                                    .x = heads,
                                    .w = vector(NBL_DTYPE_F32, HEAD_DIM),
                                    .cos = matrix(NBL_DTYPE_F32, TOKENS, HEAD_DIM / 2),
                                    .sin = matrix(NBL_DTYPE_F32, TOKENS, HEAD_DIM / 2),
                                    .eps = 1e-5f,
                                    .y = heads,
                                    .dy = heads,
                                    .dx = heads};
    all.norm_rope.y.data = device_memory(TOKENS * HEADS * HEAD_DIM * 2);
    all.norm_rope.dx.data = device_memory(TOKENS * HEADS * HEAD_DIM * 2);
    all.loss = (nbl_cross_entropy){.dtype = NBL_DTYPE_BF16,
                                   .x = all.layer.x,
                                   .w = packed_weight(VOCABULARY, IN),
                                   .labels = vector(NBL_DTYPE_I32, TOKENS),
                                   .loss = vector(NBL_DTYPE_F32, 1),
                                   .logprobs = vector(NBL_DTYPE_F32, TOKENS),
                                   .lse = matrix(NBL_DTYPE_F32, 2, TOKENS),
                                   .dloss = vector(NBL_DTYPE_F32, 1),
                                   .dx = matrix(NBL_DTYPE_BF16, TOKENS, IN)};
    all.gradient = vector(NBL_DTYPE_F32, 4096);
    all.trained = (nbl_adamw_tensor){.p = vector(NBL_DTYPE_F32, 4096),
                                     .g = all.gradient,
                                     .m = vector(NBL_DTYPE_F32, 4096),
                                     .v = vector(NBL_DTYPE_F32, 4096)};
    all.values = matrix(NBL_DTYPE_F32, OUT, IN);
    all.scratch = device_memory(SCRATCH_BYTES);
}

void calls_close(void)
{
    while (all.count > 0) assert_int_equal(cudaFree(all.memory[--all.count]), cudaSuccess);
}

uint8_t *calls_scratch(void)
{
    return all.scratch;
}

nbl_linear *calls_layer(void)
{
    return &all.layer;
}

nbl_linear *calls_row(void)
{
    return &all.row;
}

/* Runs one direction of a call. */
#define DEFINE_RUN(NAME)                                                                                     \
    static nbl_status run_##NAME(nbl_context *ctx, const nbl_##NAME *call, bool backward, uint8_t *scratch)  \
    {                                                                                                        \
        size_t bytes;                                                                                        \
        nbl_status status = nbl_##NAME##_scratch(ctx, call, backward, &bytes);                               \
        if (status != NBL_OK) return status;                                                                 \
        assert_true(bytes <= SCRATCH_BYTES && bytes % 64 == 0);                                              \
        return backward ? nbl_##NAME##_backward(ctx, call, scratch, bytes)                                   \
                        : nbl_##NAME##_forward(ctx, call, scratch, bytes);                                   \
    }
DEFINE_RUN(linear)
DEFINE_RUN(linear_group)
DEFINE_RUN(mlp)
DEFINE_RUN(dora_norm)
DEFINE_RUN(rmsnorm)
DEFINE_RUN(norm_rope)
DEFINE_RUN(cross_entropy)

nbl_status calls_linear(nbl_context *ctx, const nbl_linear *call, bool backward, uint8_t *scratch)
{
    return run_linear(ctx, call, backward, scratch);
}

#define DEFINE_OPERATION(name, NAME, field, backward)                                                        \
    static nbl_status name(nbl_context *ctx, uint8_t *scratch)                                               \
    {                                                                                                        \
        return run_##NAME(ctx, &all.field, backward, scratch);                                               \
    }
DEFINE_OPERATION(linear, linear, layer, false)
DEFINE_OPERATION(linear_backward, linear, layer, true)
DEFINE_OPERATION(linear_row, linear, row, false)
DEFINE_OPERATION(group, linear_group, group, false)
DEFINE_OPERATION(group_backward, linear_group, group, true)
DEFINE_OPERATION(mlp, mlp, mlp, false)
DEFINE_OPERATION(mlp_backward, mlp, mlp, true)
DEFINE_OPERATION(dora_norm, dora_norm, dora, false)
DEFINE_OPERATION(rmsnorm, rmsnorm, rmsnorm, false)
DEFINE_OPERATION(rmsnorm_backward, rmsnorm, rmsnorm, true)
DEFINE_OPERATION(norm_rope, norm_rope, norm_rope, false)
DEFINE_OPERATION(norm_rope_backward, norm_rope, norm_rope, true)
DEFINE_OPERATION(cross_entropy, cross_entropy, loss, false)
DEFINE_OPERATION(cross_entropy_backward, cross_entropy, loss, true)

/* The other algorithms of a layer: cuBLASLt's (a row that is not aligned), the general one (f16), a few rows, strided rows. */
static nbl_status linear_general(nbl_context *ctx, uint8_t *scratch)
{
    nbl_linear a = all.layer;
    a.dtype = a.x.dtype = a.y.dtype = a.dy.dtype = a.dx.dtype = NBL_DTYPE_F16;
    nbl_status status = run_linear(ctx, &a, false, scratch);
    return status == NBL_OK ? run_linear(ctx, &a, true, scratch) : status;
}

static nbl_status linear_strided(nbl_context *ctx, uint8_t *scratch)
{
    nbl_linear a = all.layer;
    a.x.shape[0] = a.y.shape[0] = a.dy.shape[0] = a.dx.shape[0] = TOKENS / 2;
    a.x.row_stride = a.dx.row_stride = 2 * IN;
    nbl_status status = run_linear(ctx, &a, false, scratch);
    return status == NBL_OK ? run_linear(ctx, &a, true, scratch) : status;
}

static nbl_status linear_four(nbl_context *ctx, uint8_t *scratch)
{
    nbl_linear a = all.layer;
    a.x.shape[0] = a.y.shape[0] = 4;
    a.dropout = 0;
    return run_linear(ctx, &a, false, scratch);
}

static nbl_status dequantize(nbl_context *ctx, uint8_t *scratch)
{
    (void)scratch;
    nbl_status status = nbl_dequantize(ctx, &all.layer.w, 3, 77, NBL_DTYPE_F32, false, all.values.data);
    if (status == NBL_OK)
        status = nbl_dequantize(ctx, &all.layer.w, 0, OUT, NBL_DTYPE_BF16, true, all.values.data);
    return status;
}

static nbl_status dequantize_dense(nbl_context *ctx, uint8_t *scratch)
{
    nbl_weight w = {.dtype = NBL_DTYPE_BF16, .rank = 2, .shape = {TOKENS, IN}, .data = all.layer.x.data};
    return nbl_dequantize(ctx, &w, 1, 5, NBL_DTYPE_BF16, false, scratch);
}

static nbl_status adamw(nbl_context *ctx, uint8_t *scratch)
{
    (void)scratch;
    nbl_adamw step = {.tensors = &all.trained,
                      .count = 1,
                      .lr = 1e-3,
                      .beta1 = 0.9,
                      .beta2 = 0.999,
                      .eps = 1e-8,
                      .grad_scale = 1,
                      .step = 1,
                      .bits = 32};
    return nbl_adamw_step(ctx, &step);
}

static nbl_status grad_norm(nbl_context *ctx, uint8_t *scratch)
{
    float norm;
    int64_t non_finite;
    (void)scratch;
    return nbl_grad_norm(ctx, &all.gradient, 1, 1, &norm, &non_finite);
}

const operation operations[] = {{"linear", linear, false},
                                {"linear_backward", linear_backward, false},
                                {"linear of one row", linear_row, false},
                                {"linear of four rows", linear_four, false},
                                {"linear in f16", linear_general, false},
                                {"linear with row strides", linear_strided, false},
                                {"linear_group", group, false},
                                {"linear_group_backward", group_backward, false},
                                {"mlp", mlp, false},
                                {"mlp_backward", mlp_backward, false},
                                {"dora_norm", dora_norm, false},
                                {"rmsnorm", rmsnorm, false},
                                {"rmsnorm_backward", rmsnorm_backward, false},
                                {"norm_rope", norm_rope, false},
                                {"norm_rope_backward", norm_rope_backward, false},
                                {"cross_entropy", cross_entropy, false},
                                {"cross_entropy_backward", cross_entropy_backward, false},
                                {"dequantize", dequantize, false},
                                {"dequantize of a dense weight", dequantize_dense, false},
                                {"adamw", adamw, false},
                                {"grad_norm", grad_norm, true},
                                {NULL, NULL, false}};
