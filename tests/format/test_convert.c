/* test_convert.c - whole folders: quantize, dequantize, compare; against folders that transformers +
 * bitsandbytes wrote (tests/oracle/make_folder_golden.py), and with every allocation and every write
 * failing in turn. */
#include <math.h>
#include <sys/stat.h>

#include "support.h"

#include "base/alloc.h"
#include "base/base.h"

#define FOLDERS TEST_DATA_DIR "/folders"

static char temp[64];

static int set_up(void **state)
{
    (void)state;
    make_temp(temp);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_tree(temp);
    return 0;
}

static void clean(void)
{
    remove_tree(temp);
    assert_int_equal(mkdir(temp, 0755), 0);
}

static nbl_quantize_options nf4(void)
{
    return (nbl_quantize_options){NBL_OPTIONS(nbl_quantize_options), .format = NBL_FORMAT_NF4, .block = 64,
                                  .compute_dtype = NBL_COMPUTE_BF16};
}

/* equal: 1 yes, 0 no, -1 either */
static void assert_diff(nbl_context *ctx, const char *a, const char *b, int equal, double tolerance)
{
    nbl_diff *diff;
    assert_ok(ctx, nbl_checkpoint_diff(ctx, a, b, &diff));
    if (equal >= 0) assert_int_equal(nbl_diff_equal(diff), equal);
    assert_true(nbl_diff_within(diff, tolerance));
    nbl_diff_free(diff);
}

/* ---- against upstream's own bytes ---- */

static void a_folder_quantized_to_nf4_is_upstreams_byte_for_byte(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_quantize_options options = nf4();
    nbl_convert_report report = {NBL_RESULT(nbl_convert_report)};
    clean();
    assert_ok(ctx, nbl_checkpoint_quantize(ctx, FOLDERS "/llama", in_folder(temp, "out"), &options, &report));
    assert_same_file(in_folder(temp, "out/model.safetensors"), FOLDERS "/llama-nf4/model.safetensors");
    assert_same_file(in_folder(temp, "out/config.json"), FOLDERS "/llama-nf4/config.json");
    assert_same_file(in_folder(temp, "out/tokenizer.json"), FOLDERS "/llama/tokenizer.json");
    assert_same_file(in_folder(temp, "out/generation_config.json"), FOLDERS "/llama/generation_config.json");
    assert_int_equal(entries_in(in_folder(temp, "out")), 4);
    assert_int_equal(report.converted, 7);
    assert_int_equal(report.tensors, 16);
    assert_int_equal(report.files, 1);
    assert_int_equal(report.non_finite, 0);
    nbl_context_destroy(ctx);
}

static void upstreams_folder_survives_the_way_through_16_and_32_bits(void **state)
{
    (void)state;
    static const nbl_compute_dtype ways[] = {NBL_COMPUTE_BF16, NBL_COMPUTE_F32};
    nbl_context *ctx = new_context();
    for (int i = 0; i < 2; i++) {
        clean();
        nbl_dequantize_options plain = {NBL_OPTIONS(nbl_dequantize_options), .dtype = ways[i]};
        nbl_quantize_options options = nf4();
        assert_ok(ctx, nbl_checkpoint_dequantize(ctx, FOLDERS "/llama-nf4", in_folder(temp, "plain"), &plain,
                                                 NULL));
        assert_ok(ctx, nbl_checkpoint_quantize(ctx, in_folder(temp, "plain"), in_folder(temp, "again"),
                                               &options, NULL));
        if (ways[i] == NBL_COMPUTE_BF16) { /* else the states say float32 */
            assert_same_file(in_folder(temp, "again/model.safetensors"),
                             FOLDERS "/llama-nf4/model.safetensors");
            assert_same_file(in_folder(temp, "again/config.json"), FOLDERS "/llama-nf4/config.json");
        }
        assert_diff(ctx, in_folder(temp, "again"), FOLDERS "/llama-nf4", 1, 0);
        clean();
        options.format = NBL_FORMAT_INT8;
        assert_ok(ctx, nbl_checkpoint_dequantize(ctx, FOLDERS "/llama-int8", in_folder(temp, "plain"), &plain,
                                                 NULL));
        assert_ok(ctx, nbl_checkpoint_quantize(ctx, in_folder(temp, "plain"), in_folder(temp, "again"),
                                               &options, NULL));
        if (ways[i] == NBL_COMPUTE_F32)
            assert_same_file(in_folder(temp, "again/model.safetensors"),
                             FOLDERS "/llama-int8/model.safetensors");
    }
    nbl_context_destroy(ctx);
}

static void mxfp4_experts_dequantize_to_transformers_own_file_and_back(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_dequantize_options plain = {NBL_OPTIONS(nbl_dequantize_options), .dtype = NBL_COMPUTE_BF16};
    nbl_quantize_options options = {NBL_OPTIONS(nbl_quantize_options), .format = NBL_FORMAT_MXFP4};
    clean();
    assert_ok(ctx, nbl_checkpoint_dequantize(ctx, FOLDERS "/gpt-oss-mxfp4", in_folder(temp, "plain"), &plain,
                                             NULL));
    assert_same_file(in_folder(temp, "plain/model.safetensors"), FOLDERS "/gpt-oss/model.safetensors");
    assert_ok(ctx, nbl_checkpoint_quantize(ctx, in_folder(temp, "plain"), in_folder(temp, "again"), &options,
                                           NULL));
    assert_diff(ctx, in_folder(temp, "again"), FOLDERS "/gpt-oss-mxfp4", 1, 0);
    assert_diff(ctx, in_folder(temp, "again"), in_folder(temp, "plain"), 1, 0);
    nbl_context_destroy(ctx);
}

static void nested_and_flat_scales_describe_nearly_the_same_weights(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_quantize_options options = nf4();
    options.nested = 1;
    clean();
    assert_ok(ctx, nbl_checkpoint_quantize(ctx, FOLDERS "/llama", in_folder(temp, "nested"), &options, NULL));
    assert_diff(ctx, in_folder(temp, "nested"), FOLDERS "/llama-nf4-nested", -1,
                2e-3); /* the mean may differ by an ulp */
    assert_diff(ctx, in_folder(temp, "nested"), FOLDERS "/llama-nf4", 0, 2e-2);
    assert_diff(ctx, in_folder(temp, "nested"), FOLDERS "/llama", 0, 0.12);
    nbl_context_destroy(ctx);
}

static void any_number_of_threads_writes_the_same_files(void **state)
{
    (void)state;
    static const nbl_format formats[] = {NBL_FORMAT_NF4, NBL_FORMAT_FP4, NBL_FORMAT_INT8};
    for (int f = 0; f < 3; f++) {
        clean();
        for (int threads = 1; threads <= 4; threads++) {
            char name[16], file[64];
            nbl_context *ctx = new_context_with(threads);
            nbl_quantize_options options = {NBL_OPTIONS(nbl_quantize_options), .format = formats[f],
                                            .block = 32, .nested = formats[f] != NBL_FORMAT_INT8,
                                            .shard_size = 9000};
            snprintf(name, sizeof name, "out%d", threads);
            assert_ok(ctx,
                      nbl_checkpoint_quantize(ctx, FOLDERS "/llama", in_folder(temp, name), &options, NULL));
            int files = entries_in(in_folder(temp, name)) - 4;
            assert_true(files > 1);
            for (int i = 1; i <= files && threads > 1; i++) {
                snprintf(file, sizeof file, "%s/model-%05d-of-%05d.safetensors", name, i, files);
                const char *first = strdup(in_folder(temp, "out1"));
                assert_same_file(in_folder(temp, file), in_folder(first, strchr(file, '/') + 1));
                free((void *)(uintptr_t)first);
            }
            nbl_context_destroy(ctx);
        }
    }
}

/* ---- refusals ---- */

static void quantizing_twice_is_refused(void **state) /* HAZARDS E15 */
{
    (void)state;
    static const char *const packed[] = {"llama-nf4", "llama-int8", "llama-fp4", "gpt-oss-mxfp4"};
    nbl_context *ctx = new_context();
    nbl_quantize_options options = nf4();
    clean();
    for (int i = 0; i < 4; i++) {
        assert_int_equal(nbl_checkpoint_quantize(ctx, in_folder(FOLDERS, packed[i]), in_folder(temp, "out"),
                                                 &options, NULL),
                         NBL_ERROR_UNSUPPORTED);
        assert_non_null(strstr(nbl_error_message(ctx), packed[i]));
        assert_true(nbl_error_hint(ctx)[0] != '\0');
    }
    nbl_dequantize_options plain = {NBL_OPTIONS(nbl_dequantize_options), .dtype = NBL_COMPUTE_BF16};
    assert_int_equal(nbl_checkpoint_dequantize(ctx, FOLDERS "/llama", in_folder(temp, "out"), &plain, NULL),
                     NBL_ERROR_UNSUPPORTED);
    assert_int_equal(entries_in(temp), 0);
    nbl_context_destroy(ctx);
}

static void impossible_options_are_refused(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    const char *out = in_folder(temp, "out");
    clean();
#define SIZE NBL_OPTIONS(nbl_quantize_options)
    static const nbl_quantize_options bad[] = {
        {SIZE, .format = NBL_FORMAT_DENSE},
        {SIZE, .format = NBL_FORMAT_NF4, .block = 63},
        {SIZE, .format = NBL_FORMAT_NF4, .block = 16},
        {SIZE, .format = NBL_FORMAT_NF4, .block = 8192},
        {SIZE, .format = NBL_FORMAT_NF4, .block = -64},
        {SIZE, .format = NBL_FORMAT_INT8, .nested = NBL_NESTED_NEAREST},
        {SIZE, .format = NBL_FORMAT_NF4, .skip = "(unclosed"},
        {SIZE, .format = NBL_FORMAT_NF4, .compute_dtype = (nbl_compute_dtype)NBL_DTYPE_BF16},
    };
#undef SIZE
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(nbl_checkpoint_quantize(ctx, FOLDERS "/llama", out, &bad[i], NULL),
                         NBL_ERROR_ARGUMENT);
    nbl_quantize_options none = nf4();
    none.skip = ".";
    assert_int_equal(nbl_checkpoint_quantize(ctx, FOLDERS "/llama", out, &none, NULL), NBL_ERROR_UNSUPPORTED);
    nbl_quantize_options mx = {NBL_OPTIONS(nbl_quantize_options), .format = NBL_FORMAT_MXFP4};
    assert_int_equal(nbl_checkpoint_quantize(ctx, FOLDERS "/llama", out, &mx, NULL), NBL_ERROR_UNSUPPORTED);
    nbl_quantize_options good = nf4();
    assert_int_equal(nbl_checkpoint_quantize(ctx, FOLDERS "/llama/model.safetensors", out, &good, NULL),
                     NBL_ERROR_ARGUMENT);
    assert_int_equal(nbl_checkpoint_quantize(ctx, FOLDERS "/absent", out, &good, NULL), NBL_ERROR_NOT_FOUND);
    nbl_dequantize_options plain = {NBL_OPTIONS(nbl_dequantize_options),
                                    .dtype = (nbl_compute_dtype)NBL_DTYPE_I32};
    assert_int_equal(nbl_checkpoint_dequantize(ctx, FOLDERS "/llama-nf4", out, &plain, NULL),
                     NBL_ERROR_ARGUMENT);
    assert_int_equal(entries_in(temp), 0);
    nbl_context_destroy(ctx);
}

/* ---- diff ---- */

static void a_diff_is_exact_about_what_differs(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_diff *diff;
    assert_ok(ctx, nbl_checkpoint_diff(ctx, FOLDERS "/llama", FOLDERS "/llama-nf4", &diff));
    int unequal = 0;
    for (int64_t i = 0; nbl_diff_get_tensor(diff, i); i++) {
        const nbl_tensor_diff *t = nbl_diff_get_tensor(diff, i);
        bool packed = strstr(t->name, "_proj.weight") != NULL;
        assert_int_equal(t->equal, !packed);
        unequal += packed;
        if (packed)
            assert_true(t->rel_norm > 0.05 && t->rel_norm < 0.12 && t->cosine > 0.99 && t->cosine < 1 &&
                        t->max_abs > 0);
        else assert_true(t->rel_norm == 0 && t->max_abs == 0 && t->cosine == 1);
    }
    assert_int_equal(unequal, 7);
    nbl_diff_free(diff);
    assert_ok(ctx, nbl_checkpoint_diff(ctx, FOLDERS "/llama", FOLDERS "/gpt-oss", &diff));
    assert_non_null(nbl_diff_get_missing_in_a(diff, 0));
    assert_non_null(nbl_diff_get_missing_in_b(diff, 0));
    bool shape = false;
    for (int64_t i = 0; nbl_diff_get_tensor(diff, i); i++) shape |= !nbl_diff_get_tensor(diff, i)->same_shape;
    assert_true(shape);
    assert_false(nbl_diff_equal(diff));
    assert_false(nbl_diff_within(diff, INFINITY));
    nbl_diff_free(diff);
    nbl_context_destroy(ctx);
}

/* ---- small folders made here ---- */

/* Writes temp/NAME with a config and a file of `header` and `data`. */
static const char *make_folder(const char *name, const char *config, const char *header, const void *data,
                               size_t size)
{
    static char path[512];
    char length[8];
    snprintf(path, sizeof path, "%s/%s", temp, name);
    assert_int_equal(mkdir(path, 0755), 0);
    write_file(path, "config.json", config, strlen(config));
    FILE *file = fopen(in_folder(path, "model.safetensors"), "wb");
    assert_non_null(file);
    for (int i = 0; i < 8; i++) length[i] = (char)(strlen(header) >> (8 * i));
    assert_int_equal(fwrite(length, 1, 8, file), 8);
    assert_int_equal(fwrite(header, 1, strlen(header), file), strlen(header));
    assert_int_equal(fwrite(data, 1, size, file), size);
    fclose(file);
    return path;
}

static void experts_without_a_single_weight_are_no_accident(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_dequantize_options plain = {NBL_OPTIONS(nbl_dequantize_options), .dtype = NBL_COMPUTE_BF16};
    static const char config[] =
        "{\"model_type\": \"gpt_oss\", \"quantization_config\": {\"quant_method\": \"mxfp4\"}}";
    static const char *const shapes[][2] = {{"[2,0,3,16]", "[2,0,3]"},
                                            {"[0,4,3,16]", "[0,4,3]"},
                                            {"[2,4,0,16]", "[2,4,0]"},
                                            {"[0,288230376151711744,1,16]", "[0,288230376151711744,1]"},
                                            {"[0,1,288230376151711744,16]", "[0,1,288230376151711744]"}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char header[512];
        snprintf(header, sizeof header,
                 "{\"e_blocks\":{\"dtype\":\"U8\",\"shape\":%s,\"data_offsets\":[0,0]},"
                 "\"e_scales\":{\"dtype\":\"U8\",\"shape\":%s,\"data_offsets\":[0,0]}}",
                 shapes[i][0], shapes[i][1]);
        clean();
        const char *in = make_folder("in", config, header, "", 0);
        nbl_status status = nbl_checkpoint_dequantize(ctx, in, in_folder(temp, "out"), &plain, NULL);
        if (i < 3) assert_ok(ctx, status);
        else assert_int_equal(status, NBL_ERROR_FORMAT);
    }
    nbl_context_destroy(ctx);
}

static void a_name_that_the_format_would_add_must_be_free(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_quantize_options options = {NBL_OPTIONS(nbl_quantize_options), .format = NBL_FORMAT_INT8};
    static const float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    clean();
    const char *in = make_folder(
        "in", "{\"model_type\": \"llama\"}",
        "{\"m.up_proj.weight\":{\"dtype\":\"F32\",\"shape\":[2,4],\"data_offsets\":[0,32]},"
        "\"m.up_proj.weight_format\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[32,32]}}",
        values, 32);
    assert_int_equal(nbl_checkpoint_quantize(ctx, in, in_folder(temp, "out"), &options, NULL),
                     NBL_ERROR_UNSUPPORTED);
    assert_non_null(strstr(nbl_error_message(ctx), "m.up_proj.weight_format"));
    assert_int_equal(entries_in(temp), 1);
    nbl_context_destroy(ctx);
}

static void a_result_that_could_not_be_read_is_never_seen(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_quantize_options options = {NBL_OPTIONS(nbl_quantize_options), .format = NBL_FORMAT_INT8};
    static const float values[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    clean(); /* a matrix of bytes beside 8-bit weights reads as one that lost its scales */
    const char *in = make_folder(
        "in", "{\"model_type\": \"llama\"}",
        "{\"m.up_proj.weight\":{\"dtype\":\"F32\",\"shape\":[2,4],\"data_offsets\":[0,32]},"
        "\"m.embed_tokens.weight\":{\"dtype\":\"I8\",\"shape\":[2,2],\"data_offsets\":[32,36]}}",
        values, 36);
    assert_int_equal(nbl_checkpoint_quantize(ctx, in, in_folder(temp, "out"), &options, NULL),
                     NBL_ERROR_FORMAT);
    assert_non_null(strstr(nbl_error_message(ctx), "m.embed_tokens.weight"));
    assert_int_equal(entries_in(temp), 1);
    nbl_context_destroy(ctx);
}

static void integers_are_compared_exactly(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    static const struct {
        const char *dtype[2];
        uint64_t bits[2];
        int equal;
    } pairs[] = {{{"I64", "U64"}, {((uint64_t)1 << 53) + 1, (uint64_t)1 << 53}, 0},
                 {{"I64", "U64"}, {77, 77}, 1},
                 {{"I64", "U64"}, {UINT64_MAX, UINT64_MAX}, 0},
                 {{"F64", "I64"}, {0x4008000000000000, 3}, 1},
                 {{"F64", "I64"}, {0x4340000000000000, ((uint64_t)1 << 53) + 1}, 0},
                 {{"F64", "F64"}, {0x7ff0000000000000, 0x7ff0000000000000}, 1},
                 {{"I64", "I64"}, {5, 6}, 0}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char paths[2][512];
        clean();
        for (int side = 0; side < 2; side++) {
            char header[128], name[2] = {(char)('a' + side), 0};
            snprintf(header, sizeof header, "{\"t\":{\"dtype\":\"%s\",\"shape\":[1],\"data_offsets\":[0,8]}}",
                     pairs[i].dtype[side]);
            strcpy(paths[side], make_folder(name, "{}", header, &pairs[i].bits[side], 8));
        }
        nbl_diff *diff;
        assert_ok(ctx, nbl_checkpoint_diff(ctx, paths[0], paths[1], &diff));
        assert_int_equal(nbl_diff_equal(diff), pairs[i].equal);
        nbl_diff_free(diff);
    }
    nbl_context_destroy(ctx);
}

static void infinities_that_agree_are_no_distance_apart(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    static const float a[8] = {INFINITY, 1, 2, 3, 4, 5, 6, 7}, b[8] = {INFINITY, 1, 2, 3, 4, 5, 6, 8};
    static const char header[] = "{\"t\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]}}";
    char first[512];
    clean();
    strcpy(first, make_folder("a", "{}", header, a, sizeof a));
    nbl_diff *diff;
    assert_ok(ctx, nbl_checkpoint_diff(ctx, first, make_folder("b", "{}", header, b, sizeof b), &diff));
    assert_true(nbl_diff_get_tensor(diff, 0)->max_abs == 1);
    assert_true(nbl_diff_within(diff, 0.1) && !nbl_diff_within(diff, 0.01));
    nbl_diff_free(diff);
    nbl_context_destroy(ctx);
}

/* ---- faults: the n-th allocation, the n-th write, a stop at any moment ---- */

typedef nbl_status (*job_fn)(nbl_context *ctx);

static nbl_status job_quantize(nbl_context *ctx)
{
    nbl_quantize_options options = nf4();
    options.skip = "k_proj";
    return nbl_checkpoint_quantize(ctx, FOLDERS "/llama", in_folder(temp, "out"), &options, NULL);
}

static nbl_status job_double(nbl_context *ctx)
{
    nbl_quantize_options options = nf4();
    options.nested = 1;
    options.shard_size = 12000;
    return nbl_checkpoint_quantize(ctx, FOLDERS "/llama", in_folder(temp, "out"), &options, NULL);
}

static nbl_status job_int8(nbl_context *ctx)
{
    nbl_quantize_options options = {NBL_OPTIONS(nbl_quantize_options), .format = NBL_FORMAT_INT8};
    return nbl_checkpoint_quantize(ctx, FOLDERS "/llama", in_folder(temp, "out"), &options, NULL);
}

static nbl_status job_mxfp4(nbl_context *ctx)
{
    nbl_quantize_options options = {NBL_OPTIONS(nbl_quantize_options), .format = NBL_FORMAT_MXFP4};
    return nbl_checkpoint_quantize(ctx, FOLDERS "/gpt-oss", in_folder(temp, "out"), &options, NULL);
}

static nbl_status job_dequantize(nbl_context *ctx)
{
    nbl_dequantize_options options = {NBL_OPTIONS(nbl_dequantize_options), .dtype = NBL_COMPUTE_F16,
                                      .shard_size = 12000};
    return nbl_checkpoint_dequantize(ctx, FOLDERS "/llama-nf4-nested", in_folder(temp, "out"), &options,
                                     NULL);
}

static nbl_status job_diff(nbl_context *ctx)
{
    nbl_diff *diff;
    nbl_status status = nbl_checkpoint_diff(ctx, FOLDERS "/llama", FOLDERS "/llama-nf4", &diff);
    nbl_diff_free(diff);
    return status;
}

static const job_fn jobs[] = {job_quantize, job_double, job_int8, job_mxfp4, job_dequantize, job_diff};
enum { JOBS = sizeof jobs / sizeof *jobs };

static void assert_clean_failure(nbl_context *ctx, nbl_status status, nbl_status expected)
{
    assert_int_equal(status, expected);
    assert_true(strlen(nbl_error_message(ctx)) > 5);
    assert_int_equal(entries_in(temp), 0);
}

static void the_nth_allocation_fails_and_nothing_is_left(void **state)
{
    (void)state;
    for (int j = 0; j < JOBS; j++) {
        for (int64_t n = 2;; n++) { /* the first is the context itself */
            nbl__counter counter = {.fail_at = n};
            nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = n % 2 ? 1 : 2,
                                           .allocator = nbl__counting_allocator(&counter)};
            nbl_context *ctx;
            clean();
            assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
            nbl_status status = jobs[j](ctx);
            bool done = counter.calls < n;
            if (done) assert_ok(ctx, status);
            else assert_clean_failure(ctx, status, NBL_ERROR_MEMORY);
            nbl_context_destroy(ctx);
            assert_int_equal(counter.live, 0);
            assert_int_equal(counter.bytes, 0);
            if (!done) continue;
            print_message("job %d: %d allocations\n", j, (int)n - 1);
            assert_true(n > 10);
            break;
        }
    }
}

static void the_nth_write_fails_and_nothing_is_left(void **state)
{
    (void)state;
    for (int j = 0; j < JOBS; j++) {
        for (int64_t n = 1;; n++) {
            nbl_context *ctx = new_context_with(n % 2 ? 1 : 2);
            clean();
            nbl__inject_write(ctx, n);
            nbl_status status = jobs[j](ctx);
            bool done = nbl__write_count(ctx) < n;
            if (done) assert_ok(ctx, status);
            else assert_clean_failure(ctx, status, NBL_ERROR_IO);
            nbl_context_destroy(ctx);
            if (!done) continue;
            print_message("job %d: %d writes\n", j, (int)n - 1);
            assert_true(n > 10 || jobs[j] == job_diff);
            break;
        }
    }
}

static bool stop_after(void *user, const nbl_progress *progress)
{
    (void)progress;
    return --*(int *)user < 0;
}

static void a_stop_at_any_moment_leaves_nothing(void **state)
{
    (void)state;
    for (int j = 0; j < JOBS; j++) {
        for (int patience = 0;; patience++) {
            int left = patience;
            nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 2,
                                           .progress = stop_after, .progress_user = &left};
            nbl_context *ctx;
            clean();
            assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
            nbl_status status = jobs[j](ctx);
            if (left < 0) assert_clean_failure(ctx, status, NBL_ERROR_CANCELLED);
            else assert_ok(ctx, status);
            nbl_context_destroy(ctx);
            if (left >= 0) break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_quantized_to_nf4_is_upstreams_byte_for_byte),
        cmocka_unit_test(upstreams_folder_survives_the_way_through_16_and_32_bits),
        cmocka_unit_test(mxfp4_experts_dequantize_to_transformers_own_file_and_back),
        cmocka_unit_test(nested_and_flat_scales_describe_nearly_the_same_weights),
        cmocka_unit_test(any_number_of_threads_writes_the_same_files),
        cmocka_unit_test(quantizing_twice_is_refused),
        cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(a_diff_is_exact_about_what_differs),
        cmocka_unit_test(experts_without_a_single_weight_are_no_accident),
        cmocka_unit_test(a_name_that_the_format_would_add_must_be_free),
        cmocka_unit_test(a_result_that_could_not_be_read_is_never_seen),
        cmocka_unit_test(integers_are_compared_exactly),
        cmocka_unit_test(infinities_that_agree_are_no_distance_apart),
        cmocka_unit_test(the_nth_allocation_fails_and_nothing_is_left),
        cmocka_unit_test(the_nth_write_fails_and_nothing_is_left),
        cmocka_unit_test(a_stop_at_any_moment_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
