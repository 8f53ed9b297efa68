/* test_ops_scratch.c - the scratch that kernels of a device ask for, over the whole case table; it takes no device to ask. */
#include "support.h"

#include "case.h"
#include "device/cuda/cuda.h"

typedef struct asking {
    nbl_context *cpu, *device;
    const nbl__family *family;
    int64_t asked, wrong;
} asking;

static void ask(asking *a, const op_case *c, const nbl__op *op)
{
    char why[CASE_TEXT];
    const nbl__impl *const *impls = case_impls(a->device, a->family, op);
    for (; impls && *impls; impls++) {
        if ((*impls)->can && (*impls)->can(a->device, c->arguments)) continue;
        a->asked++;
        if (case_scratch_grows(a->device, c, *impls, c->arguments, why)) continue;
        if (a->wrong++ < 20) print_error("%s: %s: %s\n", (*impls)->name, c->text, why);
    }
}

static bool each(void *user, const char *text)
{
    asking *a = user;
    char why[CASE_TEXT];
    op_case c;
    case_status status = case_build(a->cpu, a->family, text, 1, SPLIT_NONE, &c, why);
    if (status == CASE_BAD) fail_msg("%s: %s", text, why);
    if (status != CASE_READY) return true;
    if (a->family->forward.infer(a->cpu, c.arguments) == NBL_OK) {
        ask(a, &c, &a->family->forward);
        if (c.backward && a->family->backward.infer(a->cpu, c.arguments) == NBL_OK)
            ask(a, &c, &a->family->backward);
    }
    case_destroy(&c);
    return true;
}

static void stays(nbl__device *device)
{
    (void)device;
}

/* Of a device only what sizes depend on. */
static void with_fewer_tokens_no_kernel_of_a_device_needs_more_scratch(void **state)
{
    (void)state;
    asking a = {.cpu = new_context(), .device = new_context()};
    static const int majors[] = {8, 9};
    for (int m = 0; m < 2; m++) {
        nbl__cuda device = {
            .device = nbl__cuda_template, .ctx = a.device, .major = majors[m], .multiprocessors = 132};
        nbl__context_set_device(a.device, &device.device, stays);
        for (const case_line *line = case_table; line->family; line++) {
            char why[CASE_TEXT];
            const nbl__family *family;
            if (line->kind != CASE_PLAIN) continue;
            for (int i = 0; (family = case_family_at(i)); i++)
                if (strcmp(family->name, line->family) == 0) a.family = family;
            assert_true(case_expand(a.family, line->text, each, &a, why));
        }
    }
    assert_true(a.asked > 1000);
    assert_int_equal(a.wrong, 0);
    nbl_context_destroy(a.device);
    nbl_context_destroy(a.cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_fewer_tokens_no_kernel_of_a_device_needs_more_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
