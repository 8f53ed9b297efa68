/* test_vmath.c - the vector functions against libm in f64: a dense sample of all floats, and the edges. */
#include <math.h>

#include "support.h"

#include "ops/common/vmath.h"

#if defined(__x86_64__)

typedef void (*apply_fn)(const float *x, float *y); /* 16 values */

#define APPLY(name)                                                                                          \
    NBL_TARGET_AVX2 static void name##_8(const float *x, float *y)                                           \
    {                                                                                                        \
        _mm256_storeu_ps(y, nbl__##name##_avx2(_mm256_loadu_ps(x)));                                         \
        _mm256_storeu_ps(y + 8, nbl__##name##_avx2(_mm256_loadu_ps(x + 8)));                                 \
    }                                                                                                        \
    NBL_TARGET_AVX512 static void name##_16(const float *x, float *y)                                        \
    {                                                                                                        \
        _mm512_storeu_ps(y, nbl__##name##_avx512(_mm512_loadu_ps(x)));                                       \
    }
APPLY(exp)
APPLY(log)
APPLY(tanh)
APPLY(erf)
APPLY(sigmoid)
#undef APPLY

static double sigmoid_f64(double x)
{
    return 1 / (1 + exp(-x));
}

static const struct {
    const char *name;
    double (*exact)(double);
    apply_fn apply[2]; /* AVX2, AVX-512 */
    double ulps;
    float low, high; /* where it is not constant: sampled more densely */
} functions[] = {
    {"exp", exp, {exp_8, exp_16}, 1, -104, 89},
    {"log", log, {log_8, log_16}, 1, 1e-3f, 10},
    {"tanh", tanh, {tanh_8, tanh_16}, 1.5, -10, 10},
    {"erf", erf, {erf_8, erf_16}, 1.1, -4.2f, 4.2f},
    {"sigmoid", sigmoid_f64, {sigmoid_8, sigmoid_16}, 2.5, -104, 20},
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

/* The distance in units of the last place that an f32 near `exact` has. */
static double ulps_between(float got, double exact)
{
    if (isnan(exact)) return isnan(got) ? 0 : INFINITY;
    float rounded = (float)exact;
    if (isinf(rounded) || isinf(got)) return got == rounded ? 0 : INFINITY;
    int exponent = fabs(exact) < 0x1p-126 ? -126 : ilogb(exact);
    return fabs((double)got - exact) / ldexp(1, exponent - 23);
}

static double worst_of_16(int f, int wide, const float *x, double worst)
{
    float y[16];
    functions[f].apply[wide](x, y);
    for (int i = 0; i < 16; i++) {
        double error = ulps_between(y[i], functions[f].exact((double)x[i]));
        if (!(error <= functions[f].ulps))
            fail_msg("%s(%a) = %a, %g ulp from %a", functions[f].name, (double)x[i], (double)y[i], error,
                     functions[f].exact((double)x[i]));
        if (error > worst) worst = error;
    }
    return worst;
}

static void every_function_is_within_its_bound_over_all_floats(void **state)
{
    (void)state;
    nbl_isa isa = nbl__isa_detect();
    for (int f = 0; f < FUNCTIONS; f++)
        for (int wide = 0; wide < 2; wide++) {
            float x[16];
            double worst = 0;
            if (isa < (wide ? NBL_ISA_AVX512 : NBL_ISA_AVX2)) continue;
            for (uint64_t bits = 0; bits < 0x100000000; bits += 16 * 1021) {
                for (uint32_t i = 0; i < 16; i++) x[i] = nbl__from_bits((uint32_t)bits + i * 1021);
                worst = worst_of_16(f, wide, x, worst);
            }
            for (int block = 0; block < 20000; block++) {
                for (int i = 0; i < 16; i++)
                    x[i] = functions[f].low +
                           (functions[f].high - functions[f].low) * (float)(block * 16 + i) / 320000.0f;
                worst = worst_of_16(f, wide, x, worst);
            }
            print_message("%s, %s: %.3f ulp\n", functions[f].name, wide ? "AVX-512" : "AVX2", worst);
        }
}

static void the_edges_are_those_of_c(void **state)
{
    (void)state;
    static const float edges[16] = {0.0f,      -0.0f,     INFINITY,  -INFINITY,  NAN,     1e-45f,
                                    -1e-45f,   1.0f,      0x1p-126f, -0x1p-126f, 3.4e38f, -3.4e38f,
                                    88.72283f, 88.72284f, -87.3366f, -103.98f};
    nbl_isa isa = nbl__isa_detect();
    for (int f = 0; f < FUNCTIONS; f++)
        for (int wide = 0; wide < 2; wide++) {
            float y[16];
            if (isa < (wide ? NBL_ISA_AVX512 : NBL_ISA_AVX2)) continue;
            worst_of_16(f, wide, edges, 0);
            functions[f].apply[wide](edges, y);
            if (functions[f].exact == tanh || functions[f].exact == erf) {
                assert_true(y[0] == 0 && !signbit(y[0]) && y[1] == 0 && signbit(y[1]));
                assert_true(y[2] == 1 && y[3] == -1);
            }
        }
}

/* Loads and stores of n elements give the bits of the arrays' conversion and touch nothing behind. */
NBL_TARGET_AVX2 static void move_8(nbl_dtype dtype, const void *from, void *to, int64_t n)
{
    nbl__put_avx2(dtype, to, nbl__get_avx2(dtype, from, n), n);
}
NBL_TARGET_AVX512 static void move_16(nbl_dtype dtype, const void *from, void *to, int64_t n)
{
    nbl__put_avx512(dtype, to, nbl__get_avx512(dtype, from, n), n);
}

static void parts_of_a_vector_are_moved_exactly(void **state)
{
    (void)state;
    static const nbl_dtype dtypes[] = {NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16};
    float values[16];
    nbl_isa isa = nbl__isa_detect();
    for (int i = 0; i < 16; i++) values[i] = i == 3 ? NAN : i == 5 ? -INFINITY : sinf((float)i) * 3;
    for (int d = 0; d < 3; d++)
        for (int wide = 0; wide < 2; wide++)
            for (int64_t n = 0; isa >= (wide ? NBL_ISA_AVX512 : NBL_ISA_AVX2) && n <= (wide ? 16 : 8); n++) {
                uint8_t from[64], to[80];
                size_t bytes = (size_t)n * nbl__size_of(dtypes[d]);
                nbl__from_f32(NBL_ISA_SCALAR, values, dtypes[d], from, 16);
                memset(to, 0x5a, sizeof to);
                (wide ? move_16 : move_8)(dtypes[d], from, to + 1, n);
                assert_memory_equal(to + 1, from, bytes);
                assert_int_equal(to[0], 0x5a);
                for (size_t i = bytes + 1; i < sizeof to; i++) assert_int_equal(to[i], 0x5a);
            }
}

#endif

int main(void)
{
#if defined(__x86_64__)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_function_is_within_its_bound_over_all_floats),
        cmocka_unit_test(the_edges_are_those_of_c),
        cmocka_unit_test(parts_of_a_vector_are_moved_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
#else
    return 0; /* there are none here */
#endif
}
