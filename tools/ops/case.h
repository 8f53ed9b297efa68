/* case.h - the operators' case table and what its modes share.
 *
 * A line of the table (src/ops/FOLDER/FAMILY.cases) says what is tested, as text over the family's slots and
 * attributes:
 *
 *     CASE(rmsnorm, "T=0|1|333 H=576 x=TxH w=H:ALL dtype=ALL offset=0|1 ranks=yes", "Llama and Gemma")
 *
 * Words are NAME=VALUE. `|` separates alternatives, `,` those of a dtype, ALL stands for every one there is;
 * a line means the cross product. What is left when everything is chosen is a case: a text again, which
 * `--case` takes. So a failure is rerun by quoting it, and the table holds no code.
 *
 *     T=17                    a number, named by one capital, for the shapes
 *     x=TxH  x=TxH:f16:huge   a tensor: shape, dtype (the compute dtype, unless said), generator (case_data.c)
 *     ids=T:random-V  cu_seqlens=[0,5,5,40]          integers: i32
 *     seeds=[3,77]:i64                               i64
 *     experts=TxJ:routed                             J of E experts for each of T tokens; so for offsets=E+1,
 *                                                    pairs=T*J and rows=T*J. routed-one: all go to the same J
 *     w=NxK:nf4/128@f16       a weight: format, block, the dtype its state remembers
 *     dy=none                 a cotangent that is left out; the others are made as `infer` says
 *     dtype=bf16 causal=true  attributes
 *     accumulate=yes          gradients of parameters are added to what is there
 *     scaling=yarn            of rotary frequencies
 *     wider=x:8,dx:3          x lies in rows that are 8 elements wider than its own, dx in rows that are 3 wider; the
 *                             other elements are NaN and stay so; the results have the bits of dense tensors
 *     ranks=yes               T split into more dimensions must give the same bits
 *     bound=0.1               factor on the error bound; above 1 only with the reason in the note
 *     zero=1                  a result counts as if its elements were at least this large: for results that
 *                             cancel, where rounding is all there is; with the reason in the note
 *     backward=no grad=no     no backward pass at all; no finite differences
 *     flop=2*T*N*K flopb=...  arithmetic of forward and backward, for `perf` */
#ifndef NBL_CASE_H
#define NBL_CASE_H

#include "device.h"
#include "ops/optimizer/adamw.h"
#include "ops/optimizer/grad_norm.h"
#include "ops/ops.h"

enum { CASE_TEXT = 1024, CASE_WORDS = 48, CASE_ZONE = 64, CASE_PIECES = 8 };

/* ---- memory with red zones: never NULL, NaN bytes inside, a pattern around ---- */

typedef struct case_block case_block;
typedef struct case_memory {
    case_block *first;
} case_memory;

/* `skew` bytes off the alignment of 64. Ends the program when there is no memory. */
void *case_alloc(case_memory *memory, size_t bytes, size_t skew);
bool case_zones_intact(const case_memory *memory);
uint64_t case_checksum(const case_memory *memory); /* of the data */
size_t case_size(const case_memory *memory);       /* bytes of the data */
void case_free(case_memory *memory);

/* ---- the table ---- */

typedef enum case_kind { CASE_PLAIN, CASE_PERF } case_kind;
typedef struct case_line {
    const char *family, *text, *remark;
    case_kind kind;
} case_line;
extern const case_line case_table[]; /* family NULL at the end */

/* Calls `each` with every case of a line until it returns false. Returns false, with the reason in
 * `why`, when the line cannot be read. */
typedef bool (*case_each)(void *user, const char *text);
bool case_expand(const nbl__family *family, const char *line, case_each each, void *user,
                 char why[CASE_TEXT]);
/* A word's value in a case's text, or NULL. */
const char *case_word(const char *text, const char *name, char value[CASE_TEXT]);
/* A number: digits, a named one, or sums of products of those ("2*T*N+T"). False: not a number. */
bool case_number(const char *text, const char *expression, double *value);

/* ---- one case ---- */

typedef enum case_split { SPLIT_NONE, SPLIT_ONE, SPLIT_TWO, SPLIT_DROP, SPLIT_COUNT } case_split;

typedef struct op_case {
    const nbl__family *family;
    const char *text;
    void *arguments; /* attributes and inputs; outputs are empty */
    nbl_dtype dtype; /* of the computation; f32 where the family has no such attribute */
    double factor;   /* on the bound of a result's relative norm error */
    double zero;     /* the root mean square that a result counts with at least */
    bool backward;   /* the case has one */
    uint64_t seed;
    case_memory memory; /* of the inputs */
    uint64_t checksum;  /* of them: nothing writes an input */
} op_case;

typedef enum case_status { CASE_READY, CASE_SKIP, CASE_BAD } case_status;
/* Builds the arguments. SKIP: there is no such case (a shape that a format cannot hold, a split that T
 * does not have); BAD: see `why`. */
case_status case_build(nbl_context *ctx, const nbl__family *family, const char *text, uint64_t seed,
                       case_split split, op_case *c, char why[CASE_TEXT]);
/* The same without `infer`, so that a test can spoil the arguments first; cotangents must be in the text. */
case_status case_build_inputs(nbl_context *ctx, const nbl__family *family, const char *text, uint64_t seed,
                              case_split split, op_case *c, char why[CASE_TEXT]);
void case_destroy(op_case *c);

/* The families as the table sees them: adamw and grad_norm over one tensor. NULL past the end. */
const nbl__family *case_family_at(int index);
/* An operator's implementations where the context runs; NULL: none. Those of the two run on a device with the
 * host's memory in their arguments, and mirror the list themselves. */
const nbl__impl *const *case_impls(const nbl_context *ctx, const nbl__family *family, const nbl__op *op);
bool case_is_list(const nbl__family *family);
/* Such a case as the call that it stands for, over the case's own inputs; false: it is none. */
typedef struct case_list {
    nbl__adamw adamw;
    nbl__grad_norm norm;
    nbl__adamw_tensor steps[CASE_PIECES];
    nbl_tensor gradients[CASE_PIECES];
    const nbl__family *family;
    const void *arguments;
} case_list;
bool case_unwrap(const nbl__family *family, const void *arguments, case_list *list);
/* The field that makes backward add to gradients of parameters, or NULL. */
bool *case_accumulate(const nbl__family *family, void *arguments);
/* A way to scale rotary frequencies: default, linear, llama3, yarn. */
bool case_set_rope(const nbl__family *family, const char *kind, void *arguments);

/* ---- tensors that lie in wider rows (case_rows.c) ---- */

/* By how many elements the rows of a slot are wider in this case; 0: it is dense. */
int64_t case_wider(const char *text, const char *slot);
/* Does every part of the word `wider` name a slot that takes a row stride, with a number? */
bool case_wider_known(const nbl__family *family, const char *text);
/* Moves a dense tensor to new memory, in rows that are wider by `more` elements. Elements keep their values. */
void case_spread(case_memory *memory, nbl_tensor *tensor, int64_t more, size_t skew);
/* Moves a strided tensor to new memory, dense. False: elements between its rows are not as case_spread left
 * them. */
bool case_gather(case_memory *memory, nbl_tensor *tensor);

/* A tensor's values, from the generator's name; false when there is none of this name. The values depend on
 * seed and slot name alone, so that another dtype holds the same ones, rounded. */
bool case_fill(const char *text, const char *generator, uint64_t seed, const char *slot, nbl_tensor *tensor);
bool case_is_integer(const char *generator);
/* The generators routed and routed-one: slots experts, offsets, pairs and rows, alike in all slots of a case. */
bool case_route(const char *text, const char *generator, uint64_t seed, const char *slot, nbl_tensor *tensor);
/* A random weight in a storage format named as in the text: "nf4-nested/128@f16". */
case_status case_weight(nbl_context *ctx, case_memory *memory, const char *store, int64_t rows,
                        int64_t columns, uint64_t seed, const char *slot, nbl_weight *weight,
                        char why[CASE_TEXT]);
extern const char *const case_stores[]; /* NULL at the end */
static inline bool case_is_weight(const nbl__slot *slot)
{
    return slot->role == NBL_ROLE_WEIGHT || slot->role == NBL_ROLE_OPTIONAL_WEIGHT;
}
static inline nbl_weight *case_slot_weight(const nbl__slot *slot, void *arguments)
{
    return (nbl_weight *)(void *)((char *)arguments + slot->offset);
}
double case_uniform(uint64_t seed, const char *slot, int64_t index); /* [0, 1) */
size_t case_bytes(const nbl_tensor *tensor);
bool case_is_float(nbl_dtype dtype);

/* ---- running ---- */

/* What one pass over a case made. */
typedef struct case_run {
    void *arguments;
    case_memory memory;
    const char *only; /* the one gradient that is wanted; NULL: all */
    bool captured;
} case_run;

/* Starts a pass: a copy of the arguments without outputs, or with those of `forward`, which must live on. */
void case_begin(const op_case *c, const case_run *forward, case_run *r);
void case_end(case_run *r);
/* Infers, gives outputs (and, backward, missing cotangents and gradients) their memory, and runs the
 * implementation (NULL: the one that dispatch chooses) with scratch that holds NaN. Both also check the red
 * zones, that no input was written, and that the outputs' dtypes and shapes are those that infer
 * computed. A failure leaves a message in the context. `skewed`: outputs are aligned to their
 * element only. */
nbl_status case_forward(nbl_context *ctx, const op_case *c, const nbl__impl *impl, bool skewed, case_run *r);
nbl_status case_backward(nbl_context *ctx, const op_case *c, const nbl__impl *impl, bool skewed, case_run *r);
/* With a context on a device both run there (device.h); r->captured: through a capture of its stream. */
/* Has the machine this implementation, and does it take the case? `r` has its outputs' shapes. */
bool case_takes(const nbl_context *ctx, const nbl__impl *impl, const case_run *r);
const nbl__impl *case_reference(const nbl__op *op);

/* Is the scratch for fewer tokens never more than that for those of the case? `arguments` are inferred. */
bool case_scratch_grows(const nbl_context *ctx, const op_case *c, const nbl__impl *impl,
                        const void *arguments, char why[CASE_TEXT]);

/* ‖got − want‖ / ‖want‖ in f64, where the root mean square of `want` counts as at least `zero`. Infinite
 * when a NaN or an infinity is not in the same places. Integers must be equal. */
double case_error(const nbl_tensor *got, const nbl_tensor *want, double zero);
bool case_same_bits(const nbl_tensor *a, const nbl_tensor *b);
/* Of a result in this dtype: the compute dtype's, or its own where that is coarser. */
double case_bound(const op_case *c, nbl_dtype dtype);

/* ---- modes ---- */

typedef struct case_options {
    const char *op;   /* extended regular expression that matches whole names of families; NULL: all */
    const char *text; /* a line instead of the table's; with op */
    const char *impl;
    int threads;
    uint64_t seed;
    int64_t small; /* about so many cases of a line, of those with few inputs; 0: no limit */
    bool json, quick, cuda;
} case_options;

bool case_selected(const case_options *o, const char *family);
/* One context per instruction set and number of threads (1, 3, or what the options say). */
typedef struct case_contexts {
    nbl_context *one[NBL_ISA_COUNT], *many[NBL_ISA_COUNT];
    nbl_isa best;
    nbl_context *device; /* NULL, unless the options ask for it */
} case_contexts;
bool case_contexts_open(const case_options *o, case_contexts *all);
void case_contexts_close(case_contexts *all);

int mode_test(const case_options *o);
int mode_grad(const case_options *o);
int mode_perf(const case_options *o);
int mode_support(const case_options *o);

#endif
