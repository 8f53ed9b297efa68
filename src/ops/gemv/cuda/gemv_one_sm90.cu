/* gemv_one_sm90.cu - one row of x times 4-bit weights that share it: see gemv_cuda.h. Most of the time of generation.
 *
 * Codes come through a ring in shared memory and a table of pairs, as in gemv.cu. The differences use that x has one row,
 * and shorten a chain of short kernels:
 *
 *   product    mma.m16n8k16 has 8 columns for x. Each of four granules of 64 columns takes one of them, and again one of
 *              the other four. The codes of granule k are multiplied with all 8 columns, and only column k (or k + 4) is
 *              used: that is cheaper than to zero the others. Lane 4g + t then has the sums of granules 2(t % 2) and
 *              2(t % 2) + 1 of row g (t < 2) or g + 8 (t >= 2): two scales and two fma per 256 columns, no shuffles
 *   group      up to four weights in one launch. A tile of 16 rows belongs to one weight. `gated`: a tile is 8 rows of
 *              the first weight and 8 of the second, and y = act(first)·second
 *   dependent  the ring is filled before x is there (dependent_launch.cuh). Codes are in registers when their slot is
 *              filled again: RING steps of 2 KB are in flight for each of 16 warps of a multiprocessor
 *   x          each warp keeps its part in shared memory, up to 8192 columns. Loading it in every step, through the
 *              L1 cache like the nested scales, would take a tenth of the time of a large weight
 *   norm       x may be the result of an rmsnorm (with residual). Every block computes it in registers; block 0 stores it
 *   share      if there are few tiles with many columns, two blocks (a cluster) share a tile
 *   loose      warps do not wait for each other. A warp's sums of a tile go to one of SUM_SLOTS slots. The warps take
 *              turns to add the slots, one tile later
 *
 * Sums are f32 in the order of the warps: the same input gives the same bits. Limit for large weights: lookups and
 * instructions, at 92 % of a copy's speed with flat scales and 83 % with nested ones. For small weights: the latency of
 * the kernel, 2 µs. */
#include "ops/elementwise/act.cuh"
#include "ops/gemv/cuda/gemv_one_sm90.cuh"

using namespace nbl_cuda;

namespace
{

/* Fills the tables. They depend on nothing that a kernel writes. `entries`: one table entry of each weight's nested
 * scales. */
template <typename T, bool NESTED>
__device__ inline void make_tables(const one_job &j, uint8_t *shared, const float *entries)
{
    typedef one_layout<NESTED> in;
    int lane = threadIdx.x % 32;
    packed p; /* only its table is used */
#pragma unroll
    for (int i = 0; i < 16; i++) p.table[i] = j.table[i];
    uint32_t both = pair_of<T>(j.table[threadIdx.x >> 4], table_entry(p, lane));
#pragma unroll
    for (int i = 0; i < 8; i++) /* lanes start at different banks */
        *reinterpret_cast<uint4 *>(shared + threadIdx.x * in::PITCH +
                                   (i + lane) % 8 * 16) = make_uint4(both, both, both, both);
    if constexpr (NESTED) {
        float *tables = reinterpret_cast<float *>(shared + in::TABLES);
#pragma unroll
        for (int i = 0; i < MAX; i++)
            if (i < j.count) tables[i * 256 + threadIdx.x] = entries[i];
    }
}

/* The sum of a row of W, plus its bias if there is one. */
__device__ inline float with_bias(const one_weight &w, int row, float sum)
{
    if (w.bias == nullptr) return sum;
    return __fadd_rn(sum, load_one(w.bias, static_cast<nbl_dtype>(w.bias_dtype), row));
}

/* A warp adds the sums of a tile in the order of the warps, applies bias or activation, and stores y. Lanes 16 … 31
 * repeat lanes 0 … 15. */
template <typename T>
__device__ inline void finish_tile(const one_job &j, const float *all, int workers, int tile, int lane)
{
    int row = lane % TILE;
    float parts[SHARERS * WARPS], sum = 0;
#pragma unroll
    for (int w = 0; w < SHARERS * WARPS; w++) parts[w] = w < workers ? all[w * TILE + row] : 0;
#pragma unroll
    for (int w = 0; w < SHARERS * WARPS; w++) sum = __fadd_rn(sum, parts[w]);
    row_layout p = layout_of(j, tile, row / 8);
    int at = p.row + row % 8;
    sum = with_bias(j.at[p.member], at, sum);
    if (j.gated) {
        float slope, second = __shfl_down_sync(ALL, sum, 8);
        sum = second * (j.act == NBL_ACT_SILU   ? activation<NBL_ACT_SILU, true>(sum, &slope)
                        : j.act == NBL_ACT_GELU ? activation<NBL_ACT_GELU, true>(sum, &slope)
                                                : activation<NBL_ACT_GELU_TANH, true>(sum, &slope));
    }
    if (lane < (j.gated ? 8 : int{TILE})) static_cast<T *>(j.at[p.member].y)[at] = narrow<T>(sum);
}

/* The kernel: two blocks of 8 warps per multiprocessor, persistent. A group is one block, or a
 * cluster of two that share their tiles; group i has tiles i, i + groups, … A worker (warp of a
 * group) has its share of the columns of every tile, in steps of 256.
 *
 *     before the wait   fill the ring; tables; barriers; prefetch the norm's weight
 *     wait              x and the norm's inputs are complete
 *     x                 norm, or copy to shared memory
 *     for each tile     for each step: codes and scales → registers, refill the slot, products
 *                       sum → slot n % SUM_SLOTS; one warp in turn finishes tile n - 1
 *
 * Barriers, for each slot of sums: `full` completes when all 8 warps of block 0 have arrived and
 * the bytes of the other block are there. `empty` completes when the slot has been added. Block 1
 * sends at most SUM_SLOTS tiles, so it never needs an empty slot again. The block that adds waits
 * for the last sums of its partner, and the partner's memory is not written after the norm. */
template <typename T, bool NESTED>
__global__ void __launch_bounds__(THREADS, 2) gemv_one(dependent, const __grid_constant__ one_job j)
{
    typedef one_layout<NESTED> in;
    extern __shared__ __align__(256) uint8_t shared[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int sharers = j.shared_tiles ? SHARERS : 1, rank = j.shared_tiles ? cluster_rank() : 0;
    int worker = rank * WARPS + warp, workers = sharers * WARPS, steps = j.columns / STEP_COLUMNS;
    int first_step = worker * steps / workers, end_step = (worker + 1) * steps / workers;
    int groups = gridDim.x / sharers, first_tile = blockIdx.x / sharers;
    float entries[MAX];
    if constexpr (NESTED) /* loaded before the ring: else these loads would queue behind it */
#pragma unroll
        for (int i = 0; i < MAX; i++)
            if (i < j.count) entries[i] = __ldg(j.at[i].table + threadIdx.x);
    one_loader<NESTED> ahead;
    ahead.begin(j, shared, first_tile, first_step, end_step, warp, lane);
#pragma unroll
    for (int i = 0; i < RING; i++) ahead.load(j, groups, lane, i);
    allow_dependent_launch();
    make_tables<T, NESTED>(j, shared, entries);
    uint64_t *full = reinterpret_cast<uint64_t *>(shared + in::BARRIERS), *empty = full + SUM_SLOTS;
    if (threadIdx.x < SUM_SLOTS) {
        make_barrier(full + threadIdx.x, WARPS);
        make_barrier(empty + threadIdx.x, 1);
        if (threadIdx.x == 0) make_barrier(empty + SUM_SLOTS, WARPS); /* the norm's */
    }
    __syncthreads();
    if (j.shared_tiles) {
        arrive_at_cluster();
        await_cluster();
    }
    int my_steps = end_step - first_step;
    bool x_is_shared = steps <= SHARED_STEPS * workers; /* the warp's part of x fits in shared memory */
    if (j.norm.w && threadIdx.x * 64 < j.columns)
        asm volatile(
            "prefetch.global.L2 [%0];" ::"l"(static_cast<const char *>(j.norm.w) + threadIdx.x * 128));
    wait_for_previous_kernel();
    if (j.norm.w) {
        int my_column = first_step * STEP_COLUMNS + g % 4 * GRANULE + 16 * t;
        one_row<T> row;
        row.load(j.x, my_column, my_steps);
        row.normalize(j, reinterpret_cast<float *>(shared + in::SQUARES), empty + SUM_SLOTS, my_column,
                      my_steps, worker, workers, g < 4, first_tile == 0 && g < 4);
#pragma unroll
        for (int i = 0; i < REGISTER_STEPS; i++)
#pragma unroll
            for (int p = 0; p < 2; p++)
                if (i < my_steps && g < 4)
                    *reinterpret_cast<uint4 *>(in::x_at(shared, warp, i * 4 + g, 2 * t + p)) = row.at[i][p];
    } else if (x_is_shared) {
        const T *from = static_cast<const T *>(j.x) + first_step * STEP_COLUMNS + lane * 8;
#pragma unroll
        for (int i = 0; i < SHARED_STEPS; i++)
            if (i < my_steps)
                *reinterpret_cast<uint4 *>(in::x_at(shared, warp, i * 4 + lane / 8, lane % 8)) = read_written(
                    from + i * STEP_COLUMNS);
    }
    __syncwarp();

    const uint8_t *my_shared = in::x_at(shared, warp, g % 4, 2 * t);
    const T *my_x = static_cast<const T *>(j.x) + g % 4 * GRANULE + 16 * t;
    const uint8_t *my_codes = shared + (warp * TILE + g) * in::PITCH + t * 8;
    int my_row = g + t / 2 * 8;
    const uint8_t *my_scales = shared + in::SCALES + warp * RING * in::SCALE_BYTES +
                               (NESTED ? my_row * 4 + t % 2 * 2 : my_row * 16 + t % 2 * 8);
    float *all_sums = reinterpret_cast<float *>(shared + in::ALL_SUMS);
    constexpr int OF_TILE = SHARERS * int{WARPS} * int{TILE};
    /* Finishes the block's tile n. Blocks that share tiles have at most SUM_SLOTS. */
    auto finish = [&](int n) {
        int slot = n % SUM_SLOTS, tile = first_tile + n * groups;
        wait_at(full + slot, static_cast<uint32_t>(n / SUM_SLOTS & 1));
        finish_tile<T>(j, all_sums + slot * OF_TILE, workers, tile, lane);
        __syncwarp();
        if (lane == 0) arrive_at(empty + slot, 0);
    };
    int slot = 0, n = 0;
    for (int tile = first_tile; tile < j.tiles; tile += groups, n++) {
        float sum = 0, offset = 0;
        const float *table = reinterpret_cast<const float *>(shared + in::TABLES);
        if constexpr (NESTED) {
            int member = layout_of(j, tile, t / 2).member;
            table += member * 256, offset = offset_of(j, member);
        }
        auto add_step = [&](uint4 x0, uint4 x1) {
            cp_async_wait<RING - 1>();
            __syncwarp();
            const uint8_t *codes_at = my_codes + in::slot_at(slot);
            uint2 codes[4][2];
#pragma unroll
            for (int k = 0; k < 4; k++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    codes[k][half] = *reinterpret_cast<const uint2 *>(codes_at + half * 8 * in::PITCH +
                                                                      (k ^ (g & 3)) * 32);
            uint32_t two = 0;
            float scales[2];
            if constexpr (NESTED) {
                const uint8_t *from = my_scales + slot * in::SCALE_BYTES;
                two = *reinterpret_cast<const uint16_t *>(from);
                scales[0] = *reinterpret_cast<const float *>(from - t % 2 * 2 + TILE * 4);
            } else {
                float2 both = *reinterpret_cast<const float2 *>(my_scales + slot * in::SCALE_BYTES);
                scales[0] = both.x, scales[1] = both.y;
            }
            __syncwarp(); /* all lanes have read the slot that is filled next */
            ahead.load(j, groups, lane, slot);
            slot = slot + 1 == RING ? 0 : slot + 1;
            if constexpr (NESTED) {
                scales[1] = __fadd_rn(__fmul_rn(table[two >> 8], scales[0]), offset);
                scales[0] = __fadd_rn(__fmul_rn(table[two & 255], scales[0]), offset);
            }
            const uint32_t b[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
            float of_granule[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float product[4] = {};
#pragma unroll
                for (int i = 0; i < 4; i++) { /* four columns of each lane */
                    uint32_t a[4];
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        uint32_t word = i < 2 ? codes[k][half].x : codes[k][half].y;
                        a[half] = look_up(shared, word, i % 2 * 2, lane * 4u);
                        a[half + 2] = look_up(shared, word, i % 2 * 2 + 1, lane * 4u);
                    }
                    multiply<T>(product, a, b[2 * i], b[2 * i + 1]);
                }
                of_granule[k] = t < 2 ? product[k % 2] : product[k % 2 + 2];
            }
            sum = fmaf(scales[0], t % 2 ? of_granule[2] : of_granule[0], sum);
            sum = fmaf(scales[1], t % 2 ? of_granule[3] : of_granule[1], sum);
        };
        if (x_is_shared)
            for (int s = 0; s < my_steps; s++) {
                const uint8_t *at = my_shared + s * 4 * in::PITCH;
                add_step(*reinterpret_cast<const uint4 *>(at),
                         *reinterpret_cast<const uint4 *>(at + (g % 2 ? -16 : 16)));
            }
        else
            for (int s = first_step; s < end_step; s++)
                add_step(read_written(my_x + s * STEP_COLUMNS), read_written(my_x + s * STEP_COLUMNS + 8));
        sum = __fadd_rn(sum, __shfl_xor_sync(ALL, sum, 1));
        int slot = n % SUM_SLOTS;
        if (n >= SUM_SLOTS) wait_at(empty + slot, static_cast<uint32_t>(n / SUM_SLOTS - 1 & 1));
        float *to = all_sums + slot * OF_TILE + worker * TILE + my_row;
        if (t % 2 == 0) {
            if (rank == 0) *to = sum;
            else send_to_rank(to, full + slot, 0, sum);
        }
        __syncwarp();
        if (lane == 0 && rank == 0) arrive_at(full + slot, j.shared_tiles ? TILE * 4 : 0);
        if (rank == 0 && n > 0 && (n - 1) % WARPS == warp) finish(n - 1);
    }
    if (rank == 0 && n > 0 && (n - 1) % WARPS == warp) finish(n - 1);
}

int device_number(cudaDeviceAttr which)
{
    int device = 0, number = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&number, which, device);
    return number;
}

template <typename T, bool NESTED> void launch(one_job j, bool overlaps, cudaStream_t stream)
{
    constexpr int BYTES = one_layout<NESTED>::BYTES;
    static_assert(2 * (BYTES + 1024) <= 227 << 10, "two blocks of a multiprocessor");
    auto kernel = gemv_one<T, NESTED>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    int64_t steps = j.columns / STEP_COLUMNS, blocks = 2 * device_number(cudaDevAttrMultiProcessorCount);
    /* alone, shared: steps of the busiest warp without and with two blocks per tile. Shared tiles
     * must fit in the slots of sums, since the other block does not wait for an empty slot. */
    int64_t alone = nbl__ceil_div(j.tiles, blocks) * nbl__ceil_div(steps, WARPS);
    int64_t shared = nbl__ceil_div(j.tiles, blocks / SHARERS) *
                     nbl__ceil_div(steps, SHARERS * int64_t{WARPS});
    bool small = nbl__ceil_div(j.tiles, blocks / SHARERS) <= SUM_SLOTS;
    j.shared_tiles = small && shared < alone;
    int sharers = j.shared_tiles ? SHARERS : 1;
    int64_t groups = nbl__min_i64(j.tiles, blocks / sharers);
    launch_overlapping(overlaps, kernel, dim3(static_cast<unsigned>(groups * sharers)), THREADS, BYTES,
                       static_cast<unsigned>(sharers), stream, j);
}

} // namespace

/* True if the kernel can compute this rmsnorm of one row: aligned, not in place, not scaled, at most
 * 4096 columns. */
static bool norm_fits(const nbl__gemv_one *g)
{
    const nbl_rmsnorm *n = g->norm;
    const void *all[] = {n->x.data, n->residual.data, n->w.data, n->y.data, n->residual_out.data};
    for (const void *p : all)
        if (!aligned(p, 16)) return false;
    const void *written[] = {n->y.data, n->residual.data ? n->residual_out.data : NULL};
    for (const void *p : written) /* other blocks may still read what block 0 overwrites */
        if (p && (p == n->x.data || p == n->residual.data)) return false;
    if (n->w.data == NULL) return false; /* the kernel takes its absence for that of a norm */
    return n->dtype == g->dtype && n->scale == 0 && n->y.data == g->x && nbl__tensor_rows(&n->x) == 1 &&
           nbl__last(&n->x) == g->parts[0].weight->shape[1] &&
           nbl__last(&n->x) <= REGISTER_STEPS * int64_t{WARPS} * STEP_COLUMNS;
}

extern "C" bool nbl__cuda_gemv_one_takes(const nbl__gemv_one *g)
{
    const nbl_weight *first = g->parts[0].weight;
    bool good = g->count >= 1 && g->count <= MAX && !nbl__act_is_rare(g->act) && (g->act < 0 || g->count == 2) &&
                (g->dtype == NBL_DTYPE_F16 || g->dtype == NBL_DTYPE_BF16) && aligned(g->x, 16);
    for (int i = 0; good && i < g->count; i++) {
        const nbl_weight *w = g->parts[i].weight;
        bool nested = w->nested_scales != NULL;
        good = (w->format == NBL_FORMAT_NF4 || w->format == NBL_FORMAT_FP4) && w->format == first->format &&
               w->rank == 2 && w->shape[0] > 0 && w->shape[0] % (g->act < 0 ? TILE : 8) == 0 &&
               w->shape[0] <= INT32_MAX && w->shape[1] == first->shape[1] && w->shape[1] > 0 &&
               w->shape[1] % STEP_COLUMNS == 0 && w->shape[1] <= 1 << 26 &&
               w->shape[0] * w->shape[1] <= int64_t(1) << 37 && w->block == GRANULE && aligned(w->data, 16) &&
               nested == (first->nested_scales != NULL);
        if (good && nested)
            good = w->nested_block >= 4 && (w->nested_block & (w->nested_block - 1)) == 0 &&
                   aligned(w->scale_codes, 4);
        else if (good) good = aligned(w->scales, 16);
    }
    good = good && device_number(cudaDevAttrComputeCapabilityMajor) == 9;
    good = good && (g->norm == NULL || norm_fits(g));
    return good && (g->act < 0 || g->parts[0].weight->shape[0] == g->parts[1].weight->shape[0]);
}

extern "C" nbl_status nbl__cuda_gemv_one(nbl_context *ctx, const nbl__gemv_one *g, void *stream)
{
    one_job j = {};
    bool nested = g->parts[0].weight->nested_scales != NULL;
    j.x = g->x;
    j.count = g->count;
    j.gated = g->act >= 0;
    j.act = g->act;
    j.columns = static_cast<int>(g->parts[0].weight->shape[1]);
    if (g->norm) {
        const nbl_rmsnorm *n = g->norm;
        j.x = n->x.data;
        j.norm = {n->residual.data,
                  n->w.data,
                  n->residual_out.data,
                  n->y.data,
                  n->w.dtype,
                  n->eps,
                  n->offset,
                  n->round == NBL_ROUND_BEFORE_WEIGHT};
        if (n->residual.data == NULL) j.norm.sum = NULL;
    }
    for (int i = 0; i < g->count; i++) {
        const nbl__gemv_part *part = &g->parts[i];
        packed p = packed_of(part->weight);
        int rows = static_cast<int>(part->weight->shape[0]);
        if (i == 0) memcpy(j.table, p.table, sizeof j.table);
        j.tiles = j.gated ? rows / 8 : j.tiles + rows / TILE;
        j.at[i] = {p.codes,          nested ? p.scale_codes : reinterpret_cast<const uint8_t *>(p.scales),
                   p.nested_scales,  p.nested_table,
                   part->bias.data,  part->y,
                   p.nested_offset,  p.nested_shift,
                   part->bias.dtype, j.tiles};
        j.offset_at[i] = part->weight->nested_offset_at;
    }
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    bool overlaps = nbl__cuda_overlaps(ctx);
    if (g->dtype == NBL_DTYPE_F16 && nested) launch<__half, true>(j, overlaps, on);
    else if (g->dtype == NBL_DTYPE_F16) launch<__half, false>(j, overlaps, on);
    else if (nested) launch<__nv_bfloat16, true>(j, overlaps, on);
    else launch<__nv_bfloat16, false>(j, overlaps, on);
    return launched(ctx, "nbl__cuda_gemv_one");
}
