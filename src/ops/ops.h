/* ops.h - operators: how one is described, checked, chosen and run.
 *
 * A family is a struct of arguments, declared in the family's own header, and a
 * table that describes it:
 *
 *   slots      the tensors: name, role, offset in the struct of arguments
 *   attrs      the other fields: name, type, default
 *   forward    an operator over the struct
 *   backward   a second operator over the same struct; may be absent
 *   cost       operations of a call, and what recomputing it costs
 *
 * Slots, attrs and cost are the only description of a family. The graph, autodiff,
 * plans, the tests and the tool that runs case files read them.
 *
 * An operator consists of
 *
 *   infer   checks dtypes and shapes, then sets those of the outputs. It reads no tensor data. A graph can
 *           therefore plan before memory exists, and device pointers are safe here. Call it through
 *           nbl__infer, which also refuses a row stride in every slot that does not accept one.
 *   impls   the CPU's implementations, best first. The last one is the scalar reference. Another device has
 *           rows of its own (nbl__device.impls), and there is no reference behind them.
 *
 * The steps of a call:
 *
 *   nbl__infer -> give the outputs memory -> nbl__op_choose -> nbl__op_scratch -> nbl__op_run
 *
 * A gradient without memory (data NULL) is not computed. Nothing in this header
 * allocates. The dtype of a result follows from the arguments alone, never from
 * earlier calls. */
#ifndef NBL_OPS_H
#define NBL_OPS_H

#include <stddef.h>

#include "quant/weight.h"
#include "tensor/dtype.h"

/* All that an implementation gets besides its arguments. */
typedef struct nbl__call {
    nbl_context *ctx;
    const char *op;   /* the operator's name, for messages */
    uint8_t *scratch; /* aligned to 64 bytes; undefined before and after the call */
    size_t scratch_bytes;
    const struct nbl__device *device; /* where it runs (device/device.h) */
    void *saved; /* memory in which forward leaves values for its backward, on a device; or NULL */
    /* Memory for libraries behind the implementation's scratch, aligned to 256 bytes; NULL: the device has its own */
    void *workspace;
} nbl__call;

/* One row of an operator's dispatch table. */
typedef struct nbl__impl {
    const char *name; /* "rmsnorm_avx2": the operator, then the variant */
    nbl_isa needs;    /* CPU: the lowest instruction set; other devices: NBL_ISA_SCALAR */
    /* Returns NULL if the row takes the arguments on this machine or device, else why
     * not. It reads no tensor data. NULL: it takes all. */
    const char *(*can)(const nbl_context *ctx, const void *arguments);
    /* Bytes; NULL: none. The size must not fall as the number of tokens grows,
     * because a plan measures it once, for the largest number of tokens. It also
     * covers the rows that dispatch may choose for fewer tokens. */
    size_t (*scratch)(const nbl_context *ctx, const void *arguments);
    nbl_status (*run)(const nbl__call *call, const void *arguments);
} nbl__impl;

/* Declares the rows of an operator and lists them, best first. ROWS is a macro over their
 * names, so that a new row needs its file and one word here:
 *
 *     #define ROWS(X) NBL_X86(X(rmsnorm_avx512)) NBL_X86(X(rmsnorm_avx2)) X(rmsnorm_ref)
 *     NBL_IMPLS(forward_impls, ROWS); */
#define NBL_IMPLS(list, ROWS)                                                                                \
    ROWS(NBL_IMPL_DECLARATION) static const nbl__impl *const list[] = {ROWS(NBL_IMPL_ADDRESS) NULL}
#define NBL_IMPL_DECLARATION(name) extern const nbl__impl nbl__##name;
#define NBL_IMPL_ADDRESS(name) &nbl__##name,

/* An operator: one direction of a family. */
typedef struct nbl__op {
    const char *name; /* "rmsnorm", "rmsnorm_backward" */
    nbl_status (*infer)(nbl_context *ctx, void *arguments);
    const nbl__impl *const *impls; /* best first, NULL at the end */
} nbl__op;

/* The part that a tensor plays in its operators. */
typedef enum nbl__role {
    NBL_ROLE_INPUT,           /* must be given */
    NBL_ROLE_OPTIONAL,        /* an input that may be absent: data NULL */
    NBL_ROLE_WEIGHT,          /* an nbl_weight instead of an nbl_tensor; must be given */
    NBL_ROLE_OPTIONAL_WEIGHT, /* one that may be absent: rank 0 */
    NBL_ROLE_OUTPUT,          /* a result of forward; rank 0 after infer: not produced */
    NBL_ROLE_SAVED,           /* written by forward for backward only */
    NBL_ROLE_COTANGENT,       /* the gradient of output `of`: an optional input of backward */
    NBL_ROLE_GRADIENT /* the gradient of input `of`, a result of backward; rank 0 after infer: not produced */
} nbl__role;

/* One tensor of a family. */
typedef struct nbl__slot {
    const char *name;
    nbl__role role;
    const char *of;      /* COTANGENT: the output, GRADIENT: the input that it belongs to; else NULL */
    size_t offset;       /* of the nbl_tensor or nbl_weight in the struct of arguments */
    bool saved;          /* backward reads the tensor, so its memory lives until then */
    const char *instead; /* saved only if this slot is not bound; backward reads that slot otherwise */
    const char *also;    /* GRADIENT: a second input that the same gradient belongs to; or NULL */
    /* SAVED: the attribute (a flag) that asks forward to save the tensor. Without the
     * flag, backward recomputes the value. */
    const char *when;
    int strided; /* the rank in which the tensor may have a row stride; 0: it must be dense */
} nbl__slot;
/* The three usual kinds of slot: plain, read again by backward, and saved on
 * request. _ROWS: with the rank in which the tensor may have a row stride. */
#define NBL_SLOT_ROWS(type, field, name, role, of, strided)                                                  \
    {                                                                                                        \
        name, NBL_ROLE_##role, of, offsetof(type, field), false, NULL, NULL, NULL, strided                   \
    }
#define NBL_SLOT_SAVED_ROWS(type, field, name, role, strided)                                                \
    {                                                                                                        \
        name, NBL_ROLE_##role, NULL, offsetof(type, field), true, NULL, NULL, NULL, strided                  \
    }
#define NBL_SLOT(type, field, name, role, of) NBL_SLOT_ROWS(type, field, name, role, of, 0)
#define NBL_SLOT_SAVED(type, field, name, role) NBL_SLOT_SAVED_ROWS(type, field, name, role, 0)
#define NBL_SAVED_WHEN(type, field, name, flag)                                                              \
    {                                                                                                        \
        name, NBL_ROLE_SAVED, NULL, offsetof(type, field), true, NULL, NULL, flag, 0                         \
    }

typedef enum nbl__attr_type {
    NBL_ATTR_DTYPE, /* nbl_dtype, a compute dtype; no default */
    NBL_ATTR_FLOAT, /* float */
    NBL_ATTR_INT,   /* int64_t */
    NBL_ATTR_SEED,  /* uint64_t */
    NBL_ATTR_FLAG,  /* bool */
    NBL_ATTR_WORD   /* int: the index of the word in `words` */
} nbl__attr_type;

/* One argument that is not a tensor. */
typedef struct nbl__attr {
    const char *name;
    nbl__attr_type type;
    size_t offset;
    double missing;           /* the default value */
    const char *const *words; /* NBL_ATTR_WORD: the words in order, NULL at the end */
} nbl__attr;
#define NBL_ATTR(struct_type, field, name, type, missing)                                                    \
    {                                                                                                        \
        name, NBL_ATTR_##type, offsetof(struct_type, field), missing, NULL                                   \
    }
#define NBL_ATTR_OF_WORDS(struct_type, field, name, words)                                                   \
    {                                                                                                        \
        name, NBL_ATTR_WORD, offsetof(struct_type, field), 0, words                                          \
    }

/* What it costs to recompute a forward operator (graph/recompute.c). */
typedef enum nbl__repeat {
    NBL_REPEAT_COSTLY, /* matrix products, look-ups, losses */
    NBL_REPEAT_CHEAP,  /* one pass; it is bound by memory */
    NBL_REPEAT_WIDE    /* one pass over inputs that are wider than the residual stream */
} nbl__repeat;

/* What the calls of a family cost, for plans. Every family of families.h states one of `flops`,
 * `forward` and `moves`. */
typedef struct nbl__cost {
    /* Floating-point operations of a call, from the shapes in its arguments and from which of its
     * gradients are wanted. A multiply-add is 2. */
    double (*flops)(const void *arguments, bool backward);
    /* if flops is NULL: operations per element of the call's largest tensor */
    double forward, backward;
    bool moves; /* it only moves or converts data: no operations are counted */
    nbl__repeat repeat;
    /* Bytes of a slot that a call reads or writes, where that is not `all` of its tensor. NULL: all
     * of each. */
    double (*slot_bytes)(const void *arguments, const nbl__slot *slot, double all);
} nbl__cost;

/* A forward operator, its backward, and the struct of arguments that they share. */
typedef struct nbl__family {
    const char *name;
    size_t size;            /* bytes of the struct of arguments; all zero is its empty state */
    const nbl__slot *slots; /* NULL name at the end */
    const nbl__attr *attrs; /* NULL name at the end */
    nbl__op forward;
    nbl__op backward; /* name NULL: the family has no backward */
    nbl__cost cost;
} nbl__family;

/* The family with this index, in the order of families.h; NULL past the end. */
const nbl__family *nbl__family_at(int index);
/* By name; NULL if there is none. */
const nbl__family *nbl__family_find(const char *name);
/* By name; NULL if there is none. */
const nbl__slot *nbl__slot_find(const nbl__family *family, const char *name);
/* The index of the slot at this offset of the struct of arguments; -1: there is none. Prefer it to
 * a name: the compiler checks offsetof. */
int nbl__slot_at(const nbl__family *family, size_t offset);
/* The tensor of a slot in these arguments. Not for slots of weights: see
 * nbl__slot_is_weight(). */
static inline nbl_tensor *nbl__slot_tensor(const nbl__slot *slot, void *arguments)
{
    assert(slot->role != NBL_ROLE_WEIGHT && slot->role != NBL_ROLE_OPTIONAL_WEIGHT);
    return (nbl_tensor *)(void *)((char *)arguments + slot->offset);
}
/* Does the slot hold an nbl_weight instead of an nbl_tensor? */
static inline bool nbl__slot_is_weight(const nbl__slot *slot)
{
    return slot->role == NBL_ROLE_WEIGHT || slot->role == NBL_ROLE_OPTIONAL_WEIGHT;
}
/* Sets each attribute to its default. A dtype has none and is left alone. */
void nbl__attrs_reset(const nbl__family *family, void *arguments);

/* The last dimension; 1 for rank 0. */
static inline int64_t nbl__last(const nbl_tensor *t)
{
    return t->rank > 0 ? t->shape[t->rank - 1] : 1;
}
/* ---- rows that lie in wider rows (nbl_tensor.row_stride) ---- */

/* The elements of one entry of the first dimension. */
static inline int64_t nbl__row_elements(const nbl_tensor *t)
{
    int64_t n = 1;
    for (int i = 1; i < t->rank; i++) n *= t->shape[i];
    return n;
}
/* Elements from one entry of the first dimension to the next. */
static inline int64_t nbl__row_stride(const nbl_tensor *t)
{
    return t->row_stride ? t->row_stride : nbl__row_elements(t);
}
/* The same of a matrix [rows, last dimension], after all dimensions but the last are joined. */
static inline int64_t nbl__matrix_stride(const nbl_tensor *t)
{
    return t->row_stride ? t->row_stride : nbl__last(t);
}
/* Do elements that are not the tensor's lie between its rows? */
static inline bool nbl__is_strided(const nbl_tensor *t)
{
    return t->row_stride && t->rank > 0 && t->shape[0] > 1 && t->row_stride != nbl__row_elements(t);
}

/* Does a slot that this direction reads or writes hold a tensor with a row stride that matters? */
static inline bool nbl__slot_is_strided(const nbl__slot *slot, bool backward, const void *arguments)
{
    bool used = backward || (slot->role != NBL_ROLE_COTANGENT && slot->role != NBL_ROLE_GRADIENT);
    return used && slot->strided &&
           nbl__is_strided((const nbl_tensor *)(const void *)((const char *)arguments + slot->offset));
}
/* For nbl__impl.can of rows that take dense tensors only: why they do not take these arguments, or
 * NULL. */
const char *nbl__dense_only(const nbl__family *family, bool backward, const void *arguments);
/* The same for rows that take row strides of whole 16 bytes. */
const char *nbl__wide_strides_only(const nbl__family *family, bool backward, const void *arguments);

/* Runs infer of the family's forward or backward operator, then checks the row strides of all its
 * tensors. An output keeps the row stride that it had before. Errors of the strides:
 * NBL_ERROR_SHAPE, with operator, tensor, shape and stride. */
nbl_status nbl__infer(nbl_context *ctx, const nbl__family *family, bool backward, void *arguments);

/* Chooses the first implementation that the machine can run and that takes these
 * arguments. `arguments` must have passed infer.
 *
 * `force` names one implementation, in full ("rmsnorm_avx2") or without the
 * operator's name ("avx2"). NULL: no choice is forced, unless the environment's
 * NIBBLE_IMPL names an implementation of this operator.
 *
 * The result and each declined row are logged at debug level. Errors:
 * NBL_ERROR_ARGUMENT if no row has the forced name, NBL_ERROR_UNSUPPORTED if the
 * forced row declines or no row of a device takes the arguments. */
nbl_status nbl__op_choose(nbl_context *ctx, const nbl__op *op, const void *arguments, const char *force,
                          const nbl__impl **impl);
/* Chooses again after shapes or addresses have changed: *impl is the last choice. Logs
 * only if the choice changes. */
nbl_status nbl__op_choose_again(nbl_context *ctx, const nbl__op *op, const void *arguments,
                                const nbl__impl **impl);
/* Does a row of a fused operator, other than its last, take these arguments? False if a row of
 * one of the two operators that it stands for is forced by the environment. Logs nothing. */
bool nbl__op_fuses(nbl_context *ctx, const nbl__op *fused, const nbl__op *const parts[2],
                   const void *arguments);
/* Bytes of scratch that nbl__op_run needs for these arguments; may be 0. On a device that lends libraries no
 * memory of its own they include what libraries need. */
size_t nbl__op_scratch(const nbl_context *ctx, const nbl__impl *impl, const void *arguments);
/* Runs a chosen implementation. The outputs have memory. `scratch` is aligned to
 * 64 bytes; too little of it is NBL_ERROR_ARGUMENT. On a device the call is
 * enqueued, and returns before it has run. */
nbl_status nbl__op_run(nbl_context *ctx, const nbl__op *op, const nbl__impl *impl, const void *arguments,
                       void *scratch, size_t scratch_bytes);

/* The same for a call in a schedule, which has memory for nbl__call.saved, or NULL. */
nbl_status nbl__op_run_within(nbl_context *ctx, const nbl__op *op, const nbl__impl *impl,
                              const void *arguments, void *scratch, size_t scratch_bytes, void *saved);

/* A bump allocator over scratch: gives pieces front to back, each aligned to 64 bytes. With base
 * NULL it only measures: `used` counts, and the pieces must not be touched. */
typedef struct nbl__bump {
    uint8_t *base;
    size_t used;
} nbl__bump;
static inline void *nbl__bump_alloc(nbl__bump *bump, size_t bytes)
{
    void *piece = (void *)((uintptr_t)bump->base + bump->used);
    assert((uintptr_t)piece % 64 == 0 && bytes <= PTRDIFF_MAX);
    bump->used += (bytes + 63) / 64 * 64;
    return piece;
}
/* Sets `pointer` to a piece for `count` elements of the pointer's type. */
#define NBL_BUMP_ALLOC(bump, pointer, count)                                                                 \
    ((pointer) = nbl__bump_alloc((bump), (size_t)(count) * sizeof *(pointer)))

/* ---- checks that infer functions share ----
 *
 * `op` and `name` are the operator and the tensor in the message. A message shows what was
 * given and what was expected: dtypes (NBL_ERROR_DTYPE) or shapes (NBL_ERROR_SHAPE). */

/* Has the tensor memory? An optional input without memory is absent, a gradient
 * without memory is not wanted. */
static inline bool nbl__has_data(const nbl_tensor *t)
{
    return t->data != NULL;
}
/* The product of all dimensions. */
int64_t nbl__tensor_elements(const nbl_tensor *t);
/* The product of all dimensions but the last; 1 for rank 1. */
int64_t nbl__tensor_rows(const nbl_tensor *t);
nbl_status nbl__check_dtype(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t,
                            nbl_dtype expected);
/* f32, f16 or bf16. */
nbl_status nbl__check_float(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t);
/* The attribute dtype of a call: f32, f16 or bf16. */
nbl_status nbl__check_compute(nbl_context *ctx, const char *op, nbl_dtype dtype);
/* Exactly this shape. */
nbl_status nbl__check_dims(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t, int rank,
                           const int64_t *shape);
/* `rows` by `columns` after all dimensions but the last are joined; any rank from
 * 1. */
nbl_status nbl__check_matrix(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t,
                             int64_t rows, int64_t columns);
/* Gives an output the shape of `like`, with another last dimension and dtype. The
 * data pointer and the row stride stay. */
void nbl__output_like(nbl_tensor *out, const nbl_tensor *like, int64_t last, nbl_dtype dtype);
/* Gives an output one dimension, or two (rank 2). The data pointer and the row stride stay. */
void nbl__output_vector(nbl_tensor *out, nbl_dtype dtype, int rank, int64_t first, int64_t second);
/* These arguments do not produce the output. */
static inline void nbl__output_none(nbl_tensor *out)
{
    out->rank = 0;
}

#endif
