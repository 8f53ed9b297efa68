/* merge.c - computes the sum of a checkpoint and an adapter; see merge.h.
 *
 * Cost of a weight: rank · rows · columns multiply-adds in f64; bound by arithmetic from rank 8 on.
 * Memory: the factors of one weight in f32, and one row in f64 per worker. */
#include "convert/merge.h"

#include <math.h>

#include "format/hf/module_names.h"
#include "format/hf/text_part.h"
#include "quant/weight.h"

static const char head_name[] = NBL_WEIGHT_OF(NBL_MODULE_HEAD),
                  embedding_name[] = NBL_WEIGHT_OF(NBL_MODULE_EMBEDDING);

/* ---- which tensors there are ---- */

/* The checkpoint's tensor that the text model names so; NULL: none. */
static const nbl_tensor_info *find_base(const nbl_checkpoint *c, const char *name)
{
    for (int64_t i = 0; i < c->tensor_count; i++)
        if (c->text_names[i] && strcmp(c->text_names[i], name) == 0) return &c->tensors[i];
    return NULL;
}

/* Sets a shape, and the matrix as which it is merged: rows of the last dimension. */
static void set_shape(nbl__merged *t, int rank, const int64_t *shape)
{
    int64_t elements = 1;
    t->rank = rank;
    for (int i = 0; i < rank; i++) elements *= t->shape[i] = shape[i];
    t->columns = rank ? shape[rank - 1] : 1;
    t->rows = t->columns ? elements / t->columns : 0;
}

/* *found: the adapted module that the tensor belongs to; NULL if the name does not end with
 * `ending` or the module is not adapted. */
static nbl_status module_of(nbl__merge_job *m, const char *name, const char *ending,
                            const nbl__peft_module **found)
{
    *found = NULL;
    if (m->peft == NULL || !nbl__ends_with(name, ending)) return NBL_OK;
    const char *path = nbl__arena_printf(&m->arena, "%.*s", (int)(strlen(name) - strlen(ending)), name);
    if (path == NULL) return NBL_ERROR_MEMORY;
    *found = nbl__peft_find(m->peft, path);
    return NBL_OK;
}

/* Adds a tensor to the result and finds what the adapter does to it. text: nbl__merged.text. */
static nbl_status add(nbl__merge_job *m, const char *name, const char *text, const nbl_tensor_info *base)
{
    nbl__merged *t = &m->tensors[m->count++];
    const nbl__peft_replacement *replaced = NULL;
    const nbl__peft_module *bias = NULL;
    *t = (nbl__merged){.name = name, .text = text, .base = base, .is = {.expert = -1}};
    set_shape(t, base->rank, base->shape);
    if (text) NBL_TRY(nbl__expert_tensor_read(&m->arena, m->checkpoint, base, text, &t->is));
    if (text) text = t->is.name;
    if (m->peft && t->is.stack) t->with = nbl__peft_find(m->peft, t->is.stack);
    if (m->peft && text) replaced = nbl__peft_replacement_find(m->peft, text);
    if (replaced) t->stored = replaced->stored;
    if (text && t->is.stack == NULL) NBL_TRY(module_of(m, text, ".weight", &t->with));
    if (text) NBL_TRY(module_of(m, text, ".bias", &bias));
    if (bias && bias->b_bias) t->with = bias, t->is_bias = true;
    NBL_CHECK(m->ctx, !t->with || nbl__merged_is_numeric(t), NBL_ERROR_DTYPE,
              "%s: tensor \"%s\" is %s; an adapter can only be added to numbers", base->file, name,
              nbl_dtype_name(base->weight.dtype));
    NBL_CHECK(m->ctx,
              !replaced || (replaced->stored->rank == base->rank &&
                            memcmp(replaced->stored->shape, base->shape,
                                   (size_t)base->rank * sizeof *base->shape) == 0),
              NBL_ERROR_SHAPE, "%s: tensor \"%s\" has another shape than the model's", m->peft->folder, name);
    return NBL_OK;
}

/* Checks that everything in the adapter was used by some tensor of the model. */
static nbl_status check_taken(const nbl__merge_job *m)
{
    for (int64_t i = 0; i < m->peft->replacement_count; i++)
        NBL_CHECK(m->ctx, nbl__merge_find(m, m->peft->replacements[i].name), NBL_ERROR_UNSUPPORTED,
                  "%s: modules_to_save has \"%s\", which the model does not store", m->peft->folder,
                  m->peft->replacements[i].name);
    for (int64_t i = 0; i < m->peft->module_count; i++) {
        const nbl__peft_module *it = &m->peft->modules[i];
        NBL_CHECK(m->ctx, !(it->is_embedding && it->magnitude), NBL_ERROR_UNSUPPORTED,
                  "%s: use_dora on the embedding \"%s\" is not supported", m->peft->folder, it->path);
        bool taken = it->b_bias == NULL;
        for (int64_t t = 0; t < m->count && !taken; t++)
            taken = m->tensors[t].with == it && m->tensors[t].is_bias;
        NBL_CHECK(m->ctx, taken, NBL_ERROR_UNSUPPORTED,
                  "%s: lora_bias of \"%s\", which has no bias to add it to", m->peft->folder, it->path);
    }
    return NBL_OK;
}

/* True if the head is the embedding: config.json says so, or has no such key and the file has no
 * head. */
static bool is_tied(const nbl_checkpoint *c)
{
    if (c->config.tied != NBL_TIED_UNSET) return c->config.tied == NBL_TIED_YES;
    return find_base(c, head_name) == NULL;
}

/* Checks the adapter against the tensors of the result, which include an untied head. */
static nbl_status check_adapter(nbl__merge_job *m)
{
    nbl__peft_tensor *tensors = nbl__arena_alloc(&m->arena, (size_t)m->count * sizeof *tensors);
    if (tensors == NULL) return NBL_ERROR_MEMORY;
    int64_t count = 0;
    for (int64_t i = 0; i < m->count; i++) {
        const nbl__merged *t = &m->tensors[i];
        if (t->text) NBL_TRY(nbl__expert_tensor_list(&m->arena, &t->is, t->base, tensors, &count));
    }
    NBL_TRY(nbl__peft_swap_experts(m->peft, m->checkpoint->config.model_type));
    NBL_TRY(nbl__peft_check_tensors(m->peft, tensors, count));
    return check_taken(m);
}

/* Adds an untied head, whose name follows the embedding's. */
static nbl_status add_head(nbl__merge_job *m, const nbl_tensor_info *embedding)
{
    char memory[sizeof head_name + 64];
    const char *spelled = nbl__text_spell(nbl__text_prefix(embedding->name), head_name, memory,
                                          sizeof memory);
    const char *name = nbl__arena_strdup(&m->arena, spelled);
    return name ? add(m, name, head_name, embedding) : NBL_ERROR_MEMORY;
}

nbl_status nbl__merge_open(nbl_checkpoint *c, const char *adapter, nbl__merge_job *m)
{
    *m = (nbl__merge_job){.ctx = c->ctx, .checkpoint = c, .arena = nbl__arena_make(c->ctx)};
    if (adapter) NBL_TRY(nbl__peft_open(c->ctx, adapter, &m->peft));
    m->tensors = nbl__arena_alloc(&m->arena, (size_t)(c->tensor_count + 1) * sizeof *m->tensors);
    if (m->tensors == NULL) return NBL_ERROR_MEMORY;
    /* An untied head is a new tensor whose base is the embedding. */
    const nbl_tensor_info *embedding = find_base(c, embedding_name);
    m->untied = m->peft && embedding && is_tied(c) && nbl__peft_unties(m->peft);
    for (int64_t i = 0; i < c->tensor_count; i++)
        if (!m->untied || c->text_names[i] == NULL || strcmp(c->text_names[i], head_name) != 0)
            NBL_TRY(add(m, c->tensors[i].name, c->text_names[i], &c->tensors[i]));
    if (m->untied) NBL_TRY(add_head(m, embedding));
    return m->peft ? check_adapter(m) : NBL_OK;
}

/* Frees the factors of the last tensor. */
static void unload(nbl__merge_job *m)
{
    nbl__free(m->ctx, m->left, m->left_bytes);
    nbl__free(m->ctx, m->right, m->right_bytes);
    m->left = m->right = NULL;
    m->left_bytes = m->right_bytes = 0;
}

void nbl__merge_close(nbl__merge_job *m)
{
    if (m->ctx == NULL) return;
    unload(m);
    nbl__peft_close(m->peft);
    nbl__arena_free(&m->arena);
    *m = (nbl__merge_job){0};
}

const nbl__merged *nbl__merge_find(const nbl__merge_job *m, const char *name)
{
    for (int64_t i = 0; i < m->count; i++)
        if (m->tensors[i].text && strcmp(m->tensors[i].text, name) == 0) return &m->tensors[i];
    return NULL;
}

bool nbl__merged_is_numeric(const nbl__merged *t)
{
    /* Older versions of transformers stored this buffer, which is not a weight. */
    if (nbl__ends_with(t->name, "rotary_emb.inv_freq")) return false;
    return t->stored || nbl__is_decodable(t->base);
}

/* ---- values ---- */

/* Converts a stored matrix [rows, columns] to f32; with `transpose` the result is [columns,
 * rows]. */
static void take_matrix(nbl_isa isa, const nbl__stored *from, bool transpose, float *to)
{
    int64_t rows = from->shape[0], columns = from->shape[1];
    if (!transpose) {
        nbl__to_f32(isa, from->dtype, from->data, to, rows * columns);
        return;
    }
    enum { PIECE = 256 };
    float line[PIECE];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t at = 0; at < columns; at += PIECE) {
            int64_t n = nbl__min_i64(PIECE, columns - at);
            nbl__to_f32(isa, from->dtype, from->data + (size_t)(r * columns + at) * nbl__size_of(from->dtype),
                        line, n);
            for (int64_t i = 0; i < n; i++) to[(at + i) * rows + r] = line[i];
        }
}

/* Element i of a stored vector, as f32. */
static float element(nbl_isa isa, const nbl__stored *from, int64_t i)
{
    float value;
    nbl__to_f32(isa, from->dtype, from->data + (size_t)i * nbl__size_of(from->dtype), &value, 1);
    return value;
}

/* Matrices of experts that the tensor has. */
static int64_t experts_of(const nbl__merged *t)
{
    return t->is.stack && t->is.expert < 0 ? t->shape[0] : 1;
}

/* Takes the factors of expert e: B_e [out, rank], A_e [rank, in], or for a transposed stack A_eᵀ and
 * B_eᵀ. first: the row of B that the tensor begins at. */
static void take_expert(nbl_isa isa, const nbl__merged *t, int64_t e, int64_t first, float *left,
                        float *right)
{
    const nbl__peft_module *with = t->with;
    int64_t r = with->r, outs = t->columns, ins = t->rows / experts_of(t);
    if (!t->is.transposed) outs = ins, ins = t->columns;
    float *a = t->is.transposed ? left : right, *b = t->is.transposed ? right : left;
    int64_t a_row = t->is.transposed ? 1 : ins, a_column = t->is.transposed ? r : 1;  /* strides of j and i */
    int64_t b_row = t->is.transposed ? 1 : r, b_column = t->is.transposed ? outs : 1; /* of o and j */
    const nbl__stored *from = with->a;
    for (int64_t j = 0; j < r; j++)
        for (int64_t i = 0; i < ins; i++)
            a[j * a_row + i * a_column] = element(isa, from, (e * r + j) * ins + i);
    from = with->b;
    for (int64_t o = 0; o < outs; o++)
        for (int64_t j = 0; j < r; j++)
            b[o * b_row + j * b_column] = element(isa, from,
                                                  (first + o) * r * with->experts + j * with->experts + e);
}

nbl_status nbl__merge_load(nbl__merge_job *m, const nbl__merged *t)
{
    unload(m);
    if (t->with == NULL || t->is_bias) return NBL_OK;
    bool embedding = t->with->is_embedding; /* W is [in, out], so the factors are Aᵀ and Bᵀ */
    size_t rank = (size_t)t->with->r;
    size_t count = (size_t)experts_of(t), left = rank * (size_t)t->rows * sizeof(float),
           right = rank * count * (size_t)t->columns * sizeof(float);
    if ((m->left = nbl__alloc(m->ctx, left)) == NULL) return NBL_ERROR_MEMORY;
    m->left_bytes = left;
    if ((m->right = nbl__alloc(m->ctx, right)) == NULL) return NBL_ERROR_MEMORY;
    m->right_bytes = right;
    nbl_isa isa = nbl__isa(m->ctx);
    if (t->is.stack) {
        int64_t r = t->with->r, rows = t->rows / (int64_t)count;
        int64_t first = t->is.part == NBL_EXPERT_UP ? rows : 0;
        int64_t out = t->is.transposed ? t->columns : first + rows, in = t->is.transposed ? rows : t->columns;
        bool fits = out <= t->with->out && in == t->with->in && t->is.expert < t->with->experts &&
                    (t->is.expert >= 0 || t->shape[0] == t->with->experts);
        NBL_CHECK(m->ctx, fits, NBL_ERROR_SHAPE,
                  "%s: tensor \"%s\" is %s, which the adapter of \"%s\" does not fit", t->base->file, t->name,
                  nbl__show_shape(t->rank, t->shape).text, t->is.stack);
        for (int64_t k = 0; k < (int64_t)count; k++)
            take_expert(isa, t, t->is.expert < 0 ? k : t->is.expert, first, m->left + k * rows * r,
                        m->right + k * r * t->columns);
        return NBL_OK;
    }
    take_matrix(isa, embedding ? t->with->a : t->with->b, embedding, m->left);
    take_matrix(isa, embedding ? t->with->b : t->with->a, embedding, m->right);
    return NBL_OK;
}

/* Merges one row in place: out holds W[row, :] before and W'[row, :] after. sum: [columns]
 * scratch. */
static void merge_row(const nbl__merge_job *m, const nbl__merged *t, int64_t row, float *out, double *sum)
{
    const nbl__peft_module *with = t->with;
    int64_t columns = t->columns;
    /* of a stack: the right factor of the row's expert */
    const float *right = m->right + row / (t->rows / experts_of(t)) * with->r * columns;
    for (int64_t i = 0; i < columns; i++) sum[i] = 0;
    for (int64_t k = 0; k < with->r; k++) {
        double b = (double)m->left[row * with->r + k];
        const float *a = right + k * columns;
        for (int64_t i = 0; i < columns; i++) sum[i] += b * (double)a[i];
    }
    /* V[row, :], then DoRA's magnitude / |V[row, :]|. */
    for (int64_t i = 0; i < columns; i++) sum[i] = (double)out[i] + with->scale * sum[i];
    double factor = 1;
    if (with->magnitude) {
        double square = 0;
        for (int64_t i = 0; i < columns; i++) square += sum[i] * sum[i];
        factor = (double)element(nbl__isa(m->ctx), with->magnitude, row) / sqrt(square);
    }
    for (int64_t i = 0; i < columns; i++) out[i] = (float)(factor * sum[i]);
}

/* The values of rows: the adapter's whole weight, or the base's, plus what the adapter adds. */
void nbl__merge_rows(const nbl__merge_job *m, const nbl__merged *t, int64_t begin, int64_t end, float *out,
                     double *scratch)
{
    nbl_isa isa = nbl__isa(m->ctx);
    int64_t first = begin * t->columns, last = end * t->columns;
    if (t->stored)
        nbl__to_f32(isa, t->stored->dtype, t->stored->data + (size_t)first * nbl__size_of(t->stored->dtype),
                    out, last - first);
    else nbl__span_dequantize(isa, t->base, first, last, NBL_DTYPE_F32, out);
    if (t->with == NULL) return;
    for (int64_t row = begin; row < end && !t->is_bias; row++)
        merge_row(m, t, row, out + (row - begin) * t->columns, scratch);
    for (int64_t i = 0; t->is_bias && i < last - first; i++)
        out[i] = (float)((double)out[i] + t->with->scale * (double)element(isa, t->with->b_bias, first + i));
}
