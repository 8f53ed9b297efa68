/* public_operators.c - the operator calls of nibble.h, over the table of families.
 *
 * A public call is checked harder than one inside the library: dtypes exist, shapes do not
 * overflow, data is there and aligned. The caller's struct is not changed: everything runs on a
 * copy. The dtype and shape that the caller gave an output must equal those that infer computes.
 * Otherwise the call fails, and nothing is written.
 *
 * Without data (nbl_NAME_infer) the copy gets the address of `nowhere` for every tensor of rank 1
 * and above: infer asks whether a tensor is there, and reads nothing of it. */
#include "device/device.h"
#include "ops/families.h"
#include "ops/linear/dora_norm.h"
#include "ops/linear/linear_group.h"
#include "ops/linear/mlp.h"
#include "ops/loss/cross_entropy.h"
#include "ops/norm/norm_rope.h"
#include "ops/norm/rmsnorm.h"

/* Room for a copy of any public struct of arguments. */
typedef union any_call {
    nbl_linear linear;
    nbl_linear_group linear_group;
    nbl_mlp mlp;
    nbl_dora_norm dora_norm;
    nbl_rmsnorm rmsnorm;
    nbl_norm_rope norm_rope;
    nbl_cross_entropy cross_entropy;
} any_call;

/* What a tensor without elements, and one without memory, points to. It is never read. */
static _Alignas(64) const uint8_t nowhere[64];

static void *stand_in(void)
{
    return (void *)(uintptr_t)nowhere;
}

static bool is_optional_weight(const nbl__slot *slot, const nbl_weight *w)
{
    return slot->role == NBL_ROLE_OPTIONAL_WEIGHT && w->rank == 0;
}

/* ---- checks of what the caller gave ---- */

/* Checks what infer assumes: a valid dtype, a shape whose product does not overflow, data aligned
 * to its elements. */
static nbl_status check_tensor(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t)
{
    int64_t n, rows;
    NBL_CHECK(ctx, (unsigned)t->dtype < NBL_DTYPE_COUNT, NBL_ERROR_DTYPE, "%s: %s has no dtype", op, name);
    nbl_status status = nbl__check_shape(ctx, op, t->rank, t->shape, &n, &rows);
    if (status != NBL_OK) return nbl__hint(ctx, status, "that is %s", name);
    size_t size = (size_t)nbl__dtype_bits(t->dtype) / 8;
    NBL_CHECK(ctx, size == 0 || (uintptr_t)t->data % size == 0, NBL_ERROR_ARGUMENT,
              "%s: %s is not aligned to its %zu-byte elements", op, name, size);
    return NBL_OK;
}

/* Must a call have this tensor? Backward needs the cotangents of all outputs but of residual_out, and
 * what forward has saved. Whether a SAVED tensor exists depends on its flag: infer says so. */
static bool is_needed(const nbl__slot *slot, bool backward)
{
    if (slot->role == NBL_ROLE_INPUT) return true;
    if (!backward) return false;
    if (slot->role == NBL_ROLE_SAVED) return slot->when == NULL;
    return slot->role == NBL_ROLE_COTANGENT && strcmp(slot->of, "residual_out") != 0;
}

/* Checks that every attribute that is one of several words is one of them. */
static nbl_status check_words(nbl_context *ctx, const nbl__family *family, const void *copy)
{
    for (const nbl__attr *attr = family->attrs; attr->name; attr++) {
        if (attr->type != NBL_ATTR_WORD) continue;
        int value = *(const int *)(const void *)((const char *)copy + attr->offset), count = 0;
        while (attr->words[count]) count++;
        NBL_CHECK(ctx, value >= 0 && value < count, NBL_ERROR_ARGUMENT, "%s: %s is %d; allowed are 0 to %d",
                  family->name, attr->name, value, count - 1);
    }
    return NBL_OK;
}

/* Checks every tensor and weight of the copy, and that nothing needed is missing. A tensor without
 * elements is there without data. */
static nbl_status check_given(nbl_context *ctx, const nbl__family *family, bool backward, void *copy)
{
    NBL_TRY(check_words(ctx, family, copy));
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        void *field = (char *)copy + slot->offset;
        int64_t n, rows;
        if (nbl__slot_is_weight(slot)) {
            if (is_optional_weight(slot, field)) continue;
            nbl_status status = nbl__check_weight(ctx, family->name, field, &n, &rows);
            if (status != NBL_OK && strcmp(slot->name, "w") != 0)
                nbl__fail_within(ctx, status, "%s", slot->name);
            NBL_TRY(status);
            continue;
        }
        nbl_tensor *t = field;
        if (t->data == NULL && t->rank > 0 && t->rank <= NBL_MAX_RANK && nbl__tensor_elements(t) == 0)
            t->data = stand_in();
        if (t->data) NBL_TRY(check_tensor(ctx, family->name, slot->name, t));
        /* Members of a group that are not there have neither weight nor cotangent: rank 0. */
        else if (is_needed(slot, backward) && (t->rank > 0 || slot->role != NBL_ROLE_COTANGENT))
            return nbl__fail(ctx, NBL_ERROR_ARGUMENT, "%s: %s has no data", family->name, slot->name);
    }
    return NBL_OK;
}

/* Compares an output as the caller describes it with what infer made of it. */
static nbl_status check_output(nbl_context *ctx, const char *op, const nbl__slot *slot,
                               const nbl_tensor *given, const nbl_tensor *inferred)
{
    NBL_TRY(nbl__check_dtype(ctx, op, slot->name, given, inferred->dtype));
    return nbl__check_dims(ctx, op, slot->name, given, inferred->rank, inferred->shape);
}

/* Compares what the call writes. A gradient without memory is not wanted. An output of forward must
 * have memory, except w_norm2_out of dora_norm. */
static nbl_status check_outputs(nbl_context *ctx, const nbl__family *family, const nbl__op *op, bool backward,
                                const void *given, void *inferred)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        bool saved = !backward && slot->role == NBL_ROLE_SAVED;
        if (slot->role != (backward ? NBL_ROLE_GRADIENT : NBL_ROLE_OUTPUT) && !saved) continue;
        const nbl_tensor *mine = (const void *)((const char *)given + slot->offset);
        const nbl_tensor *right = nbl__slot_tensor(slot, inferred);
        if (right->rank == 0) {
            NBL_CHECK(ctx, mine->data == NULL, NBL_ERROR_ARGUMENT,
                      "%s: %s is not produced by these arguments", op->name, slot->name);
            continue;
        }
        bool optional = backward || strcmp(slot->name, "w_norm2_out") == 0;
        NBL_CHECK(ctx, mine->data || optional || nbl__tensor_elements(right) == 0, NBL_ERROR_ARGUMENT,
                  "%s: %s has no memory", op->name, slot->name);
        if (mine->data || mine->rank > 0) NBL_TRY(check_output(ctx, op->name, slot, mine, right));
    }
    return NBL_OK;
}

/* Does backward read this result of forward? A SAVED tensor always, an output if its slot says so. */
static bool is_read_again(const nbl__slot *slot)
{
    return slot->role == NBL_ROLE_SAVED || (slot->role == NBL_ROLE_OUTPUT && slot->saved);
}

/* Backward reads results of forward in the dtype and shape that forward wrote. */
static nbl_status check_saved(nbl_context *ctx, const nbl__family *family, const void *copy)
{
    bool any = false;
    for (const nbl__slot *slot = family->slots; slot->name; slot++) any |= is_read_again(slot);
    if (!any) return NBL_OK;
    any_call forward;
    memcpy(&forward, copy, family->size);
    NBL_TRY(family->forward.infer(ctx, &forward));
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        if (!is_read_again(slot)) continue;
        const nbl_tensor *mine = (const void *)((const char *)copy + slot->offset);
        const nbl_tensor *right = nbl__slot_tensor(slot, &forward);
        bool optional = slot->role == NBL_ROLE_OUTPUT; /* backward computes it again */
        if (right->rank == 0 || (optional && mine->data == NULL)) continue;
        NBL_CHECK(ctx, mine->data, NBL_ERROR_ARGUMENT, "%s: %s has no data", family->backward.name,
                  slot->name);
        NBL_TRY(check_output(ctx, family->backward.name, slot, mine, right));
    }
    return NBL_OK;
}

/* ---- a call ---- */

/* A family without this direction has no operator. */
static nbl_status op_of(nbl_context *ctx, const nbl__family *family, bool backward, const nbl__op **op)
{
    *op = backward ? &family->backward : &family->forward;
    NBL_CHECK(ctx, (*op)->name, NBL_ERROR_UNSUPPORTED, "%s has no backward", family->name);
    return NBL_OK;
}

/* The nested offset of each weight, where the host can read it. A device's kernels read it themselves. */
static void read_offsets(nbl_context *ctx, const nbl__family *family, void *copy)
{
    if (nbl__device_of(ctx)->separate_memory) return;
    for (const nbl__slot *slot = family->slots; slot->name; slot++)
        if (nbl__slot_is_weight(slot))
            nbl__weight_read_offset((nbl_weight *)(void *)((char *)copy + slot->offset));
}

/* Checks, infers into `copy`, and chooses an implementation. */
static nbl_status choose(nbl_context *ctx, const nbl__family *family, bool backward, const void *call,
                         any_call *copy, const nbl__op **op, const nbl__impl **impl)
{
    NBL_CHECK(ctx, call, NBL_ERROR_ARGUMENT, "%s: NULL argument", family->name);
    NBL_TRY(op_of(ctx, family, backward, op));
    memcpy(copy, call, family->size);
    NBL_TRY(check_given(ctx, family, backward, copy));
    read_offsets(ctx, family, copy);
    NBL_TRY(nbl__infer(ctx, family, backward, copy));
    NBL_TRY(check_outputs(ctx, family, *op, backward, call, copy));
    if (backward) NBL_TRY(check_saved(ctx, family, copy));
    return nbl__op_choose(ctx, *op, copy, NULL, impl);
}

static nbl_status scratch_of(nbl_context *ctx, const nbl__family *family, bool backward, const void *call,
                             size_t *bytes)
{
    any_call copy;
    const nbl__op *op;
    const nbl__impl *impl;
    NBL_CHECK(ctx, bytes, NBL_ERROR_ARGUMENT, "%s: NULL argument", family->name);
    NBL_TRY(choose(ctx, family, backward, call, &copy, &op, &impl));
    *bytes = (nbl__op_scratch(ctx, impl, &copy) + 63) / 64 * 64;
    return NBL_OK;
}

/* The layer of a call that holds `saved`; NULL: the family has none. */
static const nbl_linear *saving_layer(const nbl__family *family, const any_call *copy)
{
    if (family == &nbl__linear_family) return &copy->linear;
    return family == &nbl__linear_group_family ? &copy->linear_group.members[0] : NULL;
}

/* Bytes that forward of these arguments leaves for backward. In a call of backward the outputs of forward
 * need not be described. */
static nbl_status saved_bytes(nbl_context *ctx, const nbl__family *family, const any_call *copy,
                              size_t *bytes)
{
    const nbl__impl *impl;
    any_call forward;
    memcpy(&forward, copy, family->size);
    NBL_TRY(nbl__infer(ctx, family, false, &forward));
    NBL_TRY(nbl__op_choose(ctx, &family->forward, &forward, NULL, &impl));
    *bytes = nbl__device_of(ctx)->saved_bytes(impl, &forward);
    return NBL_OK;
}

/* The outputs need neither memory nor a shape: a call of backward may ask, too. */
static nbl_status saved_of(nbl_context *ctx, const nbl__family *family, const void *call, size_t *bytes)
{
    any_call copy;
    NBL_CHECK(ctx, call && bytes, NBL_ERROR_ARGUMENT, "%s: NULL argument", family->name);
    memcpy(&copy, call, family->size);
    NBL_TRY(check_given(ctx, family, false, &copy));
    return saved_bytes(ctx, family, &copy, bytes);
}

static nbl_status run(nbl_context *ctx, const nbl__family *family, bool backward, const void *call,
                      void *scratch, size_t bytes)
{
    any_call copy;
    const nbl__op *op;
    const nbl__impl *impl;
    NBL_TRY(choose(ctx, family, backward, call, &copy, &op, &impl));
    const nbl_linear *layer = saving_layer(family, &copy);
    void *saved = layer ? layer->saved : NULL;
    if (saved) {
        size_t needed;
        NBL_TRY(saved_bytes(ctx, family, &copy, &needed));
        if (needed == 0) saved = NULL;
        NBL_CHECK(ctx, saved == NULL || (layer->saved_bytes >= needed && (uintptr_t)saved % 64 == 0),
                  NBL_ERROR_ARGUMENT, "%s: saved has %zu bytes; %zu are needed, aligned to 64", op->name,
                  layer->saved_bytes, needed);
    }
    return nbl__op_run_within(ctx, op, impl, &copy, scratch, bytes, saved);
}

/* ---- without data ---- */

/* Points every tensor of the copy that is there, and every part of its weights, to `nowhere`. */
static void forget_data(const nbl__family *family, void *copy)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        if (nbl__slot_is_weight(slot)) {
            nbl_weight *w = (nbl_weight *)(void *)((char *)copy + slot->offset);
            bool nested = w->nested_scales || w->given.nested_scales > 0;
            w->data = stand_in();
            w->scales = stand_in();
            w->scale_codes = stand_in();
            w->nested_scales = nested ? stand_in() : NULL;
            w->nested_table = stand_in();
            continue;
        }
        nbl_tensor *t = nbl__slot_tensor(slot, copy);
        t->data = t->rank > 0 ? stand_in() : NULL;
    }
}

/* Gives the copy the pointers of `call` back. */
static void restore_data(const nbl__family *family, const void *call, void *copy)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        const void *from = (const char *)call + slot->offset;
        if (nbl__slot_is_weight(slot)) memcpy((char *)copy + slot->offset, from, sizeof(nbl_weight));
        else nbl__slot_tensor(slot, copy)->data = ((const nbl_tensor *)from)->data;
    }
}

static nbl_status infer_public(nbl_context *ctx, const nbl__family *family, bool backward, void *call)
{
    any_call copy;
    const nbl__op *op;
    NBL_CHECK(ctx, call, NBL_ERROR_ARGUMENT, "%s: NULL argument", family->name);
    NBL_TRY(op_of(ctx, family, backward, &op));
    memcpy(&copy, call, family->size);
    forget_data(family, &copy);
    NBL_TRY(check_given(ctx, family, backward, &copy));
    NBL_TRY(nbl__infer(ctx, family, backward, &copy));
    if (backward) NBL_TRY(check_saved(ctx, family, &copy));
    restore_data(family, call, &copy);
    memcpy(call, &copy, family->size);
    return NBL_OK;
}

/* ---- the functions ---- */

#define PUBLIC_CALLS(name)                                                                                   \
    nbl_status nbl_##name##_infer(nbl_context *ctx, nbl_##name *call, bool backward)                         \
    {                                                                                                        \
        return infer_public(ctx, &nbl__##name##_family, backward, call);                                     \
    }                                                                                                        \
    nbl_status nbl_##name##_scratch(nbl_context *ctx, const nbl_##name *call, bool backward, size_t *bytes)  \
    {                                                                                                        \
        return scratch_of(ctx, &nbl__##name##_family, backward, call, bytes);                                \
    }                                                                                                        \
    nbl_status nbl_##name##_forward(nbl_context *ctx, const nbl_##name *call, void *scratch, size_t bytes)   \
    {                                                                                                        \
        return run(ctx, &nbl__##name##_family, false, call, scratch, bytes);                                 \
    }                                                                                                        \
    nbl_status nbl_##name##_backward(nbl_context *ctx, const nbl_##name *call, void *scratch, size_t bytes)  \
    {                                                                                                        \
        return run(ctx, &nbl__##name##_family, true, call, scratch, bytes);                                  \
    }

PUBLIC_CALLS(linear)
PUBLIC_CALLS(linear_group)
PUBLIC_CALLS(mlp)
PUBLIC_CALLS(dora_norm)
PUBLIC_CALLS(rmsnorm)
PUBLIC_CALLS(norm_rope)
PUBLIC_CALLS(cross_entropy)

nbl_status nbl_linear_saved(nbl_context *ctx, const nbl_linear *call, size_t *bytes)
{
    return saved_of(ctx, &nbl__linear_family, call, bytes);
}

nbl_status nbl_linear_group_saved(nbl_context *ctx, const nbl_linear_group *call, size_t *bytes)
{
    return saved_of(ctx, &nbl__linear_group_family, call, bytes);
}
