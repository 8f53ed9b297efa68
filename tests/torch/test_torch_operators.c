/* test_torch_operators.c - python/csrc against a libtorch of the test (fake_torch.h): values, memory, errors,
 * threads, fork. The sanitizers run it, too; no torch is needed. */
#include "support.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fake_torch.h"

#if defined(__SANITIZE_THREAD__)
enum { TEAM = 1 }; /* ThreadSanitizer does not support new threads in a forked child */
#else
enum { TEAM = 2 };
#endif

enum { ROWS = 48, COLUMNS = 64, TOKENS = 5, RANK = 4, SPARE = 16 };

/* ---- a call that can be made ---- */

/* Arguments of an operator, with the tensors that they borrow. */
typedef struct example {
    const char *op;
    fake_arguments arguments;
    torch_tensor owned[64];
    int count;
} example;

static torch_tensor own(example *e, torch_tensor t)
{
    return e->owned[e->count++] = t;
}

static void free_example(example *e)
{
    while (e->count > 0) fake_free(e->owned[--e->count]);
}

/* Names behind which a part's number stands live as long as the test. */
static const char *numbered(const char *name, const char *part)
{
    static char names[512][24];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    char text[24];
    snprintf(text, sizeof text, "%s%s", name, part);
    pthread_mutex_lock(&lock);
    int i = 0;
    while (names[i][0] && strcmp(names[i], text) != 0) i++;
    if (names[i][0] == 0) strcpy(names[i], text); /* once: others may be reading it */
    pthread_mutex_unlock(&lock);
    return names[i];
}

static torch_tensor set(example *e, const char *name, torch_tensor t)
{
    fake_set_tensor(&e->arguments, name, own(e, t));
    return t;
}

static torch_tensor set_values(example *e, const char *name, int rank, const int64_t *shape, int seed)
{
    return set(e, name, fake_values(rank, shape, seed));
}

/* A packed weight, made by the operator itself. */
static void set_weight(example *e, const char *part, int64_t rows, int64_t columns, int format, int nested)
{
    static const char *const parts[] = {"data", "scales", "codes", "nested", "table", "offset"};
    fake_arguments how = {0};
    fake_results packed;
    torch_tensor values = fake_values(2, (int64_t[]){rows, columns}, 3);
    fake_set_tensor(&how, "values", values);
    fake_set_int(&how, "format", format);
    fake_set_int(&how, "block", 64);
    fake_set_int(&how, "nested", nested);
    if (!fake_call("quantize", &how, &packed)) fail_msg("%s", packed.error);
    fake_free(values);
    for (int i = 0; i < 6; i++) set(e, numbered(parts[i], part), packed.tensors[i]);
    fake_set_int(&e->arguments, numbered("format", part), format);
    fake_set_int(&e->arguments, numbered("block", part), format == 4 ? 32 : 64);
    fake_set_int(&e->arguments, numbered("nested_block", part), 256);
    fake_set_int(&e->arguments, numbered("rows", part), rows);
    fake_set_int(&e->arguments, numbered("columns", part), columns);
}

static void set_adapter(example *e, const char *part, int64_t rows, int64_t columns)
{
    set_values(e, numbered("bias", part), 1, (int64_t[]){rows}, 1);
    set_values(e, numbered("lora_a", part), 2, (int64_t[]){RANK, columns}, 2);
    set_values(e, numbered("lora_b", part), 2, (int64_t[]){rows, RANK}, 3);
    set_values(e, numbered("magnitude", part), 1, (int64_t[]){rows}, 4);
    fake_set_float(&e->arguments, numbered("scale", part), 0.5);
}

static void set_dropout(example *e)
{
    torch_tensor seed = set(e, "seed", fake_tensor(FAKE_I64, 1, (int64_t[]){1}));
    *(int64_t *)fake_data(seed) = 1234567;
    fake_set_float(&e->arguments, "dropout", 0.25);
}

static example linear_example(bool backward)
{
    example e = {.op = backward ? "linear_backward" : "linear"};
    set_values(&e, "x", 2, (int64_t[]){TOKENS, COLUMNS}, 7);
    set_weight(&e, "", ROWS, COLUMNS, NBL_FORMAT_NF4, NBL_NESTED_NEAREST);
    set_adapter(&e, "", ROWS, COLUMNS);
    set_dropout(&e);
    if (!backward) return e;
    set_values(&e, "dy", 2, (int64_t[]){TOKENS, ROWS}, 9);
    fake_set_int(&e.arguments, "wanted", 31);
    return e;
}

static example group_example(bool backward)
{
    example e = {.op = backward ? "linear_group_backward" : "linear_group"};
    set_values(&e, "x", 2, (int64_t[]){TOKENS, COLUMNS}, 7);
    for (int i = 0; i < 3; i++) {
        set_weight(&e, (const char *[]){"0", "1", "2"}[i], ROWS, COLUMNS, NBL_FORMAT_NF4, NBL_NESTED_NONE);
        set_adapter(&e, (const char *[]){"0", "1", "2"}[i], ROWS, COLUMNS);
        if (backward)
            set_values(&e, numbered("dy", (const char *[]){"0", "1", "2"}[i]), 2, (int64_t[]){TOKENS, ROWS},
                       i);
    }
    set_dropout(&e);
    if (backward) fake_set_int(&e.arguments, "wanted", (1 << 13) - 1);
    return e;
}

static example mlp_example(bool backward)
{
    example e = {.op = backward ? "mlp_backward" : "mlp"};
    set_values(&e, "x", 2, (int64_t[]){TOKENS, COLUMNS}, 7);
    for (int i = 0; i < 3; i++) {
        const char *part = (const char *[]){"0", "1", "2"}[i];
        int64_t rows = i == 2 ? COLUMNS : ROWS, columns = i == 2 ? ROWS : COLUMNS;
        set_weight(&e, part, rows, columns, NBL_FORMAT_FP4, NBL_NESTED_NONE);
        set_adapter(&e, part, rows, columns);
    }
    set_dropout(&e);
    fake_set_int(&e.arguments, "keep", 1);
    if (!backward) return e;
    set_values(&e, "dy", 2, (int64_t[]){TOKENS, COLUMNS}, 9);
    set_values(&e, "gate_out", 2, (int64_t[]){TOKENS, ROWS}, 10);
    set_values(&e, "up_out", 2, (int64_t[]){TOKENS, ROWS}, 11);
    fake_set_int(&e.arguments, "wanted", (1 << 13) - 1);
    return e;
}

static example norm_example(bool backward)
{
    example e = {.op = backward ? "rmsnorm_backward" : "rmsnorm"};
    set_values(&e, "x", 2, (int64_t[]){TOKENS, COLUMNS}, 7);
    set_values(&e, "weight", 1, (int64_t[]){COLUMNS}, 8);
    fake_set_float(&e.arguments, "eps", 1e-5);
    if (!backward) {
        set_values(&e, "residual", 2, (int64_t[]){TOKENS, COLUMNS}, 9);
        return e;
    }
    set_values(&e, "dy", 2, (int64_t[]){TOKENS, COLUMNS}, 10);
    set_values(&e, "dresidual", 2, (int64_t[]){TOKENS, COLUMNS}, 11);
    fake_set_int(&e.arguments, "wanted", 3);
    return e;
}

static example rope_example(bool backward)
{
    example e = {.op = backward ? "norm_rope_backward" : "norm_rope"};
    set_values(&e, "x", 3, (int64_t[]){TOKENS, 4, 16}, 7);
    set_values(&e, "weight", 1, (int64_t[]){16}, 8);
    set_values(&e, "cos", 2, (int64_t[]){TOKENS, 8}, 9);
    set_values(&e, "sin", 2, (int64_t[]){TOKENS, 8}, 10);
    if (backward) set_values(&e, "dy", 3, (int64_t[]){TOKENS, 4, 16}, 11);
    return e;
}

static example loss_example(bool backward)
{
    example e = {.op = backward ? "cross_entropy_backward" : "cross_entropy"};
    set_values(&e, "x", 2, (int64_t[]){TOKENS, COLUMNS}, 7);
    set_weight(&e, "", ROWS, COLUMNS, NBL_FORMAT_NF4, NBL_NESTED_NONE);
    torch_tensor labels = set(&e, "labels", fake_tensor(FAKE_I32, 1, (int64_t[]){TOKENS}));
    for (int i = 0; i < TOKENS; i++) ((int32_t *)fake_data(labels))[i] = i == 1 ? -100 : i;
    if (!backward) return e;
    set_values(&e, "lse", 2, (int64_t[]){2, TOKENS}, 3);
    set_values(&e, "dloss", 0, NULL, 5);
    fake_set_int(&e.arguments, "wanted", 3);
    return e;
}

static example weight_example(bool dora)
{
    example e = {.op = dora ? "dora_norm" : "dequantize"};
    set_weight(&e, "", ROWS, COLUMNS, NBL_FORMAT_NF4, NBL_NESTED_NEAREST);
    fake_set_int(&e.arguments, "dtype", FAKE_F32);
    if (!dora) return e;
    set_values(&e, "lora_a", 2, (int64_t[]){RANK, COLUMNS}, 2);
    set_values(&e, "lora_b", 2, (int64_t[]){ROWS, RANK}, 3);
    fake_set_float(&e.arguments, "scale", 0.5);
    return e;
}

static example quantize_example(bool nested)
{
    example e = {.op = "quantize"};
    set_values(&e, "values", 2, (int64_t[]){ROWS, COLUMNS}, 7);
    fake_set_int(&e.arguments, "format", NBL_FORMAT_NF4);
    fake_set_int(&e.arguments, "block", 64);
    fake_set_int(&e.arguments, "nested", nested);
    return e;
}

typedef example (*maker)(bool backward);
static const maker makers[] = {linear_example, group_example, mlp_example,    norm_example,
                               rope_example,   loss_example,  weight_example, quantize_example};
enum { MAKERS = sizeof makers / sizeof makers[0] };

/* ---- tests ---- */

static void every_operator_runs_and_leaves_nothing(void **state)
{
    (void)state;
    for (int m = 0; m < 2 * MAKERS; m++) {
        int64_t before = fake_live();
        example e = makers[m / 2](m % 2);
        fake_results r;
        if (!fake_call(e.op, &e.arguments, &r)) fail_msg("%s: %s", e.op, r.error);
        for (int i = 0; i < r.count; i++) assert_non_null(r.tensors[i]);
        fake_free_results(&r);
        free_example(&e);
        assert_int_equal(fake_live(), before);
    }
}

/* Each call of the shim fails once. Every time the operator throws, and deletes each handle once. */
static void a_failure_anywhere_leaks_nothing(void **state)
{
    (void)state;
    for (int m = 0; m < 2 * MAKERS; m++) {
        example e = makers[m / 2](m % 2);
        int64_t before = fake_live();
        for (int64_t n = 0;; n++) {
            fake_results r;
            fake_fail_at(n);
            bool ran = fake_call(e.op, &e.arguments, &r);
            bool failed = fake_has_failed();
            fake_fail_at(-1);
            fake_free_results(&r);
            assert_int_equal(fake_live(), before);
            if (!failed) {
                assert_true(ran);
                assert_true(n > 5);
                break;
            }
            assert_false(ran);
            assert_non_null(strstr(r.error, "nibble: "));
        }
        free_example(&e);
    }
}

static void same_floats(torch_tensor a, torch_tensor b)
{
    assert_int_equal(fake_count(a), fake_count(b));
    assert_memory_equal(fake_data(a), fake_data(b), (size_t)fake_count(a) * sizeof(float));
}

/* Rows that lie apart are read as they are, other strides through a copy. The results are the same bits. */
static void strides_do_not_matter(void **state)
{
    (void)state;
    example e = linear_example(true);
    fake_results expected, r;
    assert_true(fake_call(e.op, &e.arguments, &expected));
    for (int way = 0; way < 2; way++) {
        static const char *const names[] = {"x", "dy"};
        static const int64_t widths[] = {COLUMNS, ROWS};
        for (int t = 0; t < 2; t++) {
            int64_t n = widths[t], stride = way == 0 ? n + SPARE : 1, step = way == 0 ? 1 : TOKENS;
            torch_tensor plain = NULL,
                         wide = own(&e, fake_tensor(FAKE_F32, 1, (int64_t[]){TOKENS * (n + SPARE)}));
            for (int i = 0; i < e.arguments.count; i++)
                if (strcmp(e.arguments.list[i].name, names[t]) == 0) plain = e.arguments.list[i].tensor;
            if (way == 0)
                for (int64_t row = 0; row < TOKENS; row++)
                    for (int64_t i = 0; i < n; i++)
                        ((float *)fake_data(wide))[row * stride + i * step] = ((float *)fake_data(
                            plain))[row * n + i];
            else { /* from the strided view of the pass before */
                torch_tensor dense = own(&e, fake_tensor(FAKE_F32, 2, (int64_t[]){TOKENS, n}));
                aoti_torch_copy_(dense, plain, 0);
                for (int64_t row = 0; row < TOKENS; row++)
                    for (int64_t i = 0; i < n; i++)
                        ((float *)fake_data(wide))[row * stride + i * step] = ((float *)fake_data(
                            dense))[row * n + i];
            }
            set(&e, names[t], fake_view(wide, 2, (int64_t[]){TOKENS, n}, (int64_t[]){stride, step}, 0));
        }
        assert_true(fake_call(e.op, &e.arguments, &r));
        for (int i = 0; i < r.count; i++) same_floats(r.tensors[i], expected.tensors[i]);
        fake_free_results(&r);
    }
    fake_free_results(&expected);
    free_example(&e);
}

static void an_unwanted_gradient_is_empty(void **state)
{
    (void)state;
    for (int wanted = 1; wanted < 32; wanted++) {
        example e = linear_example(true);
        fake_results r;
        fake_set_int(&e.arguments, "wanted", wanted);
        assert_true(fake_call(e.op, &e.arguments, &r));
        for (int i = 0; i < r.count; i++) assert_int_equal(fake_count(r.tensors[i]) > 0, wanted >> i & 1);
        fake_free_results(&r);
        free_example(&e);
    }
}

static void no_tokens_are_a_batch(void **state)
{
    (void)state;
    example e = linear_example(true);
    fake_results r;
    set(&e, "x", fake_tensor(FAKE_F32, 3, (int64_t[]){2, 0, COLUMNS}));
    set(&e, "dy", fake_tensor(FAKE_F32, 3, (int64_t[]){2, 0, ROWS}));
    if (!fake_call(e.op, &e.arguments, &r)) fail_msg("%s", r.error);
    assert_int_equal(fake_count(r.tensors[0]), 0);
    for (int i = 1; i < r.count; i++)
        for (int64_t n = 0; n < fake_count(r.tensors[i]); n++)
            assert_true(((float *)fake_data(r.tensors[i]))[n] == 0);
    fake_free_results(&r);
    free_example(&e);
}

/* ---- refusals ---- */

static void refused(example *e, const char *words)
{
    fake_results r;
    int64_t before = fake_live();
    if (fake_call(e->op, &e->arguments, &r)) fail_msg("%s was not refused: %s", e->op, words);
    if (strstr(r.error, words) == NULL) fail_msg("'%s' does not say '%s'", r.error, words);
    assert_int_equal(fake_live(), before);
    free_example(e);
}

static void wrong_parts_are_refused(void **state)
{
    (void)state;
    example e = linear_example(false);
    fake_set_int(&e.arguments, "block", 48);
    refused(&e, "block 48");
    e = linear_example(false);
    set(&e, "data", fake_tensor(FAKE_U8, 1, (int64_t[]){ROWS * COLUMNS / 2 - 1}));
    refused(&e, "data has 1535 bytes of u8, nf4 of shape [48, 64] takes 1536");
    e = linear_example(false); /* a packed weight in bf16 that was cast to f32 */
    set(&e, "data", fake_tensor(FAKE_F32, 1, (int64_t[]){ROWS * COLUMNS / 4}));
    refused(&e, "Was the packed weight cast");
    e = linear_example(false);
    set(&e, "data", fake_tensor(FAKE_I64, 1, (int64_t[]){ROWS * COLUMNS / 16}));
    refused(&e, "data is i64, which does not store nf4");
    e = linear_example(false);
    fake_set_int(&e.arguments, "rows", ROWS * 2);
    refused(&e, "takes 3072");
    e = linear_example(false);
    fake_set_int(&e.arguments, "rows", -1);
    refused(&e, "negative");
    e = linear_example(false);
    fake_set_int(&e.arguments, "format", 5);
    refused(&e, "format is 5");
    e = linear_example(false);
    set(&e, "codes", fake_tensor(FAKE_U8, 1, (int64_t[]){ROWS * COLUMNS / 64 - 1}));
    refused(&e, "47");
    e = linear_example(false);
    set(&e, "codes", fake_tensor(FAKE_I8, 1, (int64_t[]){ROWS * COLUMNS / 64}));
    refused(&e, "codes is i8, not u8");
    e = linear_example(false);
    set(&e, "nested", fake_tensor(FAKE_BF16, 1, (int64_t[]){1}));
    refused(&e, "bf16");
    e = linear_example(false);
    set(&e, "table", fake_tensor(FAKE_F32, 1, (int64_t[]){255}));
    refused(&e, "255");
    e = linear_example(false);
    set(&e, "offset", fake_tensor(FAKE_BF16, 1, (int64_t[]){1}));
    refused(&e, "offset has 1 elements of bf16");
    e = linear_example(false);
    set(&e, "scales", fake_tensor(FAKE_F32, 1, (int64_t[]){ROWS * COLUMNS / 64}));
    refused(&e, "exclude each other");
}

static void wrong_scales_are_refused(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < 3; wrong++) {
        example e = loss_example(false);
        int64_t count = ROWS * COLUMNS / 64 - (wrong == 1);
        set(&e, "scales",
            fake_tensor(wrong == 0 ? FAKE_BF16 : FAKE_F32, 1, (int64_t[]){wrong == 2 ? 0 : count}));
        refused(&e, wrong == 0 ? "bf16" : wrong == 1 ? "47" : "scales");
    }
}

static void wrong_activations_are_refused(void **state)
{
    (void)state;
    example e = linear_example(false);
    set(&e, "x", fake_tensor(FAKE_F64, 2, (int64_t[]){TOKENS, COLUMNS}));
    refused(&e, "f64");
    e = linear_example(false);
    set(&e, "x", fake_tensor(FAKE_F32, 2, (int64_t[]){TOKENS, COLUMNS + 1}));
    refused(&e, "[5, 65]");
    e = linear_example(false);
    set(&e, "x", fake_tensor(FAKE_F32, 9, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 1, COLUMNS}));
    refused(&e, "x has 9 dimensions");
    e = linear_example(false);
    set(&e, "bias", fake_tensor(FAKE_F16, 1, (int64_t[]){ROWS}));
    refused(&e, "f16");
    e = linear_example(true);
    set(&e, "dy", fake_tensor(FAKE_BF16, 2, (int64_t[]){TOKENS, ROWS}));
    refused(&e, "dy");
    e = linear_example(false);
    set(&e, "seed", fake_tensor(FAKE_F32, 1, (int64_t[]){0}));
    refused(&e, "without a seed");
    e = linear_example(false);
    set(&e, "seed", fake_tensor(FAKE_I32, 1, (int64_t[]){1}));
    refused(&e, "seeds");
    e = loss_example(false);
    ((int32_t *)fake_data(e.owned[7]))[0] = ROWS;
    refused(&e, "48");
    e = mlp_example(false);
    fake_set_int(&e.arguments, "act", 3);
    refused(&e, "act is 3");
    e = norm_example(false);
    fake_set_int(&e.arguments, "round", 2);
    refused(&e, "round is 2");
}

static void tensors_of_two_devices_are_refused(void **state)
{
    (void)state;
    example e = linear_example(false);
    for (int i = 0; i < e.count; i++) fake_set_device(e.owned[i], FAKE_CUDA, 0);
    fake_set_device(e.owned[3], FAKE_CPU, 0); /* the codes of the scales */
    refused(&e, "codes is on cpu:0, other tensors are on cuda:0");
    e = linear_example(false);
    for (int i = 0; i < e.count; i++) fake_set_device(e.owned[i], FAKE_CUDA, i == 5);
    refused(&e, "table is on cuda:1, other tensors are on cuda:0");
    e = linear_example(false);
    for (int i = 0; i < e.count; i++) fake_set_device(e.owned[i], 7, 0);
    refused(&e, "neither on a CPU nor on a CUDA device");
    e = linear_example(false); /* no libtorch_cuda.so in this process */
    for (int i = 0; i < e.count; i++) fake_set_device(e.owned[i], FAKE_CUDA, 0);
    refused(&e, "libtorch_cuda.so");
}

/* ---- threads ---- */

enum { CALLERS = 8, CALLS = 10000 };

static int tasks(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static void *call_often(void *argument)
{
    torch_tensor expected = argument;
    example e = {.op = "linear"};
    set_values(&e, "x", 2, (int64_t[]){1, 32}, 7);
    set_weight(&e, "", 32, 32, NBL_FORMAT_NF4, NBL_NESTED_NONE);
    bool right = true;
    for (int i = 0; i < CALLS; i++) {
        fake_results r;
        right &= fake_call(e.op, &e.arguments, &r);
        if (r.count == 0) continue;
        right &= memcmp(fake_data(r.tensors[0]), fake_data(expected), 32 * sizeof(float)) == 0;
        fake_free_results(&r);
    }
    free_example(&e);
    return right ? argument : NULL;
}

static void *do_nothing(void *argument)
{
    return argument;
}

/* Every caller has a context of its own. Its threads end with the caller's. */
static void eight_threads_call_at_once(void **state)
{
    (void)state;
    pthread_t callers[CALLERS];
    example e = {.op = "linear"};
    fake_results expected;
    set_values(&e, "x", 2, (int64_t[]){1, 32}, 7);
    set_weight(&e, "", 32, 32, NBL_FORMAT_NF4, NBL_NESTED_NONE);
    assert_true(fake_call(e.op, &e.arguments, &expected));
    /* a sanitizer starts a thread of its own beside the first */
    assert_int_equal(pthread_create(&callers[0], NULL, do_nothing, NULL), 0);
    pthread_join(callers[0], NULL);
    int before = tasks();
    int64_t live = fake_live();
    for (int i = 0; i < CALLERS; i++)
        assert_int_equal(pthread_create(&callers[i], NULL, call_often, expected.tensors[0]), 0);
    for (int i = 0; i < CALLERS; i++) {
        void *right;
        pthread_join(callers[i], &right);
        assert_non_null(right);
    }
    /* A thread that was joined may be listed a moment longer. */
    for (int i = 0; i < 500 && tasks() > before; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    assert_int_equal(tasks(), before);
    assert_int_equal(fake_live(), live);
    fake_free_results(&expected);
    free_example(&e);
}

/* The number of threads follows torch's. The bits do not change. */
static void the_number_of_threads_follows(void **state)
{
    (void)state;
    example e = linear_example(true);
    fake_results expected, r;
    assert_true(fake_call(e.op, &e.arguments, &expected));
    for (int count = 4; count >= 1; count--) {
        fake_set_threads(count);
        assert_true(fake_call(e.op, &e.arguments, &r));
        for (int i = 0; i < r.count; i++) same_floats(r.tensors[i], expected.tensors[i]);
        fake_free_results(&r);
    }
    fake_set_threads(TEAM);
    fake_free_results(&expected);
    free_example(&e);
}

/* Threads do not survive fork. A child that used its parent's would wait for ever. */
static void a_forked_child_computes(void **state)
{
    (void)state;
    example e = linear_example(true);
    fake_results expected, r;
    assert_true(fake_call(e.op, &e.arguments, &expected));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60);
        bool right = fake_call(e.op, &e.arguments, &r);
        for (int i = 0; i < r.count; i++)
            right &= memcmp(fake_data(r.tensors[i]), fake_data(expected.tensors[i]),
                            (size_t)fake_count(r.tensors[i]) * sizeof(float)) == 0;
        _exit(right ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(fake_call(e.op, &e.arguments, &r)); /* the parent's contexts are as before */
    fake_free_results(&r);
    fake_free_results(&expected);
    free_example(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_runs_and_leaves_nothing),
        cmocka_unit_test(a_failure_anywhere_leaks_nothing),
        cmocka_unit_test(strides_do_not_matter),
        cmocka_unit_test(an_unwanted_gradient_is_empty),
        cmocka_unit_test(no_tokens_are_a_batch),
        cmocka_unit_test(wrong_parts_are_refused),
        cmocka_unit_test(wrong_scales_are_refused),
        cmocka_unit_test(wrong_activations_are_refused),
        cmocka_unit_test(tensors_of_two_devices_are_refused),
        cmocka_unit_test(eight_threads_call_at_once),
        cmocka_unit_test(the_number_of_threads_follows),
        cmocka_unit_test(a_forked_child_computes),
    };
    fake_set_threads(TEAM);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
