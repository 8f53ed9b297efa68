/* gemv.c - one token through a norm and a packed weight, as a decoder does it, in every storage format.
 *
 * Prints the time per call, the bytes the weight takes, and how far the result is from the same product with
 * the original weight.
 *
 *     cc gemv.c $(pkg-config --cflags --libs nibble) -lm -o gemv && ./gemv [threads] */
#include <math.h>
#include <nibble.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { IN = 2048, OUT = 2048, CALLS = 50 };

static double seconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int check(nbl_context *ctx, nbl_status status)
{
    if (status != NBL_OK) fprintf(stderr, "gemv: %s\n", nbl_error_message(ctx));
    return status != NBL_OK;
}

/* y = normed · Wᵀ with W in this format; compares with `exact`. */
static int measure(nbl_context *ctx, nbl_format format, const float *dense, float *normed,
                   const double *exact)
{
    int64_t shape[] = {OUT, IN};
    nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = format, .block = 64};
    nbl_quantized_sizes sizes = {.data = sizeof(float) * OUT * IN};
    nbl_weight w = {
        .format = NBL_FORMAT_DENSE, .dtype = NBL_DTYPE_F32, .rank = 2, .shape = {OUT, IN}, .data = dense};
    nbl_quantized_parts parts = {0};
    if (format != NBL_FORMAT_DENSE) {
        if (check(ctx, nbl_quantize_sizes(ctx, &how, 2, shape, &sizes))) return 1;
        parts.data = malloc(sizes.data), parts.scales = malloc(sizes.scales + 1);
        parts.scale_codes = malloc(sizes.scale_codes + 1);
        if (check(ctx, nbl_quantize(ctx, &how, NBL_DTYPE_F32, 2, shape, dense, &parts, &w))) return 1;
    }
    float *y = malloc(OUT * sizeof *y);
    nbl_linear call = {.dtype = NBL_DTYPE_F32,
                       .x = nbl_vector(NBL_DTYPE_F32, IN, normed),
                       .w = w,
                       .threshold = 6, /* used by int8 */
                       .y = nbl_vector(NBL_DTYPE_F32, OUT, y)};
    size_t bytes;
    if (check(ctx, nbl_linear_scratch(ctx, &call, 0, &bytes))) return 1;
    void *scratch = aligned_alloc(64, bytes ? bytes : 64);
    double start = seconds(), error = 0, norm = 0;
    for (int i = 0; i < CALLS; i++)
        if (check(ctx, nbl_linear_forward(ctx, &call, scratch, bytes))) return 1;
    double each = (seconds() - start) / CALLS;
    for (int n = 0; n < OUT; n++) {
        error += pow((double)y[n] - exact[n], 2);
        norm += exact[n] * exact[n];
    }
    error = sqrt(error / norm);
    printf("%-6s %9.1f us  %5.2f MB  relative error %.1e\n", nbl_format_name(format), each * 1e6,
           (double)(sizes.data + sizes.scales + sizes.scale_codes) / 1e6, error);
    free(y), free(scratch), free(parts.data), free(parts.scales), free(parts.scale_codes);
    return !(error < (format == NBL_FORMAT_DENSE ? 1e-5 : 0.3));
}

int main(int argc, char **argv)
{
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = argc > 1 ? atoi(argv[1]) : 1};
    nbl_context *ctx;
    if (nbl_context_create(&options, &ctx) != NBL_OK) return 1;
    float *dense = malloc(sizeof(float) * OUT * IN), x[IN], gain[IN], normed[IN];
    static double exact[OUT];
    for (int i = 0; i < OUT * IN; i++) dense[i] = (float)(rand() - rand()) / (float)RAND_MAX * 0.05f;
    for (int i = 0; i < IN; i++) x[i] = (float)(rand() - rand()) / (float)RAND_MAX, gain[i] = 1;

    nbl_rmsnorm norm = {.dtype = NBL_DTYPE_F32,
                        .eps = 1e-6f,
                        .x = nbl_vector(NBL_DTYPE_F32, IN, x),
                        .w = nbl_vector(NBL_DTYPE_F32, IN, gain),
                        .y = nbl_vector(NBL_DTYPE_F32, IN, normed)};
    static _Alignas(64) char scratch[1 << 16];
    if (check(ctx, nbl_rmsnorm_forward(ctx, &norm, scratch, sizeof scratch))) return 1;
    for (int n = 0; n < OUT; n++)
        for (int k = 0; k < IN; k++) exact[n] += (double)normed[k] * (double)dense[n * IN + k];

    static const nbl_format formats[] = {NBL_FORMAT_DENSE, NBL_FORMAT_INT8, NBL_FORMAT_NF4, NBL_FORMAT_FP4,
                                         NBL_FORMAT_MXFP4};
    int bad = 0;
    for (int i = 0; i < 5; i++) bad |= measure(ctx, formats[i], dense, normed, exact);
    free(dense);
    nbl_context_destroy(ctx);
    return bad;
}
