/* test_expert_load.c - counts of the tokens that experts get (report/expert_load.h). */
#include "report/expert_load.h"
#include "support.h"

/* Two layers of three experts: all tokens go to one expert of the second. */
static void steps_and_the_run_are_counted(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    static const int32_t batch[] = {0, 4, 8, 12, 0, 0, 12, 12}, other[] = {0, 8, 8, 12, 0, 0, 12, 12};
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__expert_load load;
    assert_ok(ctx, nbl__expert_load_make(&arena, 2, 3, &load));
    assert_true(nbl__expert_load_peak(&load, load.run) == 0);
    nbl__expert_load_begin(&load);
    nbl__expert_load_add(&load, batch);
    assert_true(nbl__expert_load_row_peak(&load, load.step, 0) == 1);
    assert_true(nbl__expert_load_peak(&load, load.step) == 3);
    nbl__expert_load_begin(&load);
    nbl__expert_load_add(&load, other);
    assert_true(nbl__expert_load_row_peak(&load, load.step, 0) == 2);
    assert_true(nbl__expert_load_row_peak(&load, load.run, 0) == 1.5);
    assert_int_equal(load.run[0 * 3 + 2], 8);
    nbl__arena_free(&arena);
    nbl_context_destroy(ctx);
}

static void a_model_without_experts_has_no_rows(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__expert_load load;
    assert_ok(ctx, nbl__expert_load_make(&arena, 0, 0, &load));
    nbl__expert_load_begin(&load);
    nbl__expert_load_add(&load, NULL);
    assert_true(nbl__expert_load_peak(&load, load.step) == 0);
    nbl__arena_free(&arena);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_and_the_run_are_counted),
        cmocka_unit_test(a_model_without_experts_has_no_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
