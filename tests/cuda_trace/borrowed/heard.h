/* heard.h - what the traced runtime has heard, and contexts for the tests of borrowed streams. */
#ifndef NIBBLE_BORROWED_HEARD_H
#define NIBBLE_BORROWED_HEARD_H

#include "calls.h"
#include "cuda_trace.h"

typedef struct heard_lines {
    const char *expected; /* ", stream 3": the end of a line that enqueues something, or "" for any */
    char wrong[256];      /* the first line that ends with another */
    char forbidden[64];   /* the first call of the list below */
    int enqueued, dependent, masks;
    char product[256], kernel[256]; /* the last ones */
    bool no_handle;                 /* cublasLtCreate failed */
    char address[17];               /* as the arguments of kernels have it; "": none */
    int with_address;               /* arguments that have it */
} heard_lines;
extern heard_lines heard;

/* Forgets everything, and listens from here on. trace_listen(NULL) ends it. */
void listen(const char *expected);
/* ", stream 3" of a stream, as lines end. */
const char *end_of(cudaStream_t stream);

nbl_context *plain_context(void);
nbl_context *borrowing(cudaStream_t stream, nbl_context *share);
void run(nbl_context *ctx, const operation *op);

#define assert_refused(ctx, call, status, part)                                                              \
    do {                                                                                                     \
        nbl_status got_ = (call);                                                                            \
        if (got_ != (status) || strstr(nbl_error_message(ctx), (part)) == NULL)                              \
            fail_msg("%s \"%s\", expected %s and \"%s\"", nbl_status_name(got_), nbl_error_message(ctx),     \
                     nbl_status_name(status), (part));                                                       \
    } while (0)

/* All tensors; and at the end nothing of the runtime is left over. */
int calls_setup(void **state);
int calls_teardown(void **state);

#endif
