/* ops.h - operators: one table row each, checked once, dispatched by what the machine can do.
 *
 * A family is a struct of arguments (in its own header) and a description of it:
 *
 *     slots     its tensors: name, place in the struct, role. The tool that runs files, the tests, the
 *               documentation's tables and the graph all read them, so an operator is declared once.
 *     attrs     its other fields, with type and default.
 *     forward, backward   two operators over the same struct:
 *         infer   checks dtypes and shapes and fills in those of the outputs. It reads no data, so that a
 *                 graph can plan without any, and a backend's pointers need not be readable here.
 *         impls   implementations, best first, ending in the scalar reference (ops/ref).
 *
 * A caller infers, gives the outputs memory, chooses an implementation (the first that the machine has
 * and that can do these arguments), hands it scratch, and runs it. A gradient that gets no memory (data
 * NULL) is not wanted and not computed. Nothing here allocates. The dtype of a result follows from the
 * arguments alone, never from earlier calls. */
#ifndef NBL_OPS_H
#define NBL_OPS_H

#include <stddef.h>

#include "quant/weight.h"
#include "tensor/dtype.h"

/* What a schedule runs just before a call, or just after it. */
typedef struct nbl__neighbour {
    const struct nbl__op *op; /* NULL: nothing, or nobody knows */
    const void *arguments;
} nbl__neighbour;

/* What a schedule knows of a call besides its arguments. All zero: nothing. */
typedef struct nbl__around {
    nbl__neighbour before,
        after;  /* two implementations may agree, by the arguments alone, that one does both's work */
    void *kept; /* what a forward call leaves for its backward call, on a device (nbl__cuda_kept) */
} nbl__around;

typedef struct nbl__call {
    nbl_context *ctx;
    const char *op;   /* its name, for messages */
    uint8_t *scratch; /* aligned to 64 bytes; dies with the call */
    size_t scratch_bytes;
    struct nbl__cuda *cuda; /* the device that it runs on (device/cuda/cuda.h); NULL: the CPU */
    nbl__around around;
} nbl__call;

typedef struct nbl__impl {
    const char *name; /* "rmsnorm_avx2": operator, then what makes it different */
    nbl_isa needs;
    const char *(*can)(const void *arguments); /* NULL: yes; else why not */
    /* Bytes; NULL: none. It is planned for the most tokens that a run may have: never more with fewer. */
    size_t (*scratch)(const nbl_context *ctx, const void *arguments);
    nbl_status (*run)(const nbl__call *call, const void *arguments);
} nbl__impl;

typedef struct nbl__op {
    const char *name; /* "rmsnorm", "rmsnorm_backward" */
    nbl_status (*infer)(nbl_context *ctx, void *arguments);
    const nbl__impl *const *impls; /* best first, NULL at the end */
} nbl__op;

typedef enum nbl__role {
    NBL_ROLE_INPUT,           /* must be given */
    NBL_ROLE_OPTIONAL,        /* an input that may be absent: data NULL */
    NBL_ROLE_WEIGHT,          /* an nbl_weight instead of an nbl_tensor; must be given */
    NBL_ROLE_OPTIONAL_WEIGHT, /* one that may be absent: rank 0 */
    NBL_ROLE_OUTPUT,          /* of forward; infer leaves rank 0 when these arguments do not produce it */
    NBL_ROLE_SAVED,           /* made by forward for backward; no result of its own */
    NBL_ROLE_COTANGENT,       /* the gradient of output `of`, an input of backward; optional */
    NBL_ROLE_GRADIENT         /* of input `of`, an output of backward; rank 0 after infer: not produced */
} nbl__role;

typedef struct nbl__slot {
    const char *name;
    nbl__role role;
    const char *of;
    size_t offset;       /* of the nbl_tensor or nbl_weight in the struct of arguments */
    bool kept;           /* backward reads it: it must live until then, */
    const char *instead; /* unless this slot is bound, which backward then reads in its place */
    const char *also;    /* a gradient: of this input as well */
    const char
        *when; /* a saved value that the flag of this name asks for; without it backward makes it again */
} nbl__slot;
#define NBL_SLOT(type, field, name, role, of)                                                                \
    {                                                                                                        \
        name, NBL_ROLE_##role, of, offsetof(type, field), false, NULL, NULL, NULL                            \
    }
#define NBL_KEPT(type, field, name, role)                                                                    \
    {                                                                                                        \
        name, NBL_ROLE_##role, NULL, offsetof(type, field), true, NULL, NULL, NULL                           \
    }
#define NBL_SAVED_WHEN(type, field, name, flag)                                                              \
    {                                                                                                        \
        name, NBL_ROLE_SAVED, NULL, offsetof(type, field), true, NULL, NULL, flag                            \
    }

typedef enum nbl__attr_type {
    NBL_ATTR_DTYPE, /* nbl_dtype, a compute dtype; no default */
    NBL_ATTR_FLOAT, /* float */
    NBL_ATTR_INT,   /* int64_t */
    NBL_ATTR_SEED,  /* uint64_t */
    NBL_ATTR_FLAG,  /* bool */
    NBL_ATTR_WORD   /* int: the place of the word in `words` */
} nbl__attr_type;

typedef struct nbl__attr {
    const char *name;
    nbl__attr_type type;
    size_t offset;
    double missing;           /* the default */
    const char *const *words; /* NBL_ATTR_WORD: NULL at the end */
} nbl__attr;
#define NBL_ATTR(struct_type, field, name, type, missing)                                                    \
    {                                                                                                        \
        name, NBL_ATTR_##type, offsetof(struct_type, field), missing, NULL                                   \
    }
#define NBL_ATTR_OF_WORDS(struct_type, field, name, words)                                                   \
    {                                                                                                        \
        name, NBL_ATTR_WORD, offsetof(struct_type, field), 0, words                                          \
    }

typedef struct nbl__family {
    const char *name;
    size_t size;            /* of the struct of arguments; all zero is its empty state */
    const nbl__slot *slots; /* NULL name at the end */
    const nbl__attr *attrs; /* NULL name at the end */
    nbl__op forward;
    nbl__op backward; /* name NULL: there is none */
} nbl__family;

/* All families, in the order of families.h. NULL past the end. */
const nbl__family *nbl__family_at(int index);
const nbl__family *nbl__family_find(const char *name);
const nbl__slot *nbl__slot_find(const nbl__family *family, const char *name);
static inline nbl_tensor *nbl__slot_tensor(const nbl__slot *slot, void *arguments)
{
    return (nbl_tensor *)(void *)((char *)arguments + slot->offset);
}
static inline bool nbl__slot_is_weight(const nbl__slot *slot)
{
    return slot->role == NBL_ROLE_WEIGHT || slot->role == NBL_ROLE_OPTIONAL_WEIGHT;
}
/* Sets every attribute that has a default to it. */
void nbl__attrs_reset(const nbl__family *family, void *arguments);

/* The implementation to take; `force` names one that must be taken (NULL: any, or the one that the
 * environment's NIBBLE_IMPL names, where the operator has it): in full, or by what follows the operator's
 * name ("ref"). `arguments` must have passed infer. Choice and declines are logged at debug level. */
nbl_status nbl__op_choose(nbl_context *ctx, const nbl__op *op, const void *arguments, const char *force,
                          const nbl__impl **impl);
size_t nbl__op_scratch(const nbl_context *ctx, const nbl__impl *impl, const void *arguments);
/* Runs an implementation that was chosen; outputs have their data by now. */
nbl_status nbl__op_run(nbl_context *ctx, const nbl__op *op, const nbl__impl *impl, const void *arguments,
                       void *scratch, size_t scratch_bytes);

/* The same as a part of a schedule, in which its neighbours run as well, in this order. */
nbl_status nbl__op_run_within(nbl_context *ctx, const nbl__op *op, const nbl__impl *impl,
                              const void *arguments, void *scratch, size_t scratch_bytes, nbl__around around);

/* Scratch is cut front to back: each piece aligned to 64 bytes. With base NULL it only measures. */
typedef struct nbl__cut {
    uint8_t *base;
    size_t used;
} nbl__cut;
static inline void *nbl__cut_bytes(nbl__cut *cut, size_t bytes)
{
    void *piece = (void *)((uintptr_t)cut->base + cut->used);
    cut->used += (bytes + 63) / 64 * 64;
    return piece;
}
#define NBL_CUT(cut, pointer, count) ((pointer) = nbl__cut_bytes((cut), (size_t)(count) * sizeof *(pointer)))

/* ---- checks that infer functions share; each failure names operator, tensor, dtypes and shapes ---- */

static inline bool nbl__given(const nbl_tensor *t)
{
    return t->data != NULL;
}
int64_t nbl__tensor_elements(const nbl_tensor *t);
/* Product of all dimensions but the last; rank 1 is one row. */
int64_t nbl__tensor_rows(const nbl_tensor *t);
static inline int64_t nbl__last(const nbl_tensor *t)
{
    return t->rank > 0 ? t->shape[t->rank - 1] : 1;
}
nbl_status nbl__check_dtype(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t,
                            nbl_dtype expected);
nbl_status nbl__check_float(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t);
/* The attribute dtype of a call. */
nbl_status nbl__check_compute(nbl_context *ctx, const char *op, nbl_dtype dtype);
/* Exactly this shape. */
nbl_status nbl__check_dims(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t, int rank,
                           const int64_t *shape);
/* rows x columns after flattening, any rank >= 1. */
nbl_status nbl__check_matrix(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t,
                             int64_t rows, int64_t columns);
/* An output like another tensor, with another last dimension and dtype. */
void nbl__output_like(nbl_tensor *out, const nbl_tensor *like, int64_t last, nbl_dtype dtype);
void nbl__output_vector(nbl_tensor *out, nbl_dtype dtype, int rank, int64_t first, int64_t second);
/* These arguments do not produce it. */
static inline void nbl__output_none(nbl_tensor *out)
{
    out->rank = 0;
}

#endif
