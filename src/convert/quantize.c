/* quantize.c - quantizes a dense checkpoint to a folder that transformers with bitsandbytes loads.
 *
 *     which weights   those that transformers would quantize (format/hf/hf_linear.c), except those
 *                     that the user's regular expression skips, and those of other parts than the
 *                     text model (format/hf/text_part.h); for mxfp4 the experts of GPT-OSS
 *     how             encode.c
 *     config.json     quantization_config, with the list of modules that are not quantized
 *
 * transformers decides from quantization_config alone which modules it loads as quantized ones. So
 * the choice here must be the one that it makes. Each tensor of the source is one group of the
 * writer. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/alloc.h"
#include "convert/encode.h"
#include "format/hf/hf_linear.h"
#include "format/hf/module_names.h"
#include "format/hf/text_part.h"

/* The decisions of one conversion. encoded[i] belongs to the checkpoint's tensor i. */
typedef struct plan {
    nbl__encoded *encoded; /* per tensor; format DENSE: copied */
    bool tied;             /* the output head shares the embedding's matrix */
    pcre2_general_context *memory;
    pcre2_code *skip;
    pcre2_match_data *match;
} plan;

/* ---- the regular expression ---- */

/* Compiles the expression of --skip. An invalid one is an error of the caller. */
static nbl_status compile_skip(nbl_context *ctx, const char *pattern, plan *p)
{
    if (pattern == NULL) return NBL_OK;
    int error = 0;
    PCRE2_SIZE offset = 0;
    p->memory = pcre2_general_context_create(nbl__alloc_sized, nbl__free_sized, ctx);
    if (p->memory == NULL) return NBL_ERROR_MEMORY;
    pcre2_compile_context *compile = pcre2_compile_context_create(p->memory);
    if (compile == NULL) return NBL_ERROR_MEMORY;
    p->skip = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &offset, compile);
    pcre2_compile_context_free(compile);
    if (p->skip == NULL && error == PCRE2_ERROR_HEAP_FAILED) return NBL_ERROR_MEMORY; /* nbl__alloc said so */
    if (p->skip == NULL) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(error, text, sizeof text);
        return nbl__fail(ctx, NBL_ERROR_ARGUMENT, "\"%s\" is not a regular expression: %s (at character %zu)",
                         pattern, (const char *)text, (size_t)offset);
    }
    p->match = pcre2_match_data_create_from_pattern(p->skip, NULL);
    return p->match ? NBL_OK : NBL_ERROR_MEMORY;
}

/* *skipped: the expression matches a part of the tensor's name. */
static nbl_status is_skipped(nbl_context *ctx, const plan *p, const char *name, bool *skipped)
{
    *skipped = false;
    if (p->skip == NULL) return NBL_OK;
    int found = pcre2_match(p->skip, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, p->match, NULL);
    if (found == PCRE2_ERROR_NOMEMORY || found == PCRE2_ERROR_HEAPLIMIT)
        return nbl__fail(ctx, NBL_ERROR_MEMORY, "out of memory");
    NBL_CHECK(ctx, found >= 0 || found == PCRE2_ERROR_NOMATCH, NBL_ERROR_ARGUMENT,
              "the regular expression: matching tensor \"%s\" failed (PCRE2 error %d; too complex?)", name,
              found);
    *skipped = found >= 0;
    return NBL_OK;
}

/* ---- decisions ---- */

/* Fails for a source that is quantized already. */
static nbl_status check_source(nbl__conversion *v)
{
    const nbl_checkpoint *c = v->checkpoint;
    const char *format = c->summary.quantization;
    if (format == NULL) return NBL_OK;
    nbl_status status = nbl__fail(v->ctx, NBL_ERROR_UNSUPPORTED,
                                  "%s: quantized already (%s); quantizing twice is refused", c->path, format);
    return nbl__hint(v->ctx, status, "nibble dequantize makes a plain checkpoint of it first");
}

/* True for fused experts of GPT-OSS, the only weights for which transformers supports MXFP4. */
static bool is_expert(const nbl_tensor_info *t)
{
    return t->rank == 3 && (nbl__ends_with(t->name, ".experts.gate_up_proj") ||
                            nbl__ends_with(t->name, ".experts.down_proj"));
}

/* *quantize: the tensor is to be quantized. */
static nbl_status wanted(nbl__conversion *v, const plan *p, const nbl_quantize_options *options,
                         int64_t index, bool *quantize)
{
    const nbl__config *config = &v->checkpoint->config;
    const nbl_tensor_info *t = &v->checkpoint->tensors[index];
    *quantize = false;
    if (v->checkpoint->text_names[index] == NULL) return NBL_OK;
    if (options->format == NBL_FORMAT_MXFP4) {
        *quantize = config->model_type && strcmp(config->model_type, "gpt_oss") == 0 && is_expert(t);
    } else if (!nbl__hf_is_extra_layer(config->layers, t->name)) {
        nbl__linear_verdict verdict = nbl__hf_is_linear(config->model_type, p->tied, t->name, t->rank);
        NBL_CHECK(v->ctx, verdict != NBL_LINEAR_REFUSE, NBL_ERROR_UNSUPPORTED, "%s: models of type \"%s\" %s",
                  v->checkpoint->path, config->model_type, nbl__hf_refusal(config->model_type));
        *quantize = verdict == NBL_LINEAR_YES;
    }
    if (!*quantize || nbl__elements(t) == 0) return *quantize = false, NBL_OK;
    bool skipped;
    NBL_TRY(is_skipped(v->ctx, p, t->name, &skipped));
    if (skipped) return *quantize = false, NBL_OK;
    NBL_CHECK(v->ctx, nbl__is_compute(t->weight.dtype), NBL_ERROR_DTYPE,
              "%s: tensor \"%s\" is %s; only f32, f16 and bf16 can be quantized", t->file, t->name,
              nbl_dtype_name(t->weight.dtype));
    return NBL_OK;
}

/* True if config.json says that the head is tied; without that key, if the checkpoint has no
 * head. */
static bool is_tied(const nbl_checkpoint *c)
{
    if (c->config.tied != NBL_TIED_UNSET) return c->config.tied == NBL_TIED_YES;
    for (int64_t i = 0; i < c->tensor_count; i++)
        if (nbl__ends_with(c->tensors[i].name, NBL_WEIGHT_OF(NBL_MODULE_HEAD))) return false;
    return true;
}

/* Declares the entries of every tensor, quantized or copied. */
static nbl_status declare(nbl__conversion *v, plan *p, const nbl_quantize_options *options)
{
    nbl_checkpoint *c = v->checkpoint;
    NBL_TRY(NBL_ALLOC(v->ctx, p->encoded, c->tensor_count + 1));
    p->tied = is_tied(c);
    for (int64_t i = 0; i < c->tensor_count; i++) {
        const nbl_tensor_info *t = &c->tensors[i];
        bool quantize;
        NBL_TRY(wanted(v, p, options, i, &quantize));
        if (quantize) NBL_TRY(nbl__encoded_declare(v, i, t, options, &p->encoded[i]));
        else NBL_TRY(nbl__declare_copy(v, i, t, &p->encoded[i].data));
        v->report.converted += quantize;
    }
    NBL_CHECK(v->ctx, v->report.converted > 0, NBL_ERROR_UNSUPPORTED,
              "%s: no weight here can be quantized to %s%s", c->path, nbl_format_name(options->format),
              options->format == NBL_FORMAT_MXFP4 ? "; transformers knows it for the experts of GPT-OSS alone"
                                                  : "");
    return NBL_OK;
}

/* ---- config.json ---- */

/* With --skip, config.json gets a list of all modules that are not quantized, under transformers'
 * names. For some models these differ from the names in the file, because transformers renames
 * modules while loading. Skipping is an error for those. */
static nbl_status check_skip(nbl__conversion *v, const nbl_quantize_options *options)
{
    const nbl__config *config = &v->checkpoint->config;
    if (options->skip == NULL) return NBL_OK;
    bool known = !config->is_multimodal && !nbl__hf_renames(config->model_type);
    NBL_CHECK(v->ctx, known, NBL_ERROR_UNSUPPORTED,
              "%s: weights of models of type \"%s\" cannot be skipped: transformers knows their modules by "
              "other names",
              v->checkpoint->path, config->model_type ? config->model_type : "?");
    return NBL_OK;
}

/* Lists the full names of all modules that are not quantized. lm_head is always listed, even if
 * it is tied and not in the file: given a list, transformers quantizes the head unless it is
 * listed. */
static nbl_status list_skipped(nbl__conversion *v, const plan *p, struct nbl__names *names)
{
    nbl_checkpoint *c = v->checkpoint;
    NBL_TRY(nbl__names_add(c, names, NBL_MODULE_HEAD));
    for (int64_t i = 0; i < c->tensor_count; i++) {
        const nbl_tensor_info *t = &c->tensors[i];
        bool matrix = p->encoded[i].format == NBL_FORMAT_DENSE && t->rank == 2 &&
                      nbl__ends_with(t->name, ".weight");
        if (!matrix || strlen(t->name) == 7 || strcmp(t->name, NBL_WEIGHT_OF(NBL_MODULE_HEAD)) == 0) continue;
        const char *module = nbl__arena_printf(&c->arena, "%.*s", (int)strlen(t->name) - 7, t->name);
        if (module == NULL) return NBL_ERROR_MEMORY;
        NBL_TRY(nbl__names_add(c, names, module));
    }
    return NBL_OK;
}

/* Lists the parts that are no text model, and the head, which a list must have. */
static nbl_status list_others(nbl__conversion *v, struct nbl__names *names)
{
    NBL_TRY(nbl__names_add(v->checkpoint, names, NBL_MODULE_HEAD));
    for (const char *const *other = nbl__text_part_others; *other; other++)
        NBL_TRY(nbl__names_add(v->checkpoint, names, *other));
    return NBL_OK;
}

/* Writes quantization_config and finishes the folder. */
static nbl_status commit(nbl__conversion *v, const plan *p, const nbl_quantize_options *options)
{
    struct nbl__names skipped = {0};
    nbl__text text = {.ctx = v->ctx};
    const nbl__text_part *part = nbl__text_part_of(v->checkpoint->config.root);
    if (options->skip) NBL_TRY(list_skipped(v, p, &skipped));
    else if (part && part->text_type) NBL_TRY(list_others(v, &skipped));
    if (options->format == NBL_FORMAT_MXFP4) nbl__config_print_mxfp4(&text);
    else nbl__config_print_bitsandbytes(&text, options, skipped.list, skipped.count);
    nbl_status status = text.status;
    nbl__config_edit edit = {"quantization_config", text.text};
    if (status == NBL_OK) status = nbl__conversion_commit(v, &edit, 1, NULL, NULL);
    nbl__text_free(&text);
    return status;
}

/* ---- all of it ---- */

static nbl_status run(nbl__conversion *v, plan *p, const char *out, const nbl_quantize_options *options)
{
    NBL_TRY(check_source(v));
    NBL_TRY(check_skip(v, options));
    NBL_TRY(declare(v, p, options));
    NBL_TRY(nbl__conversion_begin(v, out, options->shard_size));
    for (int64_t i = 0; i < v->checkpoint->tensor_count; i++) {
        const nbl_tensor_info *t = &v->checkpoint->tensors[i];
        NBL_TRY(nbl__safetensors_writer_begin_group(v->writer, v->output, i));
        if (p->encoded[i].format == NBL_FORMAT_DENSE) NBL_TRY(nbl__write_copy(v, t, p->encoded[i].data));
        else NBL_TRY(nbl__encoded_write(v, t, options, &p->encoded[i]));
    }
    return commit(v, p, options);
}

/* Checks the combination of options before any file is read. */
static nbl_status check_options(nbl_context *ctx, const nbl_quantize_options *o)
{
    bool fourbit = o->format == NBL_FORMAT_NF4 || o->format == NBL_FORMAT_FP4;
    NBL_CHECK(ctx, fourbit || o->format == NBL_FORMAT_INT8 || o->format == NBL_FORMAT_MXFP4,
              NBL_ERROR_ARGUMENT, "format %s: weights are quantized to nf4, fp4, int8 or mxfp4",
              nbl_format_name(o->format));
    NBL_CHECK(ctx, !fourbit || nbl__block_valid(o->block), NBL_ERROR_ARGUMENT,
              "block %" PRId64 ": not one of 32, 64, 128, … 4096", o->block);
    NBL_CHECK(ctx, o->format != NBL_FORMAT_MXFP4 || o->skip == NULL, NBL_ERROR_ARGUMENT,
              "mxfp4 takes all experts: transformers cannot be told to skip some");
    NBL_CHECK(ctx, fourbit || !o->nested, NBL_ERROR_ARGUMENT,
              "only nf4 and fp4 have scales to quantize twice");
    NBL_CHECK(ctx, (unsigned)o->nested <= NBL_NESTED_GRID, NBL_ERROR_ARGUMENT, "nested %d is no nbl_nested",
              (int)o->nested);
    NBL_CHECK(ctx, nbl__compute_dtype_valid(o->compute_dtype), NBL_ERROR_ARGUMENT,
              "compute_dtype %d is no nbl_compute_dtype", (int)o->compute_dtype);
    return NBL_OK;
}

nbl_status nbl_checkpoint_quantize(nbl_context *ctx, const char *in, const char *out,
                                   const nbl_quantize_options *given, nbl_convert_report *report)
{
    NBL_CHECK(ctx, in && out && given, NBL_ERROR_ARGUMENT, "checkpoint_quantize: in, out or options is NULL");
    nbl_quantize_options options;
    NBL_TRY(NBL_OPTIONS_READ(ctx, nbl_quantize_options, given, &options));
    if (options.block == 0) options.block = 64;
    NBL_TRY(check_options(ctx, &options));
    NBL_TRY(NBL_RESULT_BEGIN(ctx, nbl_convert_report, report));
    plan p = {0};
    nbl__conversion v = {0};
    int64_t tensors = 0;
    nbl_status status = compile_skip(ctx, options.skip, &p);
    if (status == NBL_OK) status = nbl__conversion_open(ctx, in, &v);
    if (status == NBL_OK) {
        tensors = v.checkpoint->tensor_count;
        v.allow_non_finite = options.allow_non_finite;
        status = run(&v, &p, out, &options);
    }
    NBL_RESULT_PUT(nbl_convert_report, report, &v.report);
    nbl__free(ctx, p.encoded, (size_t)(tensors + 1) * sizeof *p.encoded);
    pcre2_match_data_free(p.match);
    pcre2_code_free(p.skip);
    pcre2_general_context_free(p.memory);
    nbl__conversion_close(&v);
    return status;
}
