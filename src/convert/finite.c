/* finite.c - NaN and infinities in the tensors of a conversion: counted while their bytes are in a cache, named when a
 * tensor is done. See convert.h. */
#include <float.h>
#include <math.h>

#include "convert/convert.h"

enum { CHUNK = 4096 };

static void note(nbl__non_finite *found, int64_t index)
{
    int_fast64_t at = index + 1, known = atomic_load(&found->first);
    while ((known == 0 || at < known) && !atomic_compare_exchange_weak(&found->first, &known, at)) continue;
    atomic_fetch_add(&found->count, 1);
}

void nbl__non_finite_list(nbl__non_finite *found, nbl_dtype dtype, const void *values, int64_t n,
                          int64_t index, int64_t stride, float most)
{
    const uint8_t *at = values;
    for (int64_t i = 0; i < n; i++) {
        float value;
        nbl__to_f32(NBL_ISA_SCALAR, dtype, at + (size_t)i * nbl__size_of(dtype), &value, 1);
        if (!(fabsf(value) <= most)) note(found, index + i * stride);
    }
}

void nbl__non_finite_scan(nbl__non_finite *found, nbl_isa isa, nbl_dtype dtype, const void *values, int64_t n,
                          int64_t index)
{
    const uint8_t *at = values;
    for (int64_t i = 0; i < n; i += CHUNK) {
        int64_t length = nbl__min_i64(CHUNK, n - i);
        const uint8_t *from = at + (size_t)i * nbl__size_of(dtype);
        if (!nbl__all_finite(isa, dtype, from, length))
            nbl__non_finite_list(found, dtype, from, length, index + i, 1, FLT_MAX);
    }
}

nbl_status nbl__non_finite_settle(nbl__conversion *v, const char *name, nbl__non_finite *found,
                                  const char *what)
{
    int64_t count = atomic_load(&found->count), first = atomic_load(&found->first) - 1;
    if (count == 0) return NBL_OK;
    NBL_TRY(nbl__files_check(v->ctx)); /* of a file that changed nothing else is told */
    v->report.non_finite += count;
    if (v->allow_non_finite) {
        nbl__log(v->ctx, NBL_LOG_WARNING,
                 "tensor \"%s\": %" PRId64 " values %s; the first has index %" PRId64, name, count, what,
                 first);
        return NBL_OK;
    }
    nbl_status status = nbl__fail(v->ctx, NBL_ERROR_DTYPE,
                                  "%s: tensor \"%s\": %" PRId64 " values %s; the first has index %" PRId64,
                                  v->checkpoint->path, name, count, what, first);
    return nbl__hint(v->ctx, status, "repair the weights, or accept them with --allow-non-finite");
}
