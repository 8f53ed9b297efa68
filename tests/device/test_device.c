/* test_device.c - the interface of devices (device/device.h), with a device that is none of the library's: echo.h. What it
 * computes has the bytes of the CPU. Whole models and runs are compared by test_models and test_train as well
 * (NIBBLE_TEST_DEVICE=echo). */
#include "tiny_run.h"

#include <errno.h>

#include "device/device_memory.h"
#include "device/echo.h"

static nbl_context *on_echo(void)
{
    nbl_context *ctx;
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 2};
    assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
    echo_install(ctx);
    return ctx;
}

/* ---- the device itself ---- */

/* The kernel reads what a pointer of write() names, or refuses to. */
static bool is_readable(const void *memory)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    bool yes = write(ends[1], memory, 1) == 1;
    assert_true(yes || errno == EFAULT);
    close(ends[0]);
    close(ends[1]);
    return yes;
}

static void the_host_reaches_memory_of_a_device_through_the_interface_only(void **state)
{
    (void)state;
    nbl_context *ctx = on_echo();
    static const char text[] = "a value";
    char back[sizeof text] = "";
    void *lent, *memory = nbl__memory_alloc(ctx, sizeof text);
    assert_non_null(memory);
    assert_false(is_readable(memory));
    assert_ok(ctx, nbl__memory_write(ctx, memory, text, sizeof text));
    assert_false(is_readable(memory));
    assert_ok(ctx, nbl__memory_map_host(ctx, memory, sizeof text, true, &lent));
    assert_string_equal(lent, text);
    assert_ok(ctx, nbl__memory_read_async(ctx, back, memory, sizeof text));
    assert_string_equal(back, ""); /* later */
    int64_t event;
    assert_ok(ctx, nbl__memory_event_record(ctx, &event));
    assert_ok(ctx, nbl__memory_clear(ctx, memory, sizeof text));
    assert_ok(ctx, nbl__memory_wait(ctx, event, "the copy"));
    assert_string_equal(back, text);
    nbl__memory_free(ctx, memory, sizeof text);
    nbl_context_destroy(ctx);
}

static void a_context_starts_on_the_cpu(void **state)
{
    (void)state;
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    const nbl__device *device = nbl__device_of(ctx);
    assert_ptr_equal(device, &nbl__cpu);
    assert_false(device->asynchronous || device->separate_memory || device->captures || device->profiles);
    void *lent, *memory = nbl__memory_alloc(ctx, 64);
    assert_ok(ctx, nbl__memory_map_host(ctx, memory, 64, true, &lent));
    assert_ptr_equal(lent, memory);
    nbl__memory_free(ctx, memory, 64);
    nbl_context_destroy(ctx);
}

/* ---- training ---- */

#define LAYERS "lora_r: 4\nlora_target_linear: true\ngradient_accumulation_steps: 2\nlr_scheduler: cosine\n"
#define F32 "bf16: false\n"

static void trains_the_bytes(fixture *f, const char *name, const char *keys, nbl_context *echo)
{
    char here[64], there[64];
    snprintf(here, sizeof here, "%s-cpu", name);
    snprintf(there, sizeof there, "%s-echo", name);
    assert_ok(f->ctx, train_in(f, f->ctx, here, keys, NULL));
    assert_ok(echo, train_in(f, echo, there, keys, NULL));
    assert_same_adapter(f, here, there);
    assert_true(echo_counts_of(echo)->live <= 1); /* scratch stays */
}

static void a_device_trains_the_bytes_of_the_cpu(void **state)
{
    static const char *const runs[] = {
        "adapter: lora\n" F32 LAYERS,
        "adapter: lora\npeft_use_dora: true\n" F32 LAYERS,
        "adapter: qlora\nload_in_4bit: true\nbf16: true\n" LAYERS,
        "adapter: lora\nload_in_8bit: true\n" F32 LAYERS,
        "adapter: lora\noptimizer: adamw_8bit\n" F32 LAYERS,
        "adapter: lora\nfp16: true\nbf16: false\n" LAYERS,
        "adapter: lora\nlora_dropout: 0.2\nmax_grad_norm: 0.1\n" F32 LAYERS,
        "adapter: lora\ngradient_checkpointing: true\n" F32 LAYERS,
        "adapter: qlora\nload_in_4bit: true\nmemory: 4GiB\n" F32 LAYERS,
        "adapter: lora\nval_set_size: 2\neval_steps: 2\n" F32 LAYERS,
    };
    fixture *f = *state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char name[32];
        nbl_context *echo = on_echo();
        snprintf(name, sizeof name, "run-%zu", i);
        trains_the_bytes(f, name, runs[i], echo);
        nbl_context_destroy(echo);
    }
}

/* The host begins step n + 1 while the device works on step n; steps that come again are replayed; recomputed layers wait
 * on the host. */
static void its_freedoms_are_used(void **state)
{
    fixture *f = *state;
    nbl_context *echo = on_echo();
    trains_the_bytes(f, "ahead", "adapter: lora\nsave_steps: 100\ngradient_checkpointing: true\n" F32 LAYERS,
                     echo);
    const echo_counts *counts = echo_counts_of(echo);
    assert_true(counts->ahead > 0);
    assert_true(counts->graphs > 0 && counts->replays > 0);
    assert_true(counts->offloads > 0);
    nbl_context_destroy(echo);
}

static void what_it_does_without_changes_no_byte(void **state)
{
    fixture *f = *state;
    static const char keys[] = "adapter: lora\ngradient_checkpointing: true\n" F32 LAYERS;
    for (int i = 0; i < 4; i++) {
        char name[32];
        nbl_context *echo = on_echo();
        nbl__device *device = echo_device(echo);
        if (i == 0) device->captures = false;
        if (i == 1) device->asynchronous = false;
        if (i == 2) device->debugs = true, device->captures = false;
        if (i == 3) device->profiles = true, device->reads_host = false;
        snprintf(name, sizeof name, "without-%d", i);
        trains_the_bytes(f, name, keys, echo);
        assert_int_equal(echo_counts_of(echo)->graphs > 0, device->captures);
        nbl_context_destroy(echo);
    }
}

static void a_stopped_run_of_a_device_goes_on(void **state)
{
    fixture *f = *state;
    static const char keys[] = "adapter: lora\n" F32 LAYERS;
    nbl_context *echo = on_echo();
    int64_t stop = 3;
    assert_ok(f->ctx, train_in(f, f->ctx, "whole", keys, NULL));
    assert_int_equal(
        train_in(f, echo, "halves", keys,
                 &(nbl_train_options){NBL_OPTIONS(nbl_train_options), .event = stop_at, .user = &stop}),
        NBL_ERROR_CANCELLED);
    assert_ok(echo, train_in(f, echo, "halves", keys,
                             &(nbl_train_options){NBL_OPTIONS(nbl_train_options), .resume = 1}));
    assert_same_adapter(f, "whole", "halves");
    nbl_context_destroy(echo);
}

/* echo ends the test if memory is left over. */
static void each_failing_allocation_of_a_device_is_told(void **state)
{
    fixture *f = *state;
    int failures = 0;
    for (int n = 0;; n++) {
        char name[32];
        nbl_context *echo = on_echo();
        echo_fail_after(echo, n);
        snprintf(name, sizeof name, "failing-%d", n);
        nbl_status status = train_in(f, echo, name, "adapter: qlora\nload_in_4bit: true\n" F32 LAYERS, NULL);
        bool done = echo_counts_of(echo)->allocations <= n;
        if (done) assert_ok(echo, status);
        else assert_int_equal(status, NBL_ERROR_MEMORY);
        nbl_context_destroy(echo);
        if (done) break;
        failures++;
    }
    assert_true(failures >= 4);
}

/* ---- models ---- */

static nbl_model *open_model(nbl_context *ctx, const tiny_model *tiny, nbl_compute_dtype dtype)
{
    nbl_model *model;
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .dtype = dtype, .adapter = tiny->adapter};
    assert_ok(ctx, nbl_model_open(ctx, tiny->model, &options, &model));
    return model;
}

enum { PROMPTS = 2, NEW_TOKENS = 12 };

static void generate_on(nbl_context *ctx, const tiny_model *tiny, float temperature, nbl_compute_dtype dtype,
                        int32_t made[PROMPTS][NEW_TOKENS])
{
    static int32_t first[] = {3, 1, 4, 1, 5, 9, 2, 6, 5}, second[] = {27, 18, 28};
    nbl_ids prompts[PROMPTS] = {{first, 9}, {second, 3}};
    nbl_generated results[PROMPTS] = {{.ids = {.ids = made[0]}}, {.ids = {.ids = made[1]}}};
    nbl_generate_options how = {NBL_OPTIONS(nbl_generate_options), .max_tokens = NEW_TOKENS,
                                .temperature = temperature, .seed = 7};
    nbl_model *model = open_model(ctx, tiny, dtype);
    assert_ok(ctx, nbl_model_generate(model, prompts, PROMPTS, &how, results));
    assert_int_equal(results[0].ids.count, NEW_TOKENS);
    assert_int_equal(results[1].ids.count, NEW_TOKENS);
    nbl_model_close(model);
}

static void a_device_generates_the_tokens_of_the_cpu(void **state)
{
    fixture *f = *state;
    for (int architecture = 0; architecture < TINY_ARCHITECTURES; architecture++) {
        tiny_model tiny;
        tiny_write(f->ctx, architecture, architecture % 2 == 0, &tiny);
        for (int i = 0; i < 4; i++) {
            int32_t here[PROMPTS][NEW_TOKENS], there[PROMPTS][NEW_TOKENS];
            float temperature = i % 2 ? 0.8f : 0;
            nbl_compute_dtype dtype = i < 2 ? NBL_COMPUTE_F32 : NBL_COMPUTE_BF16;
            nbl_context *echo = on_echo();
            generate_on(f->ctx, &tiny, temperature, dtype, here);
            generate_on(echo, &tiny, temperature, dtype, there);
            assert_memory_equal(here, there, sizeof here);
            assert_true(echo_counts_of(echo)->replays > 0); /* decode steps */
            nbl_context_destroy(echo);
        }
        remove_tree(tiny.folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_reaches_memory_of_a_device_through_the_interface_only),
        cmocka_unit_test(a_context_starts_on_the_cpu),
        cmocka_unit_test_setup_teardown(a_device_trains_the_bytes_of_the_cpu, setup, teardown),
        cmocka_unit_test_setup_teardown(its_freedoms_are_used, setup, teardown),
        cmocka_unit_test_setup_teardown(what_it_does_without_changes_no_byte, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stopped_run_of_a_device_goes_on, setup, teardown),
        cmocka_unit_test_setup_teardown(each_failing_allocation_of_a_device_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(a_device_generates_the_tokens_of_the_cpu, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
