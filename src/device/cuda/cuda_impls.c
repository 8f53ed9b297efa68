/* cuda_impls.c - the table of cuda_impls.h. */
#include "device/cuda/cuda_impls.h"

#include "ops/elementwise/offload_copy.h"
#include "ops/families.h"

/* Operators without a line in the list have no entry. */
static const struct {
    const nbl__op *op;
    const nbl__impl *const *impls;
} table[] = {
#define ROWS(family, direction, rows)                                                                        \
    {&nbl__##family##_family.direction, (const nbl__impl *const[]){rows NULL}},
#define ROW(name) &nbl__##name,
    NBL_CUDA_OPERATORS(ROWS, ROW, ROW)
#undef ROWS
#undef ROW
};

static const nbl__impl *const working[] = {
#define ROWS(family, direction, rows) rows
#define ROW(name)
#define WORK(name) &nbl__##name,
    NBL_CUDA_OPERATORS(ROWS, ROW, WORK)
#undef ROWS
#undef ROW
#undef WORK
};

/* A linear search of some fifty entries. */
const nbl__impl *const *nbl__cuda_impls(const nbl__op *op)
{
    static const nbl__impl *const none[] = {NULL};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].op == op) return table[i].impls;
    return none;
}

bool nbl__cuda_uses_workspace(const nbl__impl *impl)
{
    for (size_t i = 0; i < sizeof working / sizeof *working; i++)
        if (working[i] == impl) return true;
    return false;
}
