/* attention.cuh - shared by all attention kernels: the problem, which positions see each other, and
 * the tiles of a pack of sequences. Internal to the CUDA kernels.
 *
 * The host knows neither how many sequences there are nor where they start. Tiles of TILE rows are
 * counted from the start of their sequence, so the bits of a sequence's results do not depend on
 * the sequences packed beside it. The slots of sequence s start at at[s] / TILE + s, which leaves
 * it at least as many slots as it has tiles. So T / TILE + S slots are enough for a launch, and a
 * slot finds its sequence by a search. A slot past the end of its sequence has no work.
 *
 *     at = 0, 70, 90; TILE = 64    slot 0, 1: sequence 0    slot 2: sequence 1 (70 / 64 + 1)
 *
 * Logits are kept in units of log 2: the softmax is 2^x. */
#ifndef NBL_ATTENTION_CUH
#define NBL_ATTENTION_CUH

#include "ops/common/kernel.cuh"

extern "C" {
#include "ops/attention/attention.h"
#include "ops/families.h"
}

namespace nbl_cuda
{

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

struct attention_problem {
    const int32_t *at; /* cu_seqlens */
    int sequences, tokens, heads, key_heads, group, size;
    int window, chunk; /* 0: none */
    bool causal;
    bool wide;    /* every row of a head starts at a multiple of 16 bytes */
    bool paired;  /* every row of a head starts at a multiple of 4 bytes */
    float factor; /* of q·k: scale · log2(e); with a cap: scale / cap */
    float cap;    /* cap · log2(e); 0: none */
    float scale;
    const void *sinks; /* NULL: none */
    nbl_dtype sinks_dtype;
    nbl__cuda_fault *fault;
};

/* The tensors of a call. Those of backward are NULL in forward. Steps are elements from a token to
 * the next; lse, out and dout are dense (out_step). */
struct attention_data {
    const void *q, *k, *v;
    void *out;
    float *lse; /* [T, Hq]; may be NULL */
    const void *dout;
    void *dq, *dk, *dv;  /* each may be NULL */
    float *lse2, *delta; /* [Hq, T]: lse in units of log 2, Σ dout · out */
    /* [Hq, T]: Σ P · dP, equal to delta but for the rounding of `out`; NULL: not wanted. */
    float *sums;
    int64_t q_step, k_step, v_step, dq_step, dk_step, dv_step;
};

/* The row stride of [tokens, heads, size]. One token has no next: its row stride may be anything,
 * also one that TMA refuses, so it is not used. */
static inline int64_t step_of(const nbl_tensor *t)
{
    return nbl__is_strided(t) ? t->row_stride : nbl__row_elements(t);
}

attention_problem attention_problem_of(const nbl__call *call, const nbl__attention *a);
attention_data attention_data_of(const nbl__attention *a);

/* The part of backward that all implementations share; see attention.cu. */
struct attention_rows {
    float *lse2, *delta, *sums; /* as in attention_data */
};
size_t attention_backward_scratch(const nbl_context *ctx, const void *arguments);
/* Places the rows in the call's scratch, unwritten, and sets the pointers of `data`. */
attention_rows attention_rows_of(const nbl__call *call, const nbl__attention *a, attention_data *data);
/* The same, and launches the kernel that writes lse2 and delta. */
attention_rows attention_rows_make(const nbl__call *call, const nbl__attention *a, const attention_problem &p,
                                   attention_data *data);
void attention_sinks_add(
    const nbl__call *call, const nbl__attention *a, const attention_problem &p,
    const attention_rows &rows); /* after rows.sums is written; does nothing if it is NULL */

#ifdef __CUDACC__

/* Elements from a token to the next of `out` and `dout`. */
__device__ inline int64_t out_step(const attention_problem &p)
{
    return static_cast<int64_t>(p.heads) * p.size;
}

/* 2^x by the hardware: relative error about 2^-22, denormals are flushed to 0. */
__device__ inline float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* tanh with an absolute error of a few 1e-7, which is enough for a logit. */
__device__ inline float fast_tanh(float x)
{
    return fmaf(-2.0f, __fdividef(1.0f, 1.0f + power_of_2(x * (2 * LOG2_E))), 1.0f);
}

/* ---- which positions see each other: [first, end), positions within a sequence of n ---- */

__device__ inline int first_key(const attention_problem &p, int i)
{
    if (p.causal) {
        int first = p.chunk > 0 ? i - i % p.chunk : 0;
        return p.window > 0 && i >= p.window ? max(first, i - p.window + 1) : first;
    }
    return p.window > 0 && i > p.window ? i - p.window : 0;
}
__device__ inline int end_key(const attention_problem &p, int i, int n)
{
    if (p.causal) return i + 1;
    return p.window > 0 && n - i - 1 > p.window ? i + p.window + 1 : n;
}
__device__ inline int first_query(const attention_problem &p, int j)
{
    return p.causal ? j : first_key(p, j);
}
__device__ inline int end_query(const attention_problem &p, int j, int n)
{
    if (p.causal) {
        int end = p.chunk > 0 ? min(n, j - j % p.chunk + min(p.chunk, n)) : n;
        return p.window > 0 && end - j > p.window ? j + p.window : end;
    }
    return end_key(p, j, n);
}

/* ---- the pack ---- */

struct attention_tile {
    int first; /* token at which the sequence starts */
    int n;     /* its length */
    int start; /* the tile's first row in it */
};

/* Finds the tile of a slot. False: no work. All lanes of a warp call it. Invalid cu_seqlens give a
 * wrong tile, but never one outside of the tensors: offsets are clamped. */
template <int TILE>
__device__ inline bool find_tile(const attention_problem &p, int slot, attention_tile *tile)
{
    int low = 0, high = p.sequences, lane = threadIdx.x % 32, first, end;
    if (p.sequences == 0) return false;
    if (high < 32) { /* all offsets in one load: every block waits for this latency */
        int at = lane <= high ? p.at[lane] : 0;
        low = __popc(__ballot_sync(WARP, lane == 0 || (lane < high && at / TILE + lane <= slot))) - 1;
        first = __shfl_sync(WARP, at, low);
        end = __shfl_sync(WARP, at, low + 1);
    } else {
        while (high - low > 1) {
            int step = (high - low + 31) / 32, middle = low + lane * step;
            bool before = lane == 0 || (middle < high && p.at[middle] / TILE + middle <= slot);
            low += (__popc(__ballot_sync(WARP, before)) - 1) * step;
            high = min(low + step, high);
        }
        first = p.at[low];
        end = p.at[low + 1];
    }
    first = min(max(first, 0), p.tokens);
    end = min(max(end, first), p.tokens);
    int64_t start = (static_cast<int64_t>(slot) - first / TILE - low) * TILE;
    *tile = {first, end - first, static_cast<int>(start)};
    return start >= 0 && start < end - first;
}

/* Reports offsets that decrease, or do not end at T. One block of a launch calls it. */
__device__ inline void check_sequences(const attention_problem &p)
{
    for (int s = threadIdx.x; s <= p.sequences; s += blockDim.x) {
        int32_t at = p.at[s];
        bool good = s == 0 ? at == 0 : at >= p.at[s - 1];
        if (s == p.sequences) good = good && at == p.tokens;
        if (!good) report_fault(p.fault, NBL_CUDA_FAULT_SEQUENCES, s, at);
    }
}

/* The sink of a head, in units of log 2; -inf without sinks. */
__device__ inline float sink_of(const attention_problem &p, int head)
{
    if (p.sinks == nullptr) return -INFINITY;
    float sink = p.sinks_dtype == NBL_DTYPE_F32   ? static_cast<const float *>(p.sinks)[head]
                 : p.sinks_dtype == NBL_DTYPE_F16 ? to_f32(static_cast<const __half *>(p.sinks)[head])
                                                  : to_f32(static_cast<const __nv_bfloat16 *>(p.sinks)[head]);
    return sink * LOG2_E;
}

#endif

} // namespace nbl_cuda
#endif
