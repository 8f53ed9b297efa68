/* cublaslt.c - dense products by cuBLASLt. See cublaslt.h.
 *
 * The library is loaded with dlopen when a device is opened: a build also works on machines without it. A row-major
 * product becomes a column-major one by exchanging the operands, cᵀ = bᵀ·aᵀ. No data is moved.
 *
 * Descriptors and the algorithm are made once for each kind of product (sizes, strides, dtypes, alignment, whether c is
 * read) and kept in a table. Later calls are one launch. The algorithm is the first that the library's heuristic names,
 * or one of its first few by a rule. It is never the fastest of trial runs: the bits of a result would then depend on
 * timing. Split-k sums are allowed only through the workspace, in a fixed order.
 *
 * Contexts that share a handle share the table, too: a lock guards it. A plan in it never changes, so products run
 * outside of the lock.
 *
 * Descriptors and the heuristic are host work, so both may happen during a capture. */
#include "ops/gemm/cuda/cublaslt.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "ops/gemm/cuda/gemm_int8_cuda.h"

/* The kind of a product: the key of the table. It is compared byte by byte, so it is zeroed first. */
typedef struct key {
    int64_t m, n, k, lda, ldb, ldc, batch, a_stride, b_stride, c_stride;
    int32_t dtype, c_dtype;
    uint16_t a_align, b_align, c_align;
    bool a_transposed, b_transposed, reads_c, pad[3];
} key;

/* A planned product: an entry of the table, free if not `taken`. */
typedef struct plan {
    key key;
    bool taken;
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t a, b, c; /* in the library's order: its a is our b */
    cublasLtMatmulAlgo_t algorithm;
} plan;

/* CANDIDATES: algorithms asked of the heuristic. WIDE_ROWS, MIN_WIDE: limits of the rule in
 * `preferred`. */
enum { CANDIDATES = 4, WIDE_ROWS = 1024, MIN_WIDE = 512 };
enum {
    PLANS = 1024,
    PLANS_USED = 768
}; /* size of the table, and its fill limit: beyond it, products are planned at each call */

struct nbl__blas {
    nbl_context *ctx; /* whose memory it lies in; NULL: the C library's */
    void *library;
    cublasLtHandle_t handle;
    pthread_mutex_t lock; /* of `plans` and `used` */
    plan *plans;          /* [PLANS], open addressing */
    int used;
    /* functions of the library, with the types of cublasLt.h */
    cublasStatus_t (*create)(cublasLtHandle_t *);
    cublasStatus_t (*destroy)(cublasLtHandle_t);
    cublasStatus_t (*matmul)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
                             cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t, const void *,
                             const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t,
                             const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t);
    cublasStatus_t (*heuristic)(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t[], int *);
    cublasStatus_t (*layout_init)(cublasLtMatrixLayout_t, size_t, cudaDataType, uint64_t, uint64_t, int64_t);
    cublasStatus_t (*layout_set)(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, const void *,
                                 size_t);
    cublasStatus_t (*product_init)(cublasLtMatmulDesc_t, size_t, cublasComputeType_t, cudaDataType_t);
    cublasStatus_t (*product_set)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t);
    cublasStatus_t (*preference_init)(cublasLtMatmulPreference_t, size_t);
    cublasStatus_t (*preference_set)(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                     const void *, size_t);
    cublasStatus_t (*algorithm_get)(const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoConfigAttributes_t,
                                    void *, size_t, size_t *);
    const char *(*status_text)(cublasStatus_t);
};

/* ---- the library ---- */

/* Resolves all functions of the library. False: one is missing. */
static bool find_functions(struct nbl__blas *blas)
{
    const struct {
        const char *name;
        void *slot;
    } wanted[] = {{"cublasLtCreate", &blas->create},
                  {"cublasLtDestroy", &blas->destroy},
                  {"cublasLtMatmul", &blas->matmul},
                  {"cublasLtMatmulAlgoGetHeuristic", &blas->heuristic},
                  {"cublasLtMatrixLayoutInit_internal", &blas->layout_init},
                  {"cublasLtMatrixLayoutSetAttribute", &blas->layout_set},
                  {"cublasLtMatmulDescInit_internal", &blas->product_init},
                  {"cublasLtMatmulDescSetAttribute", &blas->product_set},
                  {"cublasLtMatmulPreferenceInit_internal", &blas->preference_init},
                  {"cublasLtMatmulPreferenceSetAttribute", &blas->preference_set},
                  {"cublasLtMatmulAlgoConfigGetAttribute", &blas->algorithm_get},
                  {"cublasLtGetStatusString", &blas->status_text}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *function = dlsym(blas->library, wanted[i].name);
        if (function == NULL) return false;
        memcpy(wanted[i].slot, &function, sizeof function);
    }
    return true;
}

/* Zeroed memory of the context, or with NULL of the C library. */
static void *take(nbl_context *ctx, size_t bytes)
{
    return ctx ? nbl__alloc(ctx, bytes) : calloc(1, bytes);
}

static void give_back(nbl_context *ctx, void *memory, size_t bytes)
{
    if (ctx) nbl__free(ctx, memory, bytes);
    else free(memory);
}

/* Frees the table and unloads the library. The handle must be destroyed before. */
static void close_library(struct nbl__blas *blas)
{
    nbl_context *ctx = blas->ctx;
    pthread_mutex_destroy(&blas->lock);
    give_back(ctx, blas->plans, PLANS * sizeof *blas->plans);
    if (blas->library) dlclose(blas->library);
    give_back(ctx, blas, sizeof *blas);
}

/* The newest supported version that the loader finds; NULL: none. */
static void *load_library(void)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && library == NULL; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

bool nbl__blas_found(void)
{
    void *library = load_library();
    if (library) dlclose(library);
    return library != NULL;
}

nbl_status nbl__blas_open(nbl_context *ctx, bool shared, struct nbl__blas **result)
{
    nbl_context *owner = shared ? NULL : ctx;
    *result = NULL;
    struct nbl__blas *blas = take(owner, sizeof *blas);
    plan *plans = take(owner, PLANS * sizeof *plans);
    if (blas == NULL || plans == NULL) {
        give_back(owner, plans, PLANS * sizeof *plans);
        give_back(owner, blas, sizeof *blas);
        return nbl__fail(ctx, NBL_ERROR_MEMORY, "no memory for the plans of cuBLASLt");
    }
    blas->ctx = owner;
    blas->plans = plans;
    pthread_mutex_init(&blas->lock, NULL);
    blas->library = load_library();
    if (blas->library == NULL || !find_functions(blas) ||
        blas->create(&blas->handle) != CUBLAS_STATUS_SUCCESS) {
        close_library(blas);
        return NBL_OK;
    }
    *result = blas;
    return NBL_OK;
}

void nbl__blas_close(struct nbl__blas *blas)
{
    blas->destroy(blas->handle);
    close_library(blas);
}

static nbl_status missing(const nbl__call *call)
{
    nbl_status status = nbl__fail(
        call->ctx, NBL_ERROR_UNSUPPORTED,
        "%s: products on a CUDA device need cuBLASLt, and libcublasLt.so.13 (or .12) could not be loaded",
        call->op);
    return nbl__hint(call->ctx, status, "install it, or name its folder in LD_LIBRARY_PATH");
}

/* ---- plans ---- */

static cudaDataType_t type_of(int32_t dtype)
{
    switch (dtype) {
    case NBL_DTYPE_F32: return CUDA_R_32F;
    case NBL_DTYPE_F16: return CUDA_R_16F;
    case NBL_DTYPE_BF16: return CUDA_R_16BF;
    case NBL_DTYPE_I8: return CUDA_R_8I;
    default: return CUDA_R_32I;
    }
}

/* The largest power of two up to 64 that divides the address and, for a batch, its stride in bytes. Plans align values
 * and scratch to 64. Larger alignments depend on the plan, and the algorithm (and the bits of a result) must not. */
static uint16_t alignment_of(const void *data, int64_t batch, int64_t stride, int32_t dtype)
{
    uint64_t bits = (uint64_t)(uintptr_t)data | 64;
    if (batch > 1) bits |= (uint64_t)stride * nbl__size_of((nbl_dtype)dtype);
    return (uint16_t)(bits & -bits);
}

#define BLAS_TRY(call_)                                                                                      \
    do {                                                                                                     \
        cublasStatus_t status_ = (call_);                                                                    \
        if (status_ != CUBLAS_STATUS_SUCCESS) return status_;                                                \
    } while (0)

/* Layout of our row-major matrix [rows, columns]. The library sees its transpose. */
static cublasStatus_t make_layout(const struct nbl__blas *blas, cublasLtMatrixLayout_t layout, int32_t dtype,
                                  int64_t rows, int64_t columns, int64_t ld, int64_t batch, int64_t stride)
{
    BLAS_TRY(
        blas->layout_init(layout, sizeof *layout, type_of(dtype), (uint64_t)columns, (uint64_t)rows, ld));
    if (batch == 1) return CUBLAS_STATUS_SUCCESS;
    int32_t count = (int32_t)batch;
    BLAS_TRY(blas->layout_set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    return blas->layout_set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
}

/* Index of the algorithm to use among those that the heuristic names, best first.
 *
 * Logits: f32 results of 2-byte operands, much larger than the operands. Writing them takes as long as the sums. On an
 * H200, with 1024 rows and a vocabulary of 128256, tiles of 128 x 256 are 4, 10 and 10 % faster for k = 4096, 2048 and
 * 1024 than the tiles of 320 x 128 that the heuristic names first. */
static int preferred(const struct nbl__blas *blas, const key *k, const cublasLtMatmulHeuristicResult_t *found,
                     int count)
{
    bool wide = k->dtype != k->c_dtype && k->c_dtype == NBL_DTYPE_F32 && k->b_transposed && !k->a_transposed;
    if (!wide || k->m > WIDE_ROWS || k->k < MIN_WIDE || k->n / 16 < k->k) return 0;
    for (int i = 0; i < count; i++) {
        int32_t tile = 0, splits = 0;
        size_t written;
        if (found[i].state == CUBLAS_STATUS_SUCCESS &&
            blas->algorithm_get(&found[i].algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile, &written) ==
                CUBLAS_STATUS_SUCCESS &&
            blas->algorithm_get(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof splits,
                                &written) == CUBLAS_STATUS_SUCCESS &&
            tile == CUBLASLT_MATMUL_TILE_128x256 && splits <= 1)
            return i;
    }
    return 0;
}

/* Asks the heuristic for algorithms within the workspace, with deterministic reductions, and stores
 * one in *p. Swaps a and b like make_plan. */
static cublasStatus_t choose(const struct nbl__blas *blas, plan *p)
{
    cublasLtMatmulPreferenceOpaque_t preference;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t a = p->key.b_align, b = p->key.a_align, c = p->key.c_align;
    uint64_t bytes = NBL_CUDA_WORKSPACE;
    BLAS_TRY(blas->preference_init(&preference, sizeof preference));
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        const void *value;
        size_t size;
    } wishes[] = {{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes},
                  {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c}};
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++)
        BLAS_TRY(blas->preference_set(&preference, wishes[i].what, wishes[i].value, wishes[i].size));
    cublasLtMatmulHeuristicResult_t best[CANDIDATES];
    int found = 0;
    BLAS_TRY(blas->heuristic(blas->handle, &p->product, &p->a, &p->b, &p->c, &p->c, &preference, CANDIDATES,
                             best, &found));
    if (found == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    int chosen = preferred(blas, &p->key, best, found);
    p->algorithm = best[chosen].algo;
    return best[chosen].state;
}

/* Fills the descriptors of a product and chooses its algorithm. The library computes cᵀ = bᵀ·aᵀ:
 * its a is our b. i8: sums in 32-bit integers. */
static cublasStatus_t make_plan(const struct nbl__blas *blas, const key *k, plan *p)
{
    bool whole = k->dtype == NBL_DTYPE_I8;
    cublasOperation_t a_transposed = k->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N; /* theirs */
    cublasOperation_t b_transposed = k->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    p->key = *k;
    BLAS_TRY(blas->product_init(&p->product, sizeof p->product,
                                whole ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F,
                                whole ? CUDA_R_32I : CUDA_R_32F));
    BLAS_TRY(blas->product_set(&p->product, CUBLASLT_MATMUL_DESC_TRANSA, &a_transposed, sizeof a_transposed));
    BLAS_TRY(blas->product_set(&p->product, CUBLASLT_MATMUL_DESC_TRANSB, &b_transposed, sizeof b_transposed));
    BLAS_TRY(make_layout(blas, &p->a, k->dtype, k->b_transposed ? k->n : k->k, k->b_transposed ? k->k : k->n,
                         k->ldb, k->batch, k->b_stride));
    BLAS_TRY(make_layout(blas, &p->b, k->dtype, k->a_transposed ? k->k : k->m, k->a_transposed ? k->m : k->k,
                         k->lda, k->batch, k->a_stride));
    BLAS_TRY(make_layout(blas, &p->c, k->c_dtype, k->m, k->n, k->ldc, k->batch, k->c_stride));
    return choose(blas, p);
}

/* FNV-1a over the bytes of a key, padding included: keys start as zeros. */
static uint64_t hash_of(const key *k)
{
    const uint8_t *bytes = (const uint8_t *)k;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof *k; i++) hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

/* Finds the plan of a kind of product in the table. If there is none, plans it: in the table, or in
 * *once if the table is full. The caller holds the lock. */
static cublasStatus_t find_plan(struct nbl__blas *blas, const key *k, plan *once, plan **result)
{
    uint64_t slot = hash_of(k) % PLANS;
    assert(blas->used <= PLANS_USED); /* less than PLANS: the search ends at a free slot */
    while (blas->plans[slot].taken) {
        *result = &blas->plans[slot];
        if (memcmp(&blas->plans[slot].key, k, sizeof *k) == 0) return CUBLAS_STATUS_SUCCESS;
        slot = (slot + 1) % PLANS;
    }
    *result = blas->used < PLANS_USED ? &blas->plans[slot] : once;
    BLAS_TRY(make_plan(blas, k, *result));
    if (*result == once) return CUBLAS_STATUS_SUCCESS;
    (*result)->taken = true;
    blas->used++;
    return CUBLAS_STATUS_SUCCESS;
}

/* Enqueues a product on the device's stream, planned now or before. */
static nbl_status multiply(const nbl__call *call, const key *k, const void *a, const void *b, void *c,
                           const void *alpha, const void *beta)
{
    nbl__cuda *cuda = nbl__call_cuda(call);
    struct nbl__blas *blas = cuda->blas;
    void *workspace = nbl__call_workspace(call);
    plan once, *p;
    NBL_CHECK(call->ctx, workspace, NBL_ERROR_INTERNAL, "%s: a product without a workspace", call->op);
    pthread_mutex_lock(&blas->lock);
    cublasStatus_t status = find_plan(blas, k, &once, &p);
    pthread_mutex_unlock(&blas->lock);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = blas->matmul(blas->handle, &p->product, alpha, b, &p->a, a, &p->b, beta, c, &p->c, c, &p->c,
                              &p->algorithm, workspace, NBL_CUDA_WORKSPACE, cuda->stream);
    if (status == CUBLAS_STATUS_SUCCESS) return NBL_OK;
    return nbl__fail(
        call->ctx, NBL_ERROR_UNSUPPORTED,
        "%s: cuBLASLt cannot multiply [%" PRId64 ", %" PRId64 "] by [%" PRId64 ", %" PRId64 "] of %s: %s",
        call->op, k->m, k->k, k->k, k->n, nbl_dtype_name((nbl_dtype)k->dtype), blas->status_text(status));
}

/* ---- products ---- */

/* k is 0: c becomes 0, or stays as it is. */
static nbl_status multiply_nothing(const nbl__call *call, const nbl__cublaslt_gemm *g, const key *k)
{
    if (g->beta == 1) return NBL_OK;
    NBL_CHECK(call->ctx, g->beta == 0, NBL_ERROR_INTERNAL, "%s: an empty product with beta %g", call->op,
              (double)g->beta);
    size_t size = nbl__size_of(g->c_dtype);
    for (int64_t i = 0; i < k->batch; i++) {
        cudaError_t error = cudaMemset2DAsync((char *)g->c + (size_t)(i * k->c_stride) * size,
                                              (size_t)k->ldc * size, 0, (size_t)k->n * size, (size_t)k->m,
                                              nbl__call_cuda(call)->stream);
        NBL_CHECK(call->ctx, error == cudaSuccess, NBL_ERROR_INTERNAL, "%s: %s", call->op,
                  cudaGetErrorString(error));
    }
    return NBL_OK;
}

nbl_status nbl__cuda_gemm(const nbl__call *call, const nbl__cublaslt_gemm *g)
{
    key k;
    memset(&k, 0, sizeof k);
    k.m = g->m, k.n = g->n, k.k = g->k;
    k.batch = g->batch ? g->batch : 1;
    k.lda = g->lda ? g->lda : g->a_transposed ? g->m : g->k;
    k.ldb = g->ldb ? g->ldb : g->b_transposed ? g->k : g->n;
    k.ldc = g->ldc ? g->ldc : g->n;
    if (k.batch > 1) k.a_stride = g->a_stride, k.b_stride = g->b_stride, k.c_stride = g->c_stride;
    assert(k.lda >= (g->a_transposed ? g->m : g->k) && k.ldb >= (g->b_transposed ? g->k : g->n));
    assert(k.ldc >= g->n && k.batch > 0);
    k.dtype = (int32_t)g->dtype, k.c_dtype = (int32_t)g->c_dtype;
    k.a_transposed = g->a_transposed, k.b_transposed = g->b_transposed, k.reads_c = g->beta != 0;
    if (g->m == 0 || g->n == 0) return NBL_OK;
    if (g->k == 0) return multiply_nothing(call, g, &k);
    if (nbl__call_cuda(call)->blas == NULL) return missing(call);
    k.a_align = alignment_of(g->a, k.batch, k.a_stride, k.dtype);
    k.b_align = alignment_of(g->b, k.batch, k.b_stride, k.dtype);
    k.c_align = alignment_of(g->c, k.batch, k.c_stride, k.c_dtype);
    return multiply(call, &k, g->a, g->b, g->c, &g->alpha, &g->beta);
}

nbl_status nbl__cuda_gemm_int8(const nbl__call *call, int64_t m, int64_t n, int64_t k, const int8_t *a,
                               const int8_t *b, int32_t *c)
{
    int32_t one = 1, zero = 0;
    key it;
    memset(&it, 0, sizeof it);
    it.m = m, it.n = n, it.k = it.lda = it.ldb = k, it.ldc = n, it.batch = 1;
    it.dtype = NBL_DTYPE_I8, it.c_dtype = NBL_DTYPE_I32, it.b_transposed = true;
    it.a_align = alignment_of(a, 1, 0, it.dtype);
    it.b_align = alignment_of(b, 1, 0, it.dtype);
    it.c_align = alignment_of(c, 1, 0, it.c_dtype);
    if (m == 0 || n == 0) return NBL_OK;
    /* The library's integer products need rows that are multiples of 4 bytes. */
    if (k % 4 != 0 || n % 4 != 0 || it.a_align < 4 || it.b_align < 4 || nbl__call_cuda(call)->blas == NULL)
        return nbl__cuda_gemm_int8_plain(call, m, n, k, a, b, c);
    return multiply(call, &it, a, b, c, &one, &zero);
}
