/* test_epochs.c - from examples to batches: order, validation, packing; the same again; what a preview shows. */
#include "tiny_data.h"

/* ---- epochs ---- */

enum { ROWS = 200 };

/* Rows of uneven length, told apart by their first byte. */
static void prepare_many(fixture *f, nbl_context *ctx)
{
    FILE *file = fopen(in_folder(folder, "m.jsonl"), "w");
    uint32_t random = 1;
    assert_non_null(file);
    for (int i = 0; i < ROWS; i++) {
        random = random * 1664525 + 1013904223;
        int length = 2 + (int)(random >> 16) % 40;
        fprintf(file, "{\"input_ids\": [%d", i);
        for (int k = 1; k < length; k++) fprintf(file, ", 7");
        fprintf(file, "], \"labels\": [7");
        for (int k = 1; k < length; k++) fprintf(file, ", 7");
        fprintf(file, "]}\n");
    }
    fclose(file);
    prepare(f, ctx, "m.jsonl", NBL_DATA_TOKENS);
    f->config.sequence_len = 64;
}

static int64_t size_of(const nbl__epoch *e)
{
    return e->starts[e->batch_count];
}

static void assert_each_once(const nbl__epoch *e, bool seen[ROWS])
{
    for (int64_t i = 0; i < size_of(e); i++) {
        assert_false(seen[e->order[i]]);
        seen[e->order[i]] = true;
    }
}

static void every_epoch_is_another_order_of_all_rows(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    nbl__epoch a, b, again;
    bool seen[ROWS] = {false}, also[ROWS] = {false};
    prepare_many(&f, ctx);
    open_data(&f);
    assert_ok(ctx, nbl__epoch_make(f.data, 3, false, &a));
    assert_ok(ctx, nbl__epoch_make(f.data, 0, false, &b));
    assert_ok(ctx, nbl__epoch_make(f.data, 3, false, &again));
    assert_int_equal(size_of(&a), ROWS);
    assert_int_equal(a.batch_count, ROWS / 2);
    assert_each_once(&a, seen);
    assert_each_once(&b, also);
    assert_memory_equal(a.order, again.order, ROWS * sizeof *a.order);
    assert_memory_not_equal(a.order, b.order, ROWS * sizeof *a.order);
    nbl__epoch_free(ctx, &a);
    nbl__epoch_free(ctx, &b);
    nbl__epoch_free(ctx, &again);
    close_data(&f);
    f.config.shuffle = false; /* the sampler shuffles all the same */
    open_data(&f);
    assert_ok(ctx, nbl__epoch_make(f.data, 0, false, &a));
    int64_t moved = 0;
    for (int64_t i = 0; i < ROWS; i++) moved += a.order[i] != i;
    assert_true(moved > ROWS / 2);
    nbl__epoch_free(ctx, &a);
    f.config.curriculum = true;
    f.config.micro_batch_size = 3;
    assert_ok(ctx, nbl__epoch_make(f.data, 5, false, &a));
    for (int64_t i = 0; i < ROWS; i++) assert_int_equal(a.order[i], i);
    assert_int_equal(a.batch_count, 67);
    assert_int_equal(a.starts[66], 198); /* the last one is short */
    nbl__epoch_free(ctx, &a);
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void rows_held_back_are_never_trained(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    static const struct {
        double size;
        int64_t held;
    } cases[] = {{0.1, 20}, {0.001, 1}, {0.333, 67}, {7, 7}, {199, 199}};
    fixture f;
    nbl__epoch train, held;
    prepare_many(&f, ctx);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        f.config.val_set_size = cases[i].size;
        open_data(&f);
        int64_t first = -1;
        for (int64_t number = 0; number < 3; number++) {
            bool seen[ROWS] = {false};
            assert_ok(ctx, nbl__epoch_make(f.data, number, false, &train));
            assert_ok(ctx, nbl__epoch_make(f.data, number, true, &held));
            assert_int_equal(size_of(&held), cases[i].held);
            assert_int_equal(size_of(&train), ROWS - cases[i].held);
            assert_each_once(&train, seen);
            assert_each_once(&held, seen);
            assert_true(first < 0 || first == held.order[0]);
            first = held.order[0];
            nbl__epoch_free(ctx, &train);
            nbl__epoch_free(ctx, &held);
        }
        close_data(&f);
    }
    f.config.val_set_size = 200;
    refuse(&f, "val_set_size");
    nbl_context_destroy(ctx);
}

static void check_bins(fixture *f, const nbl__epoch *e, int64_t count)
{
    bool seen[ROWS] = {false};
    int64_t max_tokens, max_sequences, total = 0;
    assert_int_equal(size_of(e), count);
    assert_each_once(e, seen);
    nbl__data_largest(f->data, &max_tokens, &max_sequences);
    for (int64_t b = 0; b < e->batch_count; b++) {
        int64_t tokens = 0;
        for (int64_t i = e->starts[b]; i < e->starts[b + 1]; i++)
            tokens += f->data->entries[e->order[i]].tokens;
        assert_true(tokens <= f->config.micro_batch_size * f->config.sequence_len);
        assert_true(tokens <= e->max_tokens && e->starts[b + 1] - e->starts[b] <= e->max_sequences);
        total += tokens;
    }
    assert_true(e->max_tokens <= max_tokens && e->max_sequences <= max_sequences);
    int64_t ideal = nbl__ceil_div(total, f->config.micro_batch_size * f->config.sequence_len);
    assert_true(e->batch_count <= ideal + ideal / 20 + 1); /* hardly any room is lost */
}

static void packing_fills_bins_and_loses_no_row(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    nbl__epoch a, b;
    prepare_many(&f, ctx);
    f.config.sample_packing = true;
    for (int64_t micro = 1; micro <= 3; micro++) {
        f.config.micro_batch_size = micro;
        open_data(&f);
        assert_ok(ctx, nbl__epoch_make(f.data, 0, false, &a));
        assert_ok(ctx, nbl__epoch_make(f.data, 1, false, &b));
        check_bins(&f, &a, ROWS);
        check_bins(&f, &b, ROWS);
        assert_memory_not_equal(a.order, b.order, ROWS * sizeof *a.order);
        nbl__epoch_free(ctx, &a);
        nbl__epoch_free(ctx, &b);
        close_data(&f);
    }
    f.config.curriculum = true;
    f.config.micro_batch_size = 1;
    open_data(&f);
    assert_ok(ctx, nbl__epoch_make(f.data, 4, false, &a));
    assert_int_equal(a.order[0], 0);
    for (int64_t i = 1; i < a.batch_count; i++)
        assert_true(a.order[a.starts[i - 1]] < a.order[a.starts[i]]); /* by their first examples */
    nbl__epoch_free(ctx, &a);
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void best_fit_takes_the_tightest_bin(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    const int32_t sizes[] = {70, 50, 30, 45, 5, 100, 1};
    const int64_t want[] = {0, 1, 0, 1, 1, 2, 3};
    int64_t bin[7], count;
    assert_ok(ctx, nbl__pack_best_fit(ctx, sizes, 7, 100, bin, &count));
    assert_int_equal(count, 4);
    assert_memory_equal(bin, want, sizeof want);
    /* Against plain search, with a capacity that needs three levels of bit sets. */
    enum { ITEMS = 3000, CAPACITY = 300000 };
    int32_t *many = calloc(ITEMS, sizeof *many);
    int64_t *bins = calloc(ITEMS, sizeof *bins), *room = calloc(ITEMS, sizeof *room), used = 0;
    uint32_t random = 9;
    for (int i = 0; i < ITEMS; i++) {
        random = random * 1664525 + 1013904223;
        many[i] = 1 + (int32_t)(random % (i % 3 ? 20000 : CAPACITY));
    }
    assert_ok(ctx, nbl__pack_best_fit(ctx, many, ITEMS, CAPACITY, bins, &count));
    for (int i = 0; i < ITEMS; i++) {
        int64_t best = -1;
        for (int64_t k = 0; k < used; k++)
            if (room[k] >= many[i] && (best < 0 || room[k] < room[best])) best = k;
        if (best < 0) room[best = used++] = CAPACITY;
        if (bins[i] < used) assert_int_equal(room[bins[i]], room[best]); /* equal rooms are as good */
        best = bins[i];
        room[best] -= many[i];
        assert_true(room[best] >= 0);
    }
    assert_int_equal(used, count);
    free(many);
    free(bins);
    free(room);
    nbl_context_destroy(ctx);
}

static void the_largest_batch_without_packing_is_of_the_longest_rows(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    int64_t tokens, sequences;
    put("q.txt", "12345\n1\n1234567\n123\n");
    prepare(&f, ctx, "q.txt", NBL_DATA_COMPLETION);
    open_data(&f);
    nbl__data_largest(f.data, &tokens, &sequences);
    assert_int_equal(tokens, 7 + 9);
    assert_int_equal(sequences, 2);
    close_data(&f);
    f.config.sample_packing = true;
    f.config.sequence_len = 10;
    open_data(&f);
    nbl__data_largest(f.data, &tokens, &sequences);
    assert_int_equal(tokens, 20);
    assert_int_equal(sequences, 3); /* 3 + 5 + 7 fit, and 9 more do not */
    close_data(&f);
    nbl_context_destroy(ctx);
}

/* ---- the same again ---- */

static void examples_made_again_are_those_that_were_counted(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("t.txt", "abcdefgh\nxyz\nabcdefgh\n");
    prepare(&f, ctx, "t.txt", NBL_DATA_COMPLETION);
    f.config.sequence_len = 4;
    open_data(&f);
    for (int64_t i = 0; i < nbl__data_count(f.data).examples; i++) {
        char kept[64];
        strcpy(kept, shown(&f, i));
        f.data->entries[i].kept = NULL; /* as if there had been no room to keep it */
        expect(&f, i, kept);
    }
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void threads_change_nothing_and_other_labels_are_other_data(void **state)
{
    (void)state;
    uint64_t identity[3];
    for (int i = 0; i < 3; i++) {
        nbl_context *ctx = new_context_with(i == 0 ? 1 : 3);
        fixture f;
        put("k.jsonl", talk);
        prepare(&f, ctx, "k.jsonl", NBL_DATA_CHAT);
        if (i == 2) f.dataset.train_on_eos = NBL_EOS_NONE;
        open_data(&f);
        identity[i] = nbl__data_identity(f.data);
        close_data(&f);
        nbl_context_destroy(ctx);
    }
    assert_true(identity[0] == identity[1]);
    assert_true(identity[0] != identity[2]);
}

static nbl_status use_everything(nbl_context *ctx, fixture *f)
{
    nbl__epoch epoch;
    nbl__example example;
    NBL_TRY(nbl__data_open(ctx, &f->config, 260, &f->data));
    nbl_status status = nbl__epoch_make(f->data, 0, false, &epoch);
    if (status == NBL_OK) nbl__epoch_free(ctx, &epoch);
    f->data->entries[0].kept = NULL;
    if (status == NBL_OK) status = nbl__data_example(f->data, 0, &example);
    nbl__data_close(f->data);
    return status;
}

static void memory_that_runs_out_is_an_error_and_nothing_leaks(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text;
        nbl__data_type type;
    } cases[] = {{"k.jsonl", talk, NBL_DATA_CHAT},
                 {"p.csv", "instruction,output\nq,a\nr,b\n", NBL_DATA_ALPACA},
                 {"t.txt", "abc\ndef\n", NBL_DATA_COMPLETION}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nbl_status status = NBL_ERROR_MEMORY;
        put(cases[i].name, cases[i].text);
        for (int64_t fail = 1; status != NBL_OK; fail++) {
            nbl__counter counter = {0};
            nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1,
                                           .allocator = nbl__counting_allocator(&counter)};
            nbl_context *ctx;
            fixture f;
            assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
            int64_t live = counter.live;
            prepare(&f, ctx, cases[i].name, cases[i].type);
            f.config.sample_packing = i == 1;
            f.config.val_set_size = i == 2 ? 0.5 : 0;
            f.config.deduplicate = i != 1;
            if (cases[i].type == NBL_DATA_CHAT) f.config.chat_template = "tokenizer_default_fallback_llama3";
            counter.fail_at = counter.calls + fail;
            status = use_everything(ctx, &f);
            assert_true(status == NBL_OK || status == NBL_ERROR_MEMORY);
            assert_int_equal(counter.live, live);
            nbl_context_destroy(ctx);
            assert_true(fail < 100000);
        }
    }
}

/* ---- the public interface ---- */

static void a_preview_shows_what_is_trained(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_run *run;
    nbl_data_summary summary = {NBL_RESULT(nbl_data_summary)};
    nbl_preview preview = {NBL_RESULT(nbl_preview)};
    char text[1024];
    put("k.jsonl", talk);
    snprintf(text, sizeof text,
             "base_model: %s\ndatasets:\n  - {path: %s/k.jsonl, type: chat_template}\nadapter: lora\n"
             "lora_target_linear: true\nlearning_rate: 1e-4\noutput_dir: %s/out\n",
             folder, folder, folder);
    put("run.yml", text);
    assert_ok(ctx, nbl_run_open(ctx, in_folder(folder, "run.yml"), NULL, 0, &run));
    assert_ok(ctx, nbl_run_data(run, &summary));
    assert_int_equal(summary.examples, 1);
    assert_int_equal(summary.trained_tokens, 9 + 1 + 3 + 1);
    assert_ok(ctx, nbl_run_preview(run, 0, &preview));
    assert_int_equal(preview.trained_tokens, summary.trained_tokens);
    assert_int_equal(preview.count, summary.tokens);
    assert_int_equal(preview.part_count, 5);
    assert_true(preview.parts[1].trained && !preview.parts[2].trained);
    assert_string_equal(preview.parts[1].text.text, "assistant<|im_end|>");
    assert_string_equal(preview.parts[3].text.text, "h\xc3\xa9<|im_end|>");
    assert_int_equal(nbl_run_preview(run, 1, &preview), NBL_ERROR_ARGUMENT);
    nbl_run_close(run);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_epoch_is_another_order_of_all_rows),
        cmocka_unit_test(rows_held_back_are_never_trained),
        cmocka_unit_test(packing_fills_bins_and_loses_no_row),
        cmocka_unit_test(best_fit_takes_the_tightest_bin),
        cmocka_unit_test(the_largest_batch_without_packing_is_of_the_longest_rows),
        cmocka_unit_test(examples_made_again_are_those_that_were_counted),
        cmocka_unit_test(threads_change_nothing_and_other_labels_are_other_data),
        cmocka_unit_test(memory_that_runs_out_is_an_error_and_nothing_leaks),
        cmocka_unit_test(a_preview_shows_what_is_trained),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
