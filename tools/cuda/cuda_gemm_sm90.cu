/* cuda_gemm_sm90.cu - examines gemm_sm90 (src/ops/gemm/cuda/gemm_sm90.h) on the first device.
 *
 *   cuda_gemm_sm90 test [--quick]   every variant against sums in f64: sizes that are no multiple of anything, several
 *                                sources, both ways that b may lie, beta, gated; twice the same bits, nothing written
 *                                beside the result. Without such a device it says so and exits with 77. --quick: small
 *                                sizes only, for compute-sanitizer
 *   cuda_gemm_sm90 bench            TFLOP/s at the sizes of an 8B model's layers, beside cuBLASLt: every product once, in
 *                                turns, and medians of the turns
 *
 * Values are random numbers in [-1, 1). */
#include <algorithm>
#include <stdio.h>
#include <stdlib.h>

#include "gemm_reference.cuh"

namespace
{

/* ---- tests ---- */

struct test {
    int64_t m, n, k[NBL_MAX_GEMM_SM90_TERMS];
    bool straight, wide, gated;
    float beta;
    int pad; /* elements between rows */
};

struct tester {
    nbl_context *ctx;
    nbl__call call;
    int runs, bad;
    double worst;
};

/* What the result's memory holds: [m + 1, ldc], the last row and the last columns beside it. */
struct result {
    nbl_dtype dtype;
    int64_t m, n, ld;
    char *memory, *before, *once, *now;
    size_t bytes;
};

void make_result(result *r, nbl_dtype dtype, int64_t m, int64_t n, int64_t ld, uint32_t seed)
{
    *r = {dtype, m, n, ld, NULL, NULL, NULL, NULL, static_cast<size_t>((m + 1) * ld * bytes_of(dtype))};
    r->memory = static_cast<char *>(random_matrix(dtype, (m + 1) * ld, seed));
    r->before = static_cast<char *>(malloc(r->bytes));
    r->once = static_cast<char *>(malloc(r->bytes));
    r->now = static_cast<char *>(malloc(r->bytes));
    if (!r->before || !r->once || !r->now) stop("malloc", "out of memory", __LINE__);
    CUDA(cudaMemcpy(r->before, r->memory, r->bytes, cudaMemcpyDeviceToHost));
}
void free_result(result *r)
{
    CUDA(cudaFree(r->memory));
    free(r->before);
    free(r->once);
    free(r->now);
}
/* What is wrong with it, or NULL. */
const char *examine(result *r, const double *sums, double *error)
{
    double bound = r->dtype == NBL_DTYPE_F32 ? 1e-5 : r->dtype == NBL_DTYPE_F16 ? 1e-3 : 8e-3;
    *error = error_of(r->dtype, sums, r->m, r->n, r->memory, r->ld);
    CUDA(cudaMemcpy(r->now, r->memory, r->bytes, cudaMemcpyDeviceToHost));
    if (memcmp(r->now, r->once, r->bytes) != 0) return "another result the second time";
    size_t size = static_cast<size_t>(bytes_of(r->dtype)), row = static_cast<size_t>(r->ld) * size,
           used = static_cast<size_t>(r->n) * size;
    for (int64_t y = 0; y <= r->m; y++) {
        size_t from = static_cast<size_t>(y) * row + (y < r->m ? used : 0),
               to = static_cast<size_t>(y + 1) * row;
        if (memcmp(r->now + from, r->before + from, to - from) != 0) return "wrote beside the result";
    }
    *error /= bound;
    return *error <= 1 ? NULL : "too far from the sums in f64";
}

void add_source(nbl_dtype dtype, double *sums, const test *c, one_source s)
{
    NBL_BY_DTYPE(dtype, T, (add_product<T><<<1024, 256>>>(sums, c->m, c->n, s, !c->straight)));
}

void run_test(tester *t, const test *c, nbl_dtype dtype, int variant)
{
    nbl_context *ctx = t->ctx;
    nbl__gemm_sm90 p = {};
    nbl_dtype wide = c->wide ? NBL_DTYPE_F32 : dtype;
    double *sums[2];
    size_t sum_bytes = static_cast<size_t>(c->m * c->n) * 8;
    for (int i = 0; i < 2; i++) {
        CUDA(cudaMalloc(&sums[i], sum_bytes));
        CUDA(cudaMemset(sums[i], 0, sum_bytes));
    }
    p.dtype = dtype;
    p.c_dtype = wide;
    p.m = c->m, p.n = c->n;
    p.b_transposed = !c->straight;
    p.gated = c->gated;
    p.act = static_cast<nbl__act>(c->m % 3);
    p.beta = c->beta;
    p.variant = variant;
    for (int i = 0; i < NBL_MAX_GEMM_SM90_TERMS && c->k[i] > 0; i++) {
        nbl__gemm_sm90_term *s = &p.terms[p.count++];
        uint32_t seed = static_cast<uint32_t>(10 * i + variant);
        s->k = c->k[i];
        s->lda = (s->k + 7) / 8 * 8 + c->pad;
        s->ldb = ((c->straight ? c->n : s->k) + 7) / 8 * 8 + c->pad;
        int64_t b_count = (c->straight ? s->k : c->n) * s->ldb;
        s->a = random_matrix(dtype, c->m * s->lda, seed + 1);
        if (!c->gated || i != 2) s->b = random_matrix(dtype, b_count, seed + 2);
        if (c->gated && i != 1) s->b2 = random_matrix(dtype, b_count, seed + 3);
        one_source left = {s->a, s->b, s->k, s->lda, s->ldb}, right = {s->a, s->b2, s->k, s->lda, s->ldb};
        if (s->b) add_source(dtype, sums[0], c, left);
        if (s->b2) add_source(dtype, sums[1], c, right);
    }
    result results[3];
    int count = c->gated ? 3 : 1;
    p.ldc = (c->n + 7) / 8 * 8 + c->pad;
    make_result(&results[0], c->gated ? dtype : wide, c->m, c->n, p.ldc, 5);
    for (int i = 1; i < count; i++) make_result(&results[i], wide, c->m, c->n, c->n, 5);
    p.c = results[0].memory;
    void *elsewhere = NULL; /* every other test adds to what lies elsewhere */
    if (c->beta != 0 && c->m % 2 == 0) {
        p.ldc_in = p.ldc + 16;
        p.c_in = elsewhere = random_matrix(wide, c->m * p.ldc_in, 6);
    }
    if (c->gated) p.gate = results[1].memory, p.up = results[2].memory;
    if (c->beta != 0) {
        const void *from = p.c_in ? p.c_in : p.c;
        int64_t ld = p.c_in ? p.ldc_in : p.ldc;
        double beta = static_cast<double>(c->beta);
        NBL_BY_DTYPE(wide, T,
                     (add_old<<<1024, 256>>>(sums[0], c->m, c->n, static_cast<const T *>(from), ld, beta)));
    }
    CUDA(cudaDeviceSynchronize());
    const char *why = nbl__gemm_sm90_can(nbl__call_cuda(&t->call), &p);
    if (why != NULL) stop("nbl__gemm_sm90_can", why, __LINE__);
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < count; i++)
            CUDA(cudaMemcpy(results[i].memory, results[i].before, results[i].bytes, cudaMemcpyHostToDevice));
        CUDA(cudaDeviceSynchronize());
        void *graph = NULL; /* the second time as a part of one */
        if (turn == 1) NIBBLE(t->call.device->capture_begin(t->call.ctx));
        NIBBLE(nbl__gemm_sm90_run(&t->call, &p));
        if (turn == 1) {
            NIBBLE(t->call.device->capture_end(t->call.ctx, true, &graph));
            NIBBLE(t->call.device->replay(t->call.ctx, graph));
        }
        NIBBLE(t->call.device->wait(t->call.ctx, "gemm_sm90"));
        t->call.device->graph_free(t->call.ctx, graph);
        if (turn == 0)
            for (int i = 0; i < count; i++)
                CUDA(
                    cudaMemcpy(results[i].once, results[i].memory, results[i].bytes, cudaMemcpyDeviceToHost));
    }
    for (int i = count - 1; i >= 0; i--) { /* gate and up first: then their sums become those of c */
        if (c->gated && i == 0) gate_with<<<1024, 256>>>(sums[0], sums[1], c->m * c->n, p.act);
        double error = 0;
        const char *wrong = examine(&results[i], sums[i == 2], &error);
        t->runs++;
        if (!(error <= t->worst)) t->worst = error;
        if (wrong == NULL) continue;
        if (t->bad++ < 20)
            printf("[%" PRId64 ", %" PRId64 "] k %" PRId64 "+%" PRId64 "+%" PRId64
                   " %s%s%s%s beta %g result %d variant %s: %s (%.2f of the bound)\n",
                   c->m, c->n, c->k[0], c->k[1], c->k[2], nbl_dtype_name(dtype),
                   c->straight ? " straight" : "", c->wide ? " wide" : "", c->gated ? " gated" : "",
                   static_cast<double>(c->beta), i, nbl__gemm_sm90_variant(variant), wrong, error);
    }
    for (int i = 0; i < count; i++) free_result(&results[i]);
    for (int i = 0; i < p.count; i++) {
        CUDA(cudaFree(const_cast<void *>(p.terms[i].a)));
        CUDA(cudaFree(const_cast<void *>(p.terms[i].b)));
        CUDA(cudaFree(const_cast<void *>(p.terms[i].b2)));
    }
    CUDA(cudaFree(elsewhere));
    CUDA(cudaFree(sums[0]));
    CUDA(cudaFree(sums[1]));
}

/* Results in parts have the bits of those made one by one. */
void run_parts(tester *t, int64_t m, bool straight, int variant)
{
    nbl_context *ctx = t->ctx;
    const int64_t n[] = {520, 136, 264}, k[] = {200, 16, 136, 72, 64};
    const int counts[] = {2, 1, 2};
    void *ones[3];
    nbl__gemm_sm90 all = {};
    all.dtype = all.c_dtype = NBL_DTYPE_BF16;
    all.m = m, all.b_transposed = !straight, all.variant = variant, all.part_count = 3;
    int next = 0;
    for (int i = 0; i < 3; i++) {
        nbl__gemm_sm90 one = all;
        one.part_count = 0;
        one.n = n[i], one.count = counts[i];
        for (int j = 0; j < one.count; j++, next++) {
            uint32_t seed = static_cast<uint32_t>(next);
            int64_t b_count = k[next] * n[i];
            one.terms[j] = {random_matrix(NBL_DTYPE_BF16, m * k[next], seed),
                              random_matrix(NBL_DTYPE_BF16, b_count, seed + 50),
                              NULL,
                              k[next],
                              0,
                              0,
                              NULL,
                              0};
            all.terms[next] = one.terms[j];
        }
        size_t bytes = static_cast<size_t>(m * n[i]) * 2;
        CUDA(cudaMalloc(&one.c, bytes));
        CUDA(cudaMalloc(&all.parts[i].c, bytes));
        CUDA(cudaMemset(all.parts[i].c, 0xff, bytes));
        all.parts[i].n = n[i], all.parts[i].count = one.count;
        CUDA(cudaDeviceSynchronize());
        NIBBLE(nbl__gemm_sm90_run(&t->call, &one));
        ones[i] = one.c;
    }
    const char *why = nbl__gemm_sm90_can(nbl__call_cuda(&t->call), &all);
    if (why != NULL) stop("nbl__gemm_sm90_can", why, __LINE__);
    NIBBLE(nbl__gemm_sm90_run(&t->call, &all));
    NIBBLE(t->call.device->wait(t->call.ctx, "gemm_sm90"));
    for (int i = 0; i < 3; i++) {
        size_t bytes = static_cast<size_t>(m * n[i]) * 2;
        char *left = static_cast<char *>(malloc(2 * bytes)), *right = left + bytes;
        if (left == NULL) stop("malloc", "out of memory", __LINE__);
        CUDA(cudaMemcpy(left, ones[i], bytes, cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(right, all.parts[i].c, bytes, cudaMemcpyDeviceToHost));
        bool same = memcmp(left, right, bytes) == 0;
        t->runs++;
        if (!same && t->bad++ < 20)
            printf("part %d of %" PRId64 " rows%s, variant %s: other bits than alone\n", i, m,
                   straight ? ", straight" : "", nbl__gemm_sm90_variant(variant));
        free(left);
        CUDA(cudaFree(ones[i]));
        CUDA(cudaFree(all.parts[i].c));
    }
    for (int i = 0; i < next; i++) {
        CUDA(cudaFree(const_cast<void *>(all.terms[i].a)));
        CUDA(cudaFree(const_cast<void *>(all.terms[i].b)));
    }
}

/* What is wrong with the exponentials of [m, n] sums, or NULL. `slack`: what the sums may be off. */
const char *examine_exponentials(const double *sums, double slack, int64_t m, int64_t n, const float *powers,
                                 const int32_t *labels, const uint16_t *c, const float *label_sums,
                                 const float *spans)
{
    int64_t count = (n + NBL_GEMM_SM90_SPAN - 1) / NBL_GEMM_SM90_SPAN;
    for (int64_t y = 0; y < m; y++) {
        for (int64_t i = 0; i < count; i++) {
            const float *span = spans + 2 * (y * count + i);
            double power = static_cast<double>(span[1]), sum = 0, max = -INFINITY;
            for (int64_t x = i * NBL_GEMM_SM90_SPAN; x < n && x < (i + 1) * NBL_GEMM_SM90_SPAN; x++) {
                double want = exp2(sums[y * n + x] * 1.4426950408889634 - power);
                uint32_t bits = static_cast<uint32_t>(c[y * n + x]) << 16;
                float got;
                memcpy(&got, &bits, 4);
                if (!(fabs(static_cast<double>(got) - want) <= (0x1.02p-8 + slack) * want + 1e-37))
                    return "an exponential";
                sum += want;
                max = fmax(max, sums[y * n + x] * 1.4426950408889634);
            }
            if (!(fabs(static_cast<double>(span[0]) - sum) <= (4e-6 + slack) * sum)) return "a span's sum";
            double near = static_cast<double>(powers[y]), all = sum * exp2(power - near) * 0x1p-60;
            if (power == near ? all > 1.01 : all < 0.99 || !(fabs(power - max) < 1.1))
                return "a span's power";
        }
        bool given = labels[y] >= 0 && labels[y] < n;
        double want = given ? sums[y * n + labels[y]] : 7;
        if (!(fabs(static_cast<double>(label_sums[y]) - want) <= slack)) return "a label's sum";
    }
    return NULL;
}

/* Exponentials against sums in f64: spans that take the row's power, and spans that need their own. Twice, then
 * without the exponentials themselves: the same bits. */
void run_exponentials(tester *t, int64_t m, int64_t n, int64_t k, int variant)
{
    nbl_context *ctx = t->ctx;
    int64_t span_bytes = m * ((n + NBL_GEMM_SM90_SPAN - 1) / NBL_GEMM_SM90_SPAN) * 8, c_bytes = m * n * 2;
    int64_t bytes = c_bytes + span_bytes + 4 * m, sum_bytes = m * n * 8;
    char *memory, *host = static_cast<char *>(malloc(static_cast<size_t>(2 * bytes + sum_bytes + 8 * m)));
    if (host == NULL) stop("malloc", "out of memory", __LINE__);
    char *once = host + bytes;
    double *sums = reinterpret_cast<double *>(once + bytes), *device_sums;
    float *powers = reinterpret_cast<float *>(sums + m * n);
    int32_t *labels = reinterpret_cast<int32_t *>(powers + m);
    for (int64_t y = 0; y < m; y++) {
        powers[y] = static_cast<float>(y % 3 == 0 ? 0 : y % 41 - 20);
        labels[y] = y % 5 == 0 ? -100 : static_cast<int32_t>(y * 37 % (n + 8)); /* n and more: no column */
    }
    nbl__gemm_sm90 p = {};
    one_source s = {random_matrix(NBL_DTYPE_BF16, m * k, 11), random_matrix(NBL_DTYPE_BF16, n * k, 12), k, k,
                    k};
    void *facts;
    CUDA(cudaMalloc(&memory, static_cast<size_t>(bytes)));
    CUDA(cudaMalloc(&facts, static_cast<size_t>(8 * m)));
    CUDA(cudaMalloc(&device_sums, static_cast<size_t>(sum_bytes)));
    CUDA(cudaMemset(device_sums, 0, static_cast<size_t>(sum_bytes)));
    CUDA(cudaMemcpy(facts, powers, static_cast<size_t>(8 * m), cudaMemcpyHostToDevice));
    add_product<__nv_bfloat16><<<1024, 256>>>(device_sums, m, n, s, true);
    CUDA(cudaMemcpy(sums, device_sums, static_cast<size_t>(sum_bytes), cudaMemcpyDeviceToHost));
    p.dtype = p.c_dtype = NBL_DTYPE_BF16;
    p.m = m, p.n = n, p.count = 1, p.b_transposed = true, p.variant = variant;
    p.terms[0] = {s.a, s.b, NULL, k, 0, 0, NULL, 0};
    p.exponentials.powers = static_cast<float *>(facts);
    p.exponentials.labels = static_cast<int32_t *>(facts) + m;
    p.exponentials.spans = reinterpret_cast<float *>(memory + c_bytes);
    p.exponentials.label_sums = reinterpret_cast<float *>(memory + c_bytes + span_bytes);
    const char *wrong = NULL;
    for (int turn = 0; turn < 3 && wrong == NULL; turn++) {
        p.c = turn < 2 ? memory : NULL;
        const char *why = nbl__gemm_sm90_can(nbl__call_cuda(&t->call), &p);
        if (why != NULL) stop("nbl__gemm_sm90_can", why, __LINE__);
        CUDA(cudaMemset(memory, 0xff, static_cast<size_t>(bytes)));
        for (int64_t y = 0; y < m; y++) powers[y] = 7;
        CUDA(cudaMemcpy(p.exponentials.label_sums, powers, static_cast<size_t>(4 * m),
                        cudaMemcpyHostToDevice));
        CUDA(cudaMemcpy(powers, facts, static_cast<size_t>(4 * m), cudaMemcpyDeviceToHost));
        CUDA(cudaDeviceSynchronize());
        NIBBLE(nbl__gemm_sm90_run(&t->call, &p));
        NIBBLE(t->call.device->wait(t->call.ctx, "gemm_sm90"));
        CUDA(cudaMemcpy(host, memory, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost));
        if (turn == 0) memcpy(once, host, static_cast<size_t>(bytes));
        int64_t from = turn < 2 ? 0 : c_bytes; /* when they are not kept */
        if (memcmp(host + from, once + from, static_cast<size_t>(bytes - from)) != 0) wrong = "other bits";
        if (turn == 0)
            wrong = examine_exponentials(sums, 1e-5 + 2e-7 * static_cast<double>(k), m, n, powers, labels,
                                         reinterpret_cast<uint16_t *>(host),
                                         reinterpret_cast<float *>(host + c_bytes + span_bytes),
                                         reinterpret_cast<float *>(host + c_bytes));
    }
    t->runs++;
    if (wrong && t->bad++ < 20)
        printf("exponentials [%" PRId64 ", %" PRId64 "] k %" PRId64 " variant %s: %s\n", m, n, k,
               nbl__gemm_sm90_variant(variant), wrong);
    free(host);
    CUDA(cudaFree(memory));
    CUDA(cudaFree(facts));
    CUDA(cudaFree(device_sums));
    CUDA(cudaFree(const_cast<void *>(s.a)));
    CUDA(cudaFree(const_cast<void *>(s.b)));
}

int run_tests(tester *t, bool quick)
{
    static const test tests[] = {
        {1, 8, {8}, false, false, false, 0, 0},
        {128, 256, {64}, false, false, false, 0, 0},
        {128, 256, {128}, true, false, false, 0, 0},
        {129, 264, {72, 16}, false, false, false, 0, 8},
        {129, 264, {72, 16}, true, true, false, 0.5f, 8},
        {300, 520, {333, 8, 24}, false, false, false, 1, 0},
        {300, 520, {333, 8, 24}, true, false, false, 0, 8},
        {200, 136, {200, 16, 16}, false, true, true, 0, 0},
        {77, 264, {72, 64, 64, 8, 136}, false, false, true, 0, 8},
        /* larger ones: more units than there are clusters */
        {3000, 3000, {136, 64}, false, false, false, 0, 0},
        {3000, 3000, {136, 64}, true, false, false, 0, 0},
        {2500, 4104, {520}, false, true, false, -1.5f, 0},
        {2500, 4104, {64, 16, 64, 16, 64, 16, 200, 8}, true, true, false, 1, 8},
        {3000, 3000, {256, 64, 64}, false, false, true, 0, 0},
        {513, 1024, {4096, 64}, true, false, false, 0, 0},
        {1100, 2056, {4096, 16}, false, false, false, 1, 8},
    };
    int count = quick ? 9 : static_cast<int>(sizeof tests / sizeof *tests);
    for (int i = 0; i < count; i++)
        for (int f16 = 0; f16 < 2; f16++)
            for (int variant = 1; nbl__gemm_sm90_variant(variant); variant++) {
                if (tests[i].gated && strncmp(nbl__gemm_sm90_variant(variant), "256", 3) != 0) continue;
                run_test(t, &tests[i], f16 ? NBL_DTYPE_F16 : NBL_DTYPE_BF16, variant);
            }
    for (int variant = 1; nbl__gemm_sm90_variant(variant); variant++)
        for (int straight = 0; straight < 2; straight++) {
            run_parts(t, 77, straight, variant);
            if (!quick) run_parts(t, 5000, straight, variant);
        }
    for (int variant = 1; nbl__gemm_sm90_variant(variant); variant++) {
        if (strncmp(nbl__gemm_sm90_variant(variant), "256", 3) != 0) continue;
        run_exponentials(t, 1, 8, 8, variant);
        run_exponentials(t, 129, 520, 72, variant);
        if (quick) continue;
        run_exponentials(t, 300, 2056, 4096, variant); /* sums of 90 */
        run_exponentials(t, 2500, 4104, 200, variant);
    }
    printf("%d results, %d wrong, worst %.2f of its bound\n", t->runs, t->bad, t->worst);
    return t->bad > 0;
}

/* ---- speed ---- */

enum { MAX = 16, TURNS = 15 };

struct contest {
    nbl_context *ctx;
    nbl__call call;
    cudaStream_t stream;
    cudaEvent_t from[MAX][TURNS], to[MAX][TURNS];
};

/* Runs `count` ways to compute `flop`, in turns, and prints what they reach. */
template <typename F> void race(contest *c, const char *what, double flop, int count, F run)
{
    for (int turn = -2; turn < TURNS; turn++)
        for (int i = 0; i < count; i++) {
            if (turn >= 0) CUDA(cudaEventRecord(c->from[i][turn], c->stream));
            run(i);
            if (turn >= 0) CUDA(cudaEventRecord(c->to[i][turn], c->stream));
        }
    CUDA(cudaStreamSynchronize(c->stream));
    printf("%-40s", what);
    for (int i = 0; i < count; i++) {
        float times[TURNS];
        for (int turn = 0; turn < TURNS; turn++)
            CUDA(cudaEventElapsedTime(&times[turn], c->from[i][turn], c->to[i][turn]));
        std::sort(times, times + TURNS);
        printf(" %9.1f", flop / static_cast<double>(times[TURNS / 2]) * 1e-9);
    }
    printf("\n");
    fflush(stdout);
}

nbl__cublaslt_gemm gemm_of(const nbl__gemm_sm90 *p, int source, bool second, float beta)
{
    const nbl__gemm_sm90_term *s = &p->terms[source];
    nbl__cublaslt_gemm g = {};
    g.dtype = p->dtype, g.c_dtype = p->c_dtype;
    g.m = p->m, g.n = p->n, g.k = s->k;
    g.a = s->a, g.b = second ? s->b2 : s->b, g.c = p->c;
    g.b_transposed = p->b_transposed;
    g.alpha = 1, g.beta = beta;
    return g;
}

int run_bench(nbl_context *ctx, const nbl__call *call)
{
    static const int64_t sizes[][3] = {{8192, 4096, 4096},  {8192, 6144, 4096},  {8192, 14336, 4096},
                                       {8192, 28672, 4096}, {8192, 4096, 14336}, {2048, 1024, 4096},
                                       {2048, 4096, 4096},  {2048, 6144, 4096},  {2048, 14336, 4096},
                                       {2048, 28672, 4096}, {2048, 4096, 14336}, {4096, 3584, 3584}};
    constexpr int64_t ROWS = 8192, WIDE = 28672, DEEP = 14336, RANK = 64;
    contest *c = static_cast<contest *>(calloc(1, sizeof *c));
    if (c == NULL) stop("calloc", "out of memory", __LINE__);
    c->ctx = ctx;
    c->call = *call;
    c->stream = static_cast<cudaStream_t>(nbl__call_cuda(call)->stream);
    for (int i = 0; i < MAX * TURNS; i++) {
        CUDA(cudaEventCreate(&c->from[0][i]));
        CUDA(cudaEventCreate(&c->to[0][i]));
    }
    void *x = random_matrix(NBL_DTYPE_BF16, ROWS * DEEP, 1),
         *w = random_matrix(NBL_DTYPE_BF16, WIDE * 4096, 2),
         *w2 = random_matrix(NBL_DTYPE_BF16, DEEP * 4096, 3),
         *t = random_matrix(NBL_DTYPE_BF16, ROWS * RANK, 4),
         *t2 = random_matrix(NBL_DTYPE_BF16, ROWS * RANK, 5),
         *b = random_matrix(NBL_DTYPE_BF16, WIDE * RANK, 6),
         *y = random_matrix(NBL_DTYPE_BF16, ROWS * WIDE, 7),
         *y2 = random_matrix(NBL_DTYPE_BF16, ROWS * WIDE, 8);
    int variants = 0;
    while (nbl__gemm_sm90_variant(variants + 1)) variants++;
    printf("TFLOP/s of the first source; +r: and a second one of rank r (cuBLASLt: a second call); +old: and "
           "a residual\n");
    printf("%-40s  cuBLASLt       +64    chosen       +16       +64      +old", "");
    for (int i = 1; i <= variants; i++) printf(" %9s", nbl__gemm_sm90_variant(i));
    printf("\n");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int transposed = 1; transposed >= 0; transposed--) {
            nbl__gemm_sm90 p = {};
            p.dtype = p.c_dtype = NBL_DTYPE_BF16;
            p.m = sizes[i][0], p.n = sizes[i][1];
            p.b_transposed = transposed;
            p.c = y;
            p.terms[0] = {x, w, NULL, sizes[i][2], 0, 0, NULL, 0};
            p.terms[1] = {t, b, NULL, RANK, 0, 0, NULL, 0};
            char what[64];
            snprintf(what, sizeof what, "%" PRId64 " x %" PRId64 " x %" PRId64 "%s", p.m, p.n, p.terms[0].k,
                     transposed ? "" : " straight");
            race(c, what,
                 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(sizes[i][2]),
                 6 + variants, [&](int algo) {
                     nbl__cublaslt_gemm g = gemm_of(&p, 0, false, 0), more = gemm_of(&p, 1, false, 1);
                     p.count = algo == 3 || algo == 4 ? 2 : 1;
                     p.terms[1].k = algo == 3 ? 16 : RANK;
                     p.beta = algo == 5;
                     p.c_in = y2;
                     p.variant = algo < 6 ? 0 : algo - 5;
                     if (algo < 2) NIBBLE(nbl__cuda_gemm(call, &g));
                     if (algo == 1) NIBBLE(nbl__cuda_gemm(call, &more));
                     if (algo >= 2) NIBBLE(nbl__gemm_sm90_run(call, &p));
                 });
        }
    printf("%-40s  cuBLASLt       one\n", "");
    for (int64_t m = 2048; m <= ROWS; m *= 4) {
        /* The gradient that q, k and v of a layer send back, with adapters: six sources. */
        nbl__gemm_sm90 p = {};
        char *from = static_cast<char *>(x);
        p.dtype = p.c_dtype = NBL_DTYPE_BF16;
        p.m = m, p.n = 4096;
        p.c = y;
        p.count = 6;
        p.terms[0] = {from, w, NULL, 4096, 0, 0, NULL, 0};
        p.terms[1] = {t, b, NULL, RANK, 0, 0, NULL, 0};
        p.terms[2] = {from + m * 8192, w2, NULL, 1024, 0, 0, NULL, 0};
        p.terms[3] = {t2, b, NULL, RANK, 0, 0, NULL, 0};
        p.terms[4] = {from + m * 10240, w2, NULL, 1024, 0, 0, NULL, 0};
        p.terms[5] = {t, b, NULL, RANK, 0, 0, NULL, 0};
        char what[64];
        snprintf(what, sizeof what, "%" PRId64 " rows, dx of q, k and v", m);
        race(c, what, 2.0 * static_cast<double>(m) * 4096 * 6144, 2, [&](int algo) {
            for (int i = 0; i < 6 && algo == 0; i++) {
                nbl__cublaslt_gemm g = gemm_of(&p, i, false, i > 0);
                NIBBLE(nbl__cuda_gemm(call, &g));
            }
            if (algo == 1) NIBBLE(nbl__gemm_sm90_run(call, &p));
        });
        /* act(gate)·up with adapters, gate and up kept; cuBLASLt without the last step. */
        p.n = 14336;
        p.b_transposed = p.gated = true;
        p.act = NBL_ACT_SILU;
        p.gate = y2;
        p.up = static_cast<char *>(y2) + m * p.n * 2;
        p.count = 3;
        p.terms[0] = {x, w, w2, 4096, 0, 0, NULL, 0};
        p.terms[1] = {t, b, NULL, RANK, 0, 0, NULL, 0};
        p.terms[2] = {t2, NULL, b, RANK, 0, 0, NULL, 0};
        snprintf(what, sizeof what, "%" PRId64 " rows, silu(gate) up, kept", m);
        race(c, what, 2.0 * static_cast<double>(m) * 4096 * 28672, 2, [&](int algo) {
            nbl__cublaslt_gemm all[] = {gemm_of(&p, 0, false, 0), gemm_of(&p, 1, false, 1), gemm_of(&p, 0, true, 0),
                               gemm_of(&p, 2, true, 1)};
            for (int i = 0; i < 4 && algo == 0; i++) {
                all[i].c = i < 2 ? p.gate : p.up;
                NIBBLE(nbl__cuda_gemm(call, &all[i]));
            }
            if (algo == 1) NIBBLE(nbl__gemm_sm90_run(call, &p));
        });
    }
    /* What the host does for a call. */
    nbl__gemm_sm90 p = {};
    p.dtype = p.c_dtype = NBL_DTYPE_BF16;
    p.m = p.n = 128, p.c = y, p.count = 2, p.b_transposed = true;
    p.terms[0] = p.terms[1] = {x, w, NULL, 64, 0, 0, NULL, 0};
    struct timespec from, to;
    NIBBLE(call->device->wait(call->ctx, "bench"));
    timespec_get(&from, TIME_UTC);
    for (int i = 0; i < 500; i++) NIBBLE(nbl__gemm_sm90_run(call, &p));
    timespec_get(&to, TIME_UTC);
    NIBBLE(call->device->wait(call->ctx, "bench"));
    printf("a call of two sources takes the host %.1f us\n",
           (static_cast<double>(to.tv_sec - from.tv_sec) * 1e6 +
            static_cast<double>(to.tv_nsec - from.tv_nsec) * 1e-3) /
               500);
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    bool test = argc >= 2 && strcmp(argv[1], "test") == 0,
         measure = argc == 2 && strcmp(argv[1], "bench") == 0;
    bool quick = argc == 3 && strcmp(argv[2], "--quick") == 0;
    if ((!test && !measure) || argc > 3 || (argc == 3 && !quick)) {
        fprintf(stderr, "usage: cuda_gemm_sm90 test [--quick] | bench\n");
        return 2;
    }
    nbl_context *ctx = NULL;
    nbl_cuda_device device;
    NBL_RESULT_INIT(device);
    if (nbl_context_create(NULL, &ctx) != NBL_OK) stop("nbl_context_create", "failed", __LINE__);
    if (nbl_cuda_device_get(ctx, 0, &device) != NBL_OK || device.major != 9) {
        printf("cuda_gemm_sm90: skipped: no device of compute capability 9.0\n");
        nbl_context_destroy(ctx);
        return 77;
    }
    NIBBLE(nbl_context_use_cuda(ctx, 0));
    printf("%s, compute capability %d.%d\n", device.name, device.major, device.minor);
    tester t = {ctx, {ctx, "gemm_sm90", NULL, 0, nbl__device_of(ctx), {}, {}}, 0, 0, 0};
    int status = test ? run_tests(&t, quick) : run_bench(ctx, &t.call);
    nbl_context_destroy(ctx);
    return status;
}
