/* cuda_absent.c - the CUDA functions of nibble.h in a build without CUDA. Such a build has nothing
 * else of the backend.
 *
 * Every function that needs a device fails with NBL_ERROR_UNSUPPORTED and the same message.
 * Arguments are checked as in the build with CUDA. */
#include "base/base.h"

bool nbl_cuda_built(void)
{
    return false;
}

nbl_status nbl_cuda_device_count(nbl_context *ctx, int *count)
{
    NBL_CHECK(ctx, count != NULL, NBL_ERROR_ARGUMENT, "nbl_cuda_device_count: count is NULL");
    *count = 0;
    return nbl__fail(ctx, NBL_ERROR_UNSUPPORTED, "no CUDA device: this library was built without CUDA");
}

nbl_status nbl_cuda_device_get(nbl_context *ctx, int index, nbl_cuda_device *result)
{
    int count;
    (void)index;
    NBL_CHECK(ctx, result != NULL, NBL_ERROR_ARGUMENT, "nbl_cuda_device_get: device is NULL");
    NBL_TRY(NBL_RESULT_BEGIN(ctx, nbl_cuda_device, result));
    return nbl_cuda_device_count(ctx, &count);
}

bool nbl_cuda_usable(nbl_context *ctx)
{
    int count;
    return nbl_cuda_device_count(ctx, &count) == NBL_OK;
}

nbl_status nbl_context_use_cuda(nbl_context *ctx, int index)
{
    int count;
    (void)index;
    return nbl_cuda_device_count(ctx, &count);
}

nbl_status nbl_context_use_cuda_stream(nbl_context *ctx, int index, void *stream, nbl_context *share)
{
    int count;
    (void)index, (void)stream, (void)share;
    return nbl_cuda_device_count(ctx, &count);
}

nbl_status nbl_context_set_stream(nbl_context *ctx, void *stream)
{
    (void)stream;
    return nbl__fail(ctx, NBL_ERROR_ARGUMENT, "the context borrows no stream");
}
