/* test_expert_stacks.c - experts of a model, however its file has them: one stack per parameter, the same values in every
 * layout, what --load makes of them, and what does not fit. Adapters of experts under PEFT's names. */
#include "support.h"

#include <math.h>

#include "base/alloc.h"
#include "format/hf/expert_names.h"
#include "format/hf/safetensors.h"
#include "model/language_model.h"

typedef struct folder {
    char path[64];
    uint8_t *bytes;
    nbl__arena arena;
    nbl__stored *tensors;
    int64_t count;
} folder;

/* A copy of a golden model whose tensors can be changed. Room for `more` of them. */
static folder open_folder(nbl_context *ctx, const char *golden, int64_t more)
{
    folder f = {.arena = nbl__arena_make(ctx)};
    char source[512];
    size_t size;
    snprintf(source, sizeof source, "%s/models/%s", TEST_DATA_DIR, golden);
    make_temp(f.path);
    uint8_t *config = read_file(in_folder(source, "config.json"), &size);
    write_file(f.path, "config.json", config, size);
    free(config);
    f.bytes = read_file(in_folder(source, "model.safetensors"), &size);
    nbl__stored *tensors;
    assert_ok(ctx, nbl__safetensors_parse(&f.arena, golden, f.bytes, size, &tensors, &f.count));
    f.tensors = nbl__arena_alloc(&f.arena, (size_t)(f.count + more) * sizeof *f.tensors);
    memcpy(f.tensors, tensors, (size_t)f.count * sizeof *f.tensors);
    return f;
}

static void close_folder(folder *f)
{
    nbl__arena_free(&f->arena);
    free(f->bytes);
    remove_tree(f->path);
}

static nbl__stored *tensor_of(folder *f, const char *name)
{
    for (int64_t i = 0; i < f->count; i++)
        if (strcmp(f->tensors[i].name, name) == 0) return &f->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static void save(nbl_context *ctx, folder *f)
{
    nbl__text image = {.ctx = ctx};
    assert_ok(ctx, nbl__safetensors_build(&f->arena, f->tensors, f->count, &image));
    write_file(f->path, "model.safetensors", image.text, image.size);
    nbl__text_free(&image);
}

static nbl_status open_model(nbl_context *ctx, const folder *f, nbl_format load, nbl_model **model)
{
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .dtype = NBL_COMPUTE_F32, .load = load};
    return nbl_model_open(ctx, f->path, &options, model);
}

static const int32_t prompt[] = {3, 17, 40, 5, 9, 33, 12};
enum { TOKENS = sizeof prompt / sizeof *prompt };

/* Logits of one sequence; free them. */
static float *logits_of(nbl_context *ctx, nbl_model *model)
{
    float *logits = malloc((size_t)(TOKENS * nbl_model_vocabulary(model)) * sizeof *logits);
    nbl_ids ids = {(int32_t *)prompt, TOKENS};
    assert_ok(ctx, nbl_model_logits(model, &ids, 1, &logits));
    return logits;
}

static void names_of_experts_are_read_in_every_spelling(void **state)
{
    (void)state;
    static const struct {
        const char *stored, *name;
        int64_t expert;
        nbl__expert_part part;
    } cases[] = {
        {"model.layers.3.mlp.experts.7.gate_proj.weight", "model.layers.3.mlp.experts.gate_up_proj", 7,
         NBL_EXPERT_GATE},
        {"model.layers.3.mlp.experts.0.up_proj.weight", "model.layers.3.mlp.experts.gate_up_proj", 0,
         NBL_EXPERT_UP},
        {"model.layers.3.mlp.experts.12.down_proj.weight", "model.layers.3.mlp.experts.down_proj", 12,
         NBL_EXPERT_WHOLE},
        {"model.layers.0.block_sparse_moe.experts.2.w1.weight", "model.layers.0.mlp.experts.gate_up_proj", 2,
         NBL_EXPERT_GATE},
        {"model.layers.0.block_sparse_moe.experts.2.w3.weight", "model.layers.0.mlp.experts.gate_up_proj", 2,
         NBL_EXPERT_UP},
        {"model.layers.0.block_sparse_moe.experts.2.w2.weight", "model.layers.0.mlp.experts.down_proj", 2,
         NBL_EXPERT_WHOLE},
        {"model.layers.0.mlp.experts.gate_up_projs.4.weight", "model.layers.0.mlp.experts.gate_up_proj", 4,
         NBL_EXPERT_WHOLE},
        {"model.layers.0.mlp.experts.gate_up_projs.4.bias", "model.layers.0.mlp.experts.gate_up_proj_bias", 4,
         NBL_EXPERT_WHOLE},
        {"model.layers.0.mlp.experts.down_projs.0.bias", "model.layers.0.mlp.experts.down_proj_bias", 0,
         NBL_EXPERT_WHOLE},
        {"model.layers.0.block_sparse_moe.gate.weight", "model.layers.0.mlp.gate.weight", -1,
         NBL_EXPERT_WHOLE},
        {"model.layers.0.mlp.router.linear.bias", "model.layers.0.mlp.router.bias", -1, NBL_EXPERT_WHOLE},
        /* whole stacks, and names that are none of experts */
        {"model.layers.0.mlp.experts.gate_up_proj", NULL, -1, NBL_EXPERT_WHOLE},
        {"model.layers.0.mlp.experts.01.gate_proj.weight", NULL, -1, NBL_EXPERT_WHOLE},
        {"model.layers.0.mlp.experts.1234567890.gate_proj.weight", NULL, -1, NBL_EXPERT_WHOLE},
        {"model.layers.0.mlp.experts..gate_proj.weight", NULL, -1, NBL_EXPERT_WHOLE},
        {"model.layers.0.mlp.experts.1.gate_proj", NULL, -1, NBL_EXPERT_WHOLE},
        {"model.layers.0.mlp.shared_experts.1.gate_proj.weight", NULL, -1, NBL_EXPERT_WHOLE},
        {"model.layers.0.mlp.experts.gate_up_projs.", NULL, -1, NBL_EXPERT_WHOLE},
        {"model.layers.0.mlp.experts.projs.1.weight", NULL, -1, NBL_EXPERT_WHOLE},
        {".experts.", NULL, -1, NBL_EXPERT_WHOLE},
    };
    nbl_context *ctx = new_context();
    nbl__arena arena = nbl__arena_make(ctx);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nbl__expert_name read;
        assert_ok(ctx, nbl__expert_name_read(&arena, cases[i].stored, &read));
        assert_string_equal(read.name, cases[i].name ? cases[i].name : cases[i].stored);
        assert_int_equal(read.expert, cases[i].expert);
        assert_int_equal(read.part, cases[i].part);
        if (read.expert < 0) continue;
        assert_string_equal(nbl__expert_name_of(&arena, cases[i].stored, read.expert, read.part),
                            cases[i].stored);
    }
    assert_string_equal(nbl__expert_name_of(&arena, cases[3].stored, 11, NBL_EXPERT_UP),
                        "model.layers.0.block_sparse_moe.experts.11.w3.weight");
    nbl__arena_free(&arena);
    nbl_context_destroy(ctx);
}

/* Joins the experts of one layer to transformers 5's two stacks, in the order of the experts. */
static void fuse_layer(folder *f, const char *prefix, int64_t experts, int64_t inner, int64_t hidden)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    size_t matrix = (size_t)(inner * hidden) * 2; /* bf16 */
    for (int down = 0; down < 2; down++) {
        int pieces = down ? 1 : 2;
        uint8_t *data = nbl__arena_alloc(&f->arena, matrix * (size_t)(pieces * experts));
        for (int64_t e = 0; e < experts; e++)
            for (int k = 0; k < pieces; k++) {
                char name[128];
                snprintf(name, sizeof name, "%s.%d.%s.weight", prefix, (int)e, parts[down ? 2 : k]);
                nbl__stored *t = tensor_of(f, name);
                assert_int_equal(t->bytes, matrix);
                memcpy(data + matrix * (size_t)(e * pieces + k), t->data, matrix);
                *t = f->tensors[--f->count];
            }
        f->tensors[f->count++] = (nbl__stored){
            .name = nbl__arena_printf(&f->arena, "%s.%s", prefix, down ? "down_proj" : "gate_up_proj"),
            .dtype = NBL_DTYPE_BF16,
            .rank = 3,
            .shape = {experts, down ? hidden : 2 * inner, down ? inner : hidden},
            .elements = experts * pieces * inner * hidden,
            .data = data,
            .bytes = matrix * (size_t)(experts * pieces)};
    }
}

static void fused_experts_and_one_tensor_per_expert_are_the_same_bits(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    folder each = open_folder(ctx, "qwen3_moe", 0), fused = open_folder(ctx, "qwen3_moe", 8);
    fuse_layer(&fused, "model.layers.0.mlp.experts", 6, 8, 16);
    fuse_layer(&fused, "model.layers.1.mlp.experts", 6, 8, 16);
    save(ctx, &each), save(ctx, &fused);
    /* NF4: a matrix is whole blocks, so the codes are the same, too. */
    static const nbl_format loads[] = {NBL_FORMAT_DENSE, NBL_FORMAT_NF4, NBL_FORMAT_FP4, NBL_FORMAT_INT8};
    for (size_t k = 0; k < sizeof loads / sizeof *loads; k++) {
        nbl_model *a, *b;
        assert_ok(ctx, open_model(ctx, &each, loads[k], &a));
        assert_ok(ctx, open_model(ctx, &fused, loads[k], &b));
        const struct nbl__weight_entry *w = nbl__model_find(a, "model.layers.1.mlp.experts.gate_up_proj");
        assert_int_equal(w->role, NBL_WEIGHT_EXPERTS);
        assert_int_equal(w->weight.format, loads[k]);
        assert_int_equal(w->weight.member_count, loads[k] == NBL_FORMAT_DENSE ? 12 : 0);
        assert_int_equal(nbl__model_find(a, "model.layers.1.mlp.gate.weight")->weight.format,
                         NBL_FORMAT_DENSE);
        float *x = logits_of(ctx, a), *y = logits_of(ctx, b);
        assert_memory_equal(x, y, (size_t)(TOKENS * nbl_model_vocabulary(a)) * sizeof *x);
        free(x), free(y);
        nbl_model_close(a), nbl_model_close(b);
    }
    close_folder(&each), close_folder(&fused);
    nbl_context_destroy(ctx);
}

/* |a - b| / |b| */
static double distance(const float *a, const float *b, int64_t n)
{
    double off = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)b[i] * (double)b[i];
    }
    return sqrt(off / all);
}

static void transposed_experts_are_quantized_with_their_outputs_first(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    folder f = open_folder(ctx, "gpt_oss", 0);
    save(ctx, &f);
    nbl_model *dense, *packed, *plan;
    assert_ok(ctx, open_model(ctx, &f, NBL_FORMAT_DENSE, &dense));
    float *x = logits_of(ctx, dense);
    for (int k = 0; k < 2; k++) {
        assert_ok(ctx, open_model(ctx, &f, k ? NBL_FORMAT_INT8 : NBL_FORMAT_NF4, &packed));
        const nbl_weight *w = &nbl__model_find(packed, "model.layers.0.mlp.experts.gate_up_proj")->weight;
        assert_int_equal(w->shape[0], 5);
        assert_int_equal(w->shape[1], 16); /* gate and up of 8 */
        assert_int_equal(w->shape[2], 16);
        /* The values are those of the dense matrices, transposed. */
        const nbl_weight *from = &nbl__model_find(dense, "model.layers.0.mlp.experts.down_proj")->weight;
        const nbl_weight *to = &nbl__model_find(packed, "model.layers.0.mlp.experts.down_proj")->weight;
        float values[5 * 8 * 16], decoded[5 * 16 * 8], transposed[5 * 16 * 8];
        assert_ok(ctx, nbl_convert(ctx, from->dtype, from->data, NBL_DTYPE_F32, values, 640));
        assert_ok(ctx, nbl_dequantize(ctx, to, 0, 80, NBL_DTYPE_F32, 0, decoded));
        for (int i = 0; i < 640; i++) transposed[i / 128 * 128 + i % 16 * 8 + i % 128 / 16] = values[i];
        assert_true(distance(decoded, transposed, 640) < (k ? 0.02 : 0.15));
        float *y = logits_of(ctx, packed);
        assert_true(distance(y, x, TOKENS * nbl_model_vocabulary(dense)) < 1);
        free(y);
        nbl_model_close(packed);
    }
    /* A plan has formats and shapes alone. */
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .load = NBL_FORMAT_NF4, .load_nested = true,
                                 .plan_only = true};
    nbl_model_plan *made;
    assert_ok(ctx, nbl_model_open(ctx, f.path, &options, &plan));
    assert_ok(ctx, nbl_model_make_plan(plan, 16, 1, 0, &made));
    nbl_model_plan_free(made);
    nbl_model_close(plan);
    free(x);
    nbl_model_close(dense);
    close_folder(&f);
    nbl_context_destroy(ctx);
}

static void assert_misfit(nbl_context *ctx, folder *f, const char *const *words)
{
    nbl_model *model;
    save(ctx, f);
    for (int load = 0; load < 2; load++) { /* nothing is quantized before the tensors are known to fit */
        assert_int_equal(open_model(ctx, f, load ? NBL_FORMAT_NF4 : NBL_FORMAT_DENSE, &model),
                         NBL_ERROR_FORMAT);
        for (int i = 0; words[i]; i++)
            if (strstr(nbl_error_message(ctx), words[i]) == NULL)
                fail_msg("\"%s\" is not in: %s", words[i], nbl_error_message(ctx));
    }
}

static void experts_that_do_not_fit_are_all_named(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    folder f = open_folder(ctx, "qwen3_moe", 2);
    /* missing, and one too many */
    *tensor_of(&f, "model.layers.0.mlp.experts.1.up_proj.weight") = f.tensors[--f.count];
    *tensor_of(&f, "model.layers.1.mlp.experts.0.down_proj.weight") = f.tensors[--f.count];
    *tensor_of(&f, "model.layers.1.mlp.gate.weight") = f.tensors[--f.count];
    f.tensors[f.count] = *tensor_of(&f, "model.layers.0.mlp.experts.0.up_proj.weight");
    f.tensors[f.count++].name = "model.layers.0.mlp.experts.6.up_proj.weight";
    assert_misfit(ctx, &f,
                  (const char *const[]){"no \"model.layers.0.mlp.experts.1.up_proj.weight\" [8, 16]",
                                        "no \"model.layers.1.mlp.experts.0.down_proj.weight\" [16, 8]",
                                        "no \"model.layers.1.mlp.gate.weight\" [6, 16]",
                                        "\"model.layers.0.mlp.experts.6.up_proj.weight\" does not belong",
                                        NULL});
    close_folder(&f);
    /* of other shapes, of another dtype, and one expert under two names */
    f = open_folder(ctx, "qwen3_moe", 2);
    nbl__stored *t = tensor_of(&f, "model.layers.0.mlp.experts.2.gate_proj.weight");
    t->shape[0] = 16, t->shape[1] = 8;
    t = tensor_of(&f, "model.layers.1.mlp.experts.3.down_proj.weight");
    t->dtype = NBL_DTYPE_F16;
    f.tensors[f.count] = *tensor_of(&f, "model.layers.0.mlp.experts.0.up_proj.weight");
    f.tensors[f.count++].name = "model.layers.0.block_sparse_moe.experts.0.w3.weight";
    f.tensors[f.count] = *tensor_of(&f, "model.layers.0.mlp.experts.0.up_proj.weight");
    f.tensors[f.count++].name = "model.layers.1.mlp.experts.down_projs.0.weight";
    assert_misfit(ctx, &f,
                  (const char *const[]){"experts.2.gate_proj.weight\" is [16, 8] instead of [8, 16]",
                                        "experts.3.down_proj.weight\" is dense of f16, which other experts",
                                        "experts.0.up_proj.weight\" is there twice",
                                        "down_projs.0.weight\" is", NULL});
    close_folder(&f);
    nbl_context_destroy(ctx);
}

static nbl_context *counting_context(nbl__counter *counter)
{
    nbl_context *ctx;
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 2,
                                   .allocator = nbl__counting_allocator(counter)};
    assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
    return ctx;
}

static void every_failed_allocation_of_opening_is_an_error_without_a_leak(void **state)
{
    (void)state;
    nbl__counter counter = {0};
    nbl_context *ctx = counting_context(&counter);
    static const char *const names[] = {"qwen3_moe", "gpt_oss", "gpt_oss-mxfp4"};
    for (int i = 0; i < 3; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/models/%s", TEST_DATA_DIR, names[i]);
        int64_t live = counter.live, failures = 0;
        for (nbl_status status = NBL_ERROR_MEMORY; status != NBL_OK; failures++) {
            nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .load = NBL_FORMAT_NF4,
                                         .load_nested = true, .adapter = in_folder(path, "experts")};
            nbl_model *model;
            counter.fail_at = counter.calls + 1 + failures;
            status = nbl_model_open(ctx, path, &options, &model);
            counter.fail_at = 0;
            if (status != NBL_OK) assert_int_equal(status, NBL_ERROR_MEMORY);
            nbl_model_close(model);
            assert_int_equal(counter.live, live);
        }
        assert_true(failures > 20);
    }
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_experts_are_read_in_every_spelling),
        cmocka_unit_test(fused_experts_and_one_tensor_per_expert_are_the_same_bits),
        cmocka_unit_test(transposed_experts_are_quantized_with_their_outputs_first),
        cmocka_unit_test(experts_that_do_not_fit_are_all_named),
        cmocka_unit_test(every_failed_allocation_of_opening_is_an_error_without_a_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
