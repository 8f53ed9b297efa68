/* hopper_results.cuh - what the kernel of hopper_kernel.cuh does with the sums of a tile. Internal to hopper_sm90.cu.
 *
 * Of a warpgroup's 64 rows a thread has row lane / 4 of its warp's 16 and the one 8 below, and of every 8 columns the two
 * from lane % 4 · 2. 64 columns are one box of 16 bits: 32 values v[4·j + 2·below + right], or 16 words of two of them.
 * What is read here (old; gate and up) was sent for when the tile began, and comes from the L2. */
#ifndef NBL_CUDA_HOPPER_RESULTS_CUH
#define NBL_CUDA_HOPPER_RESULTS_CUH

#include "ops/cuda/hopper_mma.cuh"
#include "ops/cuda/kernel.cuh"

extern "C" {
#include "ops/cuda/hopper.h"
}

namespace nbl_hopper
{

constexpr int BM = 128, BK = 64, LINE = 128, BOX_LINES = 64, BOX = LINE * BOX_LINES;
constexpr int COUNTERS = 2, THREADS = 128 * (1 + COUNTERS);
constexpr int NOWHERE = 1 << 30; /* a column that no matrix has */

/* Columns of the result that a tile of BN columns of b makes. */
template <int BN, int KIND> constexpr int COLUMNS = KIND == NBL_HOPPER_GATED ? BN / 2 : BN;

/* Everything a launch needs, by value. */
struct job {
    CUtensorMap a[NBL_HOPPER_SOURCES];
    CUtensorMap b[NBL_HOPPER_SOURCES][2];  /* of the left and the right half of a tile */
    CUtensorMap result[NBL_HOPPER_PARTS];  /* c of every part; or c, gate and up, or c and their gradients */
    CUtensorMap input[2];                  /* old; or gate and up */
    int32_t steps[NBL_HOPPER_SOURCES + 1]; /* of BK values of k */
    int32_t tail[NBL_HOPPER_SOURCES];      /* how many times 16 of them the last step has */
    bool has_b[NBL_HOPPER_SOURCES][2], has_result[NBL_HOPPER_PARTS];
    bool wide; /* f32: plain: c and old; else gate and up */
    int32_t first_source[NBL_HOPPER_PARTS + 1], all_steps[NBL_HOPPER_PARTS]; /* of each part */
    int32_t parts, first_right[NBL_HOPPER_PARTS + 1]; /* the part's first unit to the right */
    int32_t inputs, units_down, group, lag;
    int32_t act;
    float beta;
    const void *from[2]; /* the inputs */
    int64_t ld_from, m, n;
};

/* ---- out ---- */

__device__ inline uint32_t two_of(float a, float b, __half)
{
    __half2 both = __floats2half2_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&both);
}
__device__ inline uint32_t two_of(float a, float b, __nv_bfloat16)
{
    __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&both);
}

template <typename T> __device__ inline void pack(const float (&v)[32], uint32_t (&words)[16])
{
#pragma unroll
    for (int i = 0; i < 16; i++) words[i] = two_of(v[2 * i], v[2 * i + 1], T());
}

__device__ inline void fill_box(uint32_t box, const uint32_t (&words)[16])
{
    int lane = threadIdx.x % 32, line = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        uint32_t to = box + line * LINE + ((j + lane / 16) ^ (line % 8)) * 16;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                     "r"(words[2 * j]), "r"(words[2 * j + 1]), "r"(words[2 * j + 2]), "r"(words[2 * j + 3])
                     : "memory");
    }
}
/* 32 of the 64 columns, as f32. */
template <int FIRST> __device__ inline void fill_box_f32(uint32_t box, const float (&v)[32])
{
    int lane = threadIdx.x % 32, line = threadIdx.x / 32 % 4 * 16 + lane / 4, pair = lane % 4;
    for (int j = 0; j < 4; j++)
        for (int below = 0; below < 2; below++) {
            int place = line + 8 * below, i = FIRST / 2 + 4 * j + 2 * below;
            uint32_t to = box + place * LINE + ((2 * j + pair / 2) ^ (place % 8)) * 16 + pair % 2 * 8;
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v[i]), "f"(v[i + 1]) : "memory");
        }
}

/* A warpgroup's way out: boxes that take turns. */
template <int BUFFERS> struct way_out {
    uint32_t boxes;
    int next, number; /* number: of the warpgroup's barrier */
    bool leads;

    template <typename F> __device__ inline void send(const CUtensorMap *map, int column, int row, F fill)
    {
        if (leads) stores_read<BUFFERS - 1>();
        warpgroup_sync(number);
        uint32_t box = boxes + next * BOX;
        fill(box);
        written_for_copies();
        warpgroup_sync(number);
        if (leads) store_box(map, column, row, box);
        next = next + 1 == BUFFERS ? 0 : next + 1;
    }
    __device__ inline void send_words(const CUtensorMap *map, int column, int row,
                                      const uint32_t (&words)[16])
    {
        send(map, column, row, [&](uint32_t box) { fill_box(box, words); });
    }
    template <typename T>
    __device__ inline void send_values(const CUtensorMap *map, bool wide, int column, int row,
                                       const float (&v)[32])
    {
        if (wide) {
            send(map, column, row, [&](uint32_t box) { fill_box_f32<0>(box, v); });
            send(map, column + 32, row, [&](uint32_t box) { fill_box_f32<32>(box, v); });
            return;
        }
        uint32_t words[16];
        pack<T>(v, words);
        send_words(map, column, row, words);
    }
};

/* ---- in ---- */

/* Where a thread's values of 64 columns begin, and which of them there are; n is a multiple of 8. */
struct place {
    int64_t x, y;
    __device__ inline place(int column, int row)
    {
        int lane = threadIdx.x % 32;
        x = column + lane % 4 * 2;
        y = row + threadIdx.x / 32 % 4 * 16 + lane / 4;
    }
    /* The i-th two of them: values, from the first; or -1. */
    __device__ inline int64_t of_two(const job &p, int i) const
    {
        int right = i / 2 * 8, below = i % 2 * 8;
        return x + right < p.n && y + below < p.m ? (y + below) * p.ld_from + x + right : -1;
    }
};

/* Inputs of 16 bits are on their way while the 64 columns before them are worked on. */
struct ahead {
    uint32_t words[2][16];

    __device__ inline void load(const job &p, int column, int row)
    {
        place at(column, row);
#pragma unroll
        for (int input = 0; input < 2; input++) {
            if (input >= p.inputs) continue;
#pragma unroll
            for (int i = 0; i < 16; i++) {
                int64_t two = at.of_two(p, i);
                words[input][i] = two < 0 ? 0 : static_cast<const uint32_t *>(p.from[input])[two / 2];
            }
        }
    }
};

/* The i-th two of an input. */
template <typename T>
__device__ inline float2 input_of(const job &p, const ahead &next, const place &at, int input, int i)
{
    if (p.wide) {
        int64_t two = at.of_two(p, i);
        if (two < 0) return make_float2(0, 0);
        return *reinterpret_cast<const float2 *>(static_cast<const float *>(p.from[input]) + two);
    }
    T both[2];
    memcpy(both, &next.words[input][i], 4);
    return make_float2(nbl_cuda::to_f32(both[0]), nbl_cuda::to_f32(both[1]));
}

/* ---- between ---- */

/* act(x) = x·share, and how that changes with x. By the hardware's exponential, good to a few units of f32's last
 * place: the results have 16 bits. */
__device__ inline float share_of(int act, float x, float *slope)
{
    if (act == NBL_ACT_GELU) {
        float share = 0.5f + 0.5f * erff(x * 0.70710678118654752f);
        *slope = fmaf(x * 0.3989422804014327f, __expf(-0.5f * x * x), share);
        return share;
    }
    /* Sigmoid of x, or of twice what the tanh is taken of. */
    float y = x, change = 1;
    if (act == NBL_ACT_GELU_TANH) {
        float square = 0.044715f * x * x;
        y = 1.5957691216057308f * fmaf(square, x, x);
        change = 1.5957691216057308f * fmaf(3.0f, square, 1.0f);
    }
    float share = __fdividef(1.0f, 1.0f + __expf(-y));
    *slope = fmaf(x * change * share, 1.0f - share, share);
    return share;
}

/* c = act(gate)·up, and the sums themselves. */
template <typename T, int BN, int BUFFERS>
__device__ inline void send_gated(const job &p, way_out<BUFFERS> &out, int column, int row, int x,
                                  float (&sums)[BN / 2])
{
    float gate[32], up[32], unused;
#pragma unroll
    for (int i = 0; i < 32; i++) gate[i] = sums[x / 2 + i], up[i] = sums[BN / 4 + x / 2 + i];
    if (p.has_result[1]) out.template send_values<T>(&p.result[1], p.wide, column, row, gate);
    if (p.has_result[2]) out.template send_values<T>(&p.result[2], p.wide, column, row, up);
#pragma unroll
    for (int i = 0; i < 32; i++) gate[i] = gate[i] * share_of(p.act, gate[i], &unused) * up[i];
    out.template send_values<T>(&p.result[0], false, column, row, gate);
}

/* The sums are the gradient of act(gate)·up. */
template <typename T, int BN, int BUFFERS>
__device__ inline void send_gradients(const job &p, way_out<BUFFERS> &out, int column, int row, int x,
                                      ahead &next, float (&sums)[BN / 2])
{
    uint32_t product[16], of_gate[16], of_up[16];
    place at(column, row);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float2 gate = input_of<T>(p, next, at, 0, i), up = input_of<T>(p, next, at, 1, i), slope;
        float first = sums[x / 2 + 2 * i], second = sums[x / 2 + 2 * i + 1];
        gate.x *= share_of(p.act, gate.x, &slope.x);
        gate.y *= share_of(p.act, gate.y, &slope.y);
        product[i] = two_of(gate.x * up.x, gate.y * up.y, T());
        of_gate[i] = two_of(first * up.x * slope.x, second * up.y * slope.y, T());
        of_up[i] = two_of(first * gate.x, second * gate.y, T());
    }
    if (x + 64 < BN && !p.wide) next.load(p, column + 64, row);
    if (p.has_result[0]) out.send_words(&p.result[0], column, row, product);
    out.send_words(&p.result[1], column, row, of_gate);
    out.send_words(&p.result[2], column, row, of_up);
}

template <typename T, int BN, int KIND, int BUFFERS>
__device__ inline void send_tile(const job &p, way_out<BUFFERS> &out, int part, int column, int row,
                                 ahead &next, float (&sums)[BN / 2])
{
#pragma unroll
    for (int x = 0; x < COLUMNS<BN, KIND>; x += 64) {
        if constexpr (KIND == NBL_HOPPER_GATED) {
            send_gated<T, BN>(p, out, column + x, row, x, sums);
        } else if constexpr (KIND == NBL_HOPPER_GATED_BACKWARD) {
            send_gradients<T, BN>(p, out, column + x, row, x, next, sums);
        } else {
            float v[32];
            place at(column + x, row);
#pragma unroll
            for (int i = 0; i < 32; i++) v[i] = sums[x / 2 + i];
            if (p.inputs > 0) {
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    float2 old = input_of<T>(p, next, at, 0, i);
                    v[2 * i] = fmaf(p.beta, old.x, v[2 * i]);
                    v[2 * i + 1] = fmaf(p.beta, old.y, v[2 * i + 1]);
                }
                if (x + 64 < BN && !p.wide) next.load(p, column + x + 64, row);
            }
            out.template send_values<T>(&p.result[part], p.wide, column + x, row, v);
        }
    }
}

} // namespace nbl_hopper
#endif
