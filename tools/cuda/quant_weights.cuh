/* quant_weights.cuh - random weights of cuda_quant.cu in every format, with the same bytes on the host and on the
 * device. Part of that program: all is in an unnamed namespace. */
#ifndef NBL_QUANT_WEIGHTS_CUH
#define NBL_QUANT_WEIGHTS_CUH

#include <math.h>
#include <stdlib.h>

#include "examine.cuh"

#include "ops/dequantize/dequantize_value.cuh"

namespace
{

void *host(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64 + 64);
    if (memory == NULL) stop("aligned_alloc", "out of memory", __LINE__);
    return memory;
}

/* ---- random numbers: a counter, hashed; the same on both sides ---- */

__host__ __device__ inline uint32_t hash_of(uint64_t i, uint32_t seed)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(seed) * 0xd1b54a32d192ed03u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return static_cast<uint32_t>((z ^ z >> 31) >> 16);
}
__host__ __device__ inline float unit_of(uint64_t i, uint32_t seed) /* [-1, 1) */
{
    return static_cast<float>(static_cast<int32_t>(hash_of(i, seed))) * 0x1p-31f;
}

/* ---- weights ---- */

struct sizes {
    size_t data, scales, scale_codes, nested_scales;
};

/* Format, shape and block; no parts yet. */
nbl_weight weight_of(nbl_format format, bool nested, int64_t block, int64_t rows, int64_t columns,
                     sizes *bytes)
{
    nbl_weight w = {};
    size_t n = static_cast<size_t>(rows * columns);
    w.format = format;
    w.rank = 2;
    w.shape[0] = rows;
    w.shape[1] = columns;
    *bytes = {};
    if (format == NBL_FORMAT_INT8) {
        bytes->data = n;
        bytes->scales = static_cast<size_t>(rows) * 4;
        return w;
    }
    w.block = format == NBL_FORMAT_MXFP4 ? 32 : block;
    bytes->data = (n + 1) / 2;
    size_t blocks = (n + static_cast<size_t>(w.block) - 1) / static_cast<size_t>(w.block);
    if (format == NBL_FORMAT_MXFP4) {
        bytes->scale_codes = blocks;
    } else if (nested) {
        bytes->scale_codes = blocks;
        w.nested_block = 256;
        w.nested_offset = 0.0625f;
        bytes->nested_scales = (blocks + 255) / 256 * 4;
    } else {
        bytes->scales = blocks * 4;
    }
    return w;
}

/* A scale of the tests; with `hostile` one in eight is extraordinary. */
float test_scale(uint64_t i, uint32_t seed, bool hostile)
{
    static const uint32_t extraordinary[8] = {
        0x7f800000, 0xff800000, 0x7fc12345, 0xffa00001, /* a signalling NaN */
        0x00000000, 0x80000000, 0x00000123, 0x7f7fffff};
    uint32_t pick = hash_of(i, seed + 1);
    if (hostile && pick % 8 == 0) {
        float value;
        memcpy(&value, &extraordinary[pick / 8 % 8], 4);
        return value;
    }
    return ldexpf(1.0f + fabsf(unit_of(i, seed)), static_cast<int>(pick / 64 % 12) - 10);
}

struct both_sides {
    nbl_weight host, device;
    void *to_free[16];
    int count;
};

/* A copy on the device, `shift` bytes past an aligned address. */
void *on_device(both_sides *b, const void *from, size_t bytes, size_t shift)
{
    char *memory = NULL;
    CUDA(cudaMalloc(&memory, bytes + shift));
    CUDA(cudaMemcpy(memory + shift, from, bytes, cudaMemcpyHostToDevice));
    b->to_free[b->count++] = memory;
    return memory + shift;
}

void make_both(nbl_weight w, sizes bytes, uint32_t seed, bool hostile, size_t shift, both_sides *b)
{
    *b = {};
    uint8_t *data = static_cast<uint8_t *>(host(bytes.data)),
            *codes = static_cast<uint8_t *>(host(bytes.scale_codes));
    float *scales = static_cast<float *>(host(bytes.scales)),
          *nested = static_cast<float *>(host(bytes.nested_scales));
    for (size_t i = 0; i < bytes.data; i++) data[i] = static_cast<uint8_t>(hash_of(i, seed));
    for (size_t i = 0; i < bytes.scale_codes; i++) {
        codes[i] = static_cast<uint8_t>(hash_of(i, seed + 2));
        if (w.format == NBL_FORMAT_MXFP4 && !hostile) codes[i] = static_cast<uint8_t>(117 + codes[i] % 16);
    }
    for (size_t i = 0; i < bytes.scales / 4; i++) scales[i] = test_scale(i, seed + 3, hostile);
    for (size_t i = 0; i < bytes.nested_scales / 4; i++)
        nested[i] = test_scale(i, seed + 5, hostile && i % 2);
    b->host = b->device = w;
    b->host.data = data;
    b->device.data = on_device(b, data, bytes.data, shift);
    if (bytes.scales) {
        b->host.scales = scales;
        b->device.scales = static_cast<float *>(on_device(b, scales, bytes.scales, 0));
    }
    if (bytes.scale_codes) {
        b->host.scale_codes = codes;
        b->device.scale_codes = static_cast<uint8_t *>(on_device(b, codes, bytes.scale_codes, 0));
    }
    if (bytes.nested_scales) {
        b->host.nested_scales = nested;
        b->host.nested_table = nbl_dynamic_map(1);
        b->device.nested_scales = static_cast<float *>(on_device(b, nested, bytes.nested_scales, 0));
        b->device.nested_table = static_cast<float *>(on_device(b, b->host.nested_table, 256 * 4, 0));
    }
}

void free_both(both_sides *b)
{
    for (int i = 0; i < b->count; i++) CUDA(cudaFree(b->to_free[i]));
    free(const_cast<void *>(b->host.data));
    free(const_cast<float *>(b->host.scales));
    free(const_cast<uint8_t *>(b->host.scale_codes));
    free(const_cast<float *>(b->host.nested_scales));
}

} // namespace

#endif
