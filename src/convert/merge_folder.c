/* merge_folder.c - writes a checkpoint with a merged adapter as a dense folder; see merge.h.
 *
 * All weights are written in one dtype, span by span. A weight that has this dtype already and that
 * the adapter does not change keeps its bytes, and so does every dense weight of another part than the
 * text model (text_part.h). Peak memory: the factors of one weight, and one span
 * per worker. */
#include "convert/merge.h"

/* The writing of one tensor; shared by its workers. */
typedef struct job {
    nbl__conversion *v;
    const nbl__merge_job *merge;
    const nbl__merged *tensor;
    nbl_dtype dtype;
    int64_t number, span; /* rows */
    size_t values, sums;  /* bytes of a buffer's parts */
    nbl__buffers buffers;
    nbl__non_finite non_finite;
} job;

/* Thread task: merges one span of rows, rounds it and writes it. A worker's buffer is
 *     | f32 values | f64 sums of one row | values in the output's dtype | */
static nbl_status write_span(void *argument, int64_t item, int worker)
{
    job *j = argument;
    const nbl__merged *t = j->tensor;
    int64_t begin = item * j->span, end = nbl__min_i64(begin + j->span, t->rows);
    size_t size = nbl__size_of(j->dtype), count = (size_t)((end - begin) * t->columns);
    uint8_t *buffer = nbl__buffer_of(&j->buffers, worker);
    float *values = (float *)(void *)buffer;
    void *out = buffer + j->values + j->sums;
    nbl__merge_rows(j->merge, t, begin, end, values, (double *)(void *)(buffer + j->values));
    nbl__from_f32(nbl__isa(j->v->ctx), values, j->dtype, out, (int64_t)count);
    nbl__non_finite_scan(&j->non_finite, nbl__isa(j->v->ctx), j->dtype, out, (int64_t)count,
                         begin * t->columns);
    nbl__span_release(j->v->checkpoint, t->base, begin * t->columns, end * t->columns);
    double share = (double)(end - begin) / (double)t->rows;
    nbl__progress_add(j->v->ctx, (uint64_t)(share * (double)t->base->bytes));
    return nbl__safetensors_writer_write(j->v->writer, j->number, out, count * size,
                                         (uint64_t)(begin * t->columns) * size);
}

/* The dtype that the tensor is written in. */
static nbl_dtype result_dtype(const nbl__merged *t, nbl_dtype dtype)
{
    bool other = t->text == NULL && t->base->weight.format == NBL_FORMAT_DENSE; /* not the text model's */
    return other || !nbl__merged_is_numeric(t) ? t->base->weight.dtype : dtype;
}

/* True if the tensor's bytes are copied. An untied head is not: its name differs from its
 * base's. */
static bool keeps_bytes(const nbl__merged *t, nbl_dtype dtype)
{
    if (!nbl__merged_is_numeric(t)) return true;
    return !t->with && !t->stored && t->base->weight.format == NBL_FORMAT_DENSE &&
           t->base->weight.dtype == result_dtype(t, dtype) && strcmp(t->name, t->base->name) == 0;
}

/* Writes one tensor: its bytes if they do not change, otherwise merged span by span. */
static nbl_status write_tensor(nbl__conversion *v, nbl__merge_job *m, const nbl__merged *t, nbl_dtype dtype,
                               int64_t number)
{
    if (keeps_bytes(t, dtype)) return nbl__write_copy(v, t->base, number);
    if (t->rows == 0) return NBL_OK;
    NBL_TRY(nbl__merge_load(m, t));
    job j = {.v = v, .merge = m, .tensor = t, .dtype = dtype, .number = number};
    int64_t unit = t->base->transposed ? 32 : 1; /* rows, as nbl__span_unit has it in elements */
    j.span = nbl__span_size(unit * t->columns, sizeof(float)) / t->columns;
    int64_t rows = nbl__min_i64(j.span, t->rows);
    j.values = ((size_t)(rows * t->columns) * sizeof(float) + 63) / 64 * 64;
    j.sums = t->with ? ((size_t)t->columns * sizeof(double) + 63) / 64 * 64 : 0;
    size_t bytes = j.values + j.sums + (size_t)(rows * t->columns) * nbl__size_of(dtype);
    NBL_TRY(
        nbl__run_spans(v->ctx, nbl__ceil_div(t->rows, j.span), bytes, write_span, &j, &j.buffers, t->name));
    nbl__tensor_release(v->checkpoint, t->base);
    return nbl__non_finite_report(v, t->name, &j.non_finite, "of the sum are not finite");
}

/* Declares and writes all tensors, then makes the edits of config.json: no quantization, the new
 * dtype, a head of its own, the end tokens of the text files. */
static nbl_status write_all(nbl__conversion *v, nbl__merge_job *m, const nbl__merge_folder *how,
                            nbl_dtype dtype)
{
    for (int64_t i = 0, number; i < m->count; i++) {
        const nbl__merged *t = &m->tensors[i];
        nbl_dtype to = result_dtype(t, dtype);
        NBL_TRY(nbl__safetensors_writer_declare(v->writer, i, t->name, to, t->rank, t->shape, &number));
        v->report.converted += t->with || t->stored;
    }
    v->report.tensors = m->count;
    NBL_TRY(nbl__conversion_begin(v, how->out, how->shard_size));
    for (int64_t i = 0; i < m->count; i++) {
        NBL_TRY(nbl__safetensors_writer_begin_group(v->writer, v->output, i));
        NBL_TRY(write_tensor(v, m, &m->tensors[i], dtype, i));
    }
    char text[32];
    nbl__config_edit edits[4 + NBL_MAX_SPECIAL_TOKENS] = {{"quantization_config", NULL}};
    int count = 1 + nbl__conversion_dtype(v, dtype, text, edits + 1);
    if (m->untied) edits[count++] = (nbl__config_edit){"tie_word_embeddings", "false"};
    if (how->text) {
        int more = nbl__text_config_edits(&m->arena, &how->text->changes, v->checkpoint->config.root,
                                          nbl__json_get(v->checkpoint->config.root, "eos_token_id"), false,
                                          edits + count);
        if (more < 0) return NBL_ERROR_MEMORY;
        count += more;
    }
    if (how->chosen) *how->chosen = dtype;
    return nbl__conversion_commit(v, edits, count, how->check, how->user);
}

/* *dtype: the wanted one, else config.json's, else bf16. */
static nbl_status choose_dtype(nbl__conversion *v, nbl_compute_dtype wanted, nbl_dtype *dtype)
{
    const nbl__json *root = v->checkpoint->config.root;
    NBL_CHECK(v->ctx, nbl__compute_dtype_valid(wanted), NBL_ERROR_ARGUMENT,
              "merge: dtype %d is no nbl_compute_dtype", (int)wanted);
    if (wanted != NBL_COMPUTE_DEFAULT) {
        *dtype = nbl__dtype_chosen(wanted, NBL_DTYPE_BF16);
        return NBL_OK;
    }
    const char *told = nbl__json_text(root, "dtype");
    if (told == NULL) told = nbl__json_text(root, "torch_dtype");
    if (told == NULL || !nbl__dtype_from_torch_name(told, dtype)) *dtype = NBL_DTYPE_BF16;
    return NBL_OK;
}

nbl_status nbl__merge_write(nbl_context *ctx, const nbl__merge_folder *how, nbl_convert_report *report)
{
    nbl__conversion v = {0};
    nbl__merge_job m = {0};
    nbl_dtype dtype = NBL_DTYPE_BF16;
    nbl_status status = nbl__conversion_open(ctx, how->base, &v);
    v.text = how->text;
    v.allow_non_finite = how->allow_non_finite;
    if (status == NBL_OK) status = choose_dtype(&v, how->dtype, &dtype);
    if (status == NBL_OK) status = nbl__merge_open(v.checkpoint, how->adapter, &m);
    if (status == NBL_OK && m.peft) v.rights &= nbl__file_rights(&m.peft->file);
    if (status == NBL_OK) status = write_all(&v, &m, how, dtype);
    if (report) *report = v.report;
    nbl__merge_close(&m);
    nbl__conversion_close(&v);
    return status;
}
