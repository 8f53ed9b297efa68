/* op_linear.c - nibble::linear and nibble::linear_group, and their backward.
 *
 * `saved` is what forward leaves for backward on a CUDA device: u8 [tokens + 4, bytes per token]. The bytes
 * follow from shapes and dtypes alone, and so does the fake rule (_fake.py has the same formula). They are an
 * upper bound of nbl_linear_saved, which knows the device. On a CPU `saved` has no elements. */
#include "torch_call.h"

enum { GROUP = 3 }; /* members of nibble::linear_group; the third may be absent */

DEFINE_RUN(linear)
DEFINE_RUN(linear_group)

/* ---- saved ---- */

static int64_t rank_of(const nbl_linear *layer)
{
    return layer->lora_a.data ? layer->lora_a.shape[0] : 0;
}

/* The output `saved` of forward. */
static nbl_tensor saved_shape(const torch_call *c, const nbl_linear *layers, int count)
{
    const nbl_tensor *x = &layers->x;
    int64_t bytes = 0, ranks = 0, tokens = 1;
    bool dora = false;
    for (int i = 0; i + 1 < x->rank; i++) tokens *= x->shape[i];
    for (int i = 0; i < count; i++) {
        int64_t rank = rank_of(&layers[i]), columns = layers[i].w.shape[1];
        ranks += rank;
        dora |= layers[i].magnitude.data != NULL;
        bytes += (rank + (layers[i].bias.data ? 2 : 0) + 15) / 16 * 32;
        if (rank > 0 && layers->dropout > 0) bytes += (columns + 63) / 64 * 8;
    }
    if (!call_on_cuda(c) || layers->dtype != NBL_DTYPE_BF16 || dora || ranks == 0)
        return nbl_vector(NBL_DTYPE_U8, 0, NULL);
    return nbl_matrix(NBL_DTYPE_U8, tokens + 4, bytes, NULL);
}

static uint64_t bytes_of(const nbl_tensor *saved)
{
    return saved->rank == 2 ? (uint64_t)(saved->shape[0] * saved->shape[1]) : 0;
}

/* Hands `saved` to a layer if it suffices. Both directions ask with the arguments of forward, and agree. */
static void use_saved(torch_call *c, nbl_linear *layer, const nbl_tensor *saved)
{
    size_t needed = 0;
    nbl_context *ctx = bytes_of(saved) > 0 ? call_context(c) : NULL;
    if (ctx == NULL) return;
    nbl_linear forward = *layer;
    forward.y = call_like(&layer->x, layer->w.shape[0], layer->dtype);
    call_status(c, nbl_linear_saved(ctx, &forward, &needed));
    if (c->failed || needed == 0 || needed > bytes_of(saved)) return;
    layer->saved = saved->data;
    layer->saved_bytes = bytes_of(saved);
}

static void use_group_saved(torch_call *c, nbl_linear_group *group, int count, const nbl_tensor *saved)
{
    size_t needed = 0;
    nbl_context *ctx = bytes_of(saved) > 0 ? call_context(c) : NULL;
    if (ctx == NULL) return;
    nbl_linear_group forward = *group;
    for (int i = 0; i < count; i++)
        forward.members[i].y = call_like(&group->members[0].x, group->members[i].w.shape[0],
                                         group->members[0].dtype);
    call_status(c, nbl_linear_group_saved(ctx, &forward, &needed));
    if (c->failed || needed == 0 || needed > bytes_of(saved)) return;
    group->members[0].saved = saved->data;
    group->members[0].saved_bytes = bytes_of(saved);
}

/* ---- linear ---- */

/* The arguments that forward and backward share, behind x. */
static void read_layer(torch_call *c, nbl_linear *layer)
{
    layer->dtype = layer->x.dtype;
    layer->w = call_weight(c, "");
    call_adapter(c, "", layer);
    call_options(c, layer, layer->lora_a.data != NULL);
}

void op_linear(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_linear layer = {0};
    (void)inputs, (void)outputs;
    call_begin(&c, "linear", stack);
    layer.x = call_rows(&c, "x", 1);
    read_layer(&c, &layer);
    nbl_tensor saved = saved_shape(&c, &layer, 1);
    layer.y = call_like(&layer.x, layer.w.shape[0], layer.dtype);
    call_output(&c, &layer.y);
    call_output(&c, &saved);
    call_flatten(1, (nbl_tensor *[]){&layer.x, &layer.y, NULL});
    use_saved(&c, &layer, &saved);
    run_linear(&c, &layer, false);
    call_end(&c);
}

void op_linear_backward(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_linear layer = {0};
    (void)inputs, (void)outputs;
    call_begin(&c, "linear_backward", stack);
    layer.dy = call_rows(&c, "dy", 1);
    layer.x = call_rows(&c, "x", 1);
    nbl_tensor saved = call_tensor(&c, "saved");
    read_layer(&c, &layer);
    int64_t wanted = call_int(&c);
    layer.dx = call_like(&layer.x, layer.w.shape[1], layer.dtype);
    call_output_if(&c, &layer.dx, wanted & 1);
    call_adapter_gradients(&c, &layer, wanted >> 1);
    call_flatten(1, (nbl_tensor *[]){&layer.x, &layer.dy, &layer.dx, NULL});
    use_saved(&c, &layer, &saved);
    run_linear(&c, &layer, true);
    call_end(&c);
}

/* ---- linear_group ---- */

/* The arguments that forward and backward share, behind x. Returns the number of members. */
static int read_group(torch_call *c, nbl_linear_group *group)
{
    static const char *const parts[GROUP] = {"0", "1", "2"};
    nbl_linear *first = &group->members[0];
    bool adapted = false;
    int count = 0;
    first->dtype = first->x.dtype;
    for (int i = 0; i < GROUP; i++) {
        nbl_linear *member = &group->members[i];
        member->w = call_weight(c, parts[i]);
        call_adapter(c, parts[i], member);
        if (i > 0) call_own_scale(member);
        adapted |= member->lora_a.data != NULL;
        if (member->w.shape[0] > 0) count = i + 1;
    }
    for (int i = count; i < GROUP; i++) { /* absent; nibble refuses tensors of its adapter */
        group->members[i].w = (nbl_weight){0};
        group->members[i].scale = 0;
    }
    call_options(c, first, adapted);
    return count;
}

void op_linear_group(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_linear_group group = {0};
    (void)inputs, (void)outputs;
    call_begin(&c, "linear_group", stack);
    nbl_linear *members = group.members;
    members[0].x = call_rows(&c, "x", 1);
    int count = read_group(&c, &group);
    for (int i = 0; i < GROUP; i++) {
        members[i].y = call_like(&members[0].x, members[i].w.shape[0], members[0].dtype);
        call_output_if(&c, &members[i].y, i < count);
    }
    nbl_tensor saved = saved_shape(&c, members, count);
    call_output(&c, &saved);
    call_flatten(1, (nbl_tensor *[]){&members[0].x, &members[0].y, &members[1].y, &members[2].y, NULL});
    use_group_saved(&c, &group, count, &saved);
    run_linear_group(&c, &group, false);
    call_end(&c);
}

void op_linear_group_backward(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_linear_group group = {0};
    nbl_tensor dy[GROUP];
    static const char *const names[GROUP] = {"dy0", "dy1", "dy2"};
    (void)inputs, (void)outputs;
    call_begin(&c, "linear_group_backward", stack);
    nbl_linear *members = group.members;
    for (int i = 0; i < GROUP; i++) dy[i] = call_rows(&c, names[i], 1);
    members[0].x = call_rows(&c, "x", 1);
    nbl_tensor saved = call_tensor(&c, "saved");
    int count = read_group(&c, &group);
    int64_t wanted = call_int(&c);
    members[0].dx = call_like(&members[0].x, members[0].w.shape[1], members[0].dtype);
    call_output_if(&c, &members[0].dx, wanted & 1);
    for (int i = 0; i < GROUP; i++) {
        if (i < count) members[i].dy = dy[i];
        call_adapter_gradients(&c, &members[i], wanted >> (1 + 4 * i));
    }
    call_flatten(1, (nbl_tensor *[]){&members[0].x, &members[0].dx, &members[0].dy, &members[1].dy,
                                     &members[2].dy, NULL});
    use_group_saved(&c, &group, count, &saved);
    run_linear_group(&c, &group, true);
    call_end(&c);
}
