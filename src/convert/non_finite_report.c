/* non_finite_report.c - reports the NaN and infinities of a tensor in a conversion: an error, or a
 * warning if they are allowed. See convert.h. */
#include "convert/convert.h"

nbl_status nbl__non_finite_report(nbl__conversion *v, const char *name, nbl__non_finite *found,
                                  const char *what)
{
    int64_t count = atomic_load(&found->count), first = atomic_load(&found->first) - 1;
    if (count == 0) return NBL_OK;
    NBL_TRY(nbl__files_check(v->ctx)); /* if a source file has changed, report that instead */
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
