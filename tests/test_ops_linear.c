/* test_ops_linear.c - linear: what is refused, and the reference's gradients against differences of its
 * own forward pass. */
#include <math.h>

#include "support.h"

#include "base/philox.h"
#include "ops/families.h"
#include "ops/linear.h"

enum { TOKENS = 3, IN = 32, OUT = 5, RANK = 2 };

static float random_value(uint32_t stream, uint32_t i)
{
    uint32_t words[4];
    nbl__philox((uint32_t[4]){i, stream, 0, 0}, (uint32_t[2]){11, 22}, words);
    return nbl__uniform(words[0]) * 2 - 1;
}

typedef struct layer {
    float x[TOKENS * IN], w[OUT * IN], bias[OUT], a[RANK * IN], b[OUT * RANK], m[OUT], dy[TOKENS * OUT];
    float y[TOKENS * OUT], dx[TOKENS * IN], dbias[OUT], da[RANK * IN], db[OUT * RANK], dm[OUT];
    nbl__linear args;
} layer;

static nbl_tensor tensor(float *data, int rank, int64_t first, int64_t second)
{
    return (nbl_tensor){.dtype = NBL_DTYPE_F32, .rank = rank, .shape = {first, second}, .data = data};
}

static void make_layer(layer *l, bool dora, float dropout)
{
    float *lists[] = {l->x, l->w, l->bias, l->a, l->b, l->m, l->dy};
    int counts[] = {TOKENS * IN, OUT * IN, OUT, RANK * IN, OUT * RANK, OUT, TOKENS * OUT};
    for (uint32_t k = 0; k < 7; k++)
        for (int i = 0; i < counts[k]; i++) lists[k][i] = random_value(k, (uint32_t)i) + (k == 5 ? 3 : 0);
    l->args = (nbl__linear){
        .dtype = NBL_DTYPE_F32,
        .x = tensor(l->x, 2, TOKENS, IN),
        .w =
            {.format = NBL_FORMAT_DENSE, .dtype = NBL_DTYPE_F32, .rank = 2, .shape = {OUT, IN}, .data = l->w},
        .bias = tensor(l->bias, 1, OUT, 0),
        .lora_a = tensor(l->a, 2, RANK, IN),
        .lora_b = tensor(l->b, 2, OUT, RANK),
        .magnitude = dora ? tensor(l->m, 1, OUT, 0) : (nbl_tensor){0},
        .scale = 0.5f,
        .dropout = dropout,
        .seed = 7,
        .dy = tensor(l->dy, 2, TOKENS, OUT),
        .y = {.data = l->y},
        .dx = {.data = l->dx},
        .dbias = {.data = l->dbias},
        .dlora_a = {.data = l->da},
        .dlora_b = {.data = l->db},
        .dmagnitude = {.data = dora ? l->dm : NULL},
    };
}

static void run_op(nbl_context *ctx, const nbl__op *op, nbl__linear *args)
{
    const nbl__impl *impl;
    assert_ok(ctx, op->infer(ctx, args));
    assert_ok(ctx, nbl__op_choose(ctx, op, args, NULL, &impl));
    size_t bytes = nbl__op_scratch(ctx, impl, args);
    void *scratch = aligned_alloc(64, bytes + 64 - bytes % 64);
    memset(scratch, 0xff, bytes); /* NaN: nothing may be read before it is written */
    assert_ok(ctx, nbl__op_run(ctx, op, impl, args, scratch, bytes));
    free(scratch);
}

/* Sum of dy * y: its derivatives are the gradients. */
static double loss(nbl_context *ctx, layer *l)
{
    double sum = 0;
    run_op(ctx, &nbl__linear_family.forward, &l->args);
    for (int i = 0; i < TOKENS * OUT; i++) sum += (double)l->dy[i] * (double)l->y[i];
    return sum;
}

static void check_gradient(nbl_context *ctx, layer *l, float *values, const float *gradient, int count)
{
    const float step =
        1e-2f; /* everything but DoRA's norm, a constant in backward, is linear in each value */
    for (int i = 0; i < count; i++) {
        float kept = values[i];
        values[i] = kept + step;
        double above = loss(ctx, l);
        values[i] = kept - step;
        double below = loss(ctx, l);
        values[i] = kept;
        assert_true(fabs((above - below) / (2 * (double)step) - (double)gradient[i]) <
                    2e-3 * (1 + fabs((double)gradient[i])));
    }
}

static void the_gradients_are_those_of_the_forward_pass(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int dropout = 0; dropout < 2; dropout++) {
        layer *l = calloc(1, sizeof *l);
        make_layer(l, false, dropout ? 0.3f : 0);
        run_op(ctx, &nbl__linear_family.backward, &l->args);
        check_gradient(ctx, l, l->x, l->dx, TOKENS * IN);
        check_gradient(ctx, l, l->bias, l->dbias, OUT);
        check_gradient(ctx, l, l->a, l->da, RANK * IN);
        check_gradient(ctx, l, l->b, l->db, OUT * RANK);
        free(l);
    }
    layer *l = calloc(1, sizeof *l);
    make_layer(l, true, 0);
    run_op(ctx, &nbl__linear_family.backward, &l->args);
    check_gradient(ctx, l, l->x, l->dx, TOKENS * IN);
    check_gradient(ctx, l, l->m, l->dm, OUT);
    free(l);
    nbl_context_destroy(ctx);
}

static void mismatches_name_operator_tensor_dtypes_and_shapes(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    layer *l = calloc(1, sizeof *l);
#define REFUSED(change, status, ...)                                                                         \
    do {                                                                                                     \
        static const char *const words[] = {__VA_ARGS__};                                                    \
        make_layer(l, true, 0);                                                                              \
        change;                                                                                              \
        assert_int_equal(nbl__linear_family.backward.infer(ctx, &l->args), status);                          \
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)                                            \
            if (!strstr(nbl_error_message(ctx), words[i]))                                                   \
                fail_msg("no %s in: %s", words[i], nbl_error_message(ctx));                                  \
    } while (0)
    REFUSED(l->args.x.dtype = NBL_DTYPE_BF16, NBL_ERROR_DTYPE, "linear", "x", "bf16", "f32", "[3, 32]");
    REFUSED(l->args.dtype = NBL_DTYPE_F16, NBL_ERROR_DTYPE, "x", "f32", "f16");
    REFUSED(l->args.dtype = NBL_DTYPE_I8, NBL_ERROR_DTYPE, "i8");
    REFUSED(l->args.x.shape[1] = 31, NBL_ERROR_SHAPE, "x", "[3, 31]", "32");
    REFUSED(l->args.dy.shape[1] = 4, NBL_ERROR_SHAPE, "dy", "[3, 4]", "5");
    REFUSED(l->args.lora_b.data = NULL, NBL_ERROR_ARGUMENT, "lora_b");
    REFUSED(l->args.lora_b.shape[1] = 3, NBL_ERROR_SHAPE, "lora_b", "[5, 3]", "[5, 2]");
    REFUSED(l->args.magnitude.shape[0] = 6, NBL_ERROR_SHAPE, "magnitude", "[6]", "[5]");
    REFUSED(l->args.dropout = 1, NBL_ERROR_ARGUMENT, "dropout");
    REFUSED(l->args.bias.dtype = NBL_DTYPE_F16, NBL_ERROR_DTYPE, "b ", "f16", "f32");
#undef REFUSED
    const nbl__impl *impl;
    make_layer(l, false, 0);
    assert_int_equal(nbl__op_choose(ctx, &nbl__linear_family.forward, &l->args, "no_such_impl", &impl),
                     NBL_ERROR_ARGUMENT);
    assert_ok(ctx, nbl__op_choose(ctx, &nbl__linear_family.forward, &l->args, "linear_ref", &impl));
    assert_int_equal(nbl__op_run(ctx, &nbl__linear_family.forward, impl, &l->args, NULL, 0),
                     NBL_ERROR_ARGUMENT); /* no scratch */
    free(l);
    nbl_context_destroy(ctx);
}

static void check_row(const nbl__op *op)
{
    const nbl__impl *const *last = op->impls;
    while (last[1]) last++;
    assert_int_equal((*last)->needs, NBL_ISA_SCALAR);
    assert_non_null(strstr((*last)->name, "_ref"));
}

static void every_operator_is_found_by_its_name_and_ends_in_a_reference(void **state)
{
    (void)state;
    int count = 0;
    for (; nbl__family_at(count); count++) {
        const nbl__family *family = nbl__family_at(count);
        assert_ptr_equal(nbl__family_find(family->name), family);
        check_row(&family->forward);
        if (family->backward.name) check_row(&family->backward);
        for (const nbl__slot *slot = family->slots; slot->name; slot++)
            if (slot->of) assert_non_null(nbl__slot_find(family, slot->of));
    }
    assert_true(count >= 1);
    assert_null(nbl__family_find("no_such_op"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gradients_are_those_of_the_forward_pass),
        cmocka_unit_test(mismatches_name_operator_tensor_dtypes_and_shapes),
        cmocka_unit_test(every_operator_is_found_by_its_name_and_ends_in_a_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
