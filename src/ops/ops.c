/* ops.c - the table of families, dispatch, and the checks that operators share. See ops.h. */
#include "ops/ops.h"

#include "device/device.h"
#include "ops/families.h"

static const nbl__family *const table[] = {
#define FAMILY(name) &nbl__##name##_family,
    NBL_FAMILIES(FAMILY)
#undef FAMILY
};

const nbl__family *nbl__family_at(int index)
{
    return index >= 0 && index < (int)(sizeof table / sizeof *table) ? table[index] : NULL;
}

const nbl__family *nbl__family_find(const char *name)
{
    for (int i = 0; nbl__family_at(i); i++)
        if (strcmp(nbl__family_at(i)->name, name) == 0) return nbl__family_at(i);
    return NULL;
}

const nbl__slot *nbl__slot_find(const nbl__family *family, const char *name)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++)
        if (strcmp(slot->name, name) == 0) return slot;
    return NULL;
}

int nbl__slot_at(const nbl__family *family, size_t offset)
{
    for (int i = 0; family->slots[i].name; i++)
        if (family->slots[i].offset == offset) return i;
    return -1;
}

void nbl__attrs_reset(const nbl__family *family, void *arguments)
{
    for (const nbl__attr *attr = family->attrs; attr->name; attr++) {
        void *field = (char *)arguments + attr->offset;
        switch (attr->type) {
        case NBL_ATTR_DTYPE: break;
        case NBL_ATTR_FLOAT: *(float *)field = (float)attr->missing; break;
        case NBL_ATTR_INT: *(int64_t *)field = (int64_t)attr->missing; break;
        case NBL_ATTR_SEED: *(uint64_t *)field = (uint64_t)attr->missing; break;
        case NBL_ATTR_FLAG: *(bool *)field = attr->missing != 0; break;
        case NBL_ATTR_WORD: *(int *)field = (int)attr->missing; break;
        }
    }
}

/* ---- infer ---- */

/* A slot takes a row stride in one rank or in none. Rows must not overlap. */
static nbl_status check_strides(nbl_context *ctx, const nbl__family *family, const nbl__op *op,
                                void *arguments)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        if (nbl__slot_is_weight(slot)) continue;
        const nbl_tensor *t = nbl__slot_tensor(slot, arguments);
        if (t->row_stride == 0 || t->rank == 0) continue;
        NBL_CHECK(ctx, slot->strided == t->rank, NBL_ERROR_SHAPE,
                  "%s: the rows of %s %s are %" PRId64 " elements apart; it must be dense", op->name,
                  slot->name, nbl__show_shape(t->rank, t->shape).text, t->row_stride);
        NBL_CHECK(ctx,
                  t->row_stride >= nbl__row_elements(t) &&
                      t->row_stride <= (INT64_MAX >> 8) / nbl__max_i64(t->shape[0], 1),
                  NBL_ERROR_SHAPE, "%s: the rows of %s %s cannot be %" PRId64 " elements apart", op->name,
                  slot->name, nbl__show_shape(t->rank, t->shape).text, t->row_stride);
    }
    return NBL_OK;
}

const char *nbl__dense_only(const nbl__family *family, bool backward, const void *arguments)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++)
        if (nbl__slot_is_strided(slot, backward, arguments)) return "a tensor has a row stride";
    return NULL;
}

const char *nbl__wide_strides_only(const nbl__family *family, bool backward, const void *arguments)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        if (!nbl__slot_is_strided(slot, backward, arguments)) continue;
        const nbl_tensor *t = (const void *)((const char *)arguments + slot->offset);
        if (t->row_stride % (int64_t)(16 / nbl__size_of(t->dtype)) != 0)
            return "a row stride is not a multiple of 16 bytes";
    }
    return NULL;
}

nbl_status nbl__infer(nbl_context *ctx, const nbl__family *family, bool backward, void *arguments)
{
    const nbl__op *op = backward ? &family->backward : &family->forward;
    assert(op->name); /* the family has this direction */
    NBL_TRY(op->infer(ctx, arguments));
    return check_strides(ctx, family, op, arguments);
}

/* ---- dispatch ---- */

/* Why a row cannot run these arguments here; NULL: it can. */
static const char *decline(const nbl_context *ctx, const nbl__impl *impl, const void *arguments)
{
    if (impl->needs > nbl__isa(ctx)) return nbl__isa_name(impl->needs);
    return impl->can ? impl->can(ctx, arguments) : NULL;
}

/* Does `force` name this row? Both "rmsnorm_avx2" and, for the operator rmsnorm, "avx2" do. */
static bool is_meant(const nbl__op *op, const nbl__impl *impl, const char *force)
{
    size_t n = strlen(op->name);
    if (strcmp(force, impl->name) == 0) return true;
    return strncmp(impl->name, op->name, n) == 0 && impl->name[n] == '_' &&
           strcmp(impl->name + n + 1, force) == 0;
}

/* NIBBLE_IMPL applies to operators that have a row of that name. It is ignored for all others, so
 * that one value can force a row of a whole run. */
static const char *forced_by_environment(const nbl_context *ctx, const nbl__op *op)
{
    const char *force = nbl__forced_impl(ctx);
    for (const nbl__impl *const *at = nbl__device_of(ctx)->impls(op); force && *at; at++)
        if (is_meant(op, *at, force)) return force;
    return NULL;
}

/* NIBBLE_IMPL must name a row of some operator: a misspelt name would force nothing. */
static nbl_status check_environment(nbl_context *ctx)
{
    const nbl__device *device = nbl__device_of(ctx);
    const char *force = nbl__forced_impl(ctx);
    for (int i = 0; force && nbl__family_at(i); i++)
        for (int backward = 0; backward < 2; backward++) {
            const nbl__op *op = backward ? &nbl__family_at(i)->backward : &nbl__family_at(i)->forward;
            for (const nbl__impl *const *at = op->name ? device->impls(op) : NULL; at && *at; at++)
                if (is_meant(op, *at, force)) return NBL_OK;
        }
    NBL_CHECK(ctx, force == NULL, NBL_ERROR_ARGUMENT,
              "NIBBLE_IMPL: no implementation for %s is called \"%s\"; `nibble-ops list` names them",
              device->name, force);
    return NBL_OK;
}

nbl_status nbl__op_choose(nbl_context *ctx, const nbl__op *op, const void *arguments, const char *force,
                          const nbl__impl **impl)
{
    if (force == NULL) {
        NBL_TRY(check_environment(ctx));
        force = forced_by_environment(ctx, op);
    }
    for (const nbl__impl *const *at = nbl__device_of(ctx)->impls(op); *at; at++) {
        const nbl__impl *it = *at;
        if (force && !is_meant(op, it, force)) continue;
        const char *why = decline(ctx, it, arguments);
        if (why == NULL) {
            nbl__log(ctx, NBL_LOG_DEBUG, "%s: %s", op->name, it->name);
            *impl = it;
            return NBL_OK;
        }
        nbl__log(ctx, NBL_LOG_DEBUG, "%s: not %s: %s", op->name, it->name, why);
        NBL_CHECK(ctx, force == NULL, NBL_ERROR_UNSUPPORTED, "%s: %s declines: %s", op->name, force, why);
    }
    NBL_CHECK(ctx, force == NULL, NBL_ERROR_ARGUMENT, "%s: no implementation is called \"%s\"", op->name,
              force);
    return nbl__fail(ctx, NBL_ERROR_UNSUPPORTED, "%s: no implementation for %s takes these arguments",
                     op->name, nbl__device_of(ctx)->name);
}

nbl_status nbl__op_choose_again(nbl_context *ctx, const nbl__op *op, const void *arguments,
                                const nbl__impl **impl)
{
    const char *force = forced_by_environment(ctx, op);
    for (const nbl__impl *const *at = nbl__device_of(ctx)->impls(op); *at; at++) {
        if (force && !is_meant(op, *at, force)) continue;
        if (decline(ctx, *at, arguments)) continue;
        if (*at == *impl) return NBL_OK;
        break;
    }
    return nbl__op_choose(ctx, op, arguments, NULL, impl);
}

bool nbl__op_fuses(nbl_context *ctx, const nbl__op *fused, const nbl__op *const parts[2],
                   const void *arguments)
{
    if (forced_by_environment(ctx, parts[0]) || forced_by_environment(ctx, parts[1])) return false;
    for (const nbl__impl *const *at = nbl__device_of(ctx)->impls(fused); at[0] && at[1]; at++)
        if (decline(ctx, *at, arguments) == NULL) return true;
    return false;
}

/* The scratch of a call: the implementation's own, then what libraries get. Scratch is aligned to 64 bytes, what
 * libraries get to 256. */
typedef struct scratch_parts {
    size_t own, libraries, all;
} scratch_parts;

static scratch_parts parts_of(const nbl_context *ctx, const nbl__impl *impl, const void *arguments)
{
    const nbl__device *device = nbl__device_of(ctx);
    scratch_parts s = {.own = impl->scratch ? impl->scratch(ctx, arguments) : 0};
    if (device->workspace_bytes) s.libraries = device->workspace_bytes(ctx, impl);
    s.all = s.own;
    if (s.libraries > 0) s.all = (s.own = (s.own + 63) / 64 * 64) + (256 - 64) + s.libraries;
    return s;
}

size_t nbl__op_scratch(const nbl_context *ctx, const nbl__impl *impl, const void *arguments)
{
    return parts_of(ctx, impl, arguments).all;
}

nbl_status nbl__op_run_within(nbl_context *ctx, const nbl__op *op, const nbl__impl *impl,
                              const void *arguments, void *scratch, size_t scratch_bytes, void *saved)
{
    scratch_parts parts = parts_of(ctx, impl, arguments);
    NBL_CHECK(ctx, scratch_bytes >= parts.all, NBL_ERROR_ARGUMENT, "%s: %zu bytes of scratch, %s needs %zu",
              op->name, scratch_bytes, impl->name, parts.all);
    NBL_CHECK(ctx, (uintptr_t)scratch % 64 == 0, NBL_ERROR_ARGUMENT, "%s: scratch is not aligned to 64 bytes",
              op->name);
    assert(impl->needs <= nbl__isa(ctx)); /* else an illegal instruction */
    nbl__call call = {ctx, op->name, scratch, scratch_bytes, nbl__device_of(ctx), saved, NULL};
    if (parts.libraries > 0) {
        call.scratch_bytes = parts.own;
        call.workspace = (void *)(((uintptr_t)scratch + parts.own + 255) / 256 * 256);
    }
    /* In debug mode every kernel is waited for, so that an error names the kernel that caused it. */
    NBL_TRY(nbl__device_begin(ctx, call.device));
    NBL_TRY(nbl__device_end(ctx, call.device, impl->name, impl->run(&call, arguments)));
    return call.device->debugs ? call.device->wait(ctx, impl->name) : NBL_OK;
}

nbl_status nbl__op_run(nbl_context *ctx, const nbl__op *op, const nbl__impl *impl, const void *arguments,
                       void *scratch, size_t scratch_bytes)
{
    return nbl__op_run_within(ctx, op, impl, arguments, scratch, scratch_bytes, NULL);
}

/* ---- shared checks ---- */

int64_t nbl__tensor_elements(const nbl_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

int64_t nbl__tensor_rows(const nbl_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i + 1 < t->rank; i++) n *= t->shape[i];
    return n;
}

nbl_status nbl__check_dtype(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t,
                            nbl_dtype expected)
{
    NBL_CHECK(ctx, t->dtype == expected, NBL_ERROR_DTYPE, "%s: %s %s is %s, %s was expected", op, name,
              nbl__show_shape(t->rank, t->shape).text, nbl_dtype_name(t->dtype), nbl_dtype_name(expected));
    return NBL_OK;
}

nbl_status nbl__check_float(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t)
{
    NBL_CHECK(ctx, nbl__is_compute(t->dtype), NBL_ERROR_DTYPE, "%s: %s %s is %s, not f32, f16 or bf16", op,
              name, nbl__show_shape(t->rank, t->shape).text, nbl_dtype_name(t->dtype));
    return NBL_OK;
}

nbl_status nbl__check_compute(nbl_context *ctx, const char *op, nbl_dtype dtype)
{
    NBL_CHECK(ctx, nbl__is_compute(dtype), NBL_ERROR_DTYPE, "%s: dtype %s is not f32, f16 or bf16", op,
              nbl__any_dtype_name(dtype));
    return NBL_OK;
}

nbl_status nbl__check_dims(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t, int rank,
                           const int64_t *shape)
{
    bool same = t->rank == rank;
    for (int i = 0; same && i < rank; i++) same = t->shape[i] == shape[i];
    NBL_CHECK(ctx, same, NBL_ERROR_SHAPE, "%s: %s is %s, %s was expected", op, name,
              nbl__show_shape(t->rank, t->shape).text, nbl__show_shape(rank, shape).text);
    return NBL_OK;
}

nbl_status nbl__check_matrix(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t,
                             int64_t rows, int64_t columns)
{
    NBL_CHECK(ctx, t->rank >= 1 && nbl__tensor_rows(t) == rows && nbl__last(t) == columns, NBL_ERROR_SHAPE,
              "%s: %s is %s, %" PRId64 " rows of %" PRId64 " were expected", op, name,
              nbl__show_shape(t->rank, t->shape).text, rows, columns);
    return NBL_OK;
}

void nbl__output_like(nbl_tensor *out, const nbl_tensor *like, int64_t last, nbl_dtype dtype)
{
    nbl_tensor before = *out;
    assert(like->rank >= 1);
    *out = *like;
    out->data = before.data;
    out->row_stride = before.row_stride;
    out->dtype = dtype;
    out->shape[out->rank - 1] = last;
}

void nbl__output_vector(nbl_tensor *out, nbl_dtype dtype, int rank, int64_t first, int64_t second)
{
    assert(rank == 1 || rank == 2);
    *out = (nbl_tensor){.dtype = dtype,
                        .rank = rank,
                        .shape = {first, second},
                        .data = out->data,
                        .row_stride = out->row_stride};
}
