"""The declarations of include/nibble.h that this package calls: its sections 1 to 12, in the header's order.

The text is C without comments. _cdecl makes ctypes of it. python/tests/engine/test_engine_abi.py compiles it with
the header, and fails if a struct, a field, a constant or a function differs, is missing or is new.

    abi.structs["nbl_model_options"]       a ctypes.Structure
    abi.enums["nbl_status"]["NBL_OK"]      0
    lib.nbl_model_open(...)                a function with its argument types
"""

from __future__ import annotations

from typing import Any

from .. import _library
from ._cdecl import Interface

TEXT = """
/* 1. Versions, errors, options */
const char *nbl_version(void);
enum nbl_status {
    NBL_OK, NBL_ERROR_ARGUMENT, NBL_ERROR_MEMORY, NBL_ERROR_IO, NBL_ERROR_FORMAT, NBL_ERROR_DTYPE,
    NBL_ERROR_SHAPE, NBL_ERROR_UNSUPPORTED, NBL_ERROR_EXISTS, NBL_ERROR_NOT_FOUND, NBL_ERROR_NO_SPACE,
    NBL_ERROR_CANCELLED, NBL_ERROR_INTERNAL
};
const char *nbl_status_name(nbl_status status);
const char *nbl_status_text(nbl_status status);
struct nbl_string { const char *text; size_t size; };
struct nbl_ids { int32_t *ids; int64_t count; };

/* 2. Contexts */
struct nbl_context;
struct nbl_allocator {
    void *(*alloc)(void *user, size_t size, size_t align);
    void (*free)(void *user, void *memory, size_t size);
    void *user;
};
enum nbl_log_level { NBL_LOG_WARNING, NBL_LOG_INFO, NBL_LOG_DEBUG };
typedef void (*nbl_log_fn)(void *user, nbl_log_level level, const char *line);
struct nbl_progress { uint64_t done, total; const char *what; };
typedef bool (*nbl_progress_fn)(void *user, const nbl_progress *progress);
struct nbl_context_options {
    size_t struct_size;
    int threads;
    nbl_allocator allocator;
    nbl_log_fn log;
    void *log_user;
    nbl_progress_fn progress;
    void *progress_user;
};
nbl_status nbl_context_create(const nbl_context_options *options, nbl_context **ctx);
void nbl_context_destroy(nbl_context *ctx);
nbl_status nbl_context_set_threads(nbl_context *ctx, int threads);
int nbl_threads(const nbl_context *ctx);
const char *nbl_error_message(const nbl_context *ctx);
const char *nbl_error_hint(const nbl_context *ctx);
nbl_status nbl_guard_mapped_files(void);

/* 3. The machine and its devices */
int nbl_cores(void);
bool nbl_processor_name(char *name, size_t size);
const char *nbl_isa_name(const nbl_context *ctx);
struct nbl_isa_level { size_t struct_size; const char *name, *enables; bool found, used; };
bool nbl_isa_level_get(const nbl_context *ctx, int64_t index, nbl_isa_level *level);
struct nbl_library { size_t struct_size; const char *name, *enables; char version[64]; };
bool nbl_library_get(int64_t index, nbl_library *library);
enum nbl_device_kind { NBL_DEVICE_CPU, NBL_DEVICE_CUDA };
const char *nbl_device_kind_name(nbl_device_kind kind);
bool nbl_device_kind_parse(const char *name, nbl_device_kind *kind);
bool nbl_cuda_built(void);
struct nbl_cuda_device { size_t struct_size; char name[256]; int major, minor; uint64_t memory_bytes; };
nbl_status nbl_cuda_device_count(nbl_context *ctx, int *count);
nbl_status nbl_cuda_device_get(nbl_context *ctx, int index, nbl_cuda_device *device);
bool nbl_cuda_usable(nbl_context *ctx);
nbl_status nbl_context_use_cuda(nbl_context *ctx, int index);

/* 4. Dtypes, tensors, weights */
enum nbl_dtype {
    NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16, NBL_DTYPE_F64, NBL_DTYPE_F8_E4M3, NBL_DTYPE_F8_E5M2,
    NBL_DTYPE_F8_E8M0, NBL_DTYPE_F6_E2M3, NBL_DTYPE_F6_E3M2, NBL_DTYPE_F4, NBL_DTYPE_I64, NBL_DTYPE_I32,
    NBL_DTYPE_I16, NBL_DTYPE_I8, NBL_DTYPE_U64, NBL_DTYPE_U32, NBL_DTYPE_U16, NBL_DTYPE_U8, NBL_DTYPE_BOOL,
    NBL_DTYPE_C64, NBL_DTYPE_F8_E4M3FNUZ, NBL_DTYPE_F8_E5M2FNUZ, NBL_DTYPE_COUNT
};
const char *nbl_dtype_name(nbl_dtype dtype);
bool nbl_dtype_parse(const char *name, nbl_dtype *dtype);
enum nbl_compute_dtype { NBL_COMPUTE_DEFAULT, NBL_COMPUTE_F32 = 100, NBL_COMPUTE_F16, NBL_COMPUTE_BF16 };
const char *nbl_compute_dtype_name(nbl_compute_dtype dtype);
bool nbl_compute_dtype_parse(const char *name, nbl_compute_dtype *dtype);
enum nbl_format { NBL_FORMAT_DENSE, NBL_FORMAT_NF4, NBL_FORMAT_FP4, NBL_FORMAT_INT8, NBL_FORMAT_MXFP4 };
const char *nbl_format_name(nbl_format format);
bool nbl_format_parse(const char *name, nbl_format *format);
enum nbl_nested { NBL_NESTED_NONE, NBL_NESTED_NEAREST, NBL_NESTED_GRID };
struct nbl_tensor { nbl_dtype dtype; int rank; int64_t shape[8]; void *data; int64_t row_stride; };
struct nbl_weight_parts {
    uint64_t data_bytes;
    int64_t scales, scale_codes, nested_scales, nested_table;
    nbl_dtype scales_dtype, nested_scales_dtype, nested_table_dtype;
};
struct nbl_weight {
    nbl_format format;
    nbl_dtype dtype;
    int rank;
    int64_t shape[8];
    const void *data;
    int64_t block;
    const float *scales;
    const uint8_t *scale_codes;
    const float *nested_scales, *nested_table;
    int64_t nested_block;
    float nested_offset;
    const float *nested_offset_at;
    nbl_weight_parts given;
    const nbl_weight *members;
    int64_t member_count;
};

/* 5. Checkpoints */
struct nbl_checkpoint;
enum nbl_open_mode { NBL_OPEN_STRICT, NBL_OPEN_TOLERANT };
nbl_status nbl_checkpoint_open(nbl_context *ctx, const char *path, nbl_open_mode mode,
                               nbl_checkpoint **checkpoint);
void nbl_checkpoint_close(nbl_checkpoint *checkpoint);
struct nbl_checkpoint_summary {
    const char *architecture;
    int64_t tensors, parameters;
    uint64_t bytes;
    const char *quantization;
    int64_t block;
    bool nested;
    const char *compute_dtype;
    int64_t skipped, problems;
};
const nbl_checkpoint_summary *nbl_checkpoint_get_summary(const nbl_checkpoint *checkpoint);
struct nbl_tensor_info {
    const char *name, *file;
    int rank;
    int64_t shape[8];
    uint64_t bytes;
    nbl_weight weight;
    bool transposed;
};
const nbl_tensor_info *nbl_checkpoint_get_tensor(const nbl_checkpoint *checkpoint, int64_t index);
const char *nbl_checkpoint_get_problem(const nbl_checkpoint *checkpoint, int64_t index);
const char *nbl_checkpoint_get_skipped(const nbl_checkpoint *checkpoint, int64_t index);
nbl_status nbl_checkpoint_check_values(nbl_checkpoint *checkpoint);
struct nbl_quantize_options {
    size_t struct_size;
    nbl_format format;
    int64_t block;
    nbl_nested nested;
    const char *skip;
    nbl_compute_dtype compute_dtype;
    uint64_t shard_size;
    bool allow_non_finite;
};
struct nbl_convert_report {
    size_t struct_size;
    int64_t tensors, converted;
    uint64_t bytes_in, bytes_out;
    int files;
    int64_t non_finite;
};
nbl_status nbl_checkpoint_quantize(nbl_context *ctx, const char *in, const char *out,
                                   const nbl_quantize_options *options, nbl_convert_report *report);
struct nbl_dequantize_options { size_t struct_size; nbl_compute_dtype dtype; uint64_t shard_size; };
nbl_status nbl_checkpoint_dequantize(nbl_context *ctx, const char *in, const char *out,
                                     const nbl_dequantize_options *options, nbl_convert_report *report);
struct nbl_diff;
struct nbl_tensor_diff { const char *name; bool same_shape, equal; double max_abs, rel_norm, cosine; };
nbl_status nbl_checkpoint_diff(nbl_context *ctx, const char *a, const char *b, nbl_diff **diff);
void nbl_diff_free(nbl_diff *diff);
const nbl_tensor_diff *nbl_diff_get_tensor(const nbl_diff *diff, int64_t index);
const char *nbl_diff_get_missing_in_a(const nbl_diff *diff, int64_t index);
const char *nbl_diff_get_missing_in_b(const nbl_diff *diff, int64_t index);
bool nbl_diff_equal(const nbl_diff *diff);
bool nbl_diff_within(const nbl_diff *diff, double tolerance);

/* 6. Models */
struct nbl_model;
struct nbl_model_options {
    size_t struct_size;
    nbl_compute_dtype dtype;
    nbl_format load;
    bool load_nested;
    const char *adapter;
    bool plan_only;
};
nbl_status nbl_model_open(nbl_context *ctx, const char *path, const nbl_model_options *options,
                          nbl_model **model);
void nbl_model_close(nbl_model *model);
int64_t nbl_model_vocabulary(const nbl_model *model);
int64_t nbl_model_max_positions(const nbl_model *model);
nbl_status nbl_model_logits(nbl_model *model, const nbl_ids *sequences, int64_t count, float *const *logits);
typedef nbl_status (*nbl_gradient_fn)(void *user, const char *name, const nbl_tensor *gradient);
nbl_status nbl_model_gradients(nbl_model *model, const nbl_ids *sequences, const nbl_ids *labels,
                               int64_t count, bool pack, bool dropout, nbl_gradient_fn fn, void *user,
                               double *loss, int64_t *trained);
nbl_status nbl_model_write_logits(nbl_model *model, const nbl_ids *sequences, int64_t count, const char *path,
                                  bool force);
nbl_status nbl_model_write_gradients(nbl_model *model, const nbl_ids *sequences, const nbl_ids *labels,
                                     int64_t count, bool pack, bool dropout, const char *path, bool force,
                                     double *loss, int64_t *trained);
nbl_status nbl_result_check(nbl_context *ctx, const char *path, bool force);
struct nbl_generate_options {
    size_t struct_size;
    int64_t max_tokens;
    float temperature;
    int64_t top_k;
    float top_p, min_p, repetition_penalty;
    uint64_t seed;
    const int32_t *ends;
    int64_t end_count;
    bool (*token)(void *user, int64_t sequence, int32_t id);
    void *user;
};
struct nbl_generated { nbl_ids ids; bool stopped; };
nbl_status nbl_model_generate(nbl_model *model, const nbl_ids *prompts, int64_t count,
                              const nbl_generate_options *options, nbl_generated *results);
struct nbl_evaluate_options {
    size_t struct_size;
    bool (*progress)(void *user, int64_t done, int64_t total);
    void *user;
    const nbl_ids *labels;
};
struct nbl_evaluation { size_t struct_size; double loss_sum; int64_t tokens, hits; };
nbl_status nbl_model_evaluate(nbl_model *model, const nbl_ids *sequences, int64_t count,
                              const nbl_evaluate_options *options, nbl_evaluation *result);

/* 7. Plans */
struct nbl_model_plan;
nbl_status nbl_model_make_plan(nbl_model *model, int64_t tokens, int64_t batch, uint64_t memory,
                               nbl_model_plan **plan);
void nbl_model_plan_free(nbl_model_plan *plan);
enum nbl_plan_arena {
    NBL_PLAN_ARENA_WEIGHTS, NBL_PLAN_ARENA_ADAPTERS, NBL_PLAN_ARENA_OPTIMIZER, NBL_PLAN_ARENA_SAVED,
    NBL_PLAN_ARENA_SCRATCH, NBL_PLAN_ARENA_KV, NBL_PLAN_ARENA_DEVICE
};
const char *nbl_plan_arena_name(nbl_plan_arena arena);
bool nbl_plan_arena_parse(const char *name, nbl_plan_arena *arena);
enum nbl_plan_pass {
    NBL_PLAN_PASS_PREPARE, NBL_PLAN_PASS_FORWARD, NBL_PLAN_PASS_RECOMPUTE, NBL_PLAN_PASS_BACKWARD,
    NBL_PLAN_PASS_DECODE
};
const char *nbl_plan_pass_name(nbl_plan_pass pass);
bool nbl_plan_pass_parse(const char *name, nbl_plan_pass *pass);
enum nbl_plan_recompute { NBL_PLAN_RECOMPUTE_NONE, NBL_PLAN_RECOMPUTE_CHEAP, NBL_PLAN_RECOMPUTE_LAYERS };
const char *nbl_plan_recompute_name(nbl_plan_recompute recompute);
bool nbl_plan_recompute_parse(const char *name, nbl_plan_recompute *recompute);
struct nbl_plan_arenas { uint64_t weights, adapters, optimizer, saved, scratch, kv, device; };
struct nbl_model_plan_summary {
    nbl_plan_arenas arenas;
    uint64_t total_bytes;
    int64_t op_count, cast_count, value_count;
    nbl_plan_recompute recompute;
    int64_t recomputed_layers, layers;
    double recompute_flops;
    int64_t longest_sequence;
    uint64_t smallest_memory;
    int64_t dequantized_weights;
    uint64_t dequantized_bytes, host_bytes;
};
const nbl_model_plan_summary *nbl_model_plan_get_summary(const nbl_model_plan *plan);
struct nbl_planned_op { const char *op, *impl; nbl_plan_pass pass; int64_t count; double flops, bytes; };
const nbl_planned_op *nbl_model_plan_get_op(const nbl_model_plan *plan, int64_t index);
struct nbl_planned_cast { const char *at; nbl_dtype from, to; const char *why; };
const nbl_planned_cast *nbl_model_plan_get_cast(const nbl_model_plan *plan, int64_t index);
struct nbl_planned_value {
    const char *name;
    int64_t count;
    nbl_plan_arena arena;
    nbl_dtype dtype;
    int rank;
    int64_t shape[8];
    uint64_t bytes;
};
const nbl_planned_value *nbl_model_plan_get_value(const nbl_model_plan *plan, int64_t index);

/* 8. Tokens */
struct nbl_tokenizer;
nbl_status nbl_tokenizer_open(nbl_context *ctx, const char *path, nbl_tokenizer **tokenizer);
nbl_status nbl_tokenizer_parse(nbl_context *ctx, const char *name, const char *text, size_t size,
                               nbl_tokenizer **tokenizer);
nbl_status nbl_model_tokenizer(nbl_model *model, nbl_tokenizer **tokenizer);
void nbl_tokenizer_close(nbl_tokenizer *tokenizer);
nbl_status nbl_tokenizer_encode(nbl_tokenizer *tokenizer, const char *text, size_t size, bool special,
                                nbl_ids *ids);
nbl_status nbl_tokenizer_encode_batch(nbl_tokenizer *tokenizer, int64_t count, const nbl_string *texts,
                                      bool special, nbl_ids *lists);
void nbl_ids_free(nbl_context *ctx, nbl_ids *ids);
void nbl_tokenizer_set_truncation_and_padding(nbl_tokenizer *tokenizer, bool on);
nbl_status nbl_tokenizer_decode(nbl_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                                bool skip_special, char **text, size_t *size);
void nbl_text_free(nbl_context *ctx, char *text, size_t size);
int32_t nbl_tokenizer_find(const nbl_tokenizer *tokenizer, const char *text, size_t size);
nbl_string nbl_tokenizer_token(const nbl_tokenizer *tokenizer, int32_t id);
int64_t nbl_tokenizer_size(const nbl_tokenizer *tokenizer);
struct nbl_text_stream;
nbl_status nbl_text_stream_open(nbl_tokenizer *tokenizer, bool skip_special, nbl_text_stream **stream);
nbl_status nbl_text_stream_push(nbl_text_stream *stream, int32_t id, nbl_string *text);
nbl_status nbl_text_stream_finish(nbl_text_stream *stream, nbl_string *text);
void nbl_text_stream_close(nbl_text_stream *stream);

/* 9. Chats */
struct nbl_chat_template;
struct nbl_rendering;
nbl_status nbl_chat_template_open(nbl_context *ctx, const char *model, const char *file,
                                  nbl_chat_template **t);
nbl_status nbl_chat_template_open_adapted(nbl_context *ctx, const char *model, const char *adapter,
                                          const char *file, nbl_chat_template **t);
nbl_status nbl_chat_template_parse(nbl_context *ctx, const char *name, nbl_string text,
                                   nbl_chat_template **t);
int64_t nbl_chat_template_count(const nbl_chat_template *t);
void nbl_chat_template_close(nbl_chat_template *t);
struct nbl_chat_variable { const char *name; nbl_string value; };
struct nbl_chat {
    nbl_string messages, tools;
    const char *messages_name, *tools_name;
    const nbl_chat_variable *variables;
    int64_t variable_count;
    bool generation_prompt;
};
nbl_status nbl_chat_template_render(nbl_chat_template *t, const nbl_chat *chat, nbl_rendering **rendering);
nbl_status nbl_chat_template_render_line(nbl_chat_template *t, const char *where, nbl_string line,
                                         nbl_rendering **rendering);
nbl_string nbl_rendering_text(const nbl_rendering *rendering);
bool nbl_rendering_span(const nbl_rendering *rendering, int64_t index, int64_t *start, int64_t *end);
nbl_string nbl_rendering_error(const nbl_rendering *rendering);
void nbl_rendering_free(nbl_rendering *rendering);
int64_t nbl_model_eos_ids(const nbl_model *model, int32_t *ids, int64_t room);
int32_t nbl_model_adapter_eos_id(const nbl_model *model, const nbl_tokenizer *tokenizer);
struct nbl_stop_matcher;
nbl_status nbl_stop_matcher_open(nbl_context *ctx, const nbl_string *strings, int64_t count,
                                 nbl_stop_matcher **matcher);
nbl_status nbl_stop_matcher_push(nbl_stop_matcher *matcher, nbl_string text, nbl_string *shown,
                                 bool *stopped);
nbl_string nbl_stop_matcher_finish(nbl_stop_matcher *matcher);
void nbl_stop_matcher_close(nbl_stop_matcher *matcher);
struct nbl_chat_encoder;
nbl_status nbl_chat_encoder_open(nbl_model *model, nbl_tokenizer *tokenizer, nbl_chat_template *chat_template,
                                 nbl_chat_encoder **encoder);
nbl_status nbl_chat_encoder_row(nbl_chat_encoder *encoder, const char *where, nbl_string row, nbl_ids *ids,
                                nbl_ids *labels);
void nbl_chat_encoder_close(nbl_chat_encoder *encoder);

/* 10. Training runs */
struct nbl_run;
nbl_status nbl_run_open(nbl_context *ctx, const char *path, const char *const *overrides, int64_t count,
                        nbl_run **run);
void nbl_run_close(nbl_run *run);
struct nbl_run_info {
    const char *base_model, *output_dir;
    bool adapter, report, mergeable;
    int threads;
    nbl_device_kind device;
};
const nbl_run_info *nbl_run_get_info(const nbl_run *run);
struct nbl_data_summary {
    size_t struct_size;
    int64_t examples, tokens, trained_tokens, truncated, validation, dropped;
    int64_t too_long, bad, untrained, too_short, duplicates;
};
nbl_status nbl_run_data(nbl_run *run, nbl_data_summary *summary);
struct nbl_preview_part { nbl_string text; int64_t tokens; bool trained; };
struct nbl_preview {
    size_t struct_size;
    const int32_t *ids, *labels;
    int64_t count, trained_tokens;
    const nbl_preview_part *parts;
    int64_t part_count;
};
nbl_status nbl_run_preview(nbl_run *run, int64_t index, nbl_preview *preview);
nbl_status nbl_run_make_plan(nbl_run *run, const char *model, int64_t tokens, int64_t batch, uint64_t memory,
                             nbl_model_plan **plan);
enum nbl_train_event_kind {
    NBL_TRAIN_BEGIN, NBL_TRAIN_STEP, NBL_TRAIN_EVALUATION, NBL_TRAIN_SAVED, NBL_TRAIN_PHASE
};
struct nbl_train_event {
    nbl_train_event_kind kind;
    int64_t step, steps;
    double epoch, loss, grad_norm, learning_rate, tokens_per_second;
    int64_t trained_tokens;
    uint64_t memory_bytes;
    double seconds, seconds_left;
    const char *text;
    int64_t part, parts;
};
struct nbl_train_options {
    size_t struct_size;
    bool resume;
    bool (*event)(void *user, const nbl_train_event *event);
    void *user;
    int samples;
    bool allow_changes;
};
struct nbl_train_summary {
    size_t struct_size;
    int64_t step, steps;
    double loss, eval_loss;
    int64_t result_step;
    double best_eval_loss, seconds;
    uint64_t memory_bytes;
};
nbl_status nbl_run_train(nbl_run *run, const nbl_train_options *options, nbl_train_summary *summary);

/* 11. Merging and exporting */
struct nbl_merge_options {
    size_t struct_size;
    nbl_compute_dtype dtype;
    bool verify;
    uint64_t shard_size;
    bool allow_non_finite;
};
struct nbl_merge_report {
    size_t struct_size;
    int64_t tensors, changed;
    uint64_t bytes_in, bytes_out;
    int files;
    int64_t non_finite;
    nbl_dtype dtype;
    bool verified;
    double max_logit_deviation, relative_deviation, allowed_deviation;
};
nbl_status nbl_merge(nbl_context *ctx, const char *base, const char *adapter, const char *out,
                     const nbl_merge_options *options, nbl_merge_report *report);
enum nbl_export_type {
    NBL_EXPORT_DEFAULT, NBL_EXPORT_F32, NBL_EXPORT_F16, NBL_EXPORT_BF16, NBL_EXPORT_Q8_0, NBL_EXPORT_Q4_0
};
const char *nbl_export_type_name(nbl_export_type type);
bool nbl_export_type_parse(const char *name, nbl_export_type *type);
struct nbl_export_options { size_t struct_size; nbl_export_type type; const char *adapter; bool ollama; };
struct nbl_export_report { size_t struct_size; int64_t tensors, parameters, fallen_back; uint64_t bytes; };
nbl_status nbl_export(nbl_context *ctx, const char *model, const char *out, const nbl_export_options *options,
                      nbl_export_report *report);

/* 12. Inspecting */
struct nbl_gguf;
nbl_status nbl_gguf_open(nbl_context *ctx, const char *path, nbl_gguf **gguf);
void nbl_gguf_close(nbl_gguf *gguf);
struct nbl_gguf_summary {
    const char *kind, *architecture, *name;
    int version;
    int64_t tensors, entries, parameters;
    uint64_t bytes, file_bytes;
    int64_t layers, hidden, heads, kv_heads, context;
    const char *tokenizer, *pre;
    int64_t vocabulary, chat_templates, problems;
};
const nbl_gguf_summary *nbl_gguf_get_summary(const nbl_gguf *gguf);
struct nbl_gguf_tensor {
    const char *name, *format;
    int rank;
    int64_t shape[4], elements;
    uint64_t bytes;
};
const nbl_gguf_tensor *nbl_gguf_get_tensor(nbl_gguf *gguf, int64_t index);
struct nbl_gguf_entry { const char *key, *type; int64_t count; const char *value; bool cut; };
const nbl_gguf_entry *nbl_gguf_get_entry(nbl_gguf *gguf, int64_t index);
struct nbl_gguf_special { const char *name; int64_t id; const char *text; };
const nbl_gguf_special *nbl_gguf_get_special(nbl_gguf *gguf, int64_t index);
const char *nbl_gguf_get_problem(const nbl_gguf *gguf, int64_t index);
struct nbl_adapter;
nbl_status nbl_adapter_open(nbl_context *ctx, const char *path, const char *base, nbl_adapter **adapter);
void nbl_adapter_close(nbl_adapter *adapter);
struct nbl_adapter_summary {
    const char *type, *base_model, *task;
    int64_t r;
    double alpha, dropout;
    bool rslora, dora, lora_bias;
    const char *target;
    int64_t modules, replaced, tensors, parameters;
    uint64_t bytes;
    bool same_dtype;
    nbl_dtype dtype;
    int64_t non_finite, problems, base_problems;
};
const nbl_adapter_summary *nbl_adapter_get_summary(const nbl_adapter *adapter);
struct nbl_adapter_tensor {
    const char *name;
    nbl_dtype dtype;
    int rank;
    int64_t shape[8], parameters;
    uint64_t bytes;
    int64_t non_finite;
};
const nbl_adapter_tensor *nbl_adapter_get_tensor(const nbl_adapter *adapter, int64_t index);
const char *nbl_adapter_get_target(const nbl_adapter *adapter, int64_t index);
const char *nbl_adapter_get_parameter(const nbl_adapter *adapter, int64_t index);
const char *nbl_adapter_get_saved(const nbl_adapter *adapter, int64_t index);
const char *nbl_adapter_get_problem(const nbl_adapter *adapter, int64_t index);
"""

abi = Interface(TEXT)


def _load() -> Any:
    """The library, each of its functions with argument and result types."""
    library: Any = _library.load()  # an object of its own: the types stand in it, not in the file
    for name, (result, arguments) in abi.functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


lib: Any = _load()
