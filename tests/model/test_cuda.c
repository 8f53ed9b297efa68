/* test_cuda.c - a CUDA device beside the CPU: the same runs, the same losses; and beside itself: the same bits. Without a
 * device the program is skipped. */
#include "tiny_run.h"

#include <math.h>
#include <pthread.h>

#include "ops/elementwise/elementwise.h"
#include "ops/families.h"

static nbl_context *on_device(void)
{
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    assert_ok(ctx, nbl_context_use_cuda(ctx, 0));
    return ctx;
}

/* The losses of metrics.jsonl; returns how many. */
static int read_losses(const fixture *f, const char *name, double losses[STEPS])
{
    size_t size;
    int count = 0;
    char *text = (char *)read_file(output(f, name, "metrics.jsonl"), &size);
    text[size] = '\0';
    for (const char *at = text; count < STEPS && (at = strstr(at, "\"loss\": ")); at += 8)
        losses[count++] = strtod(at + 8, NULL);
    free(text);
    return count;
}

#define LAYERS "lora_r: 4\nlora_target_linear: true\ngradient_accumulation_steps: 2\nlr_scheduler: cosine\n"

static void a_device_trains_as_the_cpu_does(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *keys;
        double bound;
    } runs[] = {
        {"adapter: lora\n" LAYERS, 1e-5},
        {"adapter: lora\npeft_use_dora: true\n" LAYERS, 1e-5},
        {"adapter: qlora\nload_in_4bit: true\n" LAYERS, 1e-5},
        {"adapter: lora\nload_in_8bit: true\n" LAYERS, 1e-5},
        {"adapter: lora\noptimizer: adamw_8bit\n" LAYERS, 1e-5},
        {"adapter: lora\nbf16: true\n" LAYERS, 1e-3},
        {"adapter: qlora\nload_in_4bit: true\nbf16: true\n" LAYERS, 1e-3},
        {"adapter: lora\nfp16: true\n" LAYERS, 1e-3},
        {"adapter: lora\nbf16: true\ngradient_checkpointing: true\n" LAYERS, 1e-3},
        {"adapter: lora\nlora_dropout: 0.2\nmax_grad_norm: 0.1\n" LAYERS, 1e-5},
        {"adapter: qlora\nload_in_4bit: true\nbf16: true\nlora_dropout: 0.2\nmax_grad_norm: 0.1\n" LAYERS,
         1e-3},
    };
    nbl_context *device = on_device();
    int far = 0;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char here[16], there[16];
        double cpu[STEPS], cuda[STEPS];
        snprintf(here, sizeof here, "cpu-%zu", i);
        snprintf(there, sizeof there, "cuda-%zu", i);
        assert_ok(f->ctx, train_in(f, f->ctx, here, runs[i].keys, NULL));
        assert_ok(device, train_in(f, device, there, runs[i].keys, NULL));
        assert_int_equal(read_losses(f, here, cpu), STEPS);
        assert_int_equal(read_losses(f, there, cuda), STEPS);
        double worst = 0;
        bool good = true;
        for (int k = 0; k < STEPS; k++) {
            double off = fabs(cuda[k] - cpu[k]) / cpu[k];
            good = good && off <= runs[i].bound; /* not, if it is NaN */
            worst = fmax(worst, off);
        }
        far += !good;
        print_message("%s %.1e off the CPU, at most %.0e: %.*s\n", good ? "  " : "!!", worst, runs[i].bound,
                      (int)(strstr(runs[i].keys, LAYERS) - runs[i].keys), runs[i].keys);
    }
    nbl_context_destroy(device);
    assert_int_equal(far, 0);
}

typedef struct worker {
    const fixture *f;
    const char *keys, *output;
    nbl_status status;
} worker;

static void *train_apart(void *user)
{
    worker *w = user;
    nbl_context *ctx = on_device();
    nbl_run *run;
    w->status = nbl_run_open(ctx, in_folder(w->f->tiny.folder, w->keys), NULL, 0, &run);
    if (w->status == NBL_OK) {
        w->status = nbl_run_train(run, NULL, NULL);
        nbl_run_close(run);
    }
    nbl_context_destroy(ctx);
    return NULL;
}

/* Later steps are replayed from a captured graph; earlier ones, and those of a run that goes on, are not. */
static void two_streams_and_replays_give_the_bits_of_one(void **state)
{
    fixture *f = *state;
    static const char keys[] = "adapter: qlora\nload_in_4bit: true\nbf16: true\n" LAYERS;
    nbl_context *device = on_device();
    assert_ok(device, train_in(f, device, "alone", keys, NULL));
    assert_ok(device, train_in(f, device, "again", keys, NULL));
    assert_same_adapter(f, "alone", "again");
    /* Nothing is saved in between: every step is begun while the one before it is worked on. */
    assert_ok(device,
              train_in(f, device, "ahead",
                       "adapter: qlora\nload_in_4bit: true\nbf16: true\nsave_steps: 100\n" LAYERS, NULL));
    assert_same_adapter(f, "alone", "ahead");
    int64_t stop = 3;
    assert_int_equal(
        train_in(f, device, "stopped", keys,
                 &(nbl_train_options){NBL_OPTIONS(nbl_train_options), .event = stop_at, .user = &stop}),
        NBL_ERROR_CANCELLED);
    assert_ok(device, train_in(f, device, "stopped", keys,
                               &(nbl_train_options){NBL_OPTIONS(nbl_train_options), .resume = 1}));
    assert_same_adapter(f, "alone", "stopped");
    pthread_t threads[2];
    worker workers[2] = {{f, "first.yml", "first", NBL_OK}, {f, "second.yml", "second", NBL_OK}};
    for (int i = 0; i < 2; i++) {
        char to[256];
        snprintf(to, sizeof to, "%s", in_folder(f->tiny.folder, workers[i].keys));
        assert_int_equal(rename(write_run(f, workers[i].output, keys), to), 0);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, train_apart, &workers[i]), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(workers[i].status, NBL_OK);
        assert_same_adapter(f, "alone", workers[i].output);
    }
    nbl_context_destroy(device);
}

/* What is recomputed, what waits on the host, which weights are kept decoded: all of that is memory and time, no bits. */
static void memory_changes_no_bit_of_a_run(void **state)
{
    fixture *f = *state;
    static const char *const base[] = {
        "adapter: qlora\nload_in_4bit: true\nbf16: true\n" LAYERS,
        "adapter: qlora\nload_in_4bit: true\nbf16: true\nlora_dropout: 0.1\n" LAYERS,
        "adapter: qlora\nload_in_4bit: true\npeft_use_dora: true\n" LAYERS};
    static const char *const memory[] = {"", "memory: 4GiB\n", "gradient_checkpointing: true\n",
                                         "gradient_checkpointing: true\nmemory: 4GiB\n"};
    nbl_context *device = on_device();
    for (size_t i = 0; i < sizeof base / sizeof *base; i++)
        for (int k = 0; k < 4; k++) {
            char name[32], first[32], keys[512];
            snprintf(first, sizeof first, "memory-%zu", i);
            snprintf(name, sizeof name, k ? "memory-%zu-%d" : "memory-%zu", i, k);
            snprintf(keys, sizeof keys, "%s%s", base[i], memory[k]);
            print_message("%s: %s\n", name, memory[k]);
            assert_ok(device, train_in(f, device, name, keys, NULL));
            assert_same_adapter(f, first, name);
        }
    nbl_context_destroy(device);
}

/* The last of all: the device is lost for this process. */
static void in_debug_mode_a_fault_is_told_with_its_operator(void **state)
{
    (void)state;
    setenv("NIBBLE_CUDA_DEBUG", "1", 1);
    nbl_context *ctx = on_device();
    const nbl__impl *impl;
    void *nowhere = (void *)(uintptr_t)4096;
    nbl__add a = {.dtype = NBL_DTYPE_F32,
                  .a = nbl_vector(NBL_DTYPE_F32, 64, nowhere),
                  .b = nbl_vector(NBL_DTYPE_F32, 64, nowhere)};
    assert_ok(ctx, nbl__add_family.forward.infer(ctx, &a));
    a.y.data = nowhere;
    assert_ok(ctx, nbl__op_choose(ctx, &nbl__add_family.forward, &a, NULL, &impl));
    assert_int_equal(nbl__op_run(ctx, &nbl__add_family.forward, impl, &a, NULL, 0), NBL_ERROR_INTERNAL);
    assert_non_null(strstr(nbl_error_message(ctx), "add_cuda"));
    nbl_context_destroy(ctx);
}

int main(void)
{
    nbl_context *ctx;
    if (nbl_context_create(NULL, &ctx) != NBL_OK) return 1;
    nbl_status status = nbl_context_use_cuda(ctx, 0);
    if (status != NBL_OK) printf("skipped: %s\n", nbl_error_message(ctx));
    nbl_context_destroy(ctx);
    if (status != NBL_OK) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_device_trains_as_the_cpu_does, setup, teardown),
        cmocka_unit_test_setup_teardown(two_streams_and_replays_give_the_bits_of_one, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_changes_no_bit_of_a_run, setup, teardown),
        cmocka_unit_test(in_debug_mode_a_fault_is_told_with_its_operator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
