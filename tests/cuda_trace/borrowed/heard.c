/* heard.c - see heard.h. */
#include "heard.h"

heard_lines heard;

/* What no operator may call. */
static const char *const never[] = {"cudaMalloc",
                                    "cudaFree",
                                    "cudaHostAlloc",
                                    "cudaFreeHost",
                                    "cudaMallocAsync",
                                    "cudaFreeAsync",
                                    "cudaEventCreate",
                                    "cudaEventDestroy",
                                    "cudaStreamCreateWithFlags",
                                    "cudaStreamDestroy",
                                    "cudaStreamSynchronize",
                                    "cudaEventSynchronize",
                                    "cudaMemGetInfo",
                                    "cublasLtCreate"};

static void hear_line(const char *line)
{
    static const char *const enqueues[] = {"kernel ", "product ",        "copy ",
                                           "fill ",   "cudaEventRecord", "cudaStreamWaitEvent"};
    heard.with_address += heard.address[0] && strncmp(line, "  ", 2) == 0 && strstr(line, heard.address);
    heard.no_handle |= strncmp(line, "failed: cublasLtCreate", 22) == 0;
    for (size_t i = 0; i < sizeof enqueues / sizeof *enqueues; i++) {
        size_t n = strlen(line), m = strlen(heard.expected);
        if (strncmp(line, enqueues[i], strlen(enqueues[i])) != 0) continue;
        heard.enqueued++;
        heard.dependent += strstr(line, " dependent") != NULL;
        heard.masks += strstr(line, "masks_kernel") != NULL;
        if (i == 0) snprintf(heard.kernel, sizeof heard.kernel, "%.255s", line);
        if (i == 1) snprintf(heard.product, sizeof heard.product, "%.255s", line);
        if ((n < m || strcmp(line + n - m, heard.expected) != 0) && heard.wrong[0] == '\0')
            snprintf(heard.wrong, sizeof heard.wrong, "%.255s", line);
    }
}

static void hear_call(const char *name)
{
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        if (strcmp(name, never[i]) == 0 && heard.forbidden[0] == '\0')
            snprintf(heard.forbidden, sizeof heard.forbidden, "%s", name);
}

static const trace_listener listener = {hear_line, hear_call};

void listen(const char *expected)
{
    memset(&heard, 0, sizeof heard);
    heard.expected = expected;
    trace_listen(&listener);
}

const char *end_of(cudaStream_t stream)
{
    static char text[2][40];
    static int next;
    char name[24], *to = text[next++ % 2];
    snprintf(to, sizeof text[0], ", %s", trace_stream(stream, name));
    return to;
}

nbl_context *plain_context(void)
{
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1};
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
    return ctx;
}

nbl_context *borrowing(cudaStream_t stream, nbl_context *share)
{
    nbl_context *ctx = plain_context();
    assert_ok(ctx, nbl_context_use_cuda_stream(ctx, 0, stream, share));
    return ctx;
}

void run(nbl_context *ctx, const operation *op)
{
    nbl_status status = op->run(ctx, calls_scratch());
    if (status != NBL_OK) fail_msg("%s: %s", op->name, nbl_error_message(ctx));
}

int calls_setup(void **state)
{
    (void)state;
    calls_open();
    return 0;
}

int calls_teardown(void **state)
{
    (void)state;
    calls_close();
    trace_live live = trace_live_now();
    return live.device || live.host || live.streams || live.events || live.graphs || live.handles;
}
