/* dynamic8.c - 8-bit block-wise quantisation with bitsandbytes' dynamic maps: 256 values whose spacing
 * grows with their size, seven decades from 1e-6 to 1.
 *
 * code = the nearest entry of x * (1 / absmax), by the f32 mid-points (c[i] + c[i+1]) * 0.5; an exact tie
 * goes to the even index. That is the rule on CUDA; the upstream CPU code looks up a 16-bit grid instead and
 * never reaches the entries around zero. */
#include "quant/kernels.h"

#include <float.h>

/* Exact values. They depend on the last bit of torch.linspace (with a fused multiply-add): computing them
 * here would risk another table on another machine. CRC-32 of the little-endian bytes: signed 1b137aeb,
 * unsigned e871278f. */
/* clang-format off */
const float nbl__dynamic_map_signed[256] = {
    -0x1.fc6666p-1f, -0x1.f53334p-1f, -0x1.ee0000p-1f, -0x1.e6ccccp-1f, -0x1.df999ap-1f, -0x1.d86666p-1f,
    -0x1.d13334p-1f, -0x1.ca0000p-1f, -0x1.c2ccccp-1f, -0x1.bb999ap-1f, -0x1.b46666p-1f, -0x1.ad3334p-1f,
    -0x1.a60000p-1f, -0x1.9eccccp-1f, -0x1.97999ap-1f, -0x1.906666p-1f, -0x1.893334p-1f, -0x1.820000p-1f,
    -0x1.7accccp-1f, -0x1.73999ap-1f, -0x1.6c6668p-1f, -0x1.653334p-1f, -0x1.5e0000p-1f, -0x1.56ccccp-1f,
    -0x1.4f999ap-1f, -0x1.486668p-1f, -0x1.413334p-1f, -0x1.3a0000p-1f, -0x1.32ccccp-1f, -0x1.2b999ap-1f,
    -0x1.246668p-1f, -0x1.1d3334p-1f, -0x1.160000p-1f, -0x1.0eccccp-1f, -0x1.079998p-1f, -0x1.006666p-1f,
    -0x1.f26664p-2f, -0x1.e40000p-2f, -0x1.d59998p-2f, -0x1.c73334p-2f, -0x1.b8ccccp-2f, -0x1.aa6666p-2f,
    -0x1.9c0000p-2f, -0x1.8d9998p-2f, -0x1.7f3334p-2f, -0x1.70ccccp-2f, -0x1.626666p-2f, -0x1.540000p-2f,
    -0x1.459998p-2f, -0x1.373334p-2f, -0x1.28ccccp-2f, -0x1.1a6668p-2f, -0x1.0c0000p-2f, -0x1.fb3332p-3f,
    -0x1.de6666p-3f, -0x1.c1999ap-3f, -0x1.a4ccccp-3f, -0x1.880000p-3f, -0x1.6b3334p-3f, -0x1.4e6666p-3f,
    -0x1.31999ap-3f, -0x1.14ccccp-3f, -0x1.f00000p-4f, -0x1.b66668p-4f, -0x1.93d70ap-4f, -0x1.8851eep-4f,
    -0x1.7ccccep-4f, -0x1.7147aep-4f, -0x1.65c290p-4f, -0x1.5a3d70p-4f, -0x1.4eb854p-4f, -0x1.433334p-4f,
    -0x1.37ae14p-4f, -0x1.2c28f6p-4f, -0x1.20a3d6p-4f, -0x1.151ebap-4f, -0x1.09999ap-4f, -0x1.fc28f6p-5f,
    -0x1.e51ebap-5f, -0x1.ce147ap-5f, -0x1.b70a3ep-5f, -0x1.a00000p-5f, -0x1.88f5c2p-5f, -0x1.71eb86p-5f,
    -0x1.5ae146p-5f, -0x1.43d70ap-5f, -0x1.2ccccep-5f, -0x1.15c290p-5f, -0x1.fd70a4p-6f, -0x1.cf5c2ap-6f,
    -0x1.a147aep-6f, -0x1.733334p-6f, -0x1.451ebap-6f, -0x1.170a3ep-6f, -0x1.d1eb86p-7f, -0x1.75c290p-7f,
    -0x1.3e76c8p-7f, -0x1.2c0830p-7f, -0x1.19999ap-7f, -0x1.072b02p-7f, -0x1.e978d4p-8f, -0x1.c49ba6p-8f,
    -0x1.9fbe76p-8f, -0x1.7ae148p-8f, -0x1.56041ap-8f, -0x1.3126e8p-8f, -0x1.0c49bap-8f, -0x1.ced914p-9f,
    -0x1.851eb8p-9f, -0x1.3b645ap-9f, -0x1.e353f8p-10f, -0x1.4fdf3ap-10f, -0x1.eecbfep-11f, -0x1.b3d07cp-11f,
    -0x1.78d500p-11f, -0x1.3dd982p-11f, -0x1.02de02p-11f, -0x1.8fc506p-12f, -0x1.19ce0ap-12f, -0x1.47ae16p-13f,
    -0x1.743e96p-14f, -0x1.15df66p-14f, -0x1.6f0068p-15f, -0x1.64840cp-16f, -0x1.040bfep-17f, -0x1.b43528p-19f,
    -0x1.27476ep-21f, 0.0f, 0x1.27476ep-21f, 0x1.b43528p-19f, 0x1.040bfep-17f, 0x1.64840cp-16f,
    0x1.6f0068p-15f, 0x1.15df66p-14f, 0x1.743e96p-14f, 0x1.47ae16p-13f, 0x1.19ce0ap-12f, 0x1.8fc506p-12f,
    0x1.02de02p-11f, 0x1.3dd982p-11f, 0x1.78d500p-11f, 0x1.b3d07cp-11f, 0x1.eecbfep-11f, 0x1.4fdf3ap-10f,
    0x1.e353f8p-10f, 0x1.3b645ap-9f, 0x1.851eb8p-9f, 0x1.ced914p-9f, 0x1.0c49bap-8f, 0x1.3126e8p-8f,
    0x1.56041ap-8f, 0x1.7ae148p-8f, 0x1.9fbe76p-8f, 0x1.c49ba6p-8f, 0x1.e978d4p-8f, 0x1.072b02p-7f,
    0x1.19999ap-7f, 0x1.2c0830p-7f, 0x1.3e76c8p-7f, 0x1.75c290p-7f, 0x1.d1eb86p-7f, 0x1.170a3ep-6f,
    0x1.451ebap-6f, 0x1.733334p-6f, 0x1.a147aep-6f, 0x1.cf5c2ap-6f, 0x1.fd70a4p-6f, 0x1.15c290p-5f,
    0x1.2ccccep-5f, 0x1.43d70ap-5f, 0x1.5ae146p-5f, 0x1.71eb86p-5f, 0x1.88f5c2p-5f, 0x1.a00000p-5f,
    0x1.b70a3ep-5f, 0x1.ce147ap-5f, 0x1.e51ebap-5f, 0x1.fc28f6p-5f, 0x1.09999ap-4f, 0x1.151ebap-4f,
    0x1.20a3d6p-4f, 0x1.2c28f6p-4f, 0x1.37ae14p-4f, 0x1.433334p-4f, 0x1.4eb854p-4f, 0x1.5a3d70p-4f,
    0x1.65c290p-4f, 0x1.7147aep-4f, 0x1.7ccccep-4f, 0x1.8851eep-4f, 0x1.93d70ap-4f, 0x1.b66668p-4f,
    0x1.f00000p-4f, 0x1.14ccccp-3f, 0x1.31999ap-3f, 0x1.4e6666p-3f, 0x1.6b3334p-3f, 0x1.880000p-3f,
    0x1.a4ccccp-3f, 0x1.c1999ap-3f, 0x1.de6666p-3f, 0x1.fb3332p-3f, 0x1.0c0000p-2f, 0x1.1a6668p-2f,
    0x1.28ccccp-2f, 0x1.373334p-2f, 0x1.459998p-2f, 0x1.540000p-2f, 0x1.626666p-2f, 0x1.70ccccp-2f,
    0x1.7f3334p-2f, 0x1.8d9998p-2f, 0x1.9c0000p-2f, 0x1.aa6666p-2f, 0x1.b8ccccp-2f, 0x1.c73334p-2f,
    0x1.d59998p-2f, 0x1.e40000p-2f, 0x1.f26664p-2f, 0x1.006666p-1f, 0x1.079998p-1f, 0x1.0eccccp-1f,
    0x1.160000p-1f, 0x1.1d3334p-1f, 0x1.246668p-1f, 0x1.2b999ap-1f, 0x1.32ccccp-1f, 0x1.3a0000p-1f,
    0x1.413334p-1f, 0x1.486668p-1f, 0x1.4f999ap-1f, 0x1.56ccccp-1f, 0x1.5e0000p-1f, 0x1.653334p-1f,
    0x1.6c6668p-1f, 0x1.73999ap-1f, 0x1.7accccp-1f, 0x1.820000p-1f, 0x1.893334p-1f, 0x1.906666p-1f,
    0x1.97999ap-1f, 0x1.9eccccp-1f, 0x1.a60000p-1f, 0x1.ad3334p-1f, 0x1.b46666p-1f, 0x1.bb999ap-1f,
    0x1.c2ccccp-1f, 0x1.ca0000p-1f, 0x1.d13334p-1f, 0x1.d86666p-1f, 0x1.df999ap-1f, 0x1.e6ccccp-1f,
    0x1.ee0000p-1f, 0x1.f53334p-1f, 0x1.fc6666p-1f, 0x1.000000p+0f,
};

const float nbl__dynamic_map_unsigned[256] = {
    0.0f, 0x1.5cf754p-22f, 0x1.a01330p-21f, 0x1.1d3670p-19f, 0x1.2599ecp-18f, 0x1.bc98a2p-18f,
    0x1.29cbaap-17f, 0x1.0624dcp-16f, 0x1.c2e340p-16f, 0x1.3fd0d0p-15f, 0x1.9e3000p-15f, 0x1.fc8f34p-15f,
    0x1.2d7732p-14f, 0x1.5ca6c8p-14f, 0x1.8bd662p-14f, 0x1.0cb296p-13f, 0x1.82a994p-13f, 0x1.f8a092p-13f,
    0x1.374bc8p-12f, 0x1.724744p-12f, 0x1.ad42c6p-12f, 0x1.e83e44p-12f, 0x1.119ce2p-11f, 0x1.2f1aa0p-11f,
    0x1.4c9860p-11f, 0x1.6a1620p-11f, 0x1.8793dep-11f, 0x1.a511a0p-11f, 0x1.c28f5ep-11f, 0x1.e00d1cp-11f,
    0x1.fd8adcp-11f, 0x1.2b020cp-10f, 0x1.74bc6ap-10f, 0x1.be76c8p-10f, 0x1.041894p-9f, 0x1.28f5c2p-9f,
    0x1.4dd2f0p-9f, 0x1.72b020p-9f, 0x1.978d4ep-9f, 0x1.bc6a80p-9f, 0x1.e147aep-9f, 0x1.03126ep-8f,
    0x1.158104p-8f, 0x1.27ef9ep-8f, 0x1.3a5e34p-8f, 0x1.4cccccp-8f, 0x1.5f3b64p-8f, 0x1.71a9fap-8f,
    0x1.841894p-8f, 0x1.96872ap-8f, 0x1.a8f5c2p-8f, 0x1.bb645cp-8f, 0x1.cdd2f0p-8f, 0x1.e0418ap-8f,
    0x1.f2b01ep-8f, 0x1.028f5cp-7f, 0x1.0bc6a8p-7f, 0x1.14fdf2p-7f, 0x1.1e3540p-7f, 0x1.276c8ap-7f,
    0x1.30a3d6p-7f, 0x1.39db24p-7f, 0x1.43126ep-7f, 0x1.5eb854p-7f, 0x1.8ccccep-7f, 0x1.bae146p-7f,
    0x1.e8f5c4p-7f, 0x1.0b851ep-6f, 0x1.228f5ep-6f, 0x1.39999ap-6f, 0x1.50a3d6p-6f, 0x1.67ae16p-6f,
    0x1.7eb852p-6f, 0x1.95c28ep-6f, 0x1.accccep-6f, 0x1.c3d70ep-6f, 0x1.dae146p-6f, 0x1.f1eb86p-6f,
    0x1.047ae0p-5f, 0x1.100000p-5f, 0x1.1b851ep-5f, 0x1.270a3ep-5f, 0x1.328f5ep-5f, 0x1.3e147ap-5f,
    0x1.49999ap-5f, 0x1.551eb8p-5f, 0x1.60a3d6p-5f, 0x1.6c28f6p-5f, 0x1.77ae14p-5f, 0x1.833334p-5f,
    0x1.8eb850p-5f, 0x1.9a3d70p-5f, 0x1.a5c28ep-5f, 0x1.b147aep-5f, 0x1.bccccep-5f, 0x1.c851eep-5f,
    0x1.d3d70ep-5f, 0x1.df5c2ap-5f, 0x1.eae146p-5f, 0x1.f66666p-5f, 0x1.00f5c4p-4f, 0x1.06b854p-4f,
    0x1.0c7ae2p-4f, 0x1.123d70p-4f, 0x1.180000p-4f, 0x1.1dc290p-4f, 0x1.238520p-4f, 0x1.2947aep-4f,
    0x1.2f0a3ep-4f, 0x1.34cccep-4f, 0x1.3a8f5ep-4f, 0x1.4051ecp-4f, 0x1.46147cp-4f, 0x1.4bd70ap-4f,
    0x1.51999ap-4f, 0x1.575c2ap-4f, 0x1.5d1eb8p-4f, 0x1.62e148p-4f, 0x1.68a3d6p-4f, 0x1.6e6666p-4f,
    0x1.7428f6p-4f, 0x1.79eb86p-4f, 0x1.7fae16p-4f, 0x1.8570a4p-4f, 0x1.8b3334p-4f, 0x1.90f5c4p-4f,
    0x1.96b852p-4f, 0x1.a80000p-4f, 0x1.c4ccccp-4f, 0x1.e1999ap-4f, 0x1.fe6666p-4f, 0x1.0d9998p-3f,
    0x1.1c0000p-3f, 0x1.2a6668p-3f, 0x1.38ccccp-3f, 0x1.473334p-3f, 0x1.559998p-3f, 0x1.640000p-3f,
    0x1.726668p-3f, 0x1.80ccccp-3f, 0x1.8f3334p-3f, 0x1.9d9998p-3f, 0x1.ac0000p-3f, 0x1.ba6668p-3f,
    0x1.c8ccccp-3f, 0x1.d73334p-3f, 0x1.e59998p-3f, 0x1.f40000p-3f, 0x1.013332p-2f, 0x1.086666p-2f,
    0x1.0f999ap-2f, 0x1.16ccccp-2f, 0x1.1e0000p-2f, 0x1.253334p-2f, 0x1.2c6666p-2f, 0x1.339998p-2f,
    0x1.3accccp-2f, 0x1.420000p-2f, 0x1.493334p-2f, 0x1.506666p-2f, 0x1.579998p-2f, 0x1.5eccccp-2f,
    0x1.660000p-2f, 0x1.6d3334p-2f, 0x1.746666p-2f, 0x1.7b9998p-2f, 0x1.82ccccp-2f, 0x1.8a0000p-2f,
    0x1.913334p-2f, 0x1.986666p-2f, 0x1.9f9998p-2f, 0x1.a6ccccp-2f, 0x1.ae0000p-2f, 0x1.b53334p-2f,
    0x1.bc6666p-2f, 0x1.c39998p-2f, 0x1.caccccp-2f, 0x1.d20000p-2f, 0x1.d93334p-2f, 0x1.e06666p-2f,
    0x1.e79998p-2f, 0x1.eeccccp-2f, 0x1.f60000p-2f, 0x1.fd3332p-2f, 0x1.023334p-1f, 0x1.05ccccp-1f,
    0x1.096666p-1f, 0x1.0d0000p-1f, 0x1.109998p-1f, 0x1.143334p-1f, 0x1.17ccccp-1f, 0x1.1b6668p-1f,
    0x1.1f0000p-1f, 0x1.22999ap-1f, 0x1.263334p-1f, 0x1.29ccccp-1f, 0x1.2d6668p-1f, 0x1.310000p-1f,
    0x1.34999ap-1f, 0x1.383334p-1f, 0x1.3bccccp-1f, 0x1.3f6668p-1f, 0x1.430000p-1f, 0x1.46999ap-1f,
    0x1.4a3334p-1f, 0x1.4dccccp-1f, 0x1.516668p-1f, 0x1.550000p-1f, 0x1.58999ap-1f, 0x1.5c3334p-1f,
    0x1.5fccccp-1f, 0x1.636668p-1f, 0x1.670000p-1f, 0x1.6a999ap-1f, 0x1.6e3334p-1f, 0x1.71ccccp-1f,
    0x1.756668p-1f, 0x1.790000p-1f, 0x1.7c999ap-1f, 0x1.803334p-1f, 0x1.83ccccp-1f, 0x1.876668p-1f,
    0x1.8b0000p-1f, 0x1.8e9998p-1f, 0x1.923334p-1f, 0x1.95ccccp-1f, 0x1.996668p-1f, 0x1.9d0000p-1f,
    0x1.a09998p-1f, 0x1.a43334p-1f, 0x1.a7ccccp-1f, 0x1.ab6668p-1f, 0x1.af0000p-1f, 0x1.b29998p-1f,
    0x1.b63334p-1f, 0x1.b9ccccp-1f, 0x1.bd6668p-1f, 0x1.c10000p-1f, 0x1.c49998p-1f, 0x1.c83334p-1f,
    0x1.cbccccp-1f, 0x1.cf6668p-1f, 0x1.d30000p-1f, 0x1.d69998p-1f, 0x1.da3334p-1f, 0x1.ddccccp-1f,
    0x1.e16668p-1f, 0x1.e50000p-1f, 0x1.e89998p-1f, 0x1.ec3334p-1f, 0x1.efccccp-1f, 0x1.f36668p-1f,
    0x1.f70000p-1f, 0x1.fa9998p-1f, 0x1.fe3334p-1f, 0x1.000000p+0f,
};
/* clang-format on */

static void make_midpoints(const float *map, float midpoints[256])
{
    for (int i = 0; i < 255; i++) midpoints[i] = (map[i] + map[i + 1]) * 0.5f;
    midpoints[255] = __builtin_nanf(""); /* equal to nothing: the last code has no tie above it */
}

static inline uint8_t nearest(const float midpoints[256], float value)
{
    unsigned code = 0;
    for (unsigned step = 128; step > 0; step /= 2) code += value > midpoints[code + step - 1] ? step : 0;
    code += value == midpoints[code] ? code & 1 : 0;
    return (uint8_t)code;
}

uint8_t nbl__dynamic8_code(const float *map, float value)
{
    float midpoints[256];
    make_midpoints(map, midpoints);
    return nearest(midpoints, value);
}

static void encode_dynamic8_scalar(const float *values, const float midpoints[256], float reciprocal,
                                   uint8_t *codes, int64_t begin, int64_t n)
{
    for (int64_t i = begin; i < n; i++) codes[i] = nearest(midpoints, values[i] * reciprocal);
}

#if defined(__x86_64__)

/* The search of `nearest` in lanes: three steps by register lookups, five and the tie by gathers. */
NBL_TARGET_AVX2 static inline __m256i dynamic8_codes_avx2(const float *values, const float *m, __m256 factor)
{
    const __m256 third = _mm256_setr_ps(m[31], m[95], m[159], m[223], 0, 0, 0, 0);
    __m256 y = _mm256_mul_ps(_mm256_loadu_ps(values), factor);
    __m256 above = _mm256_cmp_ps(y, _mm256_set1_ps(m[127]), _CMP_GT_OQ);
    __m256 second = _mm256_blendv_ps(_mm256_set1_ps(m[63]), _mm256_set1_ps(m[191]), above);
    __m256i code = _mm256_and_si256(_mm256_castps_si256(above), _mm256_set1_epi32(2));
    code = _mm256_sub_epi32(code, _mm256_castps_si256(_mm256_cmp_ps(y, second, _CMP_GT_OQ)));
    __m256i step = _mm256_castps_si256(_mm256_cmp_ps(y, _mm256_permutevar8x32_ps(third, code), _CMP_GT_OQ));
    code = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_add_epi32(code, code), step), 5);
    for (int width = 16; width > 0; width /= 2) {
        __m256 next = _mm256_i32gather_ps(m + width - 1, code, 4);
        step = _mm256_castps_si256(_mm256_cmp_ps(y, next, _CMP_GT_OQ));
        code = _mm256_add_epi32(code, _mm256_and_si256(step, _mm256_set1_epi32(width)));
    }
    __m256i tie = _mm256_castps_si256(_mm256_cmp_ps(y, _mm256_i32gather_ps(m, code, 4), _CMP_EQ_OQ));
    code = _mm256_add_epi32(code, _mm256_and_si256(_mm256_and_si256(tie, code), _mm256_set1_epi32(1)));
    return _mm256_sub_epi32(code, _mm256_set1_epi32(128)); /* into the range of bytes_of_avx2 */
}

NBL_TARGET_AVX2 static int64_t encode_dynamic8_avx2(const float *values, const float midpoints[256],
                                                    float reciprocal, uint8_t *codes, int64_t n)
{
    const __m256 f = _mm256_set1_ps(reciprocal);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const float *v = values + i, *m = midpoints;
        __m256i bytes = bytes_of_avx2(dynamic8_codes_avx2(v, m, f), dynamic8_codes_avx2(v + 8, m, f),
                                      dynamic8_codes_avx2(v + 16, m, f), dynamic8_codes_avx2(v + 24, m, f));
        bytes = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), bytes);
    }
    return i;
}

/* ---- AVX-512: the search in registers; five gathers in a row would cost three times as much ---- */

/* Lanes of b where bit `bit` of the index is set, else of a. */
NBL_TARGET_AVX512 static inline __m512 choose_avx512(__m512i index, int bit, __m512 a, __m512 b)
{
    return _mm512_mask_blend_ps(_mm512_test_epi32_mask(index, _mm512_set1_epi32(1 << bit)), a, b);
}

/* table[index & 31], & 63, & 127 */
NBL_TARGET_AVX512 static inline __m512 lookup32_avx512(const float *table, __m512i index)
{
    return _mm512_permutex2var_ps(_mm512_loadu_ps(table), index, _mm512_loadu_ps(table + 16));
}
NBL_TARGET_AVX512 static inline __m512 lookup64_avx512(const float *table, __m512i index)
{
    return choose_avx512(index, 5, lookup32_avx512(table, index), lookup32_avx512(table + 32, index));
}
NBL_TARGET_AVX512 static inline __m512 lookup128_avx512(const float *table, __m512i index)
{
    return choose_avx512(index, 6, lookup64_avx512(table, index), lookup64_avx512(table + 64, index));
}

/* The mid-points as a search tree: node k has the children 2k and 2k + 1, the root is 1. */
static void make_tree(const float midpoints[256], float tree[256])
{
    tree[0] = 0;
    for (int width = 256, nodes = 1; nodes < 256; width /= 2, nodes *= 2)
        for (int i = 0; i < nodes; i++) tree[nodes + i] = midpoints[i * width + width / 2 - 1];
}

/* The search of `nearest` down the tree. The last mid-point that was not below is that of the tie. */
NBL_TARGET_AVX512 static inline __m512i dynamic8_codes_avx512(const float tree[256], __m512 y)
{
    __m512i node = _mm512_set1_epi32(1), one = node;
    __m512 not_below = _mm512_set1_ps(__builtin_nanf(""));
#define STEP(lookup)                                                                                         \
    do {                                                                                                     \
        __m512 middle = (lookup);                                                                            \
        __mmask16 above = _mm512_cmp_ps_mask(y, middle, _CMP_GT_OQ);                                         \
        not_below = _mm512_mask_mov_ps(middle, above, not_below);                                            \
        node = _mm512_add_epi32(node, node);                                                                 \
        node = _mm512_mask_add_epi32(node, above, node, one);                                                \
    } while (0)
    for (int level = 0; level < 4; level++) STEP(_mm512_permutexvar_ps(node, _mm512_loadu_ps(tree)));
    STEP(_mm512_permutexvar_ps(node, _mm512_loadu_ps(tree + 16)));
    STEP(lookup32_avx512(tree + 32, node));
    STEP(lookup64_avx512(tree + 64, node));
    STEP(lookup128_avx512(tree + 128, node));
#undef STEP
    __m512i code = _mm512_sub_epi32(node, _mm512_set1_epi32(256));
    __mmask16 tie = _mm512_cmp_ps_mask(y, not_below, _CMP_EQ_OQ);
    return _mm512_mask_add_epi32(code, tie, code, _mm512_and_si512(code, one));
}

NBL_TARGET_AVX512 static int64_t encode_dynamic8_avx512(const float *values, const float tree[256],
                                                        float reciprocal, uint8_t *codes, int64_t n)
{
    const __m512 factor = _mm512_set1_ps(reciprocal);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512i code = dynamic8_codes_avx512(tree, _mm512_mul_ps(_mm512_loadu_ps(values + i), factor));
        _mm_storeu_si128((__m128i *)(void *)(codes + i), _mm512_cvtepi32_epi8(code));
    }
    return i;
}

NBL_TARGET_AVX2 static int64_t decode_dynamic8_avx2(const uint8_t *codes, const float *map, float scale,
                                                    int64_t n, float *values)
{
    const __m256 factor = _mm256_set1_ps(scale);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i index = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(codes + i)));
        _mm256_storeu_ps(values + i, _mm256_mul_ps(_mm256_i32gather_ps(map, index, 4), factor));
    }
    return i;
}

#endif

void nbl__dynamic8_encode(nbl_isa isa, const float *map, int64_t block, const float *values, int64_t n,
                          uint8_t *codes, float *scales)
{
    float midpoints[256];
    make_midpoints(map, midpoints);
#if defined(__x86_64__)
    float tree[256];
    if (isa >= NBL_ISA_AVX512) make_tree(midpoints, tree);
#endif
    for (int64_t b = 0; b < n; b += block) {
        int64_t length = nbl__min_i64(block, n - b), non_finite = 0, done = 0;
        float absmax = nbl__absmax(isa, NBL_DTYPE_F32, values + b, length, &non_finite);
        if (absmax < FLT_MIN) { /* as in fourbit.c */
            *scales++ = 0;
            memset(codes + b, 0, (size_t)length);
            continue;
        }
        *scales++ = absmax;
#if defined(__x86_64__)
        if (isa >= NBL_ISA_AVX512)
            done = encode_dynamic8_avx512(values + b, tree, 1 / absmax, codes + b, length);
        else if (isa >= NBL_ISA_AVX2)
            done = encode_dynamic8_avx2(values + b, midpoints, 1 / absmax, codes + b, length);
#endif
        encode_dynamic8_scalar(values + b, midpoints, 1 / absmax, codes + b, done, length);
    }
}

void nbl__dynamic8_decode(nbl_isa isa, const float *map, int64_t block, const uint8_t *codes,
                          const float *scales, int64_t n, float *values)
{
    for (int64_t b = 0; b < n; b += block) {
        int64_t length = nbl__min_i64(block, n - b), i = 0;
        float scale = *scales++;
#if defined(__x86_64__)
        if (isa >= NBL_ISA_AVX2) i = decode_dynamic8_avx2(codes + b, map, scale, length, values + b);
#else
        (void)isa;
#endif
        for (; i < length; i++) values[b + i] = map[codes[b + i]] * scale;
    }
}
