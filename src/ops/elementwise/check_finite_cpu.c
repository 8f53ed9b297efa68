/* check_finite_cpu.c - the search for NaN and infinities.
 *
 *   for each item (eight chunks), for each chunk:
 *       one comparison per vector
 *       only a chunk with a non-finite value: element by element
 *
 * A value is finite if its bits without the sign are at most those of the largest finite number, as
 * integers. Bytes: each element is read once; a chunk with a non-finite value, twice. Limit:
 * memory. */
#include <stdatomic.h>

#include "ops/common/rows.h"
#include "ops/elementwise/elementwise.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { CHUNK = 4096 };

typedef struct finite_job {
    nbl_isa isa;
    nbl_dtype dtype;
    int64_t elements;
    const uint8_t *values;
    atomic_int_fast64_t first, count; /* a min and a sum: independent of the order of threads */
} finite_job;

/* The bits of the largest finite magnitude, without the sign. */
static uint32_t largest_bits(nbl_dtype dtype)
{
    return dtype == NBL_DTYPE_F32 ? 0x7f7fffff : dtype == NBL_DTYPE_F16 ? 0x7bff : 0x7f7f;
}

/* Is element i finite? Its bits without the sign are compared as integers. */
static bool finite_at(nbl_dtype dtype, const uint8_t *values, int64_t i)
{
    uint32_t word;
    uint16_t half;
    if (dtype == NBL_DTYPE_F32) {
        memcpy(&word, values + 4 * i, 4);
        return (word & 0x7fffffff) <= largest_bits(dtype);
    }
    memcpy(&half, values + 2 * i, 2);
    return (half & 0x7fffu) <= largest_bits(dtype);
}

#if defined(__x86_64__)

/* Are all whole vectors of a span finite? *done: how many elements were checked. */
NBL_TARGET_AVX2 static bool finite_avx2(nbl_dtype dtype, const uint8_t *values, int64_t n, int64_t *done)
{
    bool wide = dtype == NBL_DTYPE_F32;
    int64_t step = wide ? 8 : 16, i = 0;
    uint32_t max = largest_bits(dtype);
    __m256i bad = _mm256_setzero_si256(),
            sign = wide ? _mm256_set1_epi32(0x7fffffff) : _mm256_set1_epi16(0x7fff);
    __m256i limit = wide ? _mm256_set1_epi32((int)max) : _mm256_set1_epi16((short)max);
    for (; i + step <= n; i += step) {
        const uint8_t *at = values + i * (wide ? 4 : 2);
        __m256i bits = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(const void *)at), sign);
        bad = _mm256_or_si256(bad, wide ? _mm256_cmpgt_epi32(bits, limit) : _mm256_cmpgt_epi16(bits, limit));
    }
    *done = i;
    return _mm256_testz_si256(bad, bad);
}

/* The same with the largest bits seen, compared once at the end. */
NBL_TARGET_AVX512 static bool finite_avx512(nbl_dtype dtype, const uint8_t *values, int64_t n, int64_t *done)
{
    bool wide = dtype == NBL_DTYPE_F32;
    int64_t step = wide ? 16 : 32, i = 0;
    uint32_t max = largest_bits(dtype);
    __m512i largest = _mm512_setzero_si512();
    __m512i sign = wide ? _mm512_set1_epi32(0x7fffffff) : _mm512_set1_epi16(0x7fff);
    for (; i + step <= n; i += step) {
        __m512i bits = _mm512_and_si512(_mm512_loadu_si512(values + i * (wide ? 4 : 2)), sign);
        largest = wide ? _mm512_max_epu32(largest, bits) : _mm512_max_epu16(largest, bits);
    }
    *done = i;
    return wide ? _mm512_cmpgt_epu32_mask(largest, _mm512_set1_epi32((int)max)) == 0
                : _mm512_cmpgt_epu16_mask(largest, _mm512_set1_epi16((short)max)) == 0;
}

#endif

/* Elements [begin, end). The vectors' answer is only yes or no: after a no the elements are
 * checked one by one. */
static void search(finite_job *j, int64_t begin, int64_t end)
{
    int64_t done = 0, count = 0;
#if defined(__x86_64__)
    const uint8_t *values = j->values + (size_t)begin * nbl__size_of(j->dtype);
    bool fine = true;
    if (j->isa >= NBL_ISA_AVX512) fine = finite_avx512(j->dtype, values, end - begin, &done);
    else if (j->isa >= NBL_ISA_AVX2) fine = finite_avx2(j->dtype, values, end - begin, &done);
    if (!fine) done = 0;
#endif
    for (int64_t i = begin + done; i < end; i++) {
        if (finite_at(j->dtype, j->values, i)) continue;
        if (count++ > 0) continue;
        int_fast64_t known = atomic_load(&j->first);
        while (i < known && !atomic_compare_exchange_weak(&j->first, &known, i)) continue;
    }
    if (count > 0) atomic_fetch_add(&j->count, count);
}

/* An item: eight chunks. */
static nbl_status search_item(void *argument, int64_t item, int worker)
{
    finite_job *j = argument;
    (void)worker;
    for (int64_t begin = item * 8 * CHUNK; begin < (item + 1) * 8 * CHUNK; begin += CHUNK) {
        int64_t end = nbl__min_i64(begin + CHUNK, j->elements);
        if (begin < end) search(j, begin, end);
    }
    return NBL_OK;
}

nbl_status nbl__find_non_finite(nbl_context *ctx, const nbl_tensor *t, int64_t *first, int64_t *count)
{
    finite_job j = {.isa = nbl__isa(ctx),
                    .dtype = t->dtype,
                    .elements = nbl__tensor_elements(t),
                    .values = t->data,
                    .first = INT64_MAX};
    NBL_TRY(nbl__team_run(ctx, nbl__ceil_div(j.elements, 8 * CHUNK), search_item, &j, NULL));
    *count = atomic_load(&j.count);
    *first = *count > 0 ? (int64_t)atomic_load(&j.first) : -1;
    return NBL_OK;
}

static nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__finite *a = arguments;
    int64_t first, count;
    NBL_TRY(nbl__find_non_finite(call->ctx, &a->x, &first, &count));
    *(int64_t *)a->first.data = first;
    *(int64_t *)a->count.data = count;
    return NBL_OK;
}

const nbl__impl nbl__check_finite_cpu = {"check_finite_cpu", NBL_ISA_SCALAR, NULL, NULL, run};
