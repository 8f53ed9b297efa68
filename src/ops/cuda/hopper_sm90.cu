/* hopper_sm90.cu - see hopper.h: what a product asks for, as the kernel of hopper_kernel.cuh takes it. The work of the
 * host is to describe every matrix to the copy engine, about a microsecond each; nothing of it depends on the stream. */
#include "ops/cuda/hopper_kernel.cuh"
#include "ops/cuda/tensor_map.cuh"

using namespace nbl_hopper;

namespace
{

using encoder = nbl_cuda::tensor_map_encoder;

struct variant {
    const char *name;
    int width; /* columns of a tile */
    int cluster;
    double cost; /* of a tile, beside one of 256 columns */
    cudaError_t (*launch)(const cudaLaunchConfig_t *config, const nbl__hopper *product, const job *p);
    size_t bytes;
};

template <typename T, int BN, int STAGES, int BUFFERS, int CLUSTER, bool STRAIGHT, bool GATED>
cudaError_t launch_one(const cudaLaunchConfig_t *config, const job *p)
{
    auto kernel = multiply<T, BN, STAGES, BUFFERS, CLUSTER, STRAIGHT, GATED>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             layout<BN, STAGES, BUFFERS>::BYTES);
    return error == cudaSuccess ? cudaLaunchKernelEx(config, kernel, *p) : error;
}
template <typename T, int BN, int STAGES, int BUFFERS, int CLUSTER>
cudaError_t launch_of(const cudaLaunchConfig_t *config, const nbl__hopper *product, const job *p)
{
    if constexpr (BN == 256)
        if (product->gated) return launch_one<T, BN, STAGES, BUFFERS, CLUSTER, false, true>(config, p);
    if (product->b_turned) return launch_one<T, BN, STAGES, BUFFERS, CLUSTER, false, false>(config, p);
    return launch_one<T, BN, STAGES, BUFFERS, CLUSTER, true, false>(config, p);
}
template <int BN, int STAGES, int BUFFERS, int CLUSTER>
cudaError_t launch(const cudaLaunchConfig_t *config, const nbl__hopper *product, const job *p)
{
    if (product->dtype == NBL_DTYPE_F16)
        return launch_of<__half, BN, STAGES, BUFFERS, CLUSTER>(config, product, p);
    return launch_of<__nv_bfloat16, BN, STAGES, BUFFERS, CLUSTER>(config, product, p);
}

template <int BN, int STAGES, int CLUSTER> constexpr variant make(const char *name, double cost)
{
    return {name, BN, CLUSTER, cost, launch<BN, STAGES, 2, CLUSTER>, layout<BN, STAGES, 2>::BYTES};
}
/* Four stages of 48 KiB or six of 32. A cluster of one is for a last row of tiles that has no other. */
const variant variants[] = {make<256, 4, 2>("256x2", 1.0), make<128, 6, 2>("128x2", 0.52),
                            make<256, 4, 1>("256x1", 1.01), make<128, 6, 1>("128x1", 0.53)};
constexpr int VARIANTS = sizeof variants / sizeof *variants;

int64_t whole(int64_t size, int64_t part)
{
    return (size + part - 1) / part;
}

/* The quickest, by how often every multiprocessor gets a tile. */
const variant *choose(const nbl__hopper *p, int multiprocessors)
{
    if (p->variant > 0 && p->variant <= VARIANTS && (!p->gated || variants[p->variant - 1].width == 256))
        return &variants[p->variant - 1];
    const variant *best = &variants[0];
    double least = INFINITY;
    for (int i = 0; i < VARIANTS; i++) {
        const variant *v = &variants[i];
        if (p->gated && v->width != 256) continue;
        int64_t units = whole(p->m, BM * v->cluster) * whole(p->n, p->gated ? v->width / 2 : v->width);
        double time = static_cast<double>(whole(units, multiprocessors / v->cluster)) * v->cost;
        if (time < least) least = time, best = v;
    }
    return best;
}

size_t size_of(nbl_dtype dtype)
{
    return dtype == NBL_DTYPE_F32 ? 4 : 2;
}

/* Boxes of `rows` lines of 128 bytes of a matrix [height, width]. */
bool describe(encoder encode, CUtensorMap *map, nbl_dtype dtype, const void *data, int64_t height,
              int64_t width, int64_t ld, int rows)
{
    CUtensorMapDataType type = dtype == NBL_DTYPE_F32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                               : dtype == NBL_DTYPE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                        : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    cuuint64_t sizes[2] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(height)};
    cuuint64_t strides[1] = {static_cast<cuuint64_t>(ld) * size_of(dtype)};
    cuuint32_t box[2] = {static_cast<cuuint32_t>(LINE / size_of(dtype)), static_cast<cuuint32_t>(rows)},
               ones[2] = {1, 1};
    return encode(map, type, 2, const_cast<void *>(data), sizes, strides, box, ones,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool describe_source(encoder encode, job *job, const nbl__hopper *p, const nbl__hopper_source *s,
                     int half_rows)
{
    int i = job->count++;
    int64_t lda = s->lda ? s->lda : s->k, ldb = s->ldb ? s->ldb : p->b_turned ? s->k : p->n;
    job->steps[i] = static_cast<int32_t>(whole(s->k, BK));
    job->tail[i] = static_cast<int32_t>(whole(s->k - (job->steps[i] - 1) * BK, 16));
    job->all_steps += job->steps[i];
    if (!describe(encode, &job->a[i], p->dtype, s->a, p->m, s->k, lda, BM)) return false;
    for (int half = 0; half < 2; half++) {
        const void *b = half && p->gated ? s->b2 : s->b;
        job->has_b[i][half] = b != NULL;
        if (b == NULL) b = s->b ? s->b : s->b2; /* a map for what is read outside of it */
        if (half && (!p->gated || !job->has_b[i][1])) {
            job->b[i][1] = job->b[i][0];
            continue;
        }
        if (!(p->b_turned ? describe(encode, &job->b[i][half], p->dtype, b, p->n, s->k, ldb, half_rows)
                          : describe(encode, &job->b[i][half], p->dtype, b, s->k, p->n, ldb, BK)))
            return false;
    }
    return true;
}

bool describe_results(encoder encode, job *job, const nbl__hopper *p)
{
    int64_t ldc = p->ldc ? p->ldc : p->n;
    job->beta = p->beta;
    job->old = p->old ? p->old : p->c;
    job->ld_old = !p->old ? ldc : p->ld_old ? p->ld_old : p->n;
    job->wide = p->c_dtype == NBL_DTYPE_F32;
    job->keeps_gate = p->gated && p->gate != NULL;
    job->keeps_up = p->gated && p->up != NULL;
    nbl_dtype dtype = p->gated ? p->dtype : p->c_dtype;
    return describe(encode, &job->c, dtype, p->c, p->m, p->n, ldc, BOX_LINES) &&
           (!job->keeps_gate ||
            describe(encode, &job->gate, p->c_dtype, p->gate, p->m, p->n, p->n, BOX_LINES)) &&
           (!job->keeps_up || describe(encode, &job->up, p->c_dtype, p->up, p->m, p->n, p->n, BOX_LINES));
}

bool fits(const void *data, int64_t ld, nbl_dtype dtype)
{
    return data == NULL ||
           (nbl_cuda::is_aligned(data, 16) && ld * static_cast<int64_t>(size_of(dtype)) % 16 == 0);
}

} // namespace

extern "C" const char *nbl__hopper_variant(int variant)
{
    return variant >= 1 && variant <= VARIANTS ? variants[variant - 1].name : NULL;
}

extern "C" const char *nbl__hopper_can(const nbl__cuda *cuda, const nbl__hopper *p)
{
    constexpr int64_t MOST = 1 << 30;
    if (cuda->major != 9) return "needs compute capability 9.0";
    if (p->dtype != NBL_DTYPE_BF16 && p->dtype != NBL_DTYPE_F16) return "needs bf16 or f16";
    if (p->c_dtype != p->dtype && p->c_dtype != NBL_DTYPE_F32) return "needs results of the same type or f32";
    if (p->count < 1 || p->count > NBL_HOPPER_SOURCES) return "needs one to eight sources";
    if (p->m >= MOST || p->n >= MOST) return "too large";
    if (p->n % 8 != 0) return "needs columns by the eight"; /* the copy engine writes whole 16 bytes */
    if (p->gated && (!p->b_turned || p->beta != 0))
        return "gated products take turned weights only, and no beta";
    int64_t sum = 0;
    for (int i = 0; i < p->count; i++) {
        const nbl__hopper_source *s = &p->sources[i];
        int64_t ldb = s->ldb ? s->ldb : p->b_turned ? s->k : p->n;
        if (s->k >= MOST) return "too large";
        if (!fits(s->a, s->lda ? s->lda : s->k, p->dtype) || !fits(s->b, ldb, p->dtype) ||
            !fits(s->b2, ldb, p->dtype))
            return "a and b must be aligned to 16 bytes";
        sum += s->k;
    }
    if (sum == 0) return "nothing to sum";
    if (!fits(p->c, p->ldc ? p->ldc : p->n, p->gated ? p->dtype : p->c_dtype) ||
        !fits(p->gate, p->n, p->c_dtype) || !fits(p->up, p->n, p->c_dtype) ||
        !fits(p->old, p->ld_old ? p->ld_old : p->n, p->c_dtype))
        return "results must be aligned to 16 bytes";
    return NULL;
}

extern "C" nbl_status nbl__hopper_run(const nbl__call *call, const nbl__hopper *p)
{
    if (p->m == 0 || p->n == 0) return NBL_OK;
    encoder encode = nbl_cuda::tensor_map_encoder_of(call->cuda);
    NBL_CHECK(call->ctx, encode != NULL, NBL_ERROR_UNSUPPORTED,
              "%s: the driver has no cuTensorMapEncodeTiled", call->op);
    const variant *v = choose(p, call->cuda->multiprocessors);
    job job;
    memset(&job, 0, sizeof job);
    bool good = describe_results(encode, &job, p);
    for (int i = 0; good && i < p->count; i++)
        if (p->sources[i].k > 0) good = describe_source(encode, &job, p, &p->sources[i], v->width / 2);
    NBL_CHECK(call->ctx, good, NBL_ERROR_INTERNAL, "%s: the driver cannot describe these matrices", call->op);
    job.units_down = static_cast<int32_t>(whole(p->m, BM * v->cluster));
    job.units_right = static_cast<int32_t>(whole(p->n, p->gated ? v->width / 2 : v->width));
    job.group = 16 / v->cluster;
    job.act = p->act;
    job.m = p->m, job.n = p->n;
    int64_t units = static_cast<int64_t>(job.units_down) * job.units_right,
            at_once = call->cuda->multiprocessors / v->cluster;
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(v->cluster);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>((units < at_once ? units : at_once) * v->cluster));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = v->bytes;
    config.stream = nbl_cuda::stream_of(call);
    config.attrs = &cluster;
    config.numAttrs = 1;
    cudaError_t error = v->launch(&config, p, &job);
    NBL_CHECK(call->ctx, error == cudaSuccess, NBL_ERROR_INTERNAL, "%s: %s", call->op,
              cudaGetErrorString(error));
    return nbl_cuda::launched(call);
}
