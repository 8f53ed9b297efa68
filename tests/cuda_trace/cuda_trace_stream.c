/* cuda_trace_stream.c - streams, events and captured graphs. See cuda_trace.h.
 *
 * Nothing is asynchronous: an operation is carried out when it is enqueued. In a stream that captures, it becomes a
 * node of the graph and is carried out by each launch of that. A stream that waits for an event of a capture joins it. */
#include "cuda_trace.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_JOINED = 8 };

struct CUgraph_st {
    trace_operation *nodes;
    size_t count, capacity;
    int index;
    bool valid;
    enum cudaStreamCaptureMode mode;
    cudaStream_t joined[MAX_JOINED]; /* [0]: where the capture began */
    int joined_count;
};

struct CUgraphExec_st {
    trace_operation *nodes;
    size_t count;
    int index;
};

struct CUstream_st {
    int index;
    cudaGraph_t capture;    /* or NULL */
    long enqueued, awaited; /* operations of the capture, and how many the origin has waited for */
};

struct CUevent_st {
    int index;
    cudaStream_t stream; /* where it was recorded last */
    cudaGraph_t capture; /* in which capture, or NULL */
    long enqueued;       /* what the stream's count was */
};

static int streams, events, graphs, live_streams, live_events, live_graphs;
static __thread cudaGraph_t capturing; /* the capture that this thread began */
static __thread enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
static cudaGraph_t global_capture; /* the last one that forbids things to all threads, or NULL */

/* The handle of the runtime that means a stream of its own, and the one that means none. */
static cudaStream_t stream_of(cudaStream_t handle)
{
    static struct CUstream_st per_thread;
    return handle == cudaStreamPerThread ? &per_thread : handle == cudaStreamLegacy ? NULL : handle;
}

const char *trace_stream(cudaStream_t stream, char text[24])
{
    stream = stream_of(stream);
    snprintf(text, 24, "stream %d%s", stream ? stream->index : 0,
             stream && stream->capture ? " captured" : "");
    return text;
}

bool trace_breaks_capture(void)
{
    cudaGraph_t broken = capturing;
    if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
    if (broken == NULL && thread_mode == cudaStreamCaptureModeGlobal) broken = global_capture;
    if (broken == NULL) return false;
    broken->valid = false;
    return true;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    cudaError_t error = trace_call("cudaThreadExchangeStreamCaptureMode", cudaErrorUnknown);
    if (error != cudaSuccess) return error;
    enum cudaStreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    stream = stream_of(stream);
    trace_lock();
    cudaError_t error = trace_call("cudaStreamIsCapturing", cudaErrorUnknown);
    if (error == cudaSuccess)
        *status = stream && stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    trace_unlock();
    return error;
}

static void carry_out(const trace_operation *it)
{
    if (it->run) it->run(it->work);
    else if (it->what == TRACE_COPY) trace_copy(it->to, it->from, it->bytes);
    else if (it->bytes) trace_fill(it->to, it->byte, it->bytes);
}

static void free_nodes(trace_operation *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (nodes[i].release) nodes[i].release(nodes[i].work);
    free(nodes);
}

void trace_enqueue(cudaStream_t stream, trace_operation operation)
{
    stream = stream_of(stream);
    cudaGraph_t graph = stream ? stream->capture : NULL;
    if (graph == NULL) {
        carry_out(&operation);
        if (operation.release) operation.release(operation.work);
        return;
    }
    if (graph->count == graph->capacity) {
        graph->capacity = graph->capacity ? 2 * graph->capacity : 256;
        graph->nodes = realloc(graph->nodes, graph->capacity * sizeof *graph->nodes);
        if (graph->nodes == NULL) abort();
    }
    graph->nodes[graph->count++] = operation;
    stream->enqueued++;
}

void trace_stream_live(trace_live *live)
{
    live->streams = live_streams;
    live->events = live_events;
    live->graphs = live_graphs;
}

void trace_stream_summary(void)
{
    trace_line("left over: %d streams, %d events, %d graphs", live_streams, live_events, live_graphs);
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    trace_lock();
    cudaError_t error = trace_call("cudaStreamCreateWithFlags", cudaErrorUnknown);
    if (error == cudaSuccess) {
        *stream = calloc(1, sizeof **stream);
        if (*stream == NULL) abort();
        (*stream)->index = ++streams;
        live_streams++;
        trace_line("cudaStreamCreateWithFlags %u -> %d", flags, streams);
    }
    trace_unlock();
    return error;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    trace_lock();
    cudaError_t error = trace_call("cudaStreamDestroy", cudaErrorUnknown);
    trace_line("cudaStreamDestroy %d", stream->index);
    live_streams--;
    free(stream);
    trace_unlock();
    return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    stream = stream_of(stream);
    trace_lock();
    cudaError_t error = trace_call("cudaStreamSynchronize", cudaErrorLaunchFailure);
    if (error == cudaSuccess) trace_line("cudaStreamSynchronize %d", stream ? stream->index : 0);
    if (error == cudaSuccess && stream && stream->capture) {
        stream->capture->valid = false;
        error = trace_result("cudaStreamSynchronize", cudaErrorStreamCaptureUnsupported);
    }
    trace_unlock();
    return error;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    trace_lock();
    cudaError_t error = trace_call("cudaEventCreate", cudaErrorUnknown);
    if (error == cudaSuccess) {
        *event = calloc(1, sizeof **event);
        if (*event == NULL) abort();
        (*event)->index = ++events;
        live_events++;
        trace_line("cudaEventCreate %u -> %d", flags, events);
    }
    trace_unlock();
    return error;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    trace_lock();
    cudaError_t error = trace_call("cudaEventDestroy", cudaErrorUnknown);
    trace_line("cudaEventDestroy %d", event->index);
    live_events--;
    free(event);
    trace_unlock();
    return error;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    char on[24];
    stream = stream_of(stream);
    trace_lock();
    cudaError_t error = trace_call("cudaEventRecord", cudaErrorUnknown);
    if (error == cudaSuccess) {
        trace_line("cudaEventRecord %d, %s", event->index, trace_stream(stream, on));
        event->stream = stream;
        event->capture = stream ? stream->capture : NULL;
        event->enqueued = stream ? stream->enqueued : 0;
    }
    trace_unlock();
    return error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    trace_lock();
    cudaError_t error = trace_call("cudaEventSynchronize", cudaErrorLaunchFailure);
    if (error == cudaSuccess) trace_line("cudaEventSynchronize %d", event->index);
    if (error == cudaSuccess && event->capture)
        error = trace_result("cudaEventSynchronize", cudaErrorStreamCaptureUnsupported);
    trace_unlock();
    return error;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    trace_lock();
    cudaError_t error = trace_call("cudaEventElapsedTime", cudaErrorUnknown);
    *milliseconds = 1;
    if (error == cudaSuccess && (from->stream == NULL || to->stream == NULL))
        error = trace_result("cudaEventElapsedTime", cudaErrorInvalidValue);
    trace_unlock();
    return error;
}

/* A stream outside a capture that waits for an event inside joins it; the other way round is an error. */
static cudaError_t wait_for(cudaStream_t stream, cudaEvent_t event)
{
    cudaGraph_t graph = event->capture;
    if (stream == NULL || (stream->capture && stream->capture != graph)) {
        if (stream && stream->capture) stream->capture->valid = false;
        return cudaErrorStreamCaptureUnsupported;
    }
    if (graph == NULL) return cudaSuccess;
    if (stream->capture == NULL) {
        if (graph->joined_count == MAX_JOINED) return cudaErrorUnknown;
        stream->capture = graph;
        stream->enqueued = stream->awaited = 0;
        graph->joined[graph->joined_count++] = stream;
    }
    if (stream == graph->joined[0] && event->enqueued > event->stream->awaited)
        event->stream->awaited = event->enqueued;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    char on[24];
    stream = stream_of(stream);
    (void)flags;
    trace_lock();
    cudaError_t error = trace_call("cudaStreamWaitEvent", cudaErrorUnknown);
    if (error == cudaSuccess) {
        error = trace_result("cudaStreamWaitEvent", wait_for(stream, event));
        trace_line("cudaStreamWaitEvent %d, %s", event->index, trace_stream(stream, on));
    }
    trace_unlock();
    return error;
}

/* ---- captured graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    stream = stream_of(stream);
    trace_lock();
    cudaError_t error = trace_call("cudaStreamBeginCapture", cudaErrorUnknown);
    if (error == cudaSuccess && (stream == NULL || stream->capture))
        error = trace_result("cudaStreamBeginCapture", cudaErrorInvalidValue);
    if (error == cudaSuccess) {
        cudaGraph_t graph = calloc(1, sizeof *graph);
        if (graph == NULL) abort();
        graph->valid = true;
        graph->mode = mode;
        if (mode == cudaStreamCaptureModeGlobal) global_capture = graph;
        graph->index = ++graphs;
        graph->joined[graph->joined_count++] = stream;
        stream->capture = capturing = graph;
        stream->enqueued = stream->awaited = 0;
        live_graphs++;
        trace_line("cudaStreamBeginCapture stream %d mode %d -> graph %d", stream->index, (int)mode, graphs);
    }
    trace_unlock();
    return error;
}

static void free_graph(cudaGraph_t graph)
{
    live_graphs--;
    free_nodes(graph->nodes, graph->count);
    free(graph);
}

/* A capture ends even where this fails: all its streams are as they were before it. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *result)
{
    stream = stream_of(stream);
    trace_lock();
    cudaGraph_t graph = stream->capture;
    cudaError_t error = trace_call("cudaStreamEndCapture", cudaErrorUnknown);
    *result = NULL;
    if (graph == NULL || graph->joined[0] != stream) {
        if (error == cudaSuccess) error = trace_result("cudaStreamEndCapture", cudaErrorInvalidValue);
        trace_unlock();
        return error;
    }
    if (error == cudaSuccess && !graph->valid)
        error = trace_result("cudaStreamEndCapture", cudaErrorStreamCaptureInvalidated);
    for (int i = 1; i < graph->joined_count; i++)
        if (error == cudaSuccess && graph->joined[i]->awaited != graph->joined[i]->enqueued)
            error = trace_result("cudaStreamEndCapture", cudaErrorStreamCaptureUnjoined);
    for (int i = 0; i < graph->joined_count; i++) graph->joined[i]->capture = NULL;
    capturing = NULL;
    if (global_capture == graph) global_capture = NULL;
    trace_line("cudaStreamEndCapture stream %d: graph %d with %zu nodes", stream->index, graph->index,
               graph->count);
    if (error == cudaSuccess) *result = graph;
    else free_graph(graph);
    trace_unlock();
    return error;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *result, cudaGraph_t graph, unsigned long long flags)
{
    trace_lock();
    cudaError_t error = trace_call("cudaGraphInstantiate", cudaErrorMemoryAllocation);
    if (error == cudaSuccess) {
        cudaGraphExec_t it = calloc(1, sizeof *it);
        if (it == NULL) abort();
        it->nodes = graph->nodes;
        it->count = graph->count;
        it->index = graph->index;
        graph->nodes = NULL;
        graph->count = graph->capacity = 0;
        live_graphs++;
        trace_line("cudaGraphInstantiate graph %d flags %llu", it->index, flags);
        *result = it;
    }
    trace_unlock();
    return error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    trace_lock();
    cudaError_t error = trace_call("cudaGraphDestroy", cudaErrorUnknown);
    trace_line("cudaGraphDestroy graph %d", graph->index);
    free_graph(graph);
    trace_unlock();
    return error;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t it)
{
    trace_lock();
    cudaError_t error = trace_call("cudaGraphExecDestroy", cudaErrorUnknown);
    trace_line("cudaGraphExecDestroy graph %d", it->index);
    live_graphs--;
    free_nodes(it->nodes, it->count);
    free(it);
    trace_unlock();
    return error;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t it, cudaStream_t stream)
{
    char on[24];
    trace_lock();
    cudaError_t error = trace_call("cudaGraphLaunch", cudaErrorUnknown);
    if (error == cudaSuccess) {
        trace_line("replay graph %d, %zu nodes, %s", it->index, it->count, trace_stream(stream, on));
        for (size_t i = 0; i < it->count; i++) carry_out(&it->nodes[i]);
    }
    trace_unlock();
    return error;
}
