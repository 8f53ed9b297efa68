/* tensor_map.cuh - the driver's function that describes a tensor to Hopper's copy engine. Internal to
 * ops/cuda. */
#ifndef NBL_CUDA_TENSOR_MAP_CUH
#define NBL_CUDA_TENSOR_MAP_CUH

#include <cudaTypedefs.h>

#include "ops/cuda/kernel.cuh"

namespace nbl_cuda
{

using tensor_map_encoder = PFN_cuTensorMapEncodeTiled_v12000;

/* NULL: the driver has none. */
static inline tensor_map_encoder tensor_map_encoder_of(nbl__cuda *cuda)
{
    if (cuda->tensor_map_encode == NULL) {
        cudaDriverEntryPointQueryResult found;
        void *function = NULL;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                             &found) == cudaSuccess &&
            found == cudaDriverEntryPointSuccess)
            cuda->tensor_map_encode = function;
    }
    return reinterpret_cast<tensor_map_encoder>(cuda->tensor_map_encode);
}

} // namespace nbl_cuda
#endif
