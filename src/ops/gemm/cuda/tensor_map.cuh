/* tensor_map.cuh - encodes tensor maps: the description of a matrix that TMA needs. Internal to the
 * files *_sm90.cu.
 *
 * A map is 128 bytes and holds the address, so it is encoded for each launch (about a microsecond)
 * and passed by value as a __grid_constant__ parameter. Addresses and strides must be multiples of
 * 16 bytes. */
#ifndef NBL_TENSOR_MAP_CUH
#define NBL_TENSOR_MAP_CUH

#include <cuda.h>
#include <cudaTypedefs.h>

#include "ops/common/kernel.cuh"

namespace nbl_sm90
{

using map_encoder = PFN_cuTensorMapEncodeTiled_v12000;

/* cuTensorMapEncodeTiled of the driver, cached in `cuda`; NULL if the driver is too old. */
inline map_encoder find_encoder(nbl__cuda *cuda)
{
    if (cuda->tensor_map_encode == NULL) {
        cudaDriverEntryPointQueryResult found;
        void *function = NULL;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                             &found) == cudaSuccess &&
            found == cudaDriverEntryPointSuccess)
            cuda->tensor_map_encode = function;
    }
    return reinterpret_cast<map_encoder>(cuda->tensor_map_encode);
}

inline size_t size_of(nbl_dtype dtype)
{
    return dtype == NBL_DTYPE_F32 ? 4 : 2;
}

/* Encodes a matrix [height, width] whose rows are ld elements apart. It is read (or written) in
 * boxes of `rows` lines of 128 bytes, with the 128-byte swizzle of wgmma. Reads outside of the
 * matrix give zeros, writes there do nothing. False: the driver refuses. */
inline bool describe(map_encoder encode, CUtensorMap *map, nbl_dtype dtype, const void *data, int64_t height,
                     int64_t width, int64_t ld, int rows)
{
    CUtensorMapDataType type = dtype == NBL_DTYPE_F32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                               : dtype == NBL_DTYPE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                        : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    cuuint64_t sizes[2] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(height)};
    cuuint64_t strides[1] = {static_cast<cuuint64_t>(ld) * size_of(dtype)};
    cuuint32_t box[2] = {static_cast<cuuint32_t>(128 / size_of(dtype)), static_cast<cuuint32_t>(rows)},
               ones[2] = {1, 1};
    return encode(map, type, 2, const_cast<void *>(data), sizes, strides, box, ones,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

} // namespace nbl_sm90
#endif
