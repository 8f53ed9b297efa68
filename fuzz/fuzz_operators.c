/* fuzz_operators.c - the operator calls of nibble.h with arguments from the input: any rank, shape, dtype,
 * attribute and count. What nbl_NAME_infer accepts is run, in memory of exactly the size that it needs, so
 * that AddressSanitizer sees every step beyond it. */
#include "fuzz.h"
#include "ops/families.h"
#include "quant/weight.h"

enum { MAX_ELEMENTS = 1 << 14, MAX_PIECES = 256 };

typedef struct reader {
    const uint8_t *data;
    size_t size;
} reader;

static uint8_t next(reader *r)
{
    if (r->size == 0) return 0;
    r->size--;
    return *r->data++;
}

typedef struct call {
    union {
        nbl_linear linear;
        nbl_linear_group linear_group;
        nbl_mlp mlp;
        nbl_dora_norm dora_norm;
        nbl_rmsnorm rmsnorm;
        nbl_norm_rope norm_rope;
        nbl_cross_entropy cross_entropy;
    } of;
    void *pieces[MAX_PIECES];
    int piece_count;
    bool too_large;
} call;

typedef nbl_status (*infer_fn)(nbl_context *, void *, bool);
typedef nbl_status (*scratch_fn)(nbl_context *, const void *, bool, size_t *);
typedef nbl_status (*run_fn)(nbl_context *, const void *, void *, size_t);

/* The functions of one operator behind one type. */
#define OPERATORS(X) X(linear) X(linear_group) X(mlp) X(dora_norm) X(rmsnorm) X(norm_rope) X(cross_entropy)
#define WRAP(name)                                                                                           \
    static nbl_status infer_##name(nbl_context *ctx, void *c, bool backward)                                 \
    {                                                                                                        \
        return nbl_##name##_infer(ctx, c, backward);                                                         \
    }                                                                                                        \
    static nbl_status scratch_##name(nbl_context *ctx, const void *c, bool backward, size_t *bytes)          \
    {                                                                                                        \
        return nbl_##name##_scratch(ctx, c, backward, bytes);                                                \
    }                                                                                                        \
    static nbl_status forward_##name(nbl_context *ctx, const void *c, void *scratch, size_t bytes)           \
    {                                                                                                        \
        return nbl_##name##_forward(ctx, c, scratch, bytes);                                                 \
    }                                                                                                        \
    static nbl_status backward_##name(nbl_context *ctx, const void *c, void *scratch, size_t bytes)          \
    {                                                                                                        \
        return nbl_##name##_backward(ctx, c, scratch, bytes);                                                \
    }
OPERATORS(WRAP)

static const struct {
    const nbl__family *family;
    infer_fn infer;
    scratch_fn scratch;
    run_fn run[2];
} operators[] = {
#define OPERATOR_ROW(name)                                                                                   \
    {&nbl__##name##_family, infer_##name, scratch_##name, {forward_##name, backward_##name}},
    OPERATORS(OPERATOR_ROW)};

/* ---- arguments from the input ---- */

static int64_t dimension(reader *r)
{
    static const int64_t sizes[] = {1, 32, 64, 3, 8, 0, 2, 96, 33, 128, -1, INT64_MAX / 2, 1 << 20, 16, 7, 5};
    return sizes[next(r) % (sizeof sizes / sizeof *sizes)];
}

static void fill_tensor(reader *r, nbl_tensor *t)
{
    uint8_t kind = next(r);
    *t = (nbl_tensor){.dtype = (nbl_dtype)(kind & 7), .rank = kind >> 3 & 3};
    if (kind >> 5 == 7) t->rank = next(r), t->dtype = (nbl_dtype)next(r);
    for (int i = 0; i < t->rank && i < NBL_MAX_RANK; i++) t->shape[i] = dimension(r);
    if (kind >> 5 == 6) t->row_stride = (int64_t)next(r) * (next(r) & 1 ? 1 : -1);
}

static void fill_weight(reader *r, nbl_weight *w)
{
    static const int64_t blocks[] = {64, 32, 4096, 0, 48, -64, 8192, 128};
    uint8_t kind = next(r);
    *w = (nbl_weight){.format = (nbl_format)(kind & 7), .dtype = (nbl_dtype)(kind >> 3 & 3), .rank = 2};
    w->block = blocks[next(r) & 7];
    if (kind >> 5 == 7) w->rank = next(r) & 15;
    for (int i = 0; i < w->rank && i < NBL_MAX_RANK; i++) w->shape[i] = dimension(r);
    if (kind & 32) w->given.nested_scales = next(r) & 1, w->nested_block = 256 >> (next(r) & 15);
    if (kind & 64) w->given.scales = next(r), w->given.data_bytes = next(r);
    w->nested_offset = 0.5f;
}

static void fill_attr(reader *r, const nbl__attr *attr, void *field)
{
    static const float floats[] = {0, 1, 0.5f, -1, 6, 1e-6f, __builtin_nanf(""), __builtin_inff()};
    uint8_t value = next(r);
    switch (attr->type) {
    case NBL_ATTR_DTYPE: *(nbl_dtype *)field = (nbl_dtype)(value < 240 ? value % 3 : value); break;
    case NBL_ATTR_FLOAT: *(float *)field = floats[value & 7]; break;
    case NBL_ATTR_INT: *(int64_t *)field = value < 192 ? value & 3 : (int64_t)((uint64_t)value << 56); break;
    case NBL_ATTR_SEED: *(uint64_t *)field = value; break;
    case NBL_ATTR_FLAG: *(bool *)field = value & 1; break;
    case NBL_ATTR_WORD: *(int *)field = value < 240 ? value % 3 : (int)(int8_t)value; break;
    }
}

/* ---- memory of exactly the size ---- */

static void *piece(call *c, size_t bytes)
{
    void *memory = NULL;
    if (c->piece_count == MAX_PIECES || posix_memalign(&memory, 64, bytes) != 0) {
        c->too_large = true;
        return NULL;
    }
    uint8_t *at = memory;
    for (size_t i = 0; i < bytes; i++) at[i] = (uint8_t)(i * 37 & 63); /* small numbers in every dtype */
    return c->pieces[c->piece_count++] = memory;
}

static int64_t elements_of(int rank, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        if (__builtin_mul_overflow(n, shape[i], &n) || n > MAX_ELEMENTS) return -1;
    return n;
}

static void give_tensor(call *c, nbl_tensor *t)
{
    int64_t n = elements_of(t->rank, t->shape);
    t->data = NULL;
    if (t->rank == 0 || n == 0) return;
    if (n > 0 && t->row_stride) n += t->shape[0] * t->row_stride;
    if (n < 0 || n > 4 * MAX_ELEMENTS) c->too_large = true;
    else t->data = piece(c, (size_t)n * nbl__size_of(t->dtype));
}

static void give_weight(call *c, nbl_weight *w)
{
    bool nested = w->given.nested_scales > 0;
    if (w->rank == 0) return;
    if (elements_of(w->rank, w->shape) < 0) {
        c->too_large = true;
        return;
    }
    w->nested_scales = nested ? (const float *)1 : NULL; /* for the sizes */
    nbl__weight_sizes sizes = nbl__weight_sizes_of(w);
    w->data = piece(c, sizes.data);
    w->scales = sizes.scales ? piece(c, sizes.scales) : NULL;
    w->scale_codes = sizes.scale_codes ? piece(c, sizes.scale_codes) : NULL;
    w->nested_scales = sizes.nested_scales ? piece(c, sizes.nested_scales) : NULL;
    w->nested_table = sizes.nested_table ? piece(c, sizes.nested_table) : NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    reader r = {data, size};
    int which = next(&r) % (int)(sizeof operators / sizeof *operators);
    bool backward = next(&r) & 1;
    const nbl__family *family = operators[which].family;
    nbl_context *ctx = fuzz_context();
    call c = {0};
    for (const nbl__attr *attr = family->attrs; attr->name; attr++)
        fill_attr(&r, attr, (char *)&c.of + attr->offset);
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        void *field = (char *)&c.of + slot->offset;
        if (!nbl__slot_is_weight(slot)) fill_tensor(&r, field);
        else if (slot->role == NBL_ROLE_WEIGHT || (next(&r) & 1)) fill_weight(&r, field);
    }
    bool good = operators[which].infer(ctx, &c.of, backward) == NBL_OK;
    for (const nbl__slot *slot = family->slots; good && slot->name; slot++) {
        void *field = (char *)&c.of + slot->offset;
        if (nbl__slot_is_weight(slot)) give_weight(&c, field);
        else if (backward || (slot->role != NBL_ROLE_GRADIENT && slot->role != NBL_ROLE_COTANGENT))
            give_tensor(&c, field);
    }
    size_t bytes;
    if (good && !c.too_large && operators[which].scratch(ctx, &c.of, backward, &bytes) == NBL_OK &&
        bytes < (64 << 20)) {
        void *scratch = piece(&c, bytes);
        if (scratch) operators[which].run[backward](ctx, &c.of, scratch, bytes);
    }
    for (int i = 0; i < c.piece_count; i++) free(c.pieces[i]);
    return 0;
}
