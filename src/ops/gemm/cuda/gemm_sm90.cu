/* gemm_sm90.cu - host code of gemm_sm90.h. It checks a product, chooses a variant of the kernel
 * (gemm_sm90_kernel.cuh) and encodes a tensor map for every matrix, about a microsecond each.
 * Nothing here depends on the stream.
 *
 *     can   conditions of TMA and of the kernel, before the run
 *     run   choose a variant → encode maps → launch clusters of persistent blocks (dependent
 * launch) */
#include "ops/gemm/cuda/gemm_sm90_kernel.cuh"

#include "ops/gemm/cuda/tensor_map.cuh"

using namespace nbl_sm90;

namespace
{

using encoder = map_encoder;
constexpr int SPAN = NBL_GEMM_SM90_SPAN;

/* Masked terms are the last ones. */
bool is_masked(const nbl__gemm_sm90 *p)
{
    return p->part_count == 0 && p->count > 0 && p->terms[p->count - 1].mask != NULL;
}

/* A compiled kernel: its tile, and its cost for the choice. */
struct variant {
    const char *name;
    int width; /* columns of a tile */
    int cluster;
    double cost; /* time of a tile, relative to one of 256 columns; measured */
    cudaError_t (*launch)(const cudaLaunchConfig_t *config, const nbl__gemm_sm90 *product, const job *p);
    size_t bytes;
};

/* Launches one instance of the kernel. */
template <typename T, int BN, int STAGES, int BUFFERS, int CLUSTER, bool MN_MAJOR, epilogue EPILOGUE>
cudaError_t launch_one(const cudaLaunchConfig_t *config, const job *p)
{
    auto kernel = multiply<T, BN, STAGES, BUFFERS, CLUSTER, MN_MAJOR, EPILOGUE>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             layout<BN, STAGES, BUFFERS>::BYTES);
    return error == cudaSuccess ? cudaLaunchKernelEx(config, kernel, *p) : error;
}
/* Chooses the ending and the layout of b. Only tiles of 256 columns can be gated or exponential. */
template <typename T, int BN, int STAGES, int BUFFERS, int CLUSTER>
cudaError_t launch_of(const cudaLaunchConfig_t *config, const nbl__gemm_sm90 *product, const job *p)
{
    if constexpr (BN == 256)
        if (product->gated) return launch_one<T, BN, STAGES, BUFFERS, CLUSTER, false, EPILOGUE_GATED>(config, p);
    if constexpr (BN == SPAN && !IS_HALF<T>)
        if (product->exponentials.spans)
            return launch_one<T, BN, STAGES, BUFFERS, CLUSTER, false, EPILOGUE_EXPONENTIAL>(config, p);
    if (product->b_transposed) return launch_one<T, BN, STAGES, BUFFERS, CLUSTER, false, EPILOGUE_PLAIN>(config, p);
    if constexpr (!IS_HALF<T>)
        if (is_masked(product)) return launch_one<T, BN, STAGES, BUFFERS, CLUSTER, true, EPILOGUE_MASKED>(config, p);
    return launch_one<T, BN, STAGES, BUFFERS, CLUSTER, true, EPILOGUE_PLAIN>(config, p);
}
template <int BN, int STAGES, int BUFFERS, int CLUSTER>
cudaError_t launch(const cudaLaunchConfig_t *config, const nbl__gemm_sm90 *product, const job *p)
{
    if (product->dtype == NBL_DTYPE_F16)
        return launch_of<__half, BN, STAGES, BUFFERS, CLUSTER>(config, product, p);
    return launch_of<__nv_bfloat16, BN, STAGES, BUFFERS, CLUSTER>(config, product, p);
}

/* A variant with two boxes per warpgroup. */
template <int BN, int STAGES, int CLUSTER> constexpr variant make(const char *name, double cost)
{
    return {name, BN, CLUSTER, cost, launch<BN, STAGES, 2, CLUSTER>, layout<BN, STAGES, 2>::BYTES};
}
/* Four stages of 48 KiB or six of 32 KiB. Clusters of one are for results with an odd number of tile rows. */
const variant variants[] = {make<256, 4, 2>("256x2", 1.0), make<128, 6, 2>("128x2", 0.52),
                            make<256, 4, 1>("256x1", 1.01), make<128, 6, 1>("128x1", 0.53)};
constexpr int VARIANTS = sizeof variants / sizeof *variants;

/* Parts of `part` that cover `size`. */
int64_t whole(int64_t size, int64_t part)
{
    return (size + part - 1) / part;
}

/* A product without parts counts as one part with the n, count and c of the product. */
int part_count(const nbl__gemm_sm90 *p)
{
    return p->part_count > 0 ? p->part_count : 1;
}
nbl__gemm_sm90_part part_of(const nbl__gemm_sm90 *p, int i)
{
    return p->part_count > 0 ? p->parts[i] : nbl__gemm_sm90_part{p->c, p->n, p->count};
}
/* Columns of units of a part. */
int64_t units_right(const nbl__gemm_sm90 *p, const variant *v, int part)
{
    return whole(part_of(p, part).n, p->gated ? v->width / 2 : v->width);
}

/* True if this variant's tile width supports the product. */
bool has_tiles(const nbl__gemm_sm90 *p, const variant *v)
{
    return v->width == 256 || (!p->gated && !p->exponentials.spans);
}

/* The variant with the smallest estimated time: rounds of tiles per multiprocessor times the cost of a tile. */
const variant *choose(const nbl__gemm_sm90 *p, int multiprocessors)
{
    if (p->variant > 0 && p->variant <= VARIANTS && has_tiles(p, &variants[p->variant - 1]))
        return &variants[p->variant - 1];
    const variant *best = &variants[0];
    double min = INFINITY;
    for (int i = 0; i < VARIANTS; i++) {
        const variant *v = &variants[i];
        if (!has_tiles(p, v)) continue;
        int64_t units = 0;
        for (int part = 0; part < part_count(p); part++) units += units_right(p, v, part);
        units *= whole(p->m, BM * v->cluster);
        double time = static_cast<double>(whole(units, multiprocessors / v->cluster)) * v->cost;
        if (time < min) min = time, best = v;
    }
    return best;
}

/* Adds a term to the last part, whose result has n columns. The right half of a tile uses the
 * same map as the left half, or that of b2 if gated. False: the driver refuses a map. */
bool describe_term(encoder encode, job *job, const nbl__gemm_sm90 *p, int64_t n, const nbl__gemm_sm90_term *s,
                   int half_rows)
{
    int i = job->first_term[job->parts]++;
    int64_t lda = s->lda ? s->lda : s->k, ldb = s->ldb ? s->ldb : p->b_transposed ? s->k : n;
    job->steps[i] = static_cast<int32_t>(whole(s->k, BK));
    job->tail[i] = static_cast<int32_t>(whole(s->k - (job->steps[i] - 1) * BK, 16));
    job->mask[i] = s->mask;
    job->mask_factor[i] = s->mask_factor;
    if (s->mask) job->first_masked = i < job->first_masked ? i : job->first_masked;
    else job->all_steps[job->parts - 1] += job->steps[i];
    if (!describe(encode, &job->a[i], p->dtype, s->a, p->m, s->k, lda, BM)) return false;
    for (int half = 0; half < 2; half++) {
        const void *b = half && p->gated ? s->b2 : s->b;
        job->has_b[i][half] = b != NULL;
        if (b == NULL) b = s->b ? s->b : s->b2; /* any valid map: the kernel reads zeros outside of it */
        if (half && (!p->gated || !job->has_b[i][1])) {
            job->b[i][1] = job->b[i][0];
            continue;
        }
        if (!(p->b_transposed ? describe(encode, &job->b[i][half], p->dtype, b, n, s->k, ldb, half_rows)
                          : describe(encode, &job->b[i][half], p->dtype, b, s->k, n, ldb, BK)))
            return false;
    }
    return true;
}

/* Fills the part of the job that concerns results: tensor maps, beta and c_in, exponentials. False:
 * the driver refuses a map. */
bool describe_results(encoder encode, job *job, const nbl__gemm_sm90 *p)
{
    int64_t ldc = p->ldc ? p->ldc : p->n;
    job->beta = p->beta;
    job->c_in = p->c_in ? p->c_in : p->c;
    job->ldc_in = !p->c_in ? ldc : p->ldc_in ? p->ldc_in : p->n;
    job->c_is_f32 = p->c_dtype == NBL_DTYPE_F32;
    job->stores_gate = p->gated && p->gate != NULL;
    job->stores_up = p->gated && p->up != NULL;
    nbl_dtype dtype = p->gated ? p->dtype : p->c_dtype;
    bool good = true;
    const nbl__gemm_sm90_exponentials *e = &p->exponentials;
    if (e->spans) {
        job->exp = {e->powers,
                    e->labels,
                    e->label_sums,
                    reinterpret_cast<float2 *>(e->spans),
                    static_cast<int32_t>(whole(p->n, SPAN)),
                    p->c != NULL};
        if (p->c == NULL) return true;
    }
    for (int i = 0; i < part_count(p); i++) {
        nbl__gemm_sm90_part part = part_of(p, i);
        good = good && describe(encode, &job->c[i], dtype, part.c, p->m, part.n,
                                p->part_count > 0 ? part.n : ldc, BOX_LINES);
    }
    return good &&
           (!job->stores_gate ||
            describe(encode, &job->gate, p->c_dtype, p->gate, p->m, p->n, p->n, BOX_LINES)) &&
           (!job->stores_up || describe(encode, &job->up, p->c_dtype, p->up, p->m, p->n, p->n, BOX_LINES));
}

/* TMA: the address and the distance of rows are multiples of 16 bytes. NULL fits. */
bool fits(const void *data, int64_t ld, nbl_dtype dtype)
{
    return data == NULL ||
           (nbl_cuda::is_aligned(data, 16) && ld * static_cast<int64_t>(size_of(dtype)) % 16 == 0);
}

} // namespace

extern "C" const char *nbl__gemm_sm90_variant(int variant)
{
    return variant >= 1 && variant <= VARIANTS ? variants[variant - 1].name : NULL;
}

/* NULL, or the reason why a part cannot be taken. Its terms begin at `first`. */
static const char *part_can(const nbl__gemm_sm90 *p, const nbl__gemm_sm90_part *part, int first, int64_t ldc)
{
    constexpr int64_t MAX = 1 << 30;
    if (part->count < 1 || first + part->count > NBL_MAX_GEMM_SM90_TERMS) return "needs one to eight terms";
    if (p->m >= MAX || part->n >= MAX) return "too large";
    if (part->n % 8 != 0) return "needs columns by the eight"; /* TMA stores multiples of 16 bytes */
    int64_t sum = 0;
    for (int i = first; i < first + part->count; i++) {
        const nbl__gemm_sm90_term *s = &p->terms[i];
        int64_t ldb = s->ldb ? s->ldb : p->b_transposed ? s->k : part->n;
        if (s->k >= MAX) return "too large";
        if (!fits(s->a, s->lda ? s->lda : s->k, p->dtype) || !fits(s->b, ldb, p->dtype) ||
            !fits(s->b2, ldb, p->dtype))
            return "a and b must be aligned to 16 bytes";
        if (s->mask == NULL) sum += s->k;
        if (s->mask && (p->b_transposed || p->part_count > 0 || p->beta != 0 || p->dtype != NBL_DTYPE_BF16 ||
                        p->c_dtype != NBL_DTYPE_BF16 || p->mask_ld % 2 != 0))
            return "masks are for one bf16 product with weights as [k, n], without beta";
        if (s->mask == NULL && i > first && p->terms[i - 1].mask) return "masked terms are the last ones";
    }
    if (sum == 0) return "nothing to sum";
    return fits(part->c, ldc, p->gated ? p->dtype : p->c_dtype) ? NULL
                                                                : "results must be aligned to 16 bytes";
}

extern "C" const char *nbl__gemm_sm90_can(const nbl__cuda *cuda, const nbl__gemm_sm90 *p)
{
    if (cuda->major != 9) return "needs compute capability 9.0";
    if (p->dtype != NBL_DTYPE_BF16 && p->dtype != NBL_DTYPE_F16) return "needs bf16 or f16";
    if (p->c_dtype != p->dtype && p->c_dtype != NBL_DTYPE_F32) return "needs results of the same type or f32";
    if (p->gated && (!p->b_transposed || p->beta != 0))
        return "gated products take transposed weights only, and no beta";
    if (p->part_count > 0 && (p->gated || p->beta != 0 || p->part_count > NBL_MAX_GEMM_SM90_PARTS))
        return "only plain products without beta come in parts";
    if (p->exponentials.spans && (p->dtype != NBL_DTYPE_BF16 || p->c_dtype != NBL_DTYPE_BF16 ||
                                  !p->b_transposed || p->gated || p->part_count > 0 || p->beta != 0))
        return "exponentials are those of one bf16 product of transposed weights";
    int first = 0;
    for (int i = 0; i < part_count(p); i++) {
        nbl__gemm_sm90_part part = part_of(p, i);
        const char *why = part_can(p, &part, first, p->part_count == 0 && p->ldc ? p->ldc : part.n);
        if (why) return why;
        first += part.count;
    }
    if (!fits(p->gate, p->n, p->c_dtype) || !fits(p->up, p->n, p->c_dtype) ||
        !fits(p->c_in, p->ldc_in ? p->ldc_in : p->n, p->c_dtype))
        return "results must be aligned to 16 bytes";
    return NULL;
}

extern "C" nbl_status nbl__gemm_sm90_run(const nbl__call *call, const nbl__gemm_sm90 *p)
{
    encoder encode = find_encoder(nbl__call_cuda(call));
    NBL_CHECK(call->ctx, encode != NULL, NBL_ERROR_UNSUPPORTED,
              "%s: the driver has no cuTensorMapEncodeTiled", call->op);
    const variant *v = choose(p, nbl__call_cuda(call)->multiprocessors);
    job job;
    memset(&job, 0, sizeof job);
    job.first_masked = NBL_MAX_GEMM_SM90_TERMS;
    if (p->m == 0 || (p->part_count == 0 && p->n == 0)) return NBL_OK;
    bool good = describe_results(encode, &job, p);
    for (int i = 0, next = 0; good && i < part_count(p); i++) {
        nbl__gemm_sm90_part part = part_of(p, i);
        job.parts = i + 1;
        job.first_term[i + 1] = job.first_term[i];
        for (int end = next + part.count; good && next < end; next++)
            if (p->terms[next].k > 0)
                good = describe_term(encode, &job, p, part.n, &p->terms[next], v->width / 2);
        job.first_right[i + 1] = job.first_right[i] + static_cast<int32_t>(units_right(p, v, i));
    }
    /* Sources with k = 0 have been left out. */
    NBL_CHECK(call->ctx, good, NBL_ERROR_INTERNAL, "%s: the driver cannot describe these matrices", call->op);
    /* Units: clusters of tiles, down and right (position_of in the kernel). */
    job.units_down = static_cast<int32_t>(whole(p->m, BM * v->cluster));
    /* Units go down so many rows, then a column right: a, b stay in L2. */
    job.group = 16 / v->cluster;
    job.act = p->act;
    job.m = p->m, job.n = p->n;
    job.mask_ld = p->mask_ld;
    int64_t units = static_cast<int64_t>(job.units_down) * job.first_right[job.parts],
            at_once = nbl__call_cuda(call)->multiprocessors / v->cluster;
    /* A cluster per unit, up to what the device runs at once; clusters then go on to further
     * units. */
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = static_cast<unsigned>(v->cluster);
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>((units < at_once ? units : at_once) * v->cluster));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = v->bytes;
    config.stream = nbl_cuda::stream_of(call);
    config.attrs = attributes;
    config.numAttrs = 2;
    cudaError_t error = v->launch(&config, p, &job);
    NBL_CHECK(call->ctx, error == cudaSuccess, NBL_ERROR_INTERNAL, "%s: %s", call->op,
              cudaGetErrorString(error));
    return nbl_cuda::launched(call);
}
