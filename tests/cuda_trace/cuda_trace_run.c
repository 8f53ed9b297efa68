/* cuda_trace_run.c - kernels that do run, on the CPU. See cuda_trace.h and tests/ptx/ptx.h.
 *
 * They run when they are enqueued, or when the graph is launched that they were captured in. One that does what it may
 * not says so on stderr, and every later call fails, as on a device. */
#include "cuda_trace.h"
#include "ptx/ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct opened {
    struct opened *next;
    const uint8_t *fatbin;
    ptx_module *module; /* NULL: it has none */
} opened;

static opened *all;

bool trace_runs(void)
{
    const char *wish = getenv("NIBBLE_CUDA_TRACE_RUN");
    return wish && *wish && strcmp(wish, "0") != 0;
}

static ptx_module *module_of(const uint8_t *fatbin)
{
    for (const opened *it = all; it; it = it->next)
        if (it->fatbin == fatbin) return it->module;
    opened *it = calloc(1, sizeof *it);
    if (it == NULL) abort();
    it->fatbin = fatbin;
    it->module = ptx_module_open(fatbin);
    it->next = all;
    all = it;
    return it->module;
}

void trace_forget(const uint8_t *fatbin)
{
    for (opened **at = &all; *at; at = &(*at)->next) {
        opened *it = *at;
        if (it->fatbin != fatbin) continue;
        *at = it->next;
        ptx_module_close(it->module);
        free(it);
        return;
    }
}

static void failed(const char *why)
{
    fprintf(stderr, "cuda_trace: %s\n", why);
    trace_line("broken: %s", why);
    trace_break(cudaErrorLaunchFailure);
}

static void run(void *work)
{
    char why[PTX_WHY];
    if (!ptx_launch_run(work, trace_find, why)) failed(why);
}

static void release(void *work)
{
    ptx_launch_free(work);
}

bool trace_run_kernel(const uint8_t *fatbin, const char *symbol, dim3 grid, dim3 block, size_t dynamic,
                      void **arguments, trace_operation *operation)
{
    const ptx_shape shape = {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, dynamic};
    char why[PTX_WHY] = "its object has no intermediate code";
    ptx_module *m = module_of(fatbin);
    ptx_launch *launch = m ? ptx_launch_new(m, symbol, &shape, arguments, why) : NULL;
    if (launch == NULL) {
        fprintf(stderr, "cuda_trace: %s: %s\n", symbol, why);
        return false;
    }
    operation->run = run;
    operation->release = release;
    operation->work = launch;
    return true;
}
