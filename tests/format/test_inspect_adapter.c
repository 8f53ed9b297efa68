/* test_inspect_adapter.c - adapters that are looked at: settings, values, and every problem, with and without a base. */
#include <math.h>

#include "adapter_support.h"

#include "base/base.h"
#include "faults.h"

static char temp[64];

static int set_up(void **state)
{
    (void)state;
    make_temp(temp);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_tree(temp);
    return 0;
}

/* The words are the problems, all of them. */
static void assert_problems(const nbl_adapter *adapter, const char *const *words)
{
    int64_t count = 0, problems = nbl_adapter_get_summary(adapter)->problems;
    for (; words[count]; count++) {
        bool found = false;
        for (int64_t i = 0; i < problems; i++)
            found |= strstr(nbl_adapter_get_problem(adapter, i), words[count]) != NULL;
        if (!found) fail_msg("no problem says \"%s\"", words[count]);
    }
    for (int64_t i = 0; i < problems; i++) {
        bool expected = false;
        for (int64_t k = 0; k < count; k++)
            expected |= strstr(nbl_adapter_get_problem(adapter, i), words[k]) != NULL;
        if (!expected) fail_msg("not expected: %s", nbl_adapter_get_problem(adapter, i));
    }
    assert_null(nbl_adapter_get_problem(adapter, problems));
}

/* Replaces the first occurrence of a text in a file of the folder temp/name by another of the same length. */
static void patch(const char *adapter, const char *name, const char *from, const char *to)
{
    char folder[256];
    snprintf(folder, sizeof folder, "%s/%s", temp, adapter);
    size_t size, length = strlen(from), at = 0;
    uint8_t *data = read_file(in_folder(folder, name), &size);
    assert_int_equal(length, strlen(to));
    while (at + length <= size && memcmp(data + at, from, length) != 0) at++;
    if (at + length > size) fail_msg("%s: no %s", name, from);
    memcpy(data + at, to, length);
    assert_int_equal(unlink(in_folder(folder, name)), 0);
    write_file(folder, name, data, size);
    free(data);
}

static nbl_adapter *look(nbl_context *ctx, const char *name, const char *base)
{
    nbl_adapter *adapter;
    assert_ok(ctx, nbl_adapter_open(ctx, in_folder(temp, name), base, &adapter));
    return adapter;
}

static void an_adapter_is_summarized_and_fits_its_base(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    small_adapter a;
    assert_ok(ctx, write_adapter(ctx, in_folder(temp, "whole"), WITH_DORA | WITH_HEAD, &a));
    nbl_adapter *adapter = look(ctx, "whole", LLAMA);
    const nbl_adapter_summary *s = nbl_adapter_get_summary(adapter);
    assert_problems(adapter, (const char *const[]){NULL});
    assert_string_equal(s->type, "LORA");
    assert_string_equal(s->task, "CAUSAL_LM");
    assert_int_equal(s->r, ADAPTER_RANK);
    assert_true(s->alpha == 6 && s->dora && !s->rslora && !s->lora_bias);
    assert_null(s->target);
    assert_string_equal(nbl_adapter_get_target(adapter, 1), "down_proj");
    assert_null(nbl_adapter_get_target(adapter, 2));
    assert_string_equal(nbl_adapter_get_saved(adapter, 0), "lm_head");
    assert_int_equal(s->modules, 2);
    assert_int_equal(s->replaced, 1);
    assert_int_equal(s->tensors, 7);
    assert_int_equal(s->parameters,
                     ADAPTER_RANK * (HIDDEN + QUERY + INNER + HIDDEN) + QUERY + HIDDEN + TOKENS * HIDDEN);
    assert_int_equal(s->bytes, s->parameters * 4);
    assert_true(s->same_dtype);
    assert_int_equal(s->dtype, NBL_DTYPE_F32);
    assert_int_equal(s->base_problems, 0);
    nbl_adapter_close(adapter);
    nbl_context_destroy(ctx);
}

static void every_problem_of_an_adapter_is_listed(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    small_adapter a;
    assert_ok(ctx, write_adapter(ctx, in_folder(temp, "bad"), WITH_HEAD, &a));
    const char *weights = "adapter_model.safetensors", *config = "adapter_config.json";
    char folder[256];
    snprintf(folder, sizeof folder, "%s/bad", temp);
    float nan = NAN, first = a.down_a[5];
    char from[5] = {0}, to[5] = {0};
    memcpy(from, &first, 4);
    memcpy(to, &nan, 4);
    size_t size, at = 0;
    uint8_t *data = read_file(in_folder(folder, weights), &size); /* bytes may be 0: no text */
    while (memcmp(data + at, from, 4) != 0) at++;
    memcpy(data + at, to, 4);
    assert_int_equal(unlink(in_folder(folder, weights)), 0);
    write_file(folder, weights, data, size);
    free(data);
    patch("bad", weights, "q_proj.lora_B", "q_proj.lora_X");
    patch("bad", config, "\"lora_bias\": false", "\"lora_bias\": trues"); /* no JSON */
    nbl_adapter *adapter = look(ctx, "bad", NULL);
    assert_null(nbl_adapter_get_summary(adapter)->type);
    assert_problems(adapter,
                    (const char *const[]){
                        "adapter_config.json", "q_proj.lora_X.weight\" is of an unknown kind",
                        "q_proj\": lora_B is missing",
                        "down_proj.lora_A.weight\": 1 values are not finite; the first has index 5", NULL});
    assert_int_equal(nbl_adapter_get_summary(adapter)->non_finite, 1);
    nbl_adapter_close(adapter);

    patch("bad", config, "\"lora_bias\": trues", "\"lora_bias\": 1    ");
    patch("bad", config, "\"use_dora\": false", "\"use_dora\": true ");
    patch("bad", config, "\"r\": 3", "\"r\": 4");
    patch("bad", config, "\"task_type\": \"CAUSAL_LM\"", "\"task_type\": \"SEQ_2_SEQ\"");
    adapter = look(ctx, "bad", NULL);
    assert_problems(adapter,
                    (const char *const[]){
                        "\"lora_bias\" is not true or false", "\"task_type\" \"SEQ_2_SEQ\" is not supported",
                        "q_proj.lora_X.weight\" is of an unknown kind", "q_proj\": lora_B is missing",
                        "q_proj\": use_dora is true, but lora_magnitude_vector is missing",
                        "down_proj\": use_dora is true, but lora_magnitude_vector is missing",
                        "down_proj.lora_A.weight\" is [3, 67], [4, 67] was expected",
                        "down_proj.lora_B.weight\" is [45, 3], [45, 4] was expected",
                        "1 values are not finite", NULL});
    nbl_adapter_close(adapter);
    assert_int_equal(unlink(in_folder(folder, weights)), 0);
    adapter = look(ctx, "bad", LLAMA);
    assert_int_equal(nbl_adapter_get_summary(adapter)->tensors, 0);
    assert_true(nbl_adapter_get_summary(adapter)->problems >= 3);
    nbl_adapter_close(adapter);
    assert_int_equal(nbl_adapter_open(ctx, in_folder(temp, "absent"), NULL, &adapter), NBL_ERROR_NOT_FOUND);
    nbl_context_destroy(ctx);
}

static void an_adapter_of_another_base_is_told_module_by_module(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    small_adapter a;
    assert_ok(ctx, write_adapter(ctx, in_folder(temp, "other"), FOREIGN, &a));
    patch("other", "adapter_config.json", "\"down_proj\"", "\"gate_proj\"");
    nbl_adapter *adapter = look(ctx, "other", NULL);
    assert_problems(adapter, (const char *const[]){"down_proj\": it has tensors, but target_modules", NULL});
    nbl_adapter_close(adapter);
    adapter = look(ctx, "other", LLAMA);
    assert_problems(
        adapter, (const char *const[]){
                     "down_proj\": it has tensors, but target_modules",
                     "q_proj\" takes 45 and gives 42 values, its adapter 44 and 42",
                     "layers.0.mlp.gate_proj\": target_modules names it, but the file has no tensors", NULL});
    assert_int_equal(nbl_adapter_get_summary(adapter)->base_problems, 2);
    nbl_adapter_close(adapter);
    assert_int_not_equal(nbl_adapter_open(ctx, in_folder(temp, "other"), in_folder(temp, "none"), &adapter),
                         NBL_OK);
    nbl_context_destroy(ctx);
}

static nbl_status look_at(nbl_context *ctx, int number)
{
    nbl_adapter *adapter;
    NBL_TRY(nbl_adapter_open(ctx, in_folder(temp, number ? "foreign" : "fine"), LLAMA, &adapter));
    nbl_adapter_close(adapter);
    return NBL_OK;
}

static void memory_that_runs_out_is_told(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    small_adapter a;
    remove_tree(temp);
    make_temp(temp);
    assert_ok(ctx, write_adapter(ctx, in_folder(temp, "fine"), WITH_DORA | WITH_HEAD, &a));
    assert_ok(ctx, write_adapter(ctx, in_folder(temp, "foreign"), FOREIGN, &a));
    for (int i = 0; i < 2; i++) each_allocation_fails(look_at, i, temp, 2);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_adapter_is_summarized_and_fits_its_base),
        cmocka_unit_test(every_problem_of_an_adapter_is_listed),
        cmocka_unit_test(an_adapter_of_another_base_is_told_module_by_module),
        cmocka_unit_test(memory_that_runs_out_is_told),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
