/* dequantize_value.cuh - shared by the kernels that read packed weights: the weight as a kernel's
 * parameter, one scale, one value, one rounding. Internal to the CUDA kernels.
 *
 *     value = table[code] · scale                      4-bit; int8: code · scale / 127
 *     scale = nested_table[code] · nested_scale + nested_offset         nested scales; the offset is a number or
 *                                                                       lies in device memory
 *
 * The rules are those of docs/NUMERICS.md, and the bits are those of the CPU, also of NaN. A GPU's
 * product gives 0x7fffffff for every NaN. An x86 keeps the operand's bits, and gives 0xffc00000 for
 * 0 · infinity. Functions with x86 in their name follow the x86. With finite scales no NaN can
 * arise, and kernels use plain products. */
#ifndef NBL_DEQUANTIZE_VALUE_CUH
#define NBL_DEQUANTIZE_VALUE_CUH

#include <assert.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

extern "C" {
#include "quant/weight.h"
}

namespace nbl_cuda
{

constexpr float INVERSE_127 = 0x1.020408p-7f; /* as src/quant/int8.c */
constexpr unsigned ALL = 0xffffffffu;         /* the lanes of a warp */

enum scale_kind { SCALES_FLAT, SCALES_NESTED, SCALES_E8M0, SCALES_ROWS };

/* A packed weight. Pointers are to device memory. Passed by value in the parameters of a kernel. */
struct packed {
    const uint8_t *codes;
    const float *scales; /* SCALES_NESTED: where the nested offset lies, or NULL: nested_offset */
    const uint8_t *scale_codes;
    const float *nested_scales, *nested_table;
    int64_t nested_block, columns;
    float nested_offset;
    scale_kind kind;
    int nested_shift; /* log2 of nested_block, -1: not a power of two */
    int block_shift; /* log2 of the elements of a block, which run over rows */
    bool low_first; /* the first of a pair is in the low nibble */
    float table[16];
};

/* A weight that nbl__check_weight accepted and that is not dense. */
static inline packed packed_of(const nbl_weight *w)
{
    packed p = {};
    bool mx = w->format == NBL_FORMAT_MXFP4;
    p.codes = static_cast<const uint8_t *>(w->data);
    p.scales = w->scales;
    p.scale_codes = w->scale_codes;
    p.columns = w->shape[w->rank - 1];
    p.kind = w->format == NBL_FORMAT_INT8 ? SCALES_ROWS
             : mx                         ? SCALES_E8M0
             : w->nested_scales           ? SCALES_NESTED
                                          : SCALES_FLAT;
    if (p.kind == SCALES_NESTED) {
        p.nested_scales = w->nested_scales;
        p.nested_table = w->nested_table;
        p.nested_block = w->nested_block;
        p.nested_offset = w->nested_offset;
        p.scales = w->nested_offset_at;
        bool power = (w->nested_block & (w->nested_block - 1)) == 0;
        p.nested_shift = power ? __builtin_ctzll(static_cast<unsigned long long>(w->nested_block)) : -1;
    }
    if (p.kind != SCALES_ROWS)
        p.block_shift = mx ? 5 : __builtin_ctzll(static_cast<unsigned long long>(w->block));
    p.low_first = mx;
    const float *table = mx                            ? nbl__mxfp4_table
                         : w->format == NBL_FORMAT_FP4 ? nbl__fp4_table
                                                       : nbl__nf4_table;
    memcpy(p.table, table, sizeof p.table);
    return p;
}

/* The status of the last launch. */
static inline nbl_status launched(nbl_context *ctx, const char *call)
{
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return NBL_OK;
    bool absent = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
                  error == cudaErrorNoKernelImageForDevice;
    return nbl__fail(ctx, absent ? NBL_ERROR_UNSUPPORTED : NBL_ERROR_INTERNAL, "%s: CUDA: %s", call,
                     cudaGetErrorString(error));
}

static inline bool aligned(const void *pointer, size_t bytes)
{
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

/* ---- on the device ---- */

__device__ inline bool is_nan(float a)
{
    return a != a;
}
__device__ inline bool is_finite(float a)
{
    return (__float_as_uint(a) & 0x7f800000u) != 0x7f800000u;
}
/* The NaN that an x86 gives for a product or sum of a and b. */
__device__ inline float quiet(float a)
{
    return __uint_as_float(__float_as_uint(a) | 0x00400000u);
}
__device__ inline float nan_x86(float a, float b)
{
    return is_nan(a) ? quiet(a) : is_nan(b) ? quiet(b) : __uint_as_float(0xffc00000u);
}
__device__ inline float mul_x86(float a, float b)
{
    float product = __fmul_rn(a, b);
    return is_nan(product) ? nan_x86(a, b) : product;
}
__device__ inline float add_x86(float a, float b)
{
    float sum = __fadd_rn(a, b);
    return is_nan(sum) ? nan_x86(a, b) : sum;
}

/* Entry lane % 16 of the table, by a tree of selections. An index that differs between lanes would
 * make 16 reads of the parameter. */
__device__ inline float table_entry(const packed &p, int lane)
{
    float rest[16];
#pragma unroll
    for (int i = 0; i < 16; i++) rest[i] = p.table[i];
#pragma unroll
    for (int bit = 1; bit < 16; bit *= 2)
#pragma unroll
        for (int i = 0; i < 8 / bit; i++) rest[i] = lane & bit ? rest[2 * i + 1] : rest[2 * i];
    return rest[0];
}

/* True if no index needs a division: the nested block is a power of two, or scales are not
 * nested. */
static inline bool shifts_only(const packed &p)
{
    return p.kind != SCALES_NESTED || p.nested_shift >= 0;
}

/* The nested offset, for SCALES_NESTED. The branch is uniform. */
__device__ inline float offset_of(const packed &p)
{
    return p.scales ? __ldg(p.scales) : p.nested_offset;
}

/* The loaded parts of the scale of a block of a 4-bit weight. Kernels load them early and compute
 * the scale when they need it. */
struct raw_scale {
    uint32_t bits; /* the bits of the f32 scale, or its code */
    float group;   /* nested: the scale of the group of codes */
};

/* SHIFTS: the caller has checked shifts_only. A 64-bit division costs a kernel registers even if it
 * never runs. */
template <bool SHIFTS> __device__ inline raw_scale fetch_scale(const packed &p, int64_t block)
{
    if (p.kind == SCALES_FLAT) return {__float_as_uint(__ldg(p.scales + block)), 0};
    unsigned code = __ldg(p.scale_codes + block);
    if (p.kind == SCALES_E8M0) return {code, 0};
    return {code, __ldg(p.nested_scales + (SHIFTS ? block >> p.nested_shift : block / p.nested_block))};
}

/* The f32 scale. E8M0: 2^(code - 128), half of the format's scale, because the table has doubled
 * values. */
__device__ inline float scale_from(const packed &p, raw_scale raw)
{
    if (p.kind == SCALES_FLAT) return __uint_as_float(raw.bits);
    if (p.kind == SCALES_E8M0)
        return __uint_as_float(raw.bits >= 2 ? (raw.bits - 1) << 23 : 0x00200000u << raw.bits);
    return add_x86(mul_x86(__ldg(p.nested_table + raw.bits), raw.group), offset_of(p));
}

template <bool SHIFTS> __device__ inline float scale_of(const packed &p, int64_t block)
{
    return scale_from(p, fetch_scale<SHIFTS>(p, block));
}

/* Element `index` of the flattened weight. Slow; for ragged shapes and unaligned tensors. */
__device__ inline float value_at(const packed &p, int64_t index)
{
    if (p.kind == SCALES_ROWS) {
        float code = static_cast<float>(static_cast<int8_t>(p.codes[index]));
        return mul_x86(mul_x86(code, __ldg(p.scales + index / p.columns)), INVERSE_127);
    }
    bool high = ((index & 1) != 0) == p.low_first;
    unsigned code = p.codes[index >> 1] >> (high ? 4 : 0) & 15;
    return mul_x86(p.table[code], scale_of<false>(p, index >> p.block_shift));
}

/* Four signed bytes to f32, exactly: b + 128 becomes the low mantissa bits of 2^23, then 2^23 + 128
 * is subtracted. One permutation and one addition per byte. */
__device__ inline void four_of_int8(uint32_t word, float *values)
{
    word ^= 0x80808080u;
#pragma unroll
    for (int i = 0; i < 4; i++)
        values[i] = __fadd_rn(__uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650u | i)), -8388736.0f);
}

/* One rounding, to nearest even. A NaN keeps its sign and upper bits and becomes quiet, as on
 * x86. */
template <typename T> __device__ T narrow(float value);
template <> __device__ inline float narrow<float>(float value)
{
    return value;
}
template <> __device__ inline __half narrow<__half>(float value)
{
    uint32_t bits = __float_as_uint(value);
    if (!is_nan(value)) return __float2half_rn(value);
    return __ushort_as_half(
        static_cast<unsigned short>((bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu)));
}
template <> __device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float value)
{
    uint32_t bits = __float_as_uint(value);
    if (!is_nan(value)) return __float2bfloat16_rn(value);
    return __ushort_as_bfloat16(static_cast<unsigned short>(bits >> 16 | 0x0040u));
}

/* Two rounded values in one register, the first in the low half. Not for NaN. */
template <typename T> __device__ uint32_t pair_of(float first, float second);
template <> __device__ inline uint32_t pair_of<__half>(float first, float second)
{
    __half2 both = __floats2half2_rn(first, second);
    return *reinterpret_cast<uint32_t *>(&both);
}
template <> __device__ inline uint32_t pair_of<__nv_bfloat16>(float first, float second)
{
    __nv_bfloat162 both = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<uint32_t *>(&both);
}

__device__ inline float widen(float value)
{
    return value;
}
__device__ inline float widen(__half value)
{
    return __half2float(value);
}
__device__ inline float widen(__nv_bfloat16 value)
{
    return __bfloat162float(value);
}

/* Loads that do not enter the L1 cache. It stays free for values that are read again:
 * scales, tables, activations. */
__device__ inline uint32_t stream_u16(const uint8_t *from)
{
    unsigned short value;
    asm("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(value) : "l"(from));
    return value;
}
__device__ inline uint32_t stream_u32(const uint8_t *from)
{
    uint32_t value;
    asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(value) : "l"(from));
    return value;
}
__device__ inline uint2 stream_u64(const uint8_t *from)
{
    uint2 value;
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(from));
    return value;
}
__device__ inline uint4 stream_u128(const uint8_t *from)
{
    uint4 value;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
        : "l"(from));
    return value;
}

} // namespace nbl_cuda
#endif
