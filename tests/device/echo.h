/* echo.h - a third device, for tests: the CPU's implementations behind every freedom that device/device.h gives a device.
 *
 *     memory      pages that nobody can touch except while the device works: a host access is a SIGSEGV
 *     order       operators, fills and copies are queued, with copies of their arguments, and run when they are waited for
 *     graphs      a captured graph is a queue of its own, and a replay appends it
 *     offload     a store or load is done as late as its contract allows, when its slot is waited for
 *
 * So a run that has the bytes of the CPU's run has waited wherever it must, and has touched no memory that is not its. */
#ifndef NBL_TEST_ECHO_H
#define NBL_TEST_ECHO_H

#include "device/device.h"

typedef struct echo_counts {
    int64_t allocations, live; /* blocks of its memory: all, and those not freed */
    int64_t operators, graphs, replays, offloads;
    int64_t ahead; /* event_wait calls that left something queued: the host was ahead */
} echo_counts;

/* Makes it the context's device. */
void echo_install(nbl_context *ctx);
nbl__device *echo_device(nbl_context *ctx); /* to change facts, before the first use */
echo_counts *echo_counts_of(nbl_context *ctx);
/* The allocation of device memory after `more` others fails; -1: none. */
void echo_fail_after(nbl_context *ctx, int64_t more);

#endif
