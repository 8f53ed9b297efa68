/* export_gguf.c - writes a model's folder as a GGUF file; see export_gguf.h.
 *
 *     matrices   dequantize to f32 ─▶ add the adapter ─▶ llama.cpp's order of rows ─▶ encode
 *     vectors    the same, stored as f32
 *
 * Rows stream from mapped pages through a buffer per worker to their offset in the file, so memory
 * does not depend on the model's size. Values are rounded once, when they are encoded.
 *
 * The order of the work: open and check the source, put the keys, export the vocabulary, declare
 * all tensors, write them, read the file back, write the Modelfile, commit. Both results appear at
 * the end, or none of them. */
#include "convert/export_gguf.h"

#include "format/hf/module_names.h"
#include "model/language_model.h"
#include "model/model_text.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

/* One tensor of the file. factor: what the values are multiplied by (export_gguf_keys.c). */
typedef struct item {
    const nbl__merged *from;
    nbl__gguf_mapping mapping;
    nbl__ggml_type type;
    int64_t number;
    double factor;
} item;

static const struct type_row {
    nbl__ggml_type type;
    uint32_t file_type; /* llama.cpp's number for general.file_type: the type of most tensors */
} types[] = {[NBL_EXPORT_F32] = {NBL_GGML_F32, 0},
             [NBL_EXPORT_F16] = {NBL_GGML_F16, 1},
             [NBL_EXPORT_BF16] = {NBL_GGML_BF16, 32},
             [NBL_EXPORT_Q8_0] = {NBL_GGML_Q8_0, 7},
             [NBL_EXPORT_Q4_0] = {NBL_GGML_Q4_0, 2}};

/* ---- bytes ---- */

int64_t nbl__export_row(const nbl__export *e, const nbl__gguf_mapping *mapping, int64_t row, int64_t rows)
{
    if (mapping->rows == NBL_GGUF_ROWS_AS_THEY_ARE) return row;
    int64_t heads = mapping->rows == NBL_GGUF_ROTARY_Q ? e->decoder.heads : e->decoder.kv_heads;
    int64_t width = rows / heads, within = row % width; /* rows i and i + width / 2 become adjacent */
    return row - within + within % 2 * (width / 2) + within / 2;
}

/* The writing of one matrix; shared by its workers. values, sums: bytes of the parts of a
 * buffer. */
typedef struct job {
    nbl__export *e;
    const item *it;
    int64_t span; /* rows */
    size_t values, sums, row_bytes;
    nbl__buffers buffers;
} job;

/* Applies Gemma's offset of 1 and the factor of q. */
static void finish_values(const item *it, float *values, int64_t n)
{
    if (!it->mapping.plus_one && it->factor == 1) return;
    for (int64_t i = 0; i < n; i++) {
        float value = it->mapping.plus_one ? values[i] + 1.0f : values[i];
        values[i] = (float)((double)value * it->factor);
    }
}

/* Encoding would silently turn a value beyond the type's range into an infinity or another number.
 * The limits 65519 (f16) and 0x1.fefffep127 (bf16) still round to a finite value. */
nbl_status nbl__export_check_values(const nbl__export *e, const char *name, nbl__ggml_type type,
                                    const float *values, int64_t n)
{
    float max = type == NBL_GGML_F16 ? 65519.0f : type == NBL_GGML_BF16 ? 0x1.fefffep127f : FLT_MAX;
    const char *holder = type == NBL_GGML_F32    ? "f32"
                         : type == NBL_GGML_F16  ? "f16"
                         : type == NBL_GGML_BF16 ? "bf16"
                                                 : "a block";
    for (int64_t i = 0; i < n; i++) {
        if (fabsf(values[i]) <= max) continue;
        if (isfinite(values[i]))
            return nbl__fail(e->ctx, NBL_ERROR_DTYPE,
                             "%s: tensor \"%s\" has the value %g, which %s cannot hold", e->folder, name,
                             (double)values[i], holder);
        return nbl__hint(e->ctx,
                         nbl__fail(e->ctx, NBL_ERROR_DTYPE,
                                   "%s: tensor \"%s\" has a value that is not finite (%s)", e->folder, name,
                                   isnan(values[i]) ? "nan"
                                   : values[i] > 0  ? "inf"
                                                    : "-inf"),
                         "repair the weights or the adapter");
    }
    return NBL_OK;
}

/* Thread task: computes, encodes and writes one span of rows. A worker's buffer is
 *     | f32 values | f64 sums of one row | encoded rows |
 * Rows in rotary pairs are fetched one by one, in the order of the output. */
static nbl_status write_span(void *argument, int64_t number, int worker)
{
    job *j = argument;
    const nbl__merged *t = j->it->from;
    int64_t begin = number * j->span, end = nbl__min_i64(begin + j->span, t->rows),
            n = (end - begin) * t->columns;
    uint8_t *buffer = nbl__buffer_of(&j->buffers, worker), *out = buffer + j->values + j->sums;
    float *values = (float *)(void *)buffer;
    double *sums = (double *)(void *)(buffer + j->values);
    if (j->it->mapping.rows == NBL_GGUF_ROWS_AS_THEY_ARE)
        nbl__merge_rows(&j->e->merge, t, begin, end, values, sums);
    else
        for (int64_t row = begin; row < end; row++) {
            int64_t from = nbl__export_row(j->e, &j->it->mapping, row, t->rows);
            nbl__merge_rows(&j->e->merge, t, from, from + 1, values + (row - begin) * t->columns, sums);
        }
    finish_values(j->it, values, n);
    NBL_TRY(nbl__export_check_values(j->e, t->name, j->it->type, values, n));
    nbl__ggml_encode(nbl__isa(j->e->ctx), j->it->type, values, n, out);
    nbl__progress_add(j->e->ctx,
                      (uint64_t)((double)(end - begin) / (double)t->rows * (double)t->base->bytes));
    return nbl__gguf_write(&j->e->writer, j->it->number, out, (size_t)(end - begin) * j->row_bytes,
                           (uint64_t)begin * j->row_bytes);
}

/* Writes one matrix by spans of rows. A buffer's parts begin at multiples of 64 bytes. */
static nbl_status write_matrix(nbl__export *e, const item *it)
{
    const nbl__merged *t = it->from;
    nbl__ggml_layout layout = {"", 1, 1};
    (void)nbl__ggml_layout_of(it->type, &layout);
    job j = {.e = e, .it = it, .span = nbl__span_size(t->columns, sizeof(float)) / t->columns};
    int64_t rows = nbl__min_i64(j.span, t->rows);
    j.row_bytes = (size_t)(t->columns / layout.values * layout.bytes);
    j.values = ((size_t)(rows * t->columns) * sizeof(float) + 63) / 64 * 64;
    j.sums = ((size_t)t->columns * sizeof(double) + 63) / 64 * 64;
    NBL_TRY(nbl__merge_load(&e->merge, t));
    NBL_TRY(nbl__run_spans(e->ctx, nbl__ceil_div(t->rows, j.span),
                           j.values + j.sums + (size_t)rows * j.row_bytes, write_span, &j, &j.buffers,
                           t->name));
    nbl__tensor_release(e->checkpoint, t->base);
    return NBL_OK;
}

/* Writes a vector as f32. Biases of q and k are in rotary pairs, so values may change their
 * order. */
static nbl_status write_vector(nbl__export *e, const item *it)
{
    const nbl__merged *t = it->from;
    float *values, *ordered;
    size_t bytes = (size_t)t->columns * sizeof(float);
    NBL_TRY(NBL_ALLOC(e->ctx, values, 2 * t->columns));
    ordered = values + t->columns;
    nbl_status status = nbl__merge_load(&e->merge, t);
    if (status == NBL_OK) {
        nbl__merge_rows(&e->merge, t, 0, t->rows, values, NULL);
        for (int64_t i = 0; i < t->columns; i++)
            ordered[i] = values[nbl__export_row(e, &it->mapping, i, t->columns)];
        finish_values(it, ordered, t->columns);
        status = nbl__export_check_values(e, t->name, it->type, ordered, t->columns);
    }
    if (status == NBL_OK) {
        status = nbl__gguf_write(&e->writer, it->number, ordered, bytes, 0);
    }
    nbl__progress_add(e->ctx, t->base->bytes);
    nbl__free(e->ctx, values, 2 * bytes);
    return status;
}

/* ---- which tensors ---- */

/* True for tensors that are not exported: those of other parts than the text model, a tied head, and
 * rotary_emb.inv_freq of older files. */
static bool is_left_out(const nbl__export *e, const nbl__merged *t)
{
    if (t->text == NULL || nbl__ends_with(t->text, "rotary_emb.inv_freq")) return true;
    return e->decoder.tied && !e->merge.untied && strcmp(t->text, NBL_WEIGHT_OF(NBL_MODULE_HEAD)) == 0;
}

/* Declares one tensor. A matrix whose rows are not whole blocks of the type is written as f16, with
 * a warning. */
static nbl_status declare(nbl__export *e, const nbl__merged *t, item *it)
{
    nbl__ggml_layout layout = {"", 1, 1};
    *it = (item){.from = t, .type = t->rank < 2 ? NBL_GGML_F32 : e->type};
    NBL_CHECK(e->ctx, nbl__gguf_mapping_of(e->arch, t->text, &it->mapping), NBL_ERROR_UNSUPPORTED,
              "%s: tensor \"%s\" does not belong to a GGUF model of type %s", e->folder, t->name,
              e->arch_name);
    NBL_CHECK(e->ctx,
              nbl__merged_is_numeric(t) && t->rank >= 1 && t->rank <= 2 && t->columns > 0 && t->rows > 0,
              NBL_ERROR_DTYPE, "%s: tensor \"%s\" is no matrix or vector of numbers", e->folder, t->name);
    (void)nbl__ggml_layout_of(it->type, &layout);
    if (t->columns % layout.values) {
        nbl__log(e->ctx, NBL_LOG_WARNING,
                 "tensor \"%s\": its rows of %" PRId64
                 " values are no whole blocks of %s; it is written in f16",
                 t->name, t->columns, layout.name);
        it->type = NBL_GGML_F16;
        e->report.fallen_back++;
    }
    it->factor = nbl__export_factor(e, &it->mapping);
    e->report.parameters += t->rows * t->columns;
    return nbl__gguf_declare(&e->writer, it->mapping.name, it->type, t->rank, t->shape, &it->number);
}

/* Declares all tensors that are exported, in the checkpoint's order. */
static nbl_status declare_all(nbl__export *e, item *items, int64_t *count)
{
    for (int64_t i = 0; i < e->merge.count; i++)
        if (!is_left_out(e, &e->merge.tensors[i]))
            NBL_TRY(declare(e, &e->merge.tensors[i], &items[(*count)++]));
    return NBL_OK;
}

/* Verifies the file before it gets its final name: it must open as a model. NBL_ERROR_UNSUPPORTED
 * passes, since the export can write more than this reader supports. */
static nbl_status read_back(nbl__export *e)
{
    nbl__gguf_model *model;
    nbl_status status = nbl__gguf_model_open(e->ctx, e->writer.file.beside, &model);
    nbl__gguf_model_close(model);
    return status == NBL_ERROR_UNSUPPORTED ? NBL_OK : status;
}

/* Declares and writes all tensors, with the divisors of rotary frequencies first, and verifies the
 * file. */
static nbl_status write_model(nbl__export *e)
{
    int64_t count = 0, divisors_number[2] = {0};
    int64_t half = nbl__rope_dim(&e->decoder.rope, e->decoder.head_dim) / 2;
    item *items = nbl__arena_alloc(&e->arena, (size_t)(e->merge.count + 1) * sizeof *items);
    float *divisors = nbl__arena_alloc(&e->arena, (size_t)e->decoder.head_dim * sizeof *divisors);
    if (items == NULL || divisors == NULL) return NBL_ERROR_MEMORY;
    /* the divisors of rope scaling are tensors in llama.cpp, and a key of config.json in
     * transformers */
    const char *name;
    for (int i = 0; (name = nbl__export_divisors(e, i, divisors)) != NULL; i++)
        NBL_TRY(nbl__gguf_declare(&e->writer, name, NBL_GGML_F32, 1, &half, &divisors_number[i]));
    NBL_TRY(declare_all(e, items, &count));
    NBL_TRY(nbl__gguf_begin(&e->writer, e->out));
    nbl__progress_begin(e->ctx, e->checkpoint->summary.bytes);
    NBL_TRY(nbl__progress_poll(e->ctx, ""));
    for (int i = 0; nbl__export_divisors(e, i, divisors) != NULL; i++)
        NBL_TRY(
            nbl__gguf_write(&e->writer, divisors_number[i], divisors, (size_t)half * sizeof *divisors, 0));
    for (int64_t i = 0; i < count; i++)
        NBL_TRY(items[i].from->rank == 1 ? write_vector(e, &items[i]) : write_matrix(e, &items[i]));
    return read_back(e);
}

/* ---- the whole file ---- */

/* Puts the keys general.*. The model's name is the last component of its folder's path. type NULL:
 * an adapter. */
static nbl_status put_general(nbl__export *e, const struct type_row *type)
{
    nbl__gguf_writer *w = &e->writer;
    size_t end = strlen(e->folder);
    while (end > 1 && e->folder[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && e->folder[begin - 1] != '/') begin--;
    nbl__gguf_put_text(w, "general.architecture", e->arch_name, strlen(e->arch_name));
    nbl__gguf_put_text(w, "general.type", type ? "model" : "adapter", type ? 5 : 7);
    nbl__gguf_put_text(w, "general.name", e->folder + begin, end - begin);
    if (type) nbl__gguf_put_u32(w, "general.file_type", type->file_type);
    nbl__gguf_put_u32(w, "general.quantization_version", 2);
    return NBL_OK;
}

/* Checks the tensors against the config, which sizes keys and vocabulary. */
static nbl_status check_tensors(nbl__export *e)
{
    const nbl__merge_job *merge = &e->merge;
    nbl_model m = {.ctx = e->ctx, .path = e->folder, .decoder = e->decoder, .dtype = NBL_DTYPE_F32};
    m.decoder.tied = m.decoder.tied && !merge->untied;
    m.weights = nbl__arena_alloc(&e->arena, (size_t)(merge->count + 1) * sizeof *m.weights);
    if (m.weights == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < merge->count; i++) {
        const nbl__merged *from = &merge->tensors[i];
        struct nbl__weight_entry *entry = &m.weights[m.weight_count];
        if (is_left_out(e, from)) continue;
        entry->name = from->text;
        entry->weight = (nbl_weight){.format = NBL_FORMAT_DENSE, .dtype = NBL_DTYPE_F32, .rank = from->rank};
        memcpy(entry->weight.shape, from->shape, sizeof entry->weight.shape);
        m.weight_count++;
    }
    return nbl__model_check(&m);
}

/* Checks the source files, and restricts the permissions of the result to those that all sources
 * share. */
static nbl_status check_sources(nbl__export *e)
{
    const char *folders[] = {e->folder, e->options->adapter};
    for (int i = 0; e->options->type && i < 2 && folders[i]; i++) {
        NBL_TRY(nbl__text_files_check(e->ctx, folders[i]));
        e->writer.rights &= nbl__text_files_rights(folders[i]);
    }
    for (int i = 0; i < e->checkpoint->file_count; i++)
        e->writer.rights &= nbl__file_rights(&e->checkpoint->files[i]);
    if (e->merge.peft) e->writer.rights &= nbl__file_rights(&e->merge.peft->file);
    return NBL_OK;
}

/* Opens checkpoint, architecture and adapter, and checks that they can be exported. */
static nbl_status open_source(nbl__export *e)
{
    NBL_TRY(nbl_checkpoint_open(e->ctx, e->folder, NBL_OPEN_STRICT, &e->checkpoint));
    const nbl__json *config = e->checkpoint->config.root;
    NBL_CHECK(e->ctx, e->checkpoint->is_folder && config, NBL_ERROR_ARGUMENT,
              "%s: a folder in Hugging Face layout with a config.json is needed", e->folder);
    NBL_TRY(nbl__decoder_read(e->ctx, e->folder, config, &e->decoder));
    const char *model_type = e->decoder.arch->model_type;
    NBL_CHECK(e->ctx, nbl__gguf_arch_of(model_type, &e->arch, &e->arch_name), NBL_ERROR_UNSUPPORTED,
              "%s: model_type \"%s\" cannot be exported to GGUF", e->folder, model_type);
    nbl__export_query(e);
    NBL_TRY(nbl__merge_open(e->checkpoint, e->options->adapter, &e->merge));
    NBL_TRY(check_sources(e));
    return check_tensors(e);
}

/* Writes the Modelfile first, so that everything is there when the GGUF file appears. */
static nbl_status commit(nbl__export *e, const char *modelfile)
{
    nbl__text text = {.ctx = e->ctx};
    nbl_status status = NBL_OK;
    if (modelfile) {
        status = nbl__export_modelfile(e, &text);
        if (status == NBL_OK) status = text.status;
        if (status == NBL_OK)
            status = nbl__file_put_new(e->ctx, modelfile, e->writer.rights, text.text, text.size);
    }
    nbl__text_free(&text);
    if (status != NBL_OK) return status;
    e->report.tensors = e->writer.count;
    e->report.bytes = e->writer.size;
    status = nbl__gguf_commit(&e->writer);
    if (status != NBL_OK && modelfile) unlink(modelfile);
    return status;
}

/* Writes the file: the model if a type is given, otherwise the adapter alone. */
static nbl_status run(nbl__export *e, const struct type_row *type, const char *modelfile)
{
    NBL_TRY(open_source(e));
    NBL_TRY(put_general(e, type));
    if (type) {
        e->type = type->type;
        NBL_TRY(nbl__export_keys(e));
        NBL_TRY(
            nbl__adapter_text(&e->arena, e->folder, e->options->adapter, e->decoder.vocabulary, &e->text));
        NBL_TRY(nbl__vocab_export(&e->arena, &e->text, e->checkpoint->config.root, e->decoder.vocabulary,
                                  &e->writer, &e->vocab));
        NBL_TRY(write_model(e));
    } else {
        NBL_TRY(nbl__export_lora(e));
    }
    NBL_TRY(nbl__files_check(e->ctx));
    NBL_TRY(nbl__progress_poll(e->ctx, "")); /* last chance to cancel */
    return commit(e, modelfile);
}

/* Checks that neither the file nor the Modelfile exists. *path: of the Modelfile, in the file's
 * folder; NULL: not wanted. */
static nbl_status check_targets(nbl__export *e, const char **path)
{
    *path = NULL;
    NBL_CHECK(e->ctx, !nbl__exists(e->out), NBL_ERROR_EXISTS, "%s: exists already; it was left untouched",
              e->out);
    if (!e->options->ollama) return NBL_OK;
    const char *slash = strrchr(e->out, '/');
    *path = nbl__arena_printf(&e->arena, "%.*sModelfile", slash ? (int)(slash - e->out) + 1 : 0, e->out);
    if (*path == NULL) return NBL_ERROR_MEMORY;
    NBL_CHECK(e->ctx, !nbl__exists(*path), NBL_ERROR_EXISTS, "%s: exists already; it was left untouched",
              *path);
    return NBL_OK;
}

nbl_status nbl_export(nbl_context *ctx, const char *model, const char *out, const nbl_export_options *given,
                      nbl_export_report *report)
{
    NBL_CHECK(ctx, model && out && given, NBL_ERROR_ARGUMENT, "export: model, out or options is NULL");
    nbl_export_options options;
    NBL_TRY(NBL_OPTIONS_READ(ctx, nbl_export_options, given, &options));
    NBL_CHECK(ctx, options.type || options.adapter, NBL_ERROR_ARGUMENT,
              "export: neither a type nor an adapter");
    NBL_CHECK(ctx, (unsigned)options.type <= NBL_EXPORT_Q4_0, NBL_ERROR_ARGUMENT,
              "export: type %d is no nbl_export_type", (int)options.type);
    NBL_TRY(NBL_RESULT_BEGIN(ctx, nbl_export_report, report));
    const struct type_row *type = options.type ? &types[options.type] : NULL;
    nbl__export *e;
    const char *modelfile;
    NBL_TRY(NBL_ALLOC(ctx, e, 1));
    e->ctx = ctx;
    e->arena = nbl__arena_make(ctx);
    e->folder = model;
    e->out = out;
    e->options = &options;
    nbl__gguf_writer_open(ctx, &e->writer);
    nbl_status status = check_targets(e, &modelfile);
    if (status == NBL_OK) status = run(e, type, modelfile);
    NBL_RESULT_PUT(nbl_export_report, report, &e->report);
    nbl__gguf_writer_close(&e->writer);
    nbl__merge_close(&e->merge);
    nbl_checkpoint_close(e->checkpoint);
    nbl__arena_free(&e->arena);
    nbl__free(ctx, e, sizeof *e);
    return status;
}
