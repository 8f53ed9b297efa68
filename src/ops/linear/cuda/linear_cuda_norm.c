/* linear_cuda_norm.c - rmsnorm and the layers that take its one row, in one launch. See linear_cuda.h. */
#include "ops/linear/cuda/linear_cuda.h"

#ifdef NIBBLE_CUDA_BUILT

#include "ops/gemv/cuda/gemv_cuda.h"
#include "ops/linear/linear_group.h"
#include "ops/linear/mlp.h"

bool nbl__cuda_linear_at_once(const nbl__linear *members, int count, nbl__gemv_one *one)
{
    *one = (nbl__gemv_one){.dtype = members->dtype, .x = members->x.data, .count = count, .act = -1};
    if (members->dequantized || count > NBL_MAX_GEMV_ONE || nbl__tensor_rows(&members->x) != 1 ||
        members->x.row_stride != 0 || members->x.dtype != members->dtype)
        return false;
    for (int i = 0; i < count; i++) {
        const nbl__linear *a = &members[i];
        if (nbl__linear_rank(a) > 0 || nbl__given(&a->magnitude) || a->y.dtype != a->dtype ||
            !nbl__given(&a->y))
            return false;
        one->parts[i] = (nbl__gemv_part){.weight = &a->w, .bias = a->bias, .y = a->y.data};
    }
    return nbl__cuda_gemv_one_takes(one);
}

bool nbl__cuda_norm_joins(const char *norm_op, const void *norm, const char *op, const void *layers,
                          nbl__gemv_one *one)
{
    if (strcmp(norm_op, "rmsnorm") != 0) return false;
    if (strcmp(op, "linear_group") == 0) {
        const nbl__linear_group *group = layers;
        nbl__linear members[NBL_MAX_GROUP];
        nbl__linear_group_spread(group, members);
        if (!nbl__cuda_linear_at_once(members, group->count, one)) return false;
        for (int i = 0; i < group->count; i++) one->parts[i].weight = &group->members[i].w;
    } else if (strcmp(op, "mlp") != 0 || !nbl__cuda_mlp_at_once(layers, one)) {
        return false;
    }
    one->norm = norm;
    return nbl__cuda_gemv_one_takes(one);
}

#endif
