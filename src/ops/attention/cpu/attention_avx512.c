/* attention_avx512.c - attention's tiles on AVX-512: attention_tile.inc with a micro-kernel of 8 x
 * 32. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <math.h>

#include "ops/attention/cpu/attention_tile.h"
#include "ops/attention/cpu/attention_vmath.h"

#define VEC __m512
#define TARGET NBL_TARGET_AVX512
#define NAME(x) x##_avx512
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define SET1 _mm512_set1_ps
#define ADD _mm512_add_ps
#define SUB _mm512_sub_ps
#define MUL _mm512_mul_ps
#define FMA _mm512_fmadd_ps
#define MAX _mm512_max_ps
#define EXP2 nbl__exp2_avx512
#define TANH nbl__tanh_avx512
#define SUM_OF _mm512_reduce_add_ps
#define MAX_OF _mm512_reduce_max_ps
#define FIRST_OF _mm512_cvtss_f32
enum { W = 16, ROWS = 8 };

NBL_TARGET_AVX512 static inline void store_sums(float *to, const __m512 *v)
{
    __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    __m512 all = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}
#define STORE_SUMS store_sums

#include "ops/attention/cpu/attention_tile.inc"

#endif
