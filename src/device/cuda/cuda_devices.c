/* cuda_devices.c - the functions of nibble.h that list and describe the CUDA devices of this
 * machine. They open no device and need no context device. */
#include "device/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

#include "ops/gemm/cuda/cublaslt.h"

bool nbl_cuda_built(void)
{
    return true;
}

/* No driver, no device and errors of the runtime are all NBL_ERROR_UNSUPPORTED, with different
 * messages. */
nbl_status nbl_cuda_device_count(nbl_context *ctx, int *count)
{
    NBL_CHECK(ctx, count != NULL, NBL_ERROR_ARGUMENT, "nbl_cuda_device_count: count is NULL");
    *count = 0;
    cudaError_t error = cudaGetDeviceCount(count);
    if (error != cudaSuccess) {
        int version = 0;
        *count = 0;
        cudaGetLastError(); /* reported here; clears it for the next call */
        if (cudaDriverGetVersion(&version) == cudaSuccess && version == 0)
            return nbl__fail(ctx, NBL_ERROR_UNSUPPORTED, "no CUDA device: no NVIDIA driver was found");
        return nbl__fail(ctx, NBL_ERROR_UNSUPPORTED, "no CUDA device: %s", cudaGetErrorString(error));
    }
    NBL_CHECK(ctx, *count > 0, NBL_ERROR_UNSUPPORTED, "no CUDA device: the driver knows none");
    return NBL_OK;
}

/* The name, compute capability and memory of device `index`. */
nbl_status nbl_cuda_device_get(nbl_context *ctx, int index, nbl_cuda_device *result)
{
    int count;
    NBL_CHECK(ctx, result != NULL, NBL_ERROR_ARGUMENT, "nbl_cuda_device_get: device is NULL");
    NBL_TRY(NBL_RESULT_BEGIN(ctx, nbl_cuda_device, result));
    NBL_TRY(nbl_cuda_device_count(ctx, &count));
    NBL_CHECK(ctx, index >= 0 && index < count, NBL_ERROR_ARGUMENT, "CUDA device %d of %d", index, count);
    struct cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceProperties(&properties, index);
    if (error != cudaSuccess) {
        cudaGetLastError();
        return nbl__fail(ctx, NBL_ERROR_UNSUPPORTED, "CUDA device %d: %s", index, cudaGetErrorString(error));
    }
    nbl_cuda_device device = {
        .major = properties.major, .minor = properties.minor, .memory_bytes = properties.totalGlobalMem};
    snprintf(device.name, sizeof device.name, "%s", properties.name);
    NBL_RESULT_PUT(nbl_cuda_device, result, &device);
    return NBL_OK;
}

/* The kernels use bf16 products and cp.async, which start with 8.0. */
nbl_status nbl__cuda_supports(nbl_context *ctx, int index, const nbl_cuda_device *device)
{
    NBL_CHECK(ctx, device->major >= 8, NBL_ERROR_UNSUPPORTED,
              "CUDA device %d: %s has compute capability %d.%d; 8.0 or later is needed", index, device->name,
              device->major, device->minor);
    return NBL_OK;
}

/* True if device 0 is supported and cuBLASLt can be loaded. Otherwise the context has the
 * reason. */
bool nbl_cuda_usable(nbl_context *ctx)
{
    nbl_cuda_device device = {NBL_RESULT(nbl_cuda_device)};
    if (nbl_cuda_device_get(ctx, 0, &device) != NBL_OK || nbl__cuda_supports(ctx, 0, &device) != NBL_OK)
        return false;
    if (nbl__blas_found()) return true;
    nbl__fail(ctx, NBL_ERROR_UNSUPPORTED,
              "CUDA device 0: %s: products need cuBLASLt, and libcublasLt.so.13 (or .12) could not be loaded",
              device.name);
    return false;
}
