/* ptx_code.h - a decoded kernel. Internal to tests/ptx.
 *
 * Registers of a warp lie in one file: a 32-bit register is 32 lanes of 4 bytes, and so is a 16-bit one, whose upper
 * halves are zero; a 64-bit register is 32 lanes of 8 bytes; a predicate is 4 bytes, one bit per lane. Constants are
 * registers that are never written. Operands of an instruction are offsets in the file. */
#ifndef NIBBLE_PTX_CODE_H
#define NIBBLE_PTX_CODE_H

#include "ptx.h"

enum {
    PTX_LANES = 32,
    PTX_PREDICATES = 4096,  /* a kernel may have so many; they come first in the file */
    PTX_TRUE = 0,           /* the predicate that always holds */
    PTX_SHARED_BEGIN = 1024 /* what lies below belongs to the system, as on a device */
};

/* Generic addresses of shared and local memory. */
#define PTX_SHARED_WINDOW 0x100000000000u
#define PTX_LOCAL_WINDOW 0x180000000000u
#define PTX_WINDOW_BYTES 0x100000000u

typedef enum ptx_class { PTX_PRED, PTX_B16, PTX_B32, PTX_B64 } ptx_class;
typedef enum ptx_space { PTX_GENERIC, PTX_GLOBAL, PTX_SHARED, PTX_LOCAL, PTX_PARAM } ptx_space;

/* Operations on registers alone stand in ptx_ops.inc; these are the others. */
typedef enum ptx_operation {
    PTX_UNKNOWN, /* what is not known is an error only where it is reached */
    PTX_NOTHING,
    PTX_BRANCH, /* to `imm` */
    PTX_CALL,   /* `imm`, where the return address is kept in a register of 32 bits: d */
    PTX_RETURN, /* to what a holds */
    PTX_EXIT,
    PTX_TRAP,
    PTX_BARRIER,        /* a: its number, b: threads or nothing */
    PTX_BARRIER_ARRIVE, /* as above, without waiting */
    PTX_BARRIER_REDUCE, /* d: a predicate, c: a predicate */
    PTX_WARP_BARRIER,   /* c: members */
    PTX_SHUFFLE,        /* more: d, predicate or 0, a, b, c; c: members */
    PTX_VOTE,           /* d; a: a predicate; c: members */
    PTX_REDUX,          /* d, a; c: members */
    PTX_MATCH,          /* d, a; c: members */
    PTX_ACTIVE,         /* d */
    PTX_LOAD,           /* more: registers */
    PTX_STORE,
    PTX_ATOMIC,      /* d or nothing, a: address, b, c */
    PTX_COPY_LOCAL,  /* imm: to, b: from, c: bytes, as they are */
    PTX_COPY_ASYNC,  /* a: to in shared memory, b: from, c: bytes that are read, or nothing */
    PTX_COMMIT,      /* ends a group of copies */
    PTX_WAIT_GROUP,  /* until all but the newest `imm` groups are done */
    PTX_WAIT_ALL,    /* of copies, also of those in no group */
    PTX_PACK,        /* more: parts; d */
    PTX_UNPACK,      /* more: parts; a */
    PTX_LOAD_MATRIX, /* more: registers; a: address */
    PTX_MMA,         /* more: 4 of d, then a, b, c */
    PTX_CARRY,       /* add, sub, mad with carry */
    PTX_FIRST_SIMPLE
} ptx_operation;

/* What an atomic, a reduction, a vote or a carry does. */
typedef enum ptx_action {
    PTX_ADD,
    PTX_MIN,
    PTX_MAX,
    PTX_AND,
    PTX_OR,
    PTX_XOR,
    PTX_EXCHANGE,
    PTX_COMPARE_AND_SWAP,
    PTX_INCREMENT,
    PTX_DECREMENT,
    PTX_POPULATION,
    PTX_ALL,
    PTX_ANY,
    PTX_UNIFORM,
    PTX_BALLOT,
    PTX_UP,
    PTX_DOWN,
    PTX_BUTTERFLY,
    PTX_INDEX
} ptx_action;

/* The type of an element: what a load extends, what an atomic adds. */
typedef enum ptx_kind { PTX_BITS, PTX_SIGNED, PTX_FLOAT, PTX_HALF, PTX_BFLOAT } ptx_kind;

typedef struct ptx_instruction {
    uint16_t operation;
    uint8_t space, kind, action;
    uint8_t width;   /* bytes of an element */
    uint8_t count;   /* elements, or parts */
    uint8_t classes; /* ptx_class of the registers of a load, a store or an atomic */
    uint8_t wide_address, carries_in, carries_out, high;
    uint32_t guard, invert; /* runs in lanes where guard ^ invert */
    uint32_t d, a, b, c, e;
    uint32_t more; /* of code.more */
    int64_t imm;
    uint32_t text, text_bytes; /* where it stands */
    /* The allocation of the last access. */
    uint64_t begin, bytes;
    char *at;
    uint64_t epoch;
} ptx_instruction;

typedef struct ptx_constant {
    uint32_t slot;
    ptx_class class;
    uint64_t value;
} ptx_constant;

/* Registers that hold what %tid.x and others are. */
typedef enum ptx_special {
    PTX_TID_X,
    PTX_TID_Y,
    PTX_TID_Z,
    PTX_NTID_X,
    PTX_NTID_Y,
    PTX_NTID_Z,
    PTX_CTAID_X,
    PTX_CTAID_Y,
    PTX_CTAID_Z,
    PTX_NCTAID_X,
    PTX_NCTAID_Y,
    PTX_NCTAID_Z,
    PTX_LANEID,
    PTX_WARPID,
    PTX_LANEMASK_LT,
    PTX_LANEMASK_LE,
    PTX_LANEMASK_GT,
    PTX_LANEMASK_GE,
    PTX_LANEMASK_EQ,
    PTX_CLOCK,
    PTX_CLUSTER_RANK, /* no clusters: 0 */
    PTX_SPECIALS
} ptx_special;

typedef struct ptx_code {
    const char *name;
    ptx_instruction *all;
    uint32_t count, capacity;
    uint32_t *more;
    uint32_t more_count, more_capacity;
    ptx_constant *constants;
    uint32_t constant_count, constant_capacity;
    uint32_t special[PTX_SPECIALS]; /* slots, or 0 */
    uint32_t file_bytes, predicates;
    uint32_t shared_bytes; /* from 0; dynamic shared memory follows */
    uint32_t local_bytes;  /* of a thread */
    uint32_t carry;        /* a predicate */
    uint32_t dynamic[2];   /* slots of 32 and 64 bits with the end of shared_bytes, or 0 */
    uint32_t *parameters;  /* offset and bytes, by turns */
    uint32_t parameter_count, parameter_bytes;
    struct ptx_code *next;
} ptx_code;

/* Variables of a module: `bytes` bytes at `at`. */
typedef struct ptx_variable {
    char *name;
    ptx_space space;
    uint32_t bytes, align;
    char *at;     /* contents of a global one; its address on the device is this */
    bool dynamic; /* .extern .shared */
} ptx_variable;

struct ptx_module {
    char *text;
    ptx_variable *variables;
    size_t variable_count;
    ptx_code *kernels; /* decoded so far */
};

/* ---- ptx_module.c ---- */

/* The kernel, decoded. NULL: `why` says why not. */
ptx_code *ptx_find_kernel(ptx_module *m, const char *name, char why[PTX_WHY]);

/* ---- ptx_parse.c ---- */

ptx_code *ptx_parse(ptx_module *m, const char *name, const char *at, char why[PTX_WHY]);
void ptx_code_free(ptx_code *code);

/* ---- ptx_decode.c ---- */

/* A simple operation: its name in PTX, the classes of its result and of its operands. */
typedef struct ptx_simple {
    const char *name;
    uint16_t operation;
    uint8_t result, operands[4], operand_count;
} ptx_simple;
const ptx_simple *ptx_find_simple(const char *name);

/* ---- running ---- */

typedef struct ptx_copy {
    uint64_t from;
    uint32_t to, group;
    uint8_t lane, bytes, read;
    uint32_t instruction;
} ptx_copy;

typedef struct ptx_warp {
    unsigned char *file;
    char *local;
    uint32_t at[PTX_LANES]; /* where a lane goes on */
    uint32_t alive, waiting,
        blocked; /* of the living: at an exchange in the warp; at a barrier of the block */
    uint8_t barrier[PTX_LANES];
    uint32_t group[PTX_LANES]; /* copies: the group that is open */
    ptx_copy *copies;
    uint32_t copy_count, copy_capacity;
    int index;
    bool turn; /* the last time slice was used up: others go first */
} ptx_warp;

typedef struct ptx_barrier {
    uint32_t arrived, expected; /* 0 expected: all that live */
    bool any, not_all;
    uint32_t population;
} ptx_barrier;

typedef struct ptx_block {
    ptx_code *code;
    ptx_launch *launch;
    ptx_find *find;
    char *shared;
    uint32_t shared_bytes;
    unsigned index[3];
    ptx_warp *warps;
    int warp_count;
    ptx_barrier barriers[16];
    uint64_t epoch, instructions;
    bool failed;
    char *why;
} ptx_block;

struct ptx_launch {
    ptx_code *code;
    ptx_module *module;
    ptx_shape shape;
    char parameters[];
};

/* ptx_run.c: runs the warp until none of its lanes can go on, or its time slice ends. Returns whether a lane moved. */
bool ptx_run_warp(ptx_block *b, ptx_warp *w);

/* ptx_block.c: the launch has failed; the sentence is completed with who did it. */
void ptx_fail(ptx_block *b, const ptx_warp *w, int lane, const ptx_instruction *in, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Lanes arrive at barrier `index`. */
void ptx_arrive(ptx_block *b, ptx_warp *w, int index, uint32_t lanes, uint32_t threads, bool waits);
/* Opens the barriers that nobody is missing at. */
void ptx_open_barriers(ptx_block *b);

/* ptx_memory.c */
void *ptx_where(ptx_block *b, ptx_warp *w, ptx_instruction *in, int lane, ptx_space space, uint64_t address,
                uint32_t bytes, uint32_t align);
void ptx_load(ptx_block *b, ptx_warp *w, ptx_instruction *in, uint32_t lanes);
void ptx_store(ptx_block *b, ptx_warp *w, ptx_instruction *in, uint32_t lanes);
void ptx_atomic(ptx_block *b, ptx_warp *w, ptx_instruction *in, uint32_t lanes);
void ptx_copy_async(ptx_block *b, ptx_warp *w, ptx_instruction *in, uint32_t lanes);
/* Carries out the copies of these lanes but those of the newest `keep` groups; UINT32_MAX keeps only what is in no group. */
void ptx_finish_copies(ptx_block *b, ptx_warp *w, uint32_t lanes, uint32_t keep, bool all);

/* ptx_matrix.c */
void ptx_load_matrix(ptx_block *b, ptx_warp *w, ptx_instruction *in, uint32_t lanes);
void ptx_mma(ptx_block *b, ptx_warp *w, const ptx_instruction *in);

/* ptx_warp.c: exchanges between lanes, and what is rare. */
void ptx_exchange(ptx_block *b, ptx_warp *w, const ptx_instruction *in, uint32_t lanes);
void ptx_pack(ptx_block *b, ptx_warp *w, const ptx_instruction *in, uint32_t lanes);
void ptx_carry(ptx_block *b, ptx_warp *w, const ptx_instruction *in, uint32_t lanes);

/* ---- types that may lie over each other ---- */

typedef uint32_t __attribute__((may_alias)) ptx_u32;
typedef int32_t __attribute__((may_alias)) ptx_s32;
typedef uint64_t __attribute__((may_alias)) ptx_u64;
typedef int64_t __attribute__((may_alias)) ptx_s64;
typedef float __attribute__((may_alias)) ptx_f32;
typedef double __attribute__((may_alias)) ptx_f64;

static inline ptx_u32 *ptx_words(const ptx_warp *w, uint32_t slot)
{
    return (ptx_u32 *)(void *)(w->file + slot);
}

static inline ptx_u64 *ptx_longs(const ptx_warp *w, uint32_t slot)
{
    return (ptx_u64 *)(void *)(w->file + slot);
}

static inline uint64_t ptx_lane(const ptx_warp *w, uint32_t slot, ptx_class class, int lane)
{
    return class == PTX_B64 ? ptx_longs(w, slot)[lane] : ptx_words(w, slot)[lane];
}

static inline void ptx_set_lane(const ptx_warp *w, uint32_t slot, ptx_class class, int lane, uint64_t value)
{
    if (class == PTX_B64) ptx_longs(w, slot)[lane] = value;
    else if (class == PTX_B16) ptx_words(w, slot)[lane] = (uint16_t)value;
    else ptx_words(w, slot)[lane] = (uint32_t)value;
}

#endif
