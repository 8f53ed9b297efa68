/* torch_on_cuda.c - python/csrc on the traced CUDA runtime, with a libtorch of the test (tests/torch/fake_torch.h): every
 * operator runs on torch's current stream, takes memory from torch alone, can be captured, and serves many threads. */
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "cuda_trace.h"
#include "nibble.h"
#include "support.h"
#include "torch/fake_torch.h"

enum { IN = 256, OUT = 256, RANK = 8, TOKENS = 64, VOCABULARY = 512, HEADS = 4, HEAD_DIM = 64 };

/* ---- torch's side ---- */

static _Thread_local cudaStream_t current_stream;
static _Thread_local bool in_torch; /* its allocator is at work */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static torch_error get_current_stream(int32_t index, void **stream)
{
    *stream = current_stream;
    return index != 0;
}

void *trace_torch_cuda(const char *name)
{
    return strcmp(name, "aoti_torch_get_current_cuda_stream") == 0 ? (void *)get_current_stream : NULL;
}

/* Blocks are kept, as by torch's caching allocator: a capture finds them there. */
enum { BLOCKS = 256 };
static struct {
    void *memory;
    size_t bytes;
    bool used;
} blocks[BLOCKS];

static void *torch_alloc(size_t bytes)
{
    void *memory = NULL;
    pthread_mutex_lock(&lock);
    in_torch = true;
    for (int i = 0; i < BLOCKS && memory == NULL; i++) {
        if (blocks[i].used || (blocks[i].memory && blocks[i].bytes < bytes)) continue;
        if (blocks[i].memory == NULL) {
            enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
            cudaThreadExchangeStreamCaptureMode(&mode);
            if (cudaMalloc(&blocks[i].memory, bytes) != cudaSuccess) abort();
            cudaThreadExchangeStreamCaptureMode(&mode);
            blocks[i].bytes = bytes;
        }
        blocks[i].used = true;
        memory = blocks[i].memory;
    }
    in_torch = false;
    pthread_mutex_unlock(&lock);
    return memory;
}

static void torch_release(void *memory)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].memory == memory) blocks[i].used = false;
    pthread_mutex_unlock(&lock);
}

static void free_blocks(void)
{
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].memory) cudaFree(blocks[i].memory);
    memset(blocks, 0, sizeof blocks);
}

/* ---- what the runtime hears ---- */

static struct {
    char expected[40], wrong[256], forbidden[64];
    int enqueued, masks;
} heard;

static void hear_line(const char *line)
{
    static const char *const enqueues[] = {"kernel ", "product ", "copy ", "fill "};
    for (size_t i = 0; i < sizeof enqueues / sizeof *enqueues; i++) {
        size_t n = strlen(line), m = strlen(heard.expected);
        if (strncmp(line, enqueues[i], strlen(enqueues[i])) != 0) continue;
        heard.enqueued++;
        heard.masks += strstr(line, "masks_kernel") != NULL;
        if (n < m || strcmp(line + n - m, heard.expected) != 0)
            snprintf(heard.wrong, sizeof heard.wrong, "%.255s", line);
    }
}

static void hear_call(const char *name)
{
    static const char *const never[] = {"cudaMalloc",
                                        "cudaFree",
                                        "cudaHostAlloc",
                                        "cudaFreeHost",
                                        "cudaMallocAsync",
                                        "cudaEventCreate",
                                        "cublasLtCreate",
                                        "cudaStreamSynchronize",
                                        "cudaEventRecord",
                                        "cudaMemGetInfo",
                                        "cudaStreamCreateWithFlags"};
    for (size_t i = 0; !in_torch && i < sizeof never / sizeof *never; i++)
        if (strcmp(name, never[i]) == 0) snprintf(heard.forbidden, sizeof heard.forbidden, "%s", name);
}

static const trace_listener listener = {hear_line, hear_call};

static void listen(void)
{
    char name[24];
    memset(&heard, 0, sizeof heard);
    snprintf(heard.expected, sizeof heard.expected, ", %s", trace_stream(current_stream, name));
    trace_listen(&listener);
}

/* ---- calls ---- */

typedef struct call {
    const char *op;
    fake_arguments arguments;
    torch_tensor owned[64];
    int count;
} call;

static torch_tensor set(call *c, const char *name, int32_t dtype, int rank, const int64_t *shape)
{
    torch_tensor t = fake_cuda_tensor(dtype, rank, shape);
    fake_set_tensor(&c->arguments, name, t);
    return c->owned[c->count++] = t;
}

static void free_call(call *c)
{
    while (c->count > 0) fake_free(c->owned[--c->count]);
}

/* Names with a part's number live as long as the test. */
static const char *part_name(const char *name, const char *part)
{
    static char names[256][24];
    static int count;
    char text[24];
    const char *found = NULL;
    snprintf(text, sizeof text, "%s%s", name, part);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count && !found; i++)
        if (strcmp(names[i], text) == 0) found = names[i];
    if (!found) found = strcpy(names[count++], text);
    pthread_mutex_unlock(&lock);
    return found;
}

#define SHAPE(...)                                                                                           \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (int64_t[])                                                 \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }

static void set_weight(call *c, const char *p, int64_t rows, int64_t columns)
{
    int64_t n = rows * columns;
    set(c, part_name("data", p), FAKE_U8, SHAPE(n / 2));
    set(c, part_name("codes", p), FAKE_U8, SHAPE(n / 64));
    set(c, part_name("nested", p), FAKE_F32, SHAPE((n / 64 + 255) / 256));
    set(c, part_name("table", p), FAKE_F32, SHAPE(256));
    set(c, part_name("offset", p), FAKE_F32, SHAPE(1));
    fake_set_int(&c->arguments, part_name("format", p), NBL_FORMAT_NF4);
    fake_set_int(&c->arguments, part_name("block", p), 64);
    fake_set_int(&c->arguments, part_name("nested_block", p), 256);
    fake_set_int(&c->arguments, part_name("rows", p), rows);
    fake_set_int(&c->arguments, part_name("columns", p), columns);
}

static void set_adapter(call *c, const char *p, int64_t rows, int64_t columns)
{
    set(c, part_name("lora_a", p), FAKE_F32, SHAPE(RANK, columns));
    set(c, part_name("lora_b", p), FAKE_F32, SHAPE(rows, RANK));
    fake_set_float(&c->arguments, part_name("scale", p), 2);
}

static void set_dropout(call *c)
{
    set(c, "seed", FAKE_I64, SHAPE(1));
    fake_set_float(&c->arguments, "dropout", 0.1);
}

static call linear_call(bool backward)
{
    call c = {.op = backward ? "linear_backward" : "linear"};
    set(&c, "x", FAKE_BF16, SHAPE(TOKENS, IN));
    set_weight(&c, "", OUT, IN);
    set_adapter(&c, "", OUT, IN);
    set_dropout(&c);
    if (backward) set(&c, "dy", FAKE_BF16, SHAPE(TOKENS, OUT));
    if (backward) fake_set_int(&c.arguments, "wanted", 1 | 2 << 1 | 4 << 1);
    return c;
}

static call row_call(bool plain)
{
    call c = {.op = "linear"};
    set(&c, "x", plain ? FAKE_BF16 : FAKE_F16, SHAPE(1, 1, IN));
    set_weight(&c, "", OUT, IN);
    if (!plain) set_adapter(&c, "", OUT, IN);
    return c;
}

static call group_call(bool backward)
{
    static const char *const parts[] = {"0", "1", "2"};
    call c = {.op = backward ? "linear_group_backward" : "linear_group"};
    set(&c, "x", FAKE_BF16, SHAPE(TOKENS, IN));
    for (int i = 0; i < 3; i++) {
        set_weight(&c, parts[i], OUT, IN);
        set_adapter(&c, parts[i], OUT, IN);
        if (backward) set(&c, part_name("dy", parts[i]), FAKE_BF16, SHAPE(TOKENS, OUT));
    }
    set_dropout(&c);
    if (backward) fake_set_int(&c.arguments, "wanted", 1 | 6 << 1 | 6 << 5 | 6 << 9);
    return c;
}

static call mlp_call(bool backward)
{
    static const char *const parts[] = {"0", "1", "2"};
    call c = {.op = backward ? "mlp_backward" : "mlp"};
    set(&c, "x", FAKE_BF16, SHAPE(TOKENS, IN));
    for (int i = 0; i < 3; i++) {
        set_weight(&c, parts[i], i == 2 ? IN : 2 * OUT, i == 2 ? 2 * OUT : IN);
        set_adapter(&c, parts[i], i == 2 ? IN : 2 * OUT, i == 2 ? 2 * OUT : IN);
    }
    if (!backward) return c;
    set(&c, "dy", FAKE_BF16, SHAPE(TOKENS, IN));
    set(&c, "gate_out", FAKE_F32, SHAPE(0)); /* as forward left them without `keep` */
    set(&c, "up_out", FAKE_F32, SHAPE(0));
    fake_set_int(&c.arguments, "wanted", 1 | 6 << 1 | 6 << 5 | 6 << 9);
    return c;
}

static call weight_call(bool dora)
{
    call c = {.op = dora ? "dora_norm" : "dequantize"};
    set_weight(&c, "", OUT, IN);
    fake_set_int(&c.arguments, "dtype", FAKE_BF16);
    if (dora) set_adapter(&c, "", OUT, IN);
    else fake_set_int(&c.arguments, "transpose", 1);
    return c;
}

static call norm_call(bool backward)
{
    call c = {.op = backward ? "rmsnorm_backward" : "rmsnorm"};
    set(&c, "x", FAKE_BF16, SHAPE(TOKENS, IN));
    set(&c, "weight", FAKE_F32, SHAPE(IN));
    fake_set_float(&c.arguments, "eps", 1e-5);
    if (backward) set(&c, "dy", FAKE_BF16, SHAPE(TOKENS, IN));
    if (backward) fake_set_int(&c.arguments, "wanted", 3);
    return c;
}

static call rope_call(bool backward)
{
    call c = {.op = backward ? "norm_rope_backward" : "norm_rope"};
    set(&c, "x", FAKE_BF16, SHAPE(TOKENS, HEADS, HEAD_DIM));
    set(&c, "weight", FAKE_F32, SHAPE(HEAD_DIM));
    set(&c, "cos", FAKE_F32, SHAPE(TOKENS, HEAD_DIM / 2));
    set(&c, "sin", FAKE_F32, SHAPE(TOKENS, HEAD_DIM / 2));
    fake_set_float(&c.arguments, "eps", 1e-5);
    if (backward) set(&c, "dy", FAKE_BF16, SHAPE(TOKENS, HEADS, HEAD_DIM));
    return c;
}

static call loss_call(bool backward)
{
    call c = {.op = backward ? "cross_entropy_backward" : "cross_entropy"};
    set(&c, "x", FAKE_BF16, SHAPE(TOKENS, IN));
    set_weight(&c, "", VOCABULARY, IN);
    set(&c, "labels", FAKE_I32, SHAPE(TOKENS));
    if (!backward) return c;
    set(&c, "lse", FAKE_F32, SHAPE(2, TOKENS));
    set(&c, "dloss", FAKE_F32, 0, NULL);
    fake_set_int(&c.arguments, "wanted", 1);
    return c;
}

typedef call (*maker)(bool);
static const maker makers[] = {linear_call, row_call,  group_call, mlp_call,
                               weight_call, norm_call, rope_call,  loss_call};
enum { CALLS = 2 * sizeof makers / sizeof makers[0] };

static cudaStream_t new_stream(void)
{
    cudaStream_t stream;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

/* Runs a call. The first one of a thread makes its context. */
static void run(const call *c, fake_results *r)
{
    if (!fake_call(c->op, &c->arguments, r)) fail_msg("%s: %s", c->op, r->error);
}

/* ---- tests ---- */

static void every_operator_runs_on_torchs_current_stream(void **state)
{
    (void)state;
    cudaStream_t streams[] = {NULL, new_stream(), new_stream()};
    for (int round = 0; round < 4; round++)
        for (int i = 0; i < (int)CALLS; i++) {
            call c = makers[i / 2](i % 2);
            fake_results r;
            current_stream = streams[(round + i) % 3];
            listen();
            run(&c, &r);
            trace_listen(NULL);
            if (heard.enqueued == 0) fail_msg("%s enqueued nothing", c.op);
            if (heard.wrong[0]) fail_msg("%s: %s", c.op, heard.wrong);
            if (heard.forbidden[0] && round > 0) fail_msg("%s called %s", c.op, heard.forbidden);
            fake_free_results(&r);
            free_call(&c);
        }
    current_stream = NULL;
    for (int i = 1; i < 3; i++) assert_int_equal(cudaStreamDestroy(streams[i]), cudaSuccess);
}

static void operators_can_be_captured(void **state)
{
    (void)state;
    cudaGraph_t graph;
    current_stream = new_stream();
    for (int i = 0; i < (int)CALLS; i++) {
        call c = makers[i / 2](i % 2);
        fake_results r;
        assert_int_equal(cudaStreamBeginCapture(current_stream, cudaStreamCaptureModeGlobal), cudaSuccess);
        run(&c, &r);
        assert_int_equal(cudaStreamEndCapture(current_stream, &graph), cudaSuccess);
        assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
        fake_free_results(&r);
        free_call(&c);
    }
    assert_int_equal(cudaStreamDestroy(current_stream), cudaSuccess);
    current_stream = NULL;
}

/* The second output of linear goes to backward, which then makes no masks. */
static void backward_reads_what_forward_saved(void **state)
{
    (void)state;
    static const maker pairs[] = {linear_call, group_call};
    for (int i = 0; i < 2; i++) {
        call forward = pairs[i](false), backward = pairs[i](true);
        fake_results left, r;
        listen();
        run(&forward, &left);
        assert_int_equal(heard.masks, 1);
        for (int given = 0; given < 2; given++) {
            torch_tensor saved = left.tensors[left.count - 1];
            assert_true(fake_count(saved) > 0);
            if (given) fake_set_tensor(&backward.arguments, "saved", saved);
            listen();
            run(&backward, &r);
            trace_listen(NULL);
            assert_int_equal(heard.masks, !given);
            fake_free_results(&r);
        }
        fake_free_results(&left);
        free_call(&forward);
        free_call(&backward);
    }
}

/* A thread of autograd: a stream and contexts of its own, which end with it. */
static void *work(void *argument)
{
    current_stream = argument;
    for (int round = 0; round < 10; round++)
        for (int i = 0; i < (int)CALLS; i++) {
            call c = makers[i / 2](i % 2);
            fake_results r;
            if (!fake_call(c.op, &c.arguments, &r)) return strdup(r.error);
            fake_free_results(&r);
            free_call(&c);
        }
    return NULL;
}

static void threads_have_contexts_that_share(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    cudaStream_t streams[THREADS];
    int handles = trace_live_now().handles;
    assert_int_equal(handles, 1); /* one for the process */
    for (int i = 0; i < THREADS; i++) {
        streams[i] = new_stream();
        assert_int_equal(pthread_create(&threads[i], NULL, work, streams[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *error;
        pthread_join(threads[i], &error);
        if (error) fail_msg("%s", (char *)error);
        assert_int_equal(cudaStreamDestroy(streams[i]), cudaSuccess);
    }
    assert_int_equal(trace_live_now().handles, handles);
}

/* Each CUDA call of an operator fails once: the operator throws or does its work, and leaks no tensor. */
static void a_cuda_call_that_fails_is_an_error_of_torch(void **state)
{
    (void)state;
    for (int i = 0; i < (int)CALLS; i++) {
        call c = makers[i / 2](i % 2);
        fake_results r;
        int64_t before = fake_live();
        run(&c, &r); /* torch has the memory by then */
        fake_free_results(&r);
        trace_fail(0, false);
        run(&c, &r);
        fake_free_results(&r);
        long count = trace_calls();
        for (long n = 1; n <= count; n++) {
            trace_fail(n, false);
            bool ran = fake_call(c.op, &c.arguments, &r);
            trace_fail(0, false);
            if (!ran) assert_non_null(strstr(r.error, "nibble: "));
            fake_free_results(&r);
            assert_int_equal(fake_live(), before);
            run(&c, &r); /* and the next call works */
            fake_free_results(&r);
        }
        free_call(&c);
    }
}

static int prepare(void **state)
{
    (void)state;
    fake_use_cuda(torch_alloc, torch_release);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    free_blocks();
    return trace_live_now().streams || trace_live_now().graphs || trace_live_now().device;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_runs_on_torchs_current_stream),
        cmocka_unit_test(operators_can_be_captured),
        cmocka_unit_test(backward_reads_what_forward_saved),
        cmocka_unit_test(threads_have_contexts_that_share),
        cmocka_unit_test(a_cuda_call_that_fails_is_an_error_of_torch),
    };
    return cmocka_run_group_tests(tests, prepare, finish);
}
