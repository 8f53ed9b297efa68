/* gemm_lowrank_sm90.cu - host code of gemm_lowrank_sm90.h, and `gather`, which adds the partial
 * sums of the blocks.
 *
 *     scratch         outer [shares, columns of all parts, rank_padded] f32, then
 *                     projected [column blocks, rows, rank_padded] f32
 *     lowrank_boxes   grid (column blocks, shares of rows): writes both arrays
 *     gather          to = scale · Σ over column blocks,  gradient (+)= Σ over shares
 *
 * Both launches are dependent launches. */
#include "ops/gemm/cuda/gemm_lowrank_sm90_kernel.cuh"
#include "ops/gemm/cuda/tensor_map.cuh"

using namespace nbl_lowrank;

namespace
{

/* ---- adding partial sums ---- */

/* One sum of gather: `summands` matrices of `lines` lines of `rank_padded` values, of which columns first
 * … first + rank - 1 are wanted. The result goes to `gradient`, or rounded to `to`. */
struct addition {
    const float *from;
    int64_t lines, apart; /* apart: stride from one summand to the next, in elements */
    int32_t summands, first, rank;
    float scale;
    float *gradient; /* NULL: the result goes to `to` */
    __nv_bfloat16 *to;
    int64_t to_ld;
    bool transposed, accumulate;
    int64_t end_block; /* its blocks end before this one */
};
struct gather_job {
    addition list[2 * NBL_MAX_GEMM_LOWRANK_PARTS];
    int rank_padded;
};
/* GATHER_WIDE: floats from line to line in shared memory. GATHER_MANY: blocks that fill the
 * device. */
constexpr int GATHER_THREADS = 256, GATHER_LINES = 64, GATHER_WIDE = 49, GATHER_MANY = 256;

/* Adds the partial sums, 64 lines per block. A few blocks would leave memory idle: then a block has
 * 16 lines, and 4 threads (SHARERS) share the summands of a value.
 *
 *     float4 of 8 summands in flight per thread → shared memory
 *     __syncthreads
 *     the sums of the sharers in their order → scale and round, or (+)= in f32
 *
 * Threads read along lines and write along lines or, for a transposed gradient, along columns:
 * shared memory changes the order. Bytes: the partial sums once. Limit: memory. */
template <int SHARERS>
__global__ void __launch_bounds__(GATHER_THREADS)
    gather(nbl_cuda::dependent, const __grid_constant__ gather_job j)
{
    constexpr int LINES = GATHER_LINES / SHARERS, APART = LINES * GATHER_WIDE,
                  EACH = GATHER_THREADS / SHARERS;
    __shared__ float sums[SHARERS * APART];
    nbl_cuda::wait_for_previous_kernel();
    nbl_cuda::allow_dependent_launch();
    int which = 0;
    while (blockIdx.x >= j.list[which].end_block) which++;
    const addition &p = j.list[which];
    int64_t first = (blockIdx.x - (which > 0 ? j.list[which - 1].end_block : 0)) * LINES;
    int quarters = (p.rank + 3) / 4; /* of float4; rank_padded is a multiple of 16 */
    int sharer = threadIdx.x / EACH, share = (p.summands + SHARERS - 1) / SHARERS;
    int begin = sharer * share, end = min(begin + share, p.summands);
    for (int i = threadIdx.x % EACH; i < LINES * quarters; i += EACH) {
        int l = i / quarters, r = i % quarters * 4;
        float4 sum = make_float4(0, 0, 0, 0);
        if (first + l < p.lines) {
            const float *at = p.from + (first + l) * j.rank_padded + p.first + r;
#pragma unroll 8
            for (int s = begin; s < end; s++) {
                float4 one = *reinterpret_cast<const float4 *>(at + s * p.apart);
                sum.x += one.x, sum.y += one.y, sum.z += one.z, sum.w += one.w;
            }
        }
        float *to = sums + sharer * APART + l * GATHER_WIDE + r;
        to[0] = sum.x, to[1] = sum.y, to[2] = sum.z, to[3] = sum.w;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < LINES * p.rank; i += GATHER_THREADS) {
        int r = p.transposed ? i / LINES : i % p.rank, l = p.transposed ? i % LINES : i / p.rank;
        if (first + l >= p.lines) continue;
        float sum = 0;
#pragma unroll
        for (int s = 0; s < SHARERS; s++) sum += sums[s * APART + l * GATHER_WIDE + r];
        if (p.gradient == NULL) {
            p.to[(first + l) * p.to_ld + r] = __float2bfloat16_rn(sum * p.scale);
            continue;
        }
        float *at = p.gradient + (p.transposed ? r * p.lines + first + l : (first + l) * p.rank + r);
        *at = p.accumulate ? *at + sum : sum;
    }
}

/* ---- host ---- */

int64_t whole(int64_t size, int64_t part)
{
    return (size + part - 1) / part;
}

/* Pairs of boxes per line that registers (outer sums) and shared memory (a) have room for. */
constexpr int max_pairs(int64_t rank_padded)
{
    return rank_padded == 16 ? 8 : 4;
}

/* How a call is divided: pairs of boxes per block, column blocks, and shares of `share` lines of 64
 * rows. */
struct plan {
    int64_t pairs, blocks, share, shares, lines, columns;
    size_t projected, outer; /* bytes */
    size_t scratch;          /* for these rows or fewer */
};

/* The plan with `pairs` pairs of boxes per block. */
plan plan_with(const nbl__cuda *cuda, const nbl__gemm_lowrank *s, int64_t rows, int64_t pairs)
{
    plan p = {};
    p.pairs = pairs, p.lines = whole(rows, SIDE);
    for (int i = 0; i < s->count; i++) {
        p.blocks += whole(s->parts[i].columns, 2 * pairs * SIDE);
        p.columns += s->parts[i].columns;
    }
    int64_t max = cuda->multiprocessors > p.blocks ? cuda->multiprocessors / p.blocks : 1;
    p.share = whole(p.lines, max);
    p.shares = p.share > 0 ? whole(p.lines, p.share) : 0;
    size_t line = static_cast<size_t>(p.columns * s->rank_padded) * 4;
    p.projected = s->rank_padded > 32 ? 0 : static_cast<size_t>(p.blocks * rows * s->rank_padded) * 4;
    p.outer = static_cast<size_t>(p.shares) * line;
    p.scratch = p.projected + static_cast<size_t>(p.lines < max ? p.lines : max) * line;
    return p;
}

/* Chooses the columns per block that minimise the bytes moved for MANY rows, with all multiprocessors busy. The choice
 * does not depend on the actual rows: fewer rows must never need more scratch. */
plan plan_of(const nbl__cuda *cuda, const nbl__gemm_lowrank *s)
{
    constexpr int64_t MANY = 8192;
    int64_t best = 1;
    double min = INFINITY;
    for (int64_t pairs = 1; pairs <= max_pairs(s->rank_padded); pairs++) {
        plan p = plan_with(cuda, s, MANY, pairs);
        double rounds = static_cast<double>(whole(p.blocks * p.shares, cuda->multiprocessors)),
               time = rounds * static_cast<double>(p.share * pairs * STAGE) * cuda->multiprocessors +
                      2 * static_cast<double>(p.projected + p.outer);
        if (time < min) min = time, best = pairs;
    }
    return plan_with(cuda, s, s->rows, best);
}

/* The widest instance serves every plan of this WIDE: blocks with fewer pairs stop early. */
template <int WIDE, bool PROJECTS> void launch(const nbl__call *call, const lowrank_job &job, dim3 grid)
{
    constexpr int PAIRS = max_pairs(WIDE), BYTES = room<WIDE, PAIRS, PROJECTS>::BYTES;
    auto kernel = lowrank_boxes<WIDE, PAIRS, PROJECTS>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    nbl_cuda::launch_dependent(kernel, grid, THREADS, BYTES, 1, nbl_cuda::stream_of(call), job);
}

bool fits(const void *data)
{
    return nbl_cuda::is_aligned(data, 16);
}

} // namespace

extern "C" bool nbl__gemm_lowrank_can(const nbl__cuda *cuda, const nbl__gemm_lowrank *s)
{
    if (cuda->major != 9 || (s->rank_padded != 16 && s->rank_padded != 32 && (s->rank_padded != 48 || s->to))) return false;
    if (s->rows > INT32_MAX / 2 || s->to_ld % 8 != 0 || s->v_ld % 8 != 0 || !fits(s->to) || !fits(s->v))
        return false;
    for (int i = 0; i < s->count; i++) {
        const nbl__gemm_lowrank_part *part = &s->parts[i];
        if (part->columns == 0 || part->columns > INT32_MAX / 8 || part->columns % 8 != 0 || !fits(part->z) ||
            !fits(part->a) || part->first % 8 != 0 || part->v_first % 8 != 0)
            return false;
    }
    return s->count > 0 && s->gradient_count > 0;
}

extern "C" size_t nbl__gemm_lowrank_scratch(const nbl__cuda *cuda, const nbl__gemm_lowrank *s)
{
    return plan_of(cuda, s).scratch;
}

extern "C" nbl_status nbl__gemm_lowrank_run(const nbl__call *call, const nbl__gemm_lowrank *s, void *scratch)
{
    if (s->rows == 0) return NBL_OK;
    map_encoder encode = find_encoder(nbl__call_cuda(call));
    NBL_CHECK(call->ctx, encode != NULL, NBL_ERROR_UNSUPPORTED,
              "%s: the driver has no cuTensorMapEncodeTiled", call->op);
    plan plan = plan_of(nbl__call_cuda(call), s);
    lowrank_job job = {};
    gather_job sums = {};
    int additions = 0;
    int64_t blocks = 0, column = 0;
    bool good = describe(encode, &job.v, NBL_DTYPE_BF16, s->v, s->rows, s->v_ld, s->v_ld, SIDE);
    job.count = s->count;
    job.pairs = static_cast<int32_t>(plan.pairs);
    job.lines = static_cast<int32_t>(plan.lines);
    job.share = static_cast<int32_t>(plan.share);
    job.rows = s->rows, job.columns = plan.columns;
    job.outer = static_cast<float *>(scratch);
    job.projected = s->to ? static_cast<float *>(scratch) + plan.outer / 4 : NULL;
    sums.rank_padded = static_cast<int>(s->rank_padded);
    for (int i = 0; i < s->count; i++) {
        const nbl__gemm_lowrank_part *part = &s->parts[i];
        int64_t across = whole(part->columns, 2 * plan.pairs * SIDE);
        job.layouts[i] = {static_cast<int32_t>(blocks), static_cast<int32_t>(column),
                         static_cast<int32_t>(whole(part->columns, SIDE)),
                         static_cast<int32_t>(part->v_first)};
        good = good && describe(encode, &job.z[i], NBL_DTYPE_BF16, part->z, s->rows, part->columns,
                                part->columns, SIDE);
        if (s->to) {
            good = good && describe(encode, &job.a[i], NBL_DTYPE_BF16, part->a, s->rank_padded, part->columns,
                                    part->columns, static_cast<int>(s->rank_padded));
            addition *add = &sums.list[additions++];
            add->from = job.projected + blocks * s->rows * s->rank_padded;
            add->lines = s->rows, add->apart = s->rows * s->rank_padded;
            add->summands = static_cast<int32_t>(across);
            add->rank = static_cast<int32_t>(s->rank_padded);
            add->scale = part->scale;
            add->to = static_cast<__nv_bfloat16 *>(s->to) + part->first, add->to_ld = s->to_ld;
        }
        blocks += across;
        column += part->columns;
    }
    NBL_CHECK(call->ctx, good, NBL_ERROR_INTERNAL, "%s: the driver cannot describe these matrices", call->op);
    for (int i = 0; i < s->gradient_count; i++) {
        const nbl__gemm_lowrank_gradient *g = &s->gradients[i];
        addition *add = &sums.list[additions++];
        add->from = job.outer + job.layouts[g->part].first_column * s->rank_padded;
        add->lines = s->parts[g->part].columns, add->apart = plan.columns * s->rank_padded;
        add->summands = static_cast<int32_t>(plan.shares);
        add->first = static_cast<int32_t>(g->first), add->rank = static_cast<int32_t>(g->rank);
        add->gradient = g->to, add->transposed = g->transposed, add->accumulate = g->accumulate;
    }
    int64_t gathered = 0;
    for (int i = 0; i < additions; i++) gathered += whole(sums.list[i].lines, GATHER_LINES);
    auto add_up = gathered < GATHER_MANY ? gather<4> : gather<1>;
    int64_t lines = gathered < GATHER_MANY ? GATHER_LINES / 4 : GATHER_LINES;
    gathered = 0;
    for (int i = 0; i < additions; i++) sums.list[i].end_block = gathered += whole(sums.list[i].lines, lines);
    dim3 grid(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.shares));
    if (s->rank_padded == 16) (s->to ? launch<16, true> : launch<16, false>)(call, job, grid);
    else if (s->rank_padded == 32) (s->to ? launch<32, true> : launch<32, false>)(call, job, grid);
    else launch<48, false>(call, job, grid);
    nbl_cuda::launch_dependent(add_up, dim3(static_cast<unsigned>(gathered)), GATHER_THREADS, 0, 1,
                           nbl_cuda::stream_of(call), sums);
    return nbl_cuda::launched(call);
}
