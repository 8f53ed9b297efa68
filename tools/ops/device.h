/* device.h - an operator's call carried to a CUDA device and back.
 *
 *     host arguments ─device_open▶ one piece of device memory ─device_fetch▶ host arguments
 *
 * The arguments are the host's, as for the CPU. Every tensor and every part of a weight becomes a
 * block of the image, with red zones around it. The call runs there, and what it wrote comes back
 * into the host's tensors. Each run also checks that zones, inputs and the struct of arguments
 * stayed as they were. */
#ifndef NBL_OPS_DEVICE_H
#define NBL_OPS_DEVICE_H

#include "device/device.h"

typedef enum device_how {
    DEVICE_PLAIN,
    DEVICE_SKEWED,  /* every tensor is aligned to its element only, every packed weight not at all */
    DEVICE_CAPTURED /* through a capture of the stream */
} device_how;

/* A context that runs on the first CUDA device. NULL: there is none; `why` has the reason. */
nbl_context *device_context(int threads, nbl_log_fn log, char why[512]);

/* The part of a call that is on the device. device_open makes it; device_close frees it, also after
 * a failure. */
enum { DEVICE_BLOCKS = 2048, DEVICE_ZONE = 256 };
typedef struct device_block {
    uint8_t *host;
    size_t bytes, begin; /* begin: its offset in the image */
    bool written;        /* by the operator */
} device_block;
typedef struct device_image {
    nbl_context *ctx;
    const nbl__device *runs_on;
    bool skewed;
    void *arguments, *before; /* with the device's pointers; a copy, to find changes */
    void *list;               /* of tensors, for the operators that have one */
    size_t arguments_bytes;
    device_block blocks[DEVICE_BLOCKS];
    int count;
    struct {
        void *address; /* of a pointer in the arguments */
        int block;
    } pointers[DEVICE_BLOCKS];
    int pointer_count;
    size_t bytes, scratch_bytes;
    uint8_t *host, *device;
    uint8_t *scratch_base, *scratch; /* with a zone before and after it */
} device_image;
nbl_status device_open(nbl_context *ctx, const nbl__family *family, const nbl__op *op, const void *arguments,
                       bool skewed, device_image *image);
nbl_status device_scratch(device_image *image, const nbl__impl *impl); /* poisoned */
/* Waits, copies back what was written and checks the rest. `who`: the implementation, for messages. */
nbl_status device_fetch(device_image *image, const char *who);
void device_close(device_image *image);

/* Runs `op`, one of the family's two; `impl` NULL: the one that dispatch chooses, or `force` names. *ran (or
 * NULL) is what ran. NBL_ERROR_UNSUPPORTED: it does not take these arguments. */
nbl_status device_run(nbl_context *ctx, const nbl__family *family, const nbl__op *op, const nbl__impl *impl,
                      const char *force, const void *arguments, device_how how, const nbl__impl **ran);

/* Median seconds of a call: `cold` after the caches of the device were overwritten, `warm` in a row of calls. */
typedef struct device_times {
    double cold, warm;
} device_times;
nbl_status device_time(nbl_context *ctx, const nbl__family *family, const nbl__op *op, const nbl__impl *impl,
                       const void *arguments, bool quick, device_times *times);
/* Bytes per second, read and written, of a copy within the device's memory. */
nbl_status device_copy_speed(nbl_context *ctx, double *bytes_per_second);

/* As nbl_dequantize, all rows. */
nbl_status device_dequantize(nbl_context *ctx, const nbl_weight *weight, nbl_dtype dtype, bool transpose,
                             nbl_tensor *out);

#endif
