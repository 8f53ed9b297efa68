/* diff.c - compares two checkpoints weight by weight, by logical value.
 *
 *     dtypes of both sides            compared as
 *     packed, f32, f16, bf16          f32 values, span by span
 *     integers, bool, f64             exact values; the figures are f64
 *     others, if both are the same    bytes, without figures
 *     others                          unequal, without figures
 *
 * Figures: max |a - b|, |a - b| / |b| (Euclidean norms) and the cosine. They are summed in f64 per
 * span and then in the order of the spans, so they do not depend on the number of threads.
 *
 * Floats are equal if their bits are: the same NaN on both sides is equal, +0 and -0 are not. The
 * figures are those of numbers, so a difference in the sign of zero alone has max_abs 0.
 *
 * Memory: the result's lists, and one span of each side per worker. */
#include <math.h>
#include <stdlib.h>

#include "convert/convert.h"

/* The result. The tensors' names are those of the checkpoints, which stay open until it is
 * freed. */
struct nbl_diff {
    nbl_context *ctx;
    nbl_checkpoint *a, *b;
    nbl_tensor_diff *tensors;
    const char **missing_in_a, **missing_in_b;
    int64_t count, a_count, b_count, capacity;
};

/* The sums of one span, or of a whole weight. */
typedef struct sums {
    bool unequal, unknown;                     /* unknown: compared as bytes, without figures */
    double max_abs, difference, a, b, product; /* Σ (a - b)², Σ a², Σ b², Σ a·b; NaN if a value is NaN */
} sums;

/* The comparison of one weight; shared by its workers. */
typedef struct job {
    nbl_diff *diff;
    const nbl_tensor_info *a, *b;
    int64_t elements, span;
    sums *sums; /* one per item */
    nbl__buffers buffers;
} job;

/* Adds one pair. Equal infinities are skipped: their difference would be NaN. */
static void add_value(sums *s, double x, double y)
{
    if (x == y && isinf(x)) return;
    double d = x - y;
    if (fabs(d) > s->max_abs) s->max_abs = fabs(d);
    s->difference += d * d;
    s->a += x * x;
    s->b += y * y;
    s->product += x * y;
}

/* Eight lanes that are added in a fixed order, so that every machine gets the same figures. */
typedef double lanes __attribute__((vector_size(64)));
typedef int64_t masks __attribute__((vector_size(64)));
typedef float floats __attribute__((vector_size(32)));

/* Adds n pairs, eight at a time. The result is not finite if a value is not. */
static void add_finite(sums *s, const float *x, const float *y, int64_t n)
{
    lanes max = {0}, difference = {0}, a = {0}, b = {0}, product = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        floats p, q;
        memcpy(&p, x + i, sizeof p);
        memcpy(&q, y + i, sizeof q);
        lanes u = __builtin_convertvector(p, lanes), v = __builtin_convertvector(q, lanes), d = u - v;
        difference += d * d;
        a += u * u;
        b += v * v;
        product += u * v;
        lanes size = (lanes)((masks)d & INT64_MAX);
        masks larger = size > max;
        max = (lanes)((larger & (masks)size) | (~larger & (masks)max));
    }
    for (int k = 0; k < 8; k++) {
        if (max[k] > s->max_abs) s->max_abs = max[k];
        s->difference += difference[k];
        s->a += a[k];
        s->b += b[k];
        s->product += product[k];
    }
    for (; i < n; i++) add_value(s, (double)x[i], (double)y[i]);
}

/* Adds n pairs: fast, and again one by one if a value is not finite. */
static void add_values(sums *s, const float *x, const float *y, int64_t n)
{
    sums fast = *s;
    add_finite(&fast, x, y, n);
    if (isfinite(fast.difference + fast.a + fast.b)) {
        *s = fast;
        return;
    }
    for (int64_t i = 0; i < n; i++) /* skip pairs of the same NaN: they are equal */
        if (memcmp(x + i, y + i, sizeof *x) != 0 || !isnan(x[i])) add_value(s, (double)x[i], (double)y[i]);
}

/* ---- values of integers, booleans and f64 ---- */

/* A value as an exact integer, or as a double. __int128 holds all values of i64 and u64. */
typedef struct number {
    double real;
    bool is_integer;
    __int128 integer;
} number;

/* True if number_at can read the weight. The dtypes of computing count too: one side may be f32 and
 * the other i32. */
static bool is_number(const nbl_weight *w)
{
    switch (w->dtype) {
    case NBL_DTYPE_F64:
    case NBL_DTYPE_I64:
    case NBL_DTYPE_I32:
    case NBL_DTYPE_I16:
    case NBL_DTYPE_I8:
    case NBL_DTYPE_U64:
    case NBL_DTYPE_U32:
    case NBL_DTYPE_U16:
    case NBL_DTYPE_U8:
    case NBL_DTYPE_BOOL: return w->format == NBL_FORMAT_DENSE;
    default: return w->format == NBL_FORMAT_DENSE && nbl__is_compute(w->dtype);
    }
}

/* Reads element i. f32, f16 and bf16 go through the scalar dequantizer. */
static number number_at(const nbl_weight *w, int64_t i)
{
#define READ(ENUM, type)                                                                                     \
    case NBL_DTYPE_##ENUM: {                                                                                 \
        type value;                                                                                          \
        memcpy(&value, (const uint8_t *)w->data + (size_t)i * sizeof value, sizeof value);                   \
        return (number){(double)value, true, value};                                                         \
    }
    switch (w->dtype) {
        READ(I64, int64_t)
        READ(I32, int32_t)
        READ(I16, int16_t)
        READ(I8, int8_t)
        READ(U64, uint64_t)
        READ(U32, uint32_t)
        READ(U16, uint16_t)
        READ(U8, uint8_t)
        READ(BOOL, uint8_t)
    case NBL_DTYPE_F64: {
        double value;
        memcpy(&value, (const uint8_t *)w->data + (size_t)i * sizeof value, sizeof value);
        return (number){value, false, 0};
    }
    default: {
        float value;
        nbl__dequantize(NBL_ISA_SCALAR, w, i, i + 1, NBL_DTYPE_F32, &value, false);
        return (number){(double)value, false, 0};
    }
    }
#undef READ
}

/* True if the two numbers are exactly equal; f64 by bits, so that equal NaN are equal. */
static bool same_number(const number *x, const number *y)
{
    if (x->is_integer && y->is_integer) return x->integer == y->integer;
    if (!x->is_integer && !y->is_integer) return memcmp(&x->real, &y->real, sizeof x->real) == 0;
    const number *integer = x->is_integer ? x : y, *real = x->is_integer ? y : x;
    bool fits = fabs(real->real) < 0x1p100; /* beyond that the conversion is undefined */
    return fits && (double)(__int128)real->real == real->real && (__int128)real->real == integer->integer;
}

/* Thread task: compares one span value by value. */
static nbl_status compare_numbers(void *argument, int64_t item, int worker)
{
    job *j = argument;
    (void)worker;
    int64_t begin = item * j->span, end = nbl__min_i64(begin + j->span, j->elements);
    sums s = {0};
    for (int64_t i = begin; i < end; i++) {
        number x = number_at(&j->a->weight, i), y = number_at(&j->b->weight, i);
        s.unequal |= !same_number(&x, &y);
        add_value(&s, x.real, y.real);
    }
    j->sums[item] = s;
    nbl__span_release(j->diff->a, j->a, begin, end);
    nbl__span_release(j->diff->b, j->b, begin, end);
    return NBL_OK;
}

/* Thread task: compares bytes; the job's elements are bytes. */
static nbl_status compare_bytes(void *argument, int64_t item, int worker)
{
    job *j = argument;
    (void)worker;
    int64_t begin = item * j->span, n = nbl__min_i64(j->span, j->elements - begin);
    const uint8_t *x = (const uint8_t *)j->a->weight.data + begin,
                  *y = (const uint8_t *)j->b->weight.data + begin;
    j->sums[item] = (sums){.unequal = memcmp(x, y, (size_t)n) != 0, .unknown = true};
    nbl__checkpoint_drop(j->diff->a, x, (uint64_t)n);
    nbl__checkpoint_drop(j->diff->b, y, (uint64_t)n);
    return NBL_OK;
}

/* ---- weights ---- */

/* Reads one span of one side as f32. */
static void read_span(nbl_isa isa, const nbl_checkpoint *c, const nbl_tensor_info *t, int64_t begin,
                      int64_t end, float *values)
{
    nbl__span_fetch(t, begin, end);
    nbl__span_dequantize(isa, t, begin, end, NBL_DTYPE_F32, values);
    nbl__span_release(c, t, begin, end);
}

/* Thread task: compares one span as f32 values. */
static nbl_status compare_span(void *argument, int64_t item, int worker)
{
    job *j = argument;
    nbl_isa isa = nbl__isa(j->diff->ctx);
    int64_t begin = item * j->span, end = nbl__min_i64(begin + j->span, j->elements), n = end - begin;
    float *x = nbl__buffer_of(&j->buffers, worker), *y = x + j->span;
    read_span(isa, j->diff->a, j->a, begin, end, x);
    read_span(isa, j->diff->b, j->b, begin, end, y);
    sums s = {.unequal = memcmp(x, y, (size_t)n * sizeof *x) != 0};
    add_values(&s, x, y, n);
    j->sums[item] = s;
    nbl__progress_add(j->diff->ctx, (uint64_t)((double)j->a->bytes * (double)n / (double)j->elements));
    return NBL_OK;
}

static int64_t common_unit(const nbl_tensor_info *a, const nbl_tensor_info *b)
{
    return nbl__max_i64(nbl__span_unit(a), nbl__span_unit(b)); /* one of them is 1, or both are equal */
}

/* Runs one of the three comparisons over all spans and adds the figures in the order of the
 * spans. */
static nbl_status compare_spans(job *j, size_t buffer, nbl__team_fn fn, sums *total)
{
    nbl_context *ctx = j->diff->ctx;
    int64_t items = nbl__ceil_div(j->elements, j->span);
    nbl_status status = NBL_OK;
    NBL_TRY(NBL_ALLOC(ctx, j->sums, items));
    NBL_GO(nbl__run_spans(ctx, items, buffer, fn, j, &j->buffers, j->a->name));
    for (int64_t i = 0; i < items; i++) {
        const sums *s = &j->sums[i];
        total->unequal |= s->unequal;
        total->unknown |= s->unknown;
        if (s->max_abs > total->max_abs) total->max_abs = s->max_abs;
        total->difference += s->difference;
        total->a += s->a;
        total->b += s->b;
        total->product += s->product;
    }
done:
    nbl__free(ctx, j->sums, (size_t)items * sizeof *j->sums);
    return status;
}

/* Chooses the comparison: see the table at the head of the file. */
static nbl_status compare_values(nbl_diff *diff, const nbl_tensor_info *a, const nbl_tensor_info *b,
                                 sums *total)
{
    job j = {.diff = diff, .a = a, .b = b, .elements = nbl__elements(a)};
    if (j.elements == 0) return NBL_OK;
    if (nbl__is_decodable(a) && nbl__is_decodable(b)) {
        j.span = nbl__min_i64(nbl__span_size(common_unit(a, b), 8), j.elements);
        NBL_TRY(compare_spans(&j, 2 * (size_t)j.span * sizeof(float), compare_span, total));
    } else if (is_number(&a->weight) && is_number(&b->weight)) {
        j.span = nbl__span_size(1, 8);
        NBL_TRY(compare_spans(&j, 0, compare_numbers, total));
    } else if (a->weight.format == b->weight.format && a->weight.dtype == b->weight.dtype) {
        j.elements = (int64_t)a->bytes;
        j.span = nbl__span_size(1, 1);
        NBL_TRY(compare_spans(&j, 0, compare_bytes, total));
    } else {
        total->unequal = total->unknown = true;
    }
    nbl__tensor_release(diff->a, a);
    nbl__tensor_release(diff->b, b);
    return NBL_OK;
}

static bool same_shape(const nbl_tensor_info *a, const nbl_tensor_info *b)
{
    if (a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->shape[i] != b->shape[i]) return false;
    return true;
}

/* Compares two tensors of one name. Figures stay NAN if they are not known: other shapes, bytes, or
 * a NaN on one side. */
static nbl_status compare(nbl_diff *diff, const nbl_tensor_info *a, const nbl_tensor_info *b)
{
    nbl_tensor_diff *d = &diff->tensors[diff->count++];
    *d = (nbl_tensor_diff){
        .name = a->name, .same_shape = same_shape(a, b), .max_abs = NAN, .rel_norm = NAN, .cosine = NAN};
    if (!d->same_shape) return NBL_OK;
    sums s = {0};
    NBL_TRY(compare_values(diff, a, b, &s));
    d->equal = !s.unequal;
    if (d->equal) { /* equal NaN count as equal */
        d->max_abs = d->rel_norm = 0;
        d->cosine = 1;
    } else if (!s.unknown && !isnan(s.difference)) {
        d->max_abs = s.max_abs;
        d->rel_norm = s.difference == 0 ? 0 : sqrt(s.difference) / sqrt(s.b); /* infinite against zero */
        double norms = sqrt(s.a) * sqrt(s.b);
        d->cosine = norms > 0 ? s.product / norms : s.difference == 0 ? 1 : 0;
    }
    return NBL_OK;
}

/* ---- pairing by name ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const nbl_tensor_info *const *)a)->name, (*(const nbl_tensor_info *const *)b)->name);
}

/* The tensors of a checkpoint, sorted by name, in its arena. */
static nbl_status sorted(nbl_checkpoint *c, const nbl_tensor_info ***list)
{
    *list = nbl__arena_alloc(&c->arena, (size_t)(c->tensor_count + 1) * sizeof **list);
    if (*list == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < c->tensor_count; i++) (*list)[i] = &c->tensors[i];
    qsort(*list, (size_t)c->tensor_count, sizeof **list, by_name);
    return NBL_OK;
}

/* Merges the two sorted lists of names: pairs are compared, the rest is missing on one side. */
static nbl_status run(nbl_diff *diff)
{
    const nbl_tensor_info **a, **b;
    int64_t n = diff->a->tensor_count, m = diff->b->tensor_count;
    NBL_TRY(sorted(diff->a, &a));
    NBL_TRY(sorted(diff->b, &b));
    diff->capacity = nbl__max_i64(nbl__max_i64(n, m), 1);
    NBL_TRY(NBL_ALLOC(diff->ctx, diff->tensors, diff->capacity));
    NBL_TRY(NBL_ALLOC(diff->ctx, diff->missing_in_a, diff->capacity));
    NBL_TRY(NBL_ALLOC(diff->ctx, diff->missing_in_b, diff->capacity));
    nbl__progress_begin(diff->ctx, diff->a->summary.bytes);
    for (int64_t i = 0, k = 0; i < n || k < m;) {
        int order = i == n ? 1 : k == m ? -1 : strcmp(a[i]->name, b[k]->name);
        if (order < 0) diff->missing_in_b[diff->b_count++] = a[i++]->name;
        else if (order > 0) diff->missing_in_a[diff->a_count++] = b[k++]->name;
        else NBL_TRY(compare(diff, a[i++], b[k++]));
        NBL_TRY(nbl__progress_poll(diff->ctx, i ? a[i - 1]->name : ""));
    }
    return NBL_OK;
}

/* ---- the interface ---- */

nbl_status nbl_checkpoint_diff(nbl_context *ctx, const char *a, const char *b, nbl_diff **result)
{
    nbl_diff *diff;
    NBL_CHECK(ctx, a && b && result, NBL_ERROR_ARGUMENT, "checkpoint_diff: a, b or result is NULL");
    *result = NULL;
    NBL_TRY(NBL_ALLOC(ctx, diff, 1));
    diff->ctx = ctx;
    nbl_status status;
    NBL_GO(nbl_checkpoint_open(ctx, a, NBL_OPEN_STRICT, &diff->a));
    NBL_GO(nbl_checkpoint_open(ctx, b, NBL_OPEN_STRICT, &diff->b));
    NBL_GO(run(diff));
    NBL_GO(nbl__files_check(ctx));
    *result = diff;
    return NBL_OK;
done:
    nbl_diff_free(diff);
    return status;
}

void nbl_diff_free(nbl_diff *diff)
{
    if (diff == NULL) return;
    nbl_context *ctx = diff->ctx;
    nbl__free(ctx, diff->tensors, (size_t)diff->capacity * sizeof *diff->tensors);
    nbl__free(ctx, diff->missing_in_a, (size_t)diff->capacity * sizeof *diff->missing_in_a);
    nbl__free(ctx, diff->missing_in_b, (size_t)diff->capacity * sizeof *diff->missing_in_b);
    nbl_checkpoint_close(diff->a);
    nbl_checkpoint_close(diff->b);
    nbl__free(ctx, diff, sizeof *diff);
}

const nbl_tensor_diff *nbl_diff_get_tensor(const nbl_diff *diff, int64_t index)
{
    return index >= 0 && index < diff->count ? &diff->tensors[index] : NULL;
}

const char *nbl_diff_get_missing_in_a(const nbl_diff *diff, int64_t index)
{
    return index >= 0 && index < diff->a_count ? diff->missing_in_a[index] : NULL;
}

const char *nbl_diff_get_missing_in_b(const nbl_diff *diff, int64_t index)
{
    return index >= 0 && index < diff->b_count ? diff->missing_in_b[index] : NULL;
}

bool nbl_diff_equal(const nbl_diff *diff)
{
    bool equal = diff->a_count == 0 && diff->b_count == 0;
    for (int64_t i = 0; i < diff->count; i++) equal &= diff->tensors[i].equal;
    return equal;
}

bool nbl_diff_within(const nbl_diff *diff, double tolerance)
{
    bool within = diff->a_count == 0 && diff->b_count == 0;
    for (int64_t i = 0; i < diff->count; i++) within &= diff->tensors[i].rel_norm <= tolerance; /* NaN: no */
    return within;
}
