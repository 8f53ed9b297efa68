/* ptx.h - runs CUDA kernels on the CPU, from their intermediate code. For tests alone.
 *
 * nvcc puts the intermediate code (PTX) of every kernel into the objects, beside the machine code. This reads it,
 * decodes a kernel once, and interprets it: a warp of 32 threads at a time, blocks one after the other. Arithmetic
 * that PTX defines to the bit has these bits; approximations (ex2.approx and so on) are the true value, rounded.
 *
 * It is also a checker of memory. A launch fails, with the kernel, the instruction and the thread, where
 *   - an access is outside what the caller says is allocated, or not aligned,
 *   - threads wait for each other and none can go on,
 *   - a lane reads another one that takes no part in the exchange,
 *   - an instruction is not known here: wgmma, clusters, mbarriers and bulk copies are not.
 * Shared memory holds 0xff bytes (NaN) when a block begins. cp.async copies when it is waited for and not before. */
#ifndef NIBBLE_PTX_H
#define NIBBLE_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The intermediate code of one fat binary. */
typedef struct ptx_module ptx_module;

/* Memory of the device: addresses [begin, begin + bytes) lie at `at` of the host. */
typedef struct ptx_range {
    uint64_t begin, bytes;
    char *at;
} ptx_range;

/* Finds the live allocation that has the address. */
typedef bool ptx_find(uint64_t address, ptx_range *range);

enum { PTX_WHY = 1024 };

/* NULL: the fat binary has no intermediate code, or it cannot be unpacked. The caller keeps the fat binary. */
ptx_module *ptx_module_open(const uint8_t *fatbin);
/* The same from the text of the code. */
ptx_module *ptx_module_read(const char *text);
void ptx_module_close(ptx_module *m);

/* A launch, ready to run any number of times. */
typedef struct ptx_launch ptx_launch;
typedef struct ptx_shape {
    unsigned grid[3], block[3];
    size_t dynamic; /* bytes of dynamic shared memory */
} ptx_shape;

/* Copies the arguments. NULL: there is no such kernel, and `why` says so. */
ptx_launch *ptx_launch_new(ptx_module *m, const char *kernel, const ptx_shape *shape, void *const *arguments,
                           char why[PTX_WHY]);
/* false: the kernel did what it may not, and `why` says what. Memory is left as it was then. */
bool ptx_launch_run(ptx_launch *l, ptx_find *find, char why[PTX_WHY]);
void ptx_launch_free(ptx_launch *l);

/* Instructions times threads, of all launches so far. */
uint64_t ptx_instructions(void);

#endif
