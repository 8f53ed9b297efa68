/* attention_backward_scores.cuh - shared by both walks of backward for compute capability 9.0: from
 * scores to P and dS in registers. Internal to attention_backward_sm90.cu. */
#ifndef NBL_ATTENTION_BACKWARD_SCORES_CUH
#define NBL_ATTENTION_BACKWARD_SCORES_CUH

#include "ops/attention/cuda/attention_scheduler.cuh"

namespace nbl_cuda
{

/* s becomes P. With a cap s stays: the slope needs it too. `lse_of(n, e)` is the lse of s[n][e]. */
template <bool CAP, int N, typename Lse>
__device__ inline void make_weights(const attention_problem &p, float (&s)[N][4], Lse lse_of)
{
    if constexpr (!CAP) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[n][e] = weight_of<CAP>(p, s[n][e], lse_of(n, e));
    }
}
/* P of an element that make_weights has seen. */
template <bool CAP> __device__ inline float weight_again(const attention_problem &p, float s, float lse)
{
    return CAP ? weight_of<CAP>(p, s, lse) : s;
}

/* P as a left operand. */
template <typename T, bool CAP, int N, typename Lse>
__device__ inline void round_weights(const attention_problem &p, const float (&s)[N][4],
                                     uint32_t (&weights)[N / 2][4], Lse lse_of)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            weights[n / 2][n % 2 * 2 + half] = pair_of<T>(
                weight_again<CAP>(p, s[n][half * 2], lse_of(n, half * 2)),
                weight_again<CAP>(p, s[n][half * 2 + 1], lse_of(n, half * 2 + 1)));
}

/* dS / scale as a left operand, from s after make_weights and d = dP. wgmma_settle keeps the
 * compiler from rounding before all of d is final, so the operands can take the registers of d. */
template <typename T, bool CAP, int N, typename Lse, typename Delta>
__device__ inline void make_slopes(const attention_problem &p, const float (&s)[N][4], float (&d)[N][4],
                                   uint32_t (&slopes)[N / 2][4], Lse lse_of, Delta delta_of)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            d[n][e] = slope_of<CAP>(p, s[n][e], weight_again<CAP>(p, s[n][e], lse_of(n, e)),
                                    d[n][e] - delta_of(n, e));
    wgmma_settle(d);
    round_scores<T>(slopes, d);
}

/* sums += P · dP of this lane's two rows of queries. */
template <bool CAP, int N>
__device__ inline void add_sums(const attention_problem &p, const float (&s)[N][4], const float (&d)[N][4],
                                const float (&lse)[2], float (&sums)[2])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sums[e / 2] = fmaf(weight_again<CAP>(p, s[n][e], lse[e / 2]), d[n][e], sums[e / 2]);
}

} // namespace nbl_cuda
#endif
