/* test_merge.c - `nibble merge`: every weight is base + adapter rounded once, the folder loads and computes, the check of
 * itself fails when it should, and nothing is left of what fails. */
#include <math.h>
#include <sys/stat.h>

#include "adapter_support.h"

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

static void clean(void)
{
    remove_tree(temp);
    assert_int_equal(mkdir(temp, 0755), 0);
}

/* ---- values ---- */

static float rounded(nbl_context *ctx, nbl_dtype dtype, double value)
{
    float wide = (float)value, back;
    uint32_t narrow = 0;
    assert_ok(ctx, nbl_convert(ctx, NBL_DTYPE_F32, &wide, dtype, &narrow, 1));
    assert_ok(ctx, nbl_convert(ctx, dtype, &narrow, NBL_DTYPE_F32, &back, 1));
    return back;
}

/* A merged weight against the sum from its parts, taken in another order. */
static void assert_sum(nbl_context *ctx, const char *base, const char *merged, const char *name,
                       nbl_dtype dtype, const float *a, const float *b, const float *magnitude, double scale)
{
    int64_t shape[2], own[2];
    float *w = read_weight(ctx, base, name, shape), *got = read_weight(ctx, merged, name, own);
    assert_memory_equal(shape, own, sizeof shape);
    double *row = malloc((size_t)shape[1] * sizeof *row);
    int off = 0;
    for (int64_t o = 0; o < shape[0]; o++) {
        double square = 0;
        for (int64_t i = 0; i < shape[1]; i++) {
            double delta = 0;
            for (int k = ADAPTER_RANK - 1; k >= 0; k--)
                delta += (double)b[o * ADAPTER_RANK + k] * (double)a[k * shape[1] + i];
            row[i] = (double)w[o * shape[1] + i] + scale * delta;
            square += row[i] * row[i];
        }
        for (int64_t i = 0; i < shape[1]; i++) {
            double value = magnitude ? row[i] * (double)magnitude[o] / sqrt(square) : row[i];
            float want = rounded(ctx, dtype, value), is = got[o * shape[1] + i];
            off += want != is;
            if (fabs((double)want - (double)is) > (dtype == NBL_DTYPE_F32 ? 2e-7 : 1e-2) * fabs((double)want))
                fail_msg("%s[%d, %d] is %g, not %g", name, (int)o, (int)i, (double)is, (double)want);
        }
    }
    assert_true(off * 200 <= (int)(shape[0] * shape[1])); /* sums next to the middle of two neighbours */
    free(row), free(w), free(got);
}

static void merge_into(nbl_context *ctx, const char *base, int with, nbl_compute_dtype dtype,
                       small_adapter *a, nbl_merge_report *report)
{
    clean();
    assert_ok(ctx, write_adapter(ctx, in_folder(temp, "adapter"), with, a));
    nbl_merge_options how = {NBL_OPTIONS(nbl_merge_options), .dtype = dtype, .verify = true};
    assert_ok(ctx, nbl_merge(ctx, base, in_folder(temp, "adapter"), in_folder(temp, "out"), &how, report));
    assert_true(report->verified);
    assert_true(report->relative_deviation <= report->allowed_deviation);
}

static void merged_weights_are_the_sums_rounded_once(void **state)
{
    (void)state;
    static const char *const bases[] = {LLAMA, LLAMA "-nf4", LLAMA "-nf4-nested", LLAMA "-int8"};
    static const nbl_dtype dtypes[] = {NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16};
    nbl_context *ctx = new_context();
    small_adapter a;
    nbl_merge_report report = {NBL_RESULT(nbl_merge_report)};
    for (int n = 0; n < 4; n++)
        for (int k = 0; k < 6; k++) {
            bool dora = k % 2;
            nbl_dtype dtype = dtypes[k / 2];
            merge_into(ctx, bases[n], dora ? WITH_DORA : 0, nbl__dtype_choice(dtype), &a, &report);
            assert_int_equal(report.dtype, dtype);
            assert_int_equal(report.changed, 2);
            const char *out = in_folder(temp, "out");
            assert_sum(ctx, bases[n], out, LAYER "self_attn.q_proj.weight", dtype, a.q_a, a.q_b,
                       dora ? a.q_m : NULL, a.scale);
            assert_sum(ctx, bases[n], out, LAYER "mlp.down_proj.weight", dtype, a.down_a, a.down_b,
                       dora ? a.down_m : NULL, a.scale);
        }
    nbl_context_destroy(ctx);
}

static void what_is_not_adapted_keeps_its_values_and_files_come_along(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    small_adapter a;
    nbl_merge_report report = {NBL_RESULT(nbl_merge_report)};
    merge_into(ctx, LLAMA, 0, NBL_COMPUTE_DEFAULT, &a, &report); /* the dtype that config.json names */
    assert_int_equal(report.dtype, NBL_DTYPE_BF16);
    nbl_diff *diff;
    assert_ok(ctx, nbl_checkpoint_diff(ctx, LLAMA, in_folder(temp, "out"), &diff));
    int changed = 0;
    for (int64_t i = 0; nbl_diff_get_tensor(diff, i); i++) changed += !nbl_diff_get_tensor(diff, i)->equal;
    assert_int_equal(changed, 2);
    assert_null(nbl_diff_get_missing_in_a(diff, 0));
    assert_null(nbl_diff_get_missing_in_b(diff, 0));
    nbl_diff_free(diff);
    assert_same_file(in_folder(temp, "out/tokenizer.json"), LLAMA "/tokenizer.json");
    assert_same_file(in_folder(temp, "out/config.json"), LLAMA "/config.json");
    assert_int_equal(entries_in(in_folder(temp, "out")), 4);
    nbl_context_destroy(ctx);
}

static void trained_heads_replace_weights(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    small_adapter a;
    nbl_merge_report report = {NBL_RESULT(nbl_merge_report)};
    int64_t shape[2];
    merge_into(ctx, LLAMA "-nf4", WITH_HEAD, NBL_COMPUTE_F32, &a, &report);
    float *head = read_weight(ctx, in_folder(temp, "out"), "lm_head.weight", shape);
    assert_memory_equal(head, a.head, sizeof a.head);
    free(head);
    nbl_context_destroy(ctx);
}

/* A folder of the same weights whose config ties the head. */
static void make_tied(void)
{
    char folder[128];
    (void)snprintf(folder, sizeof folder, "%s/tied", temp);
    size_t size;
    uint8_t *config = read_file(LLAMA "/config.json", &size);
    config[size] = '\0';
    char *at = strstr((char *)config, "\"tie_word_embeddings\": false");
    assert_non_null(at);
    memcpy(at, "\"tie_word_embeddings\": true ", 28);
    assert_int_equal(mkdir(folder, 0755), 0);
    write_file(folder, "config.json", config, size);
    copy_file(LLAMA "/model.safetensors", folder, "model.safetensors");
    free(config);
}

static void an_adapter_of_a_tied_head_gives_the_model_a_head_of_its_own(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    small_adapter a;
    nbl_merge_report report = {NBL_RESULT(nbl_merge_report)};
    int64_t shape[2];
    clean();
    make_tied();
    assert_ok(ctx, write_adapter(ctx, in_folder(temp, "adapter"), WITH_HEAD_LORA, &a));
    nbl_merge_options how = {NBL_OPTIONS(nbl_merge_options), .dtype = NBL_COMPUTE_F32, .verify = true};
    assert_ok(ctx, nbl_merge(ctx, in_folder(temp, "tied"), in_folder(temp, "adapter"), in_folder(temp, "out"),
                             &how, &report));
    float *embedding = read_weight(ctx, LLAMA, "model.embed_tokens.weight", shape),
          *same = read_weight(ctx, in_folder(temp, "out"), "model.embed_tokens.weight", shape),
          *head = read_weight(ctx, in_folder(temp, "out"), "lm_head.weight", shape);
    assert_memory_equal(embedding, same, (size_t)(shape[0] * shape[1]) * sizeof *same);
    double delta = 0;
    for (int k = 0; k < ADAPTER_RANK; k++) delta += (double)a.head_b[k] * (double)a.head_a[k * HIDDEN];
    assert_true(fabs((double)head[0] - (double)embedding[0] - a.scale * delta) < 1e-6);
    size_t size;
    uint8_t *config = read_file(in_folder(temp, "out/config.json"), &size);
    config[size] = '\0';
    assert_non_null(strstr((char *)config, "\"tie_word_embeddings\": false"));
    free(config), free(embedding), free(same), free(head);
    nbl_context_destroy(ctx);
}

/* ---- refusals ---- */

static void a_result_that_its_dtype_cannot_hold_is_found_out_and_removed(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    small_adapter a;
    clean();
    assert_ok(ctx, write_adapter(ctx, in_folder(temp, "adapter"), HUGE, &a));
    nbl_merge_options how = {NBL_OPTIONS(nbl_merge_options), .dtype = NBL_COMPUTE_F16};
    for (int verify = 0; verify < 2; verify++) {
        how.verify = verify;
        assert_int_equal(
            nbl_merge(ctx, LLAMA, in_folder(temp, "adapter"), in_folder(temp, "out"), &how, NULL),
            NBL_ERROR_DTYPE);
        assert_non_null(strstr(nbl_error_message(ctx), "the first has index"));
        assert_int_equal(entries_in(temp), 1);
    }
    how = (nbl_merge_options){NBL_OPTIONS(nbl_merge_options), .dtype = NBL_COMPUTE_F16, .verify = true,
                              .allow_non_finite = true}; /* logits are judged still */
    assert_int_equal(nbl_merge(ctx, LLAMA, in_folder(temp, "adapter"), in_folder(temp, "out"), &how, NULL),
                     NBL_ERROR_DTYPE);
    assert_non_null(strstr(nbl_error_message(ctx), "logits"));
    assert_int_equal(entries_in(temp), 1);
    nbl_context_destroy(ctx);
}

static void an_adapter_of_another_model_and_a_target_that_exists_are_refused(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    small_adapter a;
    clean();
    assert_ok(ctx, write_adapter(ctx, in_folder(temp, "adapter"), FOREIGN, &a));
    assert_int_equal(nbl_merge(ctx, LLAMA, in_folder(temp, "adapter"), in_folder(temp, "out"), NULL, NULL),
                     NBL_ERROR_SHAPE);
    assert_non_null(strstr(nbl_error_message(ctx), "\"model.layers.0.self_attn.q_proj\" is for ["));
    assert_non_null(strstr(nbl_error_message(ctx), "1 module does not fit: q_proj "));
    assert_int_equal(entries_in(temp), 1);
    assert_ok(ctx, write_adapter(ctx, in_folder(temp, "good"), 0, &a));
    write_file(temp, "out", "mine", 4);
    assert_int_equal(nbl_merge(ctx, LLAMA, in_folder(temp, "good"), in_folder(temp, "out"), NULL, NULL),
                     NBL_ERROR_EXISTS);
    assert_file_equals(in_folder(temp, "out"), "mine", 4);
    nbl_context_destroy(ctx);
}

/* ---- faults ---- */

static nbl_status job(nbl_context *ctx, int number)
{
    (void)number;
    nbl_merge_options how = {NBL_OPTIONS(nbl_merge_options), .verify = true, .shard_size = 20000};
    return nbl_merge(ctx, LLAMA "-nf4-nested", in_folder(temp, "adapter"), in_folder(temp, "out"), &how,
                     NULL);
}

static void make_faulty_room(void)
{
    nbl_context *ctx = new_context();
    small_adapter a;
    clean();
    assert_ok(ctx, write_adapter(ctx, in_folder(temp, "adapter"), WITH_DORA | WITH_HEAD, &a));
    nbl_context_destroy(ctx);
}

static void the_nth_allocation_fails_and_nothing_is_lost(void **state)
{
    (void)state;
    make_faulty_room();
    each_allocation_fails(job, 0, temp, 1);
}

static void the_nth_write_fails_and_nothing_is_left(void **state)
{
    (void)state;
    make_faulty_room();
    each_write_fails(job, 0, temp, 1, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merged_weights_are_the_sums_rounded_once),
        cmocka_unit_test(what_is_not_adapted_keeps_its_values_and_files_come_along),
        cmocka_unit_test(trained_heads_replace_weights),
        cmocka_unit_test(an_adapter_of_a_tied_head_gives_the_model_a_head_of_its_own),
        cmocka_unit_test(a_result_that_its_dtype_cannot_hold_is_found_out_and_removed),
        cmocka_unit_test(an_adapter_of_another_model_and_a_target_that_exists_are_refused),
        cmocka_unit_test(the_nth_allocation_fails_and_nothing_is_lost),
        cmocka_unit_test(the_nth_write_fails_and_nothing_is_left),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
