/* test_plan_device.c - how a training step is planned for a CUDA device: what is made again without being asked for, what
 * waits on the host, and what becomes of memory to spare. Planning needs no device: one is made up. */
#include "support.h"

#include <sys/stat.h>

#include "base/cpu.h"
#include "model/language_model.h"
#include "device/cuda/cuda.h"

enum { VOCABULARY = 4096, LAYERS = 16, TOKENS = 8192 };
enum { DEVICE_BYTES = 600 << 20 };

/* ---- a model of real widths: its file is a hole behind a header ---- */

typedef struct widths {
    int64_t hidden, inner, heads, kv, dim;
} widths;
static const widths usual = {2048, 8192, 32, 8, 64}, narrow = {64, 256, 4, 1, 16},
                    wide = {4096, 14336, 32, 8, 128};

typedef struct header {
    char text[1 << 16];
    size_t used;
    long long data;
} header;

static void add(header *h, const char *name, int64_t rows, int64_t columns)
{
    long long bytes = 2 * rows * (columns ? columns : 1);
    char shape[64];
    snprintf(shape, sizeof shape, columns ? "%lld, %lld" : "%lld", (long long)rows, (long long)columns);
    h->used += (size_t)snprintf(
        h->text + h->used, sizeof h->text - h->used,
        "%s\"%s\": {\"dtype\": \"BF16\", \"shape\": [%s], \"data_offsets\": [%lld, %lld]}",
        h->data ? ", " : "{", name, shape, h->data, h->data + bytes);
    h->data += bytes;
}

static void add_layer(header *h, const widths *w, int layer)
{
    const struct {
        const char *name;
        int64_t rows, columns;
    } parts[] = {{"self_attn.q_proj", w->heads * w->dim, w->hidden},
                 {"self_attn.k_proj", w->kv * w->dim, w->hidden},
                 {"self_attn.v_proj", w->kv * w->dim, w->hidden},
                 {"self_attn.o_proj", w->hidden, w->heads * w->dim},
                 {"mlp.gate_proj", w->inner, w->hidden},
                 {"mlp.up_proj", w->inner, w->hidden},
                 {"mlp.down_proj", w->hidden, w->inner},
                 {"input_layernorm", w->hidden, 0},
                 {"post_attention_layernorm", w->hidden, 0}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, parts[i].name);
        add(h, name, parts[i].rows, parts[i].columns);
    }
}

static void write_model(const char *folder, const widths *w, bool tied)
{
    static header h;
    char config[640];
    h = (header){.used = 8};
    add(&h, "model.embed_tokens.weight", VOCABULARY, w->hidden);
    for (int i = 0; i < LAYERS; i++) add_layer(&h, w, i);
    add(&h, "model.norm.weight", w->hidden, 0);
    if (!tied) add(&h, "lm_head.weight", VOCABULARY, w->hidden);
    h.text[h.used++] = '}';
    uint64_t size = h.used - 8;
    memcpy(h.text, &size, 8);
    write_file(folder, "model.safetensors", h.text, h.used);
    assert_int_equal(truncate(in_folder(folder, "model.safetensors"), (off_t)h.used + h.data), 0);
    int n = snprintf(
        config, sizeof config,
        "{\"model_type\": \"llama\", \"vocab_size\": %d, \"hidden_size\": %d, \"intermediate_size\": %d, "
        "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, "
        "\"head_dim\": %d, \"max_position_embeddings\": 8192, \"rms_norm_eps\": 1e-5, "
        "\"rope_theta\": 10000.0, \"tie_word_embeddings\": %s, \"hidden_act\": \"silu\", "
        "\"torch_dtype\": \"bfloat16\"}",
        VOCABULARY, (int)w->hidden, (int)w->inner, LAYERS, (int)w->heads, (int)w->kv, (int)w->dim,
        tied ? "true" : "false");
    write_file(folder, "config.json", config, (size_t)n);
}

/* ---- a device that only plans ---- */

static void close_nothing(nbl__device *device)
{
    (void)device;
}

typedef struct fixture {
    char folder[64];
    nbl_context *ctx;
    nbl__cuda device;
    nbl_model *model;
} fixture;

static nbl_model_plan *planned; /* the last plan, or NULL */
static nbl_model_plan_summary plan;

static void open_fixture(fixture *f, const widths *w, bool tied, nbl_format load)
{
    make_temp(f->folder);
    write_model(f->folder, w, tied);
    assert_int_equal(nbl_context_create(NULL, &f->ctx), NBL_OK);
    f->device = (nbl__cuda){.device = nbl__cuda_template, .ctx = f->ctx, .major = 9, .multiprocessors = 132};
    f->device.device.overhead_bytes = DEVICE_BYTES;
    nbl__context_set_device(f->ctx, &f->device.device, close_nothing);
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .load = load,
                                 .load_nested = load != NBL_FORMAT_DENSE, .plan_only = true};
    assert_ok(f->ctx, nbl_model_open(f->ctx, f->folder, &options, &f->model));
    nbl__peft_settings settings = {.task_type = "CAUSAL_LM", .r = 16, .alpha = 32, .all_linear = true};
    assert_ok(f->ctx, nbl__model_new_adapter(f->model, "test", &settings));
}

static void close_fixture(fixture *f)
{
    nbl_model_plan_free(planned);
    planned = NULL;
    nbl_model_close(f->model);
    nbl_context_destroy(f->ctx);
    remove_tree(f->folder);
}

static void make_plan(fixture *f, uint64_t memory, nbl__recompute min)
{
    nbl__plan_request request = {
        .train = true, .tokens = TOKENS, .sequences = 4, .optimizer_bits = 32, .memory = memory, .min = min};
    nbl_model_plan_free(planned);
    assert_ok(f->ctx, nbl__model_plan(f->model, &request, &planned));
    plan = *nbl_model_plan_get_summary(planned);
    const nbl_plan_arenas *a = &plan.arenas;
    assert_int_equal(a->weights + a->adapters + a->optimizer + a->saved + a->scratch + a->kv + a->device,
                     plan.total_bytes);
    assert_int_equal(a->device, DEVICE_BYTES);
    assert_true(memory == 0 || plan.total_bytes <= memory);
    /* what trains is what was told of */
    nbl__session session;
    uint64_t total;
    assert_ok(f->ctx, nbl__plan_training(f->model, &request, &session, &total));
    assert_int_equal(total, plan.total_bytes);
    assert_int_equal(nbl__model_bytes(f->model, true), plan.arenas.weights);
    nbl__session_close(&session);
}

static int64_t again(const char *op)
{
    int64_t count = 0;
    const nbl_planned_op *it;
    for (int64_t i = 0; (it = nbl_model_plan_get_op(planned, i)); i++)
        if (it->pass == NBL_PLAN_PASS_RECOMPUTE && strcmp(it->op, op) == 0) count += it->count;
    return count;
}

static const uint64_t plenty = (uint64_t)100 << 30;

static void what_is_cheap_is_made_again_without_being_asked_for(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, &usual, true, NBL_FORMAT_NF4);
    make_plan(&f, 0, NBL_RECOMPUTE_NONE);
    assert_int_equal(plan.recompute, NBL_PLAN_RECOMPUTE_CHEAP);
    assert_int_equal(again("rmsnorm"), 2 * LAYERS);
    assert_int_equal(again("gated"), LAYERS);
    assert_int_equal(again("linear") + again("linear_group") + again("attention"), 0);
    assert_int_equal(plan.dequantized_weights + (int64_t)plan.host_bytes, 0);
    uint64_t thrifty = plan.total_bytes;
    make_plan(&f, plenty, NBL_RECOMPUTE_NONE);
    assert_int_equal(plan.recompute, NBL_PLAN_RECOMPUTE_NONE);
    uint64_t per_layer = (uint64_t)TOKENS * (uint64_t)(2 * usual.hidden + usual.inner) *
                         2; /* two norms and act(gate)·up */
    uint64_t dequantized = plan.dequantized_bytes -
                           plan.dequantized_bytes / 4; /* beyond what it was packed */
    assert_true(plan.total_bytes - thrifty > LAYERS * per_layer);
    assert_true(plan.total_bytes - thrifty < LAYERS * per_layer + dequantized);
    close_fixture(&f);
}

/* Where layers are so narrow that products take no longer than reading what they multiply, to make anything again costs as
 * much of the time as it saves of the memory. */
static void what_would_cost_time_is_not(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, &narrow, true, NBL_FORMAT_DENSE);
    make_plan(&f, 0, NBL_RECOMPUTE_NONE);
    assert_int_equal(again("gated"), 0);
    make_plan(&f, plan.total_bytes - 1, NBL_RECOMPUTE_NONE); /* unless it must be */
    assert_true(again("gated") > 0 || again("rmsnorm") > 0);
    close_fixture(&f);
}

static void the_rest_of_a_budget_keeps_weights_dequantized(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, &usual, true, NBL_FORMAT_NF4);
    make_plan(&f, 0, NBL_RECOMPUTE_NONE);
    uint64_t thrifty = plan.total_bytes, packed = plan.arenas.weights, all = 0;
    int64_t before = 0;
    make_plan(&f, thrifty, NBL_RECOMPUTE_NONE);
    assert_int_equal(plan.dequantized_weights, 0);
    make_plan(&f, plenty, NBL_RECOMPUTE_NONE);
    assert_int_equal(plan.dequantized_weights, 7 * LAYERS);
    all = plan.arenas.weights;
    assert_int_equal(plan.dequantized_bytes,
                     LAYERS * 2 * usual.hidden *
                         (2 * (usual.heads + usual.kv) * usual.dim + 3 * usual.inner));
    for (int i = 1; i <= 8; i++) {
        uint64_t room = (all - packed) * (uint64_t)i / 8;
        make_plan(&f, thrifty + room, NBL_RECOMPUTE_NONE);
        assert_true(plan.dequantized_weights >= before &&
                    plan.dequantized_weights >= (i < 8 ? 1 : 7 * LAYERS));
        assert_true(plan.total_bytes + 2 * (uint64_t)(usual.hidden * usual.inner) >
                    thrifty + room); /* no larger one fits */
        assert_int_equal(plan.recompute, NBL_PLAN_RECOMPUTE_CHEAP);
        before = plan.dequantized_weights;
    }
    close_fixture(&f);
    open_fixture(&f, &usual, true, NBL_FORMAT_DENSE); /* what is dense needs no decoding */
    make_plan(&f, plenty, NBL_RECOMPUTE_NONE);
    assert_int_equal(plan.dequantized_weights, 0);
    assert_int_equal(plan.recompute, NBL_PLAN_RECOMPUTE_NONE);
    close_fixture(&f);
}

static void layers_made_again_wait_on_the_host_and_so_does_an_embedding(void **state)
{
    (void)state;
    uint64_t row = (uint64_t)usual.hidden * 2, stream = TOKENS * row, embedding = VOCABULARY * row;
    for (int tied = 0; tied < 2; tied++) {
        fixture f;
        open_fixture(&f, &usual, tied, NBL_FORMAT_NF4);
        make_plan(&f, 0, NBL_RECOMPUTE_NONE);
        uint64_t packed = plan.arenas.weights;
        make_plan(&f, 0, NBL_RECOMPUTE_LAYERS);
        assert_int_equal(plan.recompute, NBL_PLAN_RECOMPUTE_LAYERS);
        assert_int_equal(plan.recomputed_layers, LAYERS);
        assert_int_equal(again("linear_group"), 2 * LAYERS);
        assert_int_equal(plan.host_bytes, (2 * LAYERS - 1) * stream + (tied ? 0 : embedding));
        assert_int_equal(again("linear"), 0); /* neither o nor down: what they end in is there */
        assert_int_equal(plan.arenas.weights, packed - (tied ? 0 : embedding));
        assert_true(plan.arenas.saved < 6 * stream);
        uint64_t min = plan.smallest_memory;
        assert_true(plan.total_bytes >= min);
        make_plan(&f, min, NBL_RECOMPUTE_NONE);
        assert_int_equal(plan.recompute, NBL_PLAN_RECOMPUTE_LAYERS);
        close_fixture(&f);
    }
}

/* The wider a layer, the more can cross the bus while it is computed. */
static void a_wide_layer_sends_what_attention_gives_as_well(void **state)
{
    (void)state;
    fixture f;
    if (nbl__memory_available() / 2 < (3 * LAYERS - 1) * (uint64_t)(TOKENS * wide.hidden * 2)) skip();
    open_fixture(&f, &wide, true, NBL_FORMAT_NF4);
    make_plan(&f, 0, NBL_RECOMPUTE_LAYERS);
    assert_int_equal(again("attention"), 0);
    assert_int_equal(again("linear_group"), 2 * LAYERS); /* q, k and v; gate and up */
    assert_int_equal(plan.host_bytes, (3 * LAYERS - 1) * (uint64_t)(TOKENS * wide.hidden * 2));
    close_fixture(&f);
    open_fixture(&f, &narrow, true, NBL_FORMAT_NF4);
    make_plan(&f, 0, NBL_RECOMPUTE_LAYERS);
    assert_int_equal(plan.host_bytes, (LAYERS - 1) * (uint64_t)(TOKENS * narrow.hidden * 2));
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_cheap_is_made_again_without_being_asked_for),
        cmocka_unit_test(what_would_cost_time_is_not),
        cmocka_unit_test(the_rest_of_a_budget_keeps_weights_dequantized),
        cmocka_unit_test(a_wide_layer_sends_what_attention_gives_as_well),
        cmocka_unit_test(layers_made_again_wait_on_the_host_and_so_does_an_embedding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
