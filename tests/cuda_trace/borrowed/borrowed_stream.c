/* borrowed_stream.c - contexts on a stream of the caller's (nbl_context_use_cuda_stream), on the traced CUDA runtime:
 * which stream gets the work, what calls do not do, captures, shared handles, threads, refusals, and every CUDA call
 * failing once. */
#include <cuda.h>
#include <pthread.h>

#include "device/cuda/cuda.h"
#include "heard.h"

static cudaStream_t new_stream(void)
{
    cudaStream_t stream;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

/* Runs every operator and looks where its work went. */
static void run_all_on(nbl_context *ctx, cudaStream_t stream)
{
    for (const operation *op = operations; op->name; op++) {
        listen(end_of(stream));
        run(ctx, op);
        trace_listen(NULL);
        if (heard.enqueued == 0) fail_msg("%s enqueued nothing", op->name);
        if (heard.wrong[0]) fail_msg("%s: %s", op->name, heard.wrong);
        if (heard.forbidden[0] && !op->waits) fail_msg("%s called %s", op->name, heard.forbidden);
    }
}

static bool same_live(trace_live a, trace_live b)
{
    return a.device == b.device && a.host == b.host && a.streams == b.streams && a.events == b.events &&
           a.graphs == b.graphs && a.handles == b.handles;
}

/* ---- tests ---- */

static void operators_use_the_borrowed_stream_and_nothing_else(void **state)
{
    (void)state;
    static const char *const devices[] = {"sm_90", "sm_80"};
    for (int i = 0; i < 2; i++) {
        setenv("NIBBLE_CUDA_TRACE_DEVICE", devices[i], 1);
        cudaStream_t first = new_stream(), second = new_stream();
        nbl_context *ctx = borrowing(first, NULL);
        run_all_on(ctx, first);
        assert_ok(ctx, nbl_context_set_stream(ctx, second));
        run_all_on(ctx, second);
        assert_ok(ctx, nbl_context_set_stream(ctx, NULL)); /* the legacy default stream */
        run_all_on(ctx, NULL);
        assert_ok(ctx, nbl_context_set_stream(ctx, first));
        run_all_on(ctx, first);
        listen("");
        nbl_context_destroy(ctx);
        trace_listen(NULL);
        assert_int_equal(heard.enqueued, 0);
        assert_string_equal(heard.forbidden, "cudaFreeHost"); /* and no wait before it */
        assert_int_equal(cudaStreamDestroy(first), cudaSuccess);
        assert_int_equal(cudaStreamDestroy(second), cudaSuccess);
    }
    unsetenv("NIBBLE_CUDA_TRACE_DEVICE");
}

static void operators_can_be_captured_in_a_graph(void **state)
{
    (void)state;
    cudaStream_t stream = new_stream();
    nbl_context *ctx = borrowing(stream, NULL);
    cudaGraph_t graph;
    for (int warm = 0; warm < 2; warm++) { /* the first time nothing has been called before */
        for (const operation *op = operations; op->name; op++) {
            assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
            if (op->waits) /* refused, and the capture stays as it was */
                assert_refused(ctx, op->run(ctx, calls_scratch()), NBL_ERROR_UNSUPPORTED,
                               "waits for its result");
            else run(ctx, op);
            assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
            assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
        }
    }
    nbl_context_destroy(ctx);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

/* ---- sharing ---- */

/* An allocator that must not be used after its context is gone. */
typedef struct memory_of {
    bool gone;
    long live;
} memory_of;

static void *owner_alloc(void *user, size_t size, size_t align)
{
    memory_of *o = user;
    if (o->gone) abort();
    o->live++;
    return aligned_alloc(align, (size + align - 1) / align * align);
}

static void owner_free(void *user, void *memory, size_t size)
{
    memory_of *o = user;
    (void)size;
    if (o->gone) abort();
    o->live--;
    free(memory);
}

static void shared_contexts_close_in_any_order(void **state)
{
    (void)state;
    enum { COUNT = 3 };
    static const int orders[6][COUNT] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    trace_live before = trace_live_now();
    for (int n = 0; n < 6; n++) {
        memory_of owners[COUNT] = {{0}};
        nbl_context *all[COUNT];
        for (int i = 0; i < COUNT; i++) {
            nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1,
                                           .allocator = {owner_alloc, owner_free, &owners[i]}};
            assert_int_equal(nbl_context_create(&options, &all[i]), NBL_OK);
            assert_ok(all[i], nbl_context_use_cuda_stream(all[i], 0, NULL, i ? all[i - 1] : NULL));
        }
        assert_int_equal(trace_live_now().handles, before.handles + 1);
        assert_int_equal(trace_live_now().host, before.host + 1);
        assert_int_equal(trace_live_now().device, before.device);
        for (int k = 0; k < COUNT; k++) {
            for (int i = k; i < COUNT; i++) /* all that are left still work */
                assert_ok(all[orders[n][i]],
                          calls_linear(all[orders[n][i]], calls_layer(), false, calls_scratch()));
            nbl_context_destroy(all[orders[n][k]]);
            owners[orders[n][k]].gone = true;
            assert_int_equal(owners[orders[n][k]].live, 0);
            assert_int_equal(trace_live_now().handles, before.handles + (k < COUNT - 1));
        }
        assert_int_equal(trace_live_now().host, before.host);
    }
}

static void many_contexts_have_a_mailbox_each(void **state)
{
    (void)state;
    enum { COUNT = 40 };
    trace_live before = trace_live_now();
    nbl_context *all[COUNT];
    for (int i = 0; i < COUNT; i++) all[i] = borrowing(NULL, i ? all[0] : NULL);
    for (int i = 0; i < COUNT; i++)
        for (int k = 0; k < i; k++) {
            const nbl__cuda *a = nbl__cuda_of(all[i]), *b = nbl__cuda_of(all[k]);
            ptrdiff_t apart = (const char *)a->device.mailbox - (const char *)b->device.mailbox;
            assert_true(apart >= NBL_DEVICE_MAILBOX || apart <= -NBL_DEVICE_MAILBOX);
            assert_true(a->fault != b->fault);
        }
    int blocks = (int)(trace_live_now().host - before.host);
    for (int i = 0; i < COUNT; i++) { /* slots are used again */
        nbl_context_destroy(all[i]);
        all[i] = borrowing(NULL, all[i ? i - 1 : COUNT - 1]);
    }
    assert_int_equal(trace_live_now().host - before.host, blocks);
    for (int i = 0; i < COUNT; i++) nbl_context_destroy(all[i]);
    assert_int_equal(trace_live_now().host, before.host);
    assert_int_equal(trace_live_now().handles, before.handles);
}

static nbl_context *template_context;

/* A thread of autograd: a context of its own, many calls, gone. */
static void *work(void *argument)
{
    for (int round = 0; round < 5; round++) {
        nbl_context *ctx = plain_context();
        if (nbl_context_use_cuda_stream(ctx, 0, argument, template_context) != NBL_OK) abort();
        for (int i = 0; i < 20; i++) {
            nbl_linear a = *calls_layer();
            a.x.shape[0] = a.y.shape[0] = TOKENS - i; /* products that are planned anew */
            if (calls_linear(ctx, &a, false, calls_scratch()) != NBL_OK) abort();
        }
        nbl_context_destroy(ctx);
    }
    return NULL;
}

static void threads_share_a_handle(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    cudaStream_t streams[THREADS];
    trace_live before = trace_live_now();
    template_context = borrowing(NULL, NULL);
    for (int i = 0; i < THREADS; i++) {
        streams[i] = new_stream();
        assert_int_equal(pthread_create(&threads[i], NULL, work, streams[i]), 0);
    }
    nbl_context *first = template_context;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(trace_live_now().handles, before.handles + 1);
    nbl_context_destroy(first);
    assert_int_equal(trace_live_now().handles, before.handles);
    for (int i = 0; i < THREADS; i++) assert_int_equal(cudaStreamDestroy(streams[i]), cudaSuccess);
}

/* ---- other threads ---- */

/* The context that could not be opened; NULL: all could. */
static void *open_and_close(void *share)
{
    nbl_context *all[21];
    void *failed = NULL;
    for (int i = 0; i < 21; i++) {
        all[i] = plain_context();
        if (nbl_context_use_cuda_stream(all[i], 0, NULL, i ? share : NULL) != NBL_OK) failed = all[i];
    }
    for (int i = 0; i < 21; i++) nbl_context_destroy(all[i]);
    return failed;
}

static void opening_and_closing_leave_the_captures_of_others_alone(void **state)
{
    (void)state;
    cudaStream_t stream = new_stream();
    nbl_context *ctx = borrowing(stream, NULL);
    pthread_t thread;
    cudaGraph_t graph;
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    assert_int_equal(pthread_create(&thread, NULL, open_and_close, ctx), 0);
    void *failed;
    pthread_join(thread, &failed);
    assert_null(failed);
    assert_null(open_and_close(ctx)); /* in the thread that captures as well */
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    nbl_context_destroy(ctx);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

static void *look_at_the_current_device(void *argument)
{
    nbl_context *ctx = plain_context();
    CUcontext before, after;
    (void)argument;
    for (int set = 0; set < 2; set++) {
        if (set && cudaSetDevice(0) != cudaSuccess) abort();
        cuCtxGetCurrent(&before);
        if ((before != NULL) != set) abort();
        if (!set && nbl_context_use_cuda_stream(ctx, 0, NULL, NULL) != NBL_OK) abort();
        for (const operation *op = operations; op->name; op++)
            if (op->run(ctx, calls_scratch()) != NBL_OK) abort();
        cuCtxGetCurrent(&after);
        if (before != after) abort();
    }
    nbl_context_destroy(ctx);
    cuCtxGetCurrent(&after);
    return before == after ? NULL : ctx;
}

static void a_call_gives_the_thread_its_current_device_back(void **state)
{
    (void)state;
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, look_at_the_current_device, NULL), 0);
    pthread_join(thread, &result);
    assert_null(result);
}

/* ---- refusals ---- */

static void models_and_runs_are_refused(void **state)
{
    (void)state;
    nbl_context *ctx = borrowing(NULL, NULL);
    nbl_model *model;
    nbl_run *run_of;
    assert_refused(ctx, nbl_model_open(ctx, TEST_DATA_DIR "/models/llama", NULL, &model),
                   NBL_ERROR_UNSUPPORTED, "operators, not models");
    assert_non_null(strstr(nbl_error_hint(ctx), "nbl_context_use_cuda"));
    assert_null(model);
    assert_refused(ctx, nbl_run_open(ctx, "run.yml", NULL, 0, &run_of), NBL_ERROR_UNSUPPORTED,
                   "operators, not models");
    assert_null(run_of);
    nbl_context_destroy(ctx);
}

static void wrong_contexts_and_devices_are_refused(void **state)
{
    (void)state;
    trace_live before = trace_live_now();
    nbl_context *ctx = plain_context(), *cpu = plain_context(), *owner = plain_context();
    assert_ok(owner, nbl_context_use_cuda(owner, 0));
    assert_refused(ctx, nbl_context_set_stream(ctx, NULL), NBL_ERROR_ARGUMENT, "borrows no stream");
    assert_refused(owner, nbl_context_set_stream(owner, NULL), NBL_ERROR_ARGUMENT, "borrows no stream");
    assert_refused(ctx, nbl_context_use_cuda_stream(ctx, 0, NULL, cpu), NBL_ERROR_ARGUMENT, "to share with");
    assert_refused(ctx, nbl_context_use_cuda_stream(ctx, 0, NULL, owner), NBL_ERROR_ARGUMENT,
                   "to share with");
    assert_refused(ctx, nbl_context_use_cuda_stream(ctx, 1, NULL, NULL), NBL_ERROR_ARGUMENT, "CUDA device 1");
    assert_ok(ctx, nbl_context_use_cuda_stream(ctx, 0, NULL, NULL));
    assert_refused(ctx, nbl_context_use_cuda_stream(ctx, 0, NULL, NULL), NBL_ERROR_ARGUMENT, "already runs");
    assert_refused(ctx, nbl_context_use_cuda(ctx, 0), NBL_ERROR_ARGUMENT, "already runs");
    nbl_weight dense = {
        .dtype = NBL_DTYPE_BF16, .rank = 2, .shape = {TOKENS, IN}, .data = calls_layer()->x.data};
    assert_refused(ctx, nbl_dequantize(ctx, &dense, 0, 1, NBL_DTYPE_F32, false, calls_scratch()),
                   NBL_ERROR_UNSUPPORTED, "dense weight in bf16 of shape [64, 256] to f32");
    assert_refused(ctx, nbl_dequantize(ctx, &dense, 0, 1, NBL_DTYPE_BF16, true, calls_scratch()),
                   NBL_ERROR_UNSUPPORTED, "transposed");
    assert_refused(ctx,
                   nbl_dequantize(ctx, &calls_layer()->w, 0, OUT + 1, NBL_DTYPE_F32, false, calls_scratch()),
                   NBL_ERROR_ARGUMENT, "rows 0 to 257");
    nbl_context_destroy(ctx);
    nbl_context_destroy(cpu);
    nbl_context_destroy(owner);
    assert_true(same_live(before, trace_live_now()));
}

/* ---- every call fails once ---- */

/* Opens two contexts, runs every operator on one of them, and closes them. */
static void whole_life(nbl_context *ctx[2], int *failures)
{
    nbl_status opened[2];
    for (int i = 0; i < 2; i++) {
        nbl_context *share = i && opened[0] == NBL_OK ? ctx[0] : NULL;
        ctx[i] = plain_context();
        opened[i] = nbl_context_use_cuda_stream(ctx[i], 0, NULL, share);
        *failures += opened[i] != NBL_OK;
        if (opened[i] != NBL_OK && nbl_error_message(ctx[i])[0] == '\0') fail_msg("no message");
    }
    for (const operation *op = operations; op->name; op++) {
        nbl_context *on = ctx[(op - operations) % 2];
        if (opened[on == ctx[1]] != NBL_OK) continue;
        if (op->run(on, calls_scratch()) == NBL_OK) continue;
        ++*failures;
        if (nbl_error_message(on)[0] == '\0') fail_msg("%s: no message", op->name);
    }
    for (int i = 0; i < 2; i++) nbl_context_destroy(ctx[i]);
}

static void every_call_may_fail_once(void **state)
{
    (void)state;
    nbl_context *ctx[2];
    trace_live before = trace_live_now();
    int failures = 0;
    trace_fail(0, false);
    whole_life(ctx, &failures);
    long count = trace_calls();
    assert_int_equal(failures, 0);
    assert_true(count > 100);
    for (int later = 0; later < 2; later++)
        for (long n = 1; n <= count; n += later ? 23 : 1) {
            trace_fail(n, later);
            failures = 0;
            listen("");
            whole_life(ctx, &failures);
            trace_listen(NULL);
            trace_fail(0, false);
            cudaGetLastError();
            trace_live after = trace_live_now();
            /* what a failed call of the runtime was to free is not freed by it */
            if (!later && !same_live(before, after))
                fail_msg("call %ld: %zu %zu allocations, %d handles are left", n, after.device, after.host,
                         after.handles);
            /* one failure, not more: the next call works. Without a handle no product does. */
            if (!later && failures > 1 && !heard.no_handle) fail_msg("call %ld: %d failures", n, failures);
            assert_int_equal(after.handles, before.handles);
        }
    print_message("%ld calls\n", count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators_use_the_borrowed_stream_and_nothing_else),
        cmocka_unit_test(operators_can_be_captured_in_a_graph),
        cmocka_unit_test(shared_contexts_close_in_any_order),
        cmocka_unit_test(many_contexts_have_a_mailbox_each),
        cmocka_unit_test(threads_share_a_handle),
        cmocka_unit_test(opening_and_closing_leave_the_captures_of_others_alone),
        cmocka_unit_test(a_call_gives_the_thread_its_current_device_back),
        cmocka_unit_test(models_and_runs_are_refused),
        cmocka_unit_test(wrong_contexts_and_devices_are_refused),
        cmocka_unit_test(every_call_may_fail_once),
    };
    return cmocka_run_group_tests(tests, calls_setup, calls_teardown);
}
