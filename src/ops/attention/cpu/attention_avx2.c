/* attention_avx2.c - attention's tiles on AVX2: attention_tile.inc with a micro-kernel of 6 x 16. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <math.h>

#include "ops/attention/cpu/attention_tile.h"
#include "ops/attention/cpu/attention_vmath.h"

static inline NBL_TARGET_AVX2 float sum_of_avx2(__m256 v)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

static inline NBL_TARGET_AVX2 float max_of_avx2(__m256 v)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

#define VEC __m256
#define TARGET NBL_TARGET_AVX2
#define NAME(x) x##_avx2
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define SET1 _mm256_set1_ps
#define ADD _mm256_add_ps
#define SUB _mm256_sub_ps
#define MUL _mm256_mul_ps
#define FMA _mm256_fmadd_ps
#define MAX _mm256_max_ps
#define EXP2 nbl__exp2_avx2
#define TANH nbl__tanh_avx2
#define SUM_OF sum_of_avx2
#define MAX_OF max_of_avx2
#define FIRST_OF _mm256_cvtss_f32
enum { W = 8, ROWS = 6 };

static inline NBL_TARGET_AVX2 void store_sums(float *to, const __m256 *v)
{
    __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}
#define STORE_SUMS store_sums

#include "ops/attention/cpu/attention_tile.inc"

#endif
