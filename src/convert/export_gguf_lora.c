/* export_gguf_lora.c - writes an adapter as a GGUF file that llama.cpp applies to the exported
 * base; see export_gguf.h.
 *
 * llama.cpp scales B·A by alpha / rank, with one alpha (adapter.lora.alpha) for all modules.
 * nibble's modules may have different scales (rsLoRA, patterns). So alpha = scale_0 · rank_0 of the
 * first module, and B of module i is multiplied by scale_i · rank_i / alpha, which keeps every
 * update. DoRA, lora_bias and trained weights cannot be part of such a file: each is an error that
 * names it. */
#include <stdio.h>

#include "convert/export_gguf.h"
#include "format/hf/module_names.h"

/* Fails for a part of the adapter, and says how it can be exported. */
static nbl_status refuse(const nbl__export *e, const char *what, const char *name)
{
    nbl_status status = nbl__fail(e->ctx, NBL_ERROR_UNSUPPORTED,
                                  "%s: %s \"%s\" cannot be part of a GGUF LoRA", e->merge.peft->folder, what,
                                  name);
    return nbl__hint(e->ctx, status, "with --type the adapter is merged into the model");
}

/* Checks that the adapter has nothing but A and B. Weights called base_layer, which PEFT saves
 * unchanged, are left out. */
static nbl_status check_contents(const nbl__export *e)
{
    const nbl__peft *p = e->merge.peft;
    for (int64_t i = 0; i < p->replacement_count; i++)
        if (!nbl__ends_with(p->replacements[i].stored->name, ".base_layer.weight"))
            return refuse(e, "the trained weight", p->replacements[i].name);
    for (int64_t i = 0; i < p->module_count; i++) {
        const nbl__peft_module *m = &p->modules[i];
        if (m->experts) return refuse(e, "the adapter of experts", m->path);
        if (m->magnitude) return refuse(e, "DoRA of", m->path);
        if (m->b_bias) return refuse(e, "lora_bias of", m->path);
        if (e->merge.untied && strcmp(m->path, NBL_MODULE_HEAD) == 0)
            return refuse(e, "the adapter of a head that is the embedding,", m->path);
    }
    return NBL_OK;
}

/* The two tensors of one module. */
typedef struct pair {
    nbl__gguf_mapping mapping;
    int64_t a, b; /* numbers in the file */
} pair;

/* Declares A and B of one module. A of an embedding is stored transposed in GGUF: [vocabulary,
 * rank]. */
static nbl_status declare(nbl__export *e, const nbl__peft_module *m, pair *p)
{
    char name[96], hf_name[512];
    /* B · A is [out, in] for a linear layer. For an embedding PEFT stores A as [rank,
     * vocabulary]. */
    int64_t a[2] = {m->is_embedding ? m->in : m->r, m->is_embedding ? m->r : m->in}, b[2] = {m->out, m->r};
    (void)snprintf(hf_name, sizeof hf_name, "%s.weight", m->path);
    if (!nbl__gguf_mapping_of(e->arch, hf_name, &p->mapping)) return refuse(e, "the adapter of", m->path);
    (void)snprintf(name, sizeof name, "%s.lora_a", p->mapping.name);
    NBL_TRY(nbl__gguf_declare(&e->writer, name, NBL_GGML_F32, 2, a, &p->a));
    (void)snprintf(name, sizeof name, "%s.lora_b", p->mapping.name);
    e->report.parameters += a[0] * a[1] + b[0] * b[1];
    return nbl__gguf_declare(&e->writer, name, NBL_GGML_F32, 2, b, &p->b);
}

/* Writes A as it is (of an embedding: transposed), and B with its factor and in llama.cpp's order
 * of rows. */
static nbl_status write_pair(nbl__export *e, const nbl__peft_module *m, const pair *p, double alpha)
{
    nbl_isa isa = nbl__isa(e->ctx);
    int64_t in = m->r * m->in, out = m->out * m->r;
    float *from, *to;
    size_t max = (size_t)nbl__max_i64(in, out);
    NBL_TRY(NBL_ALLOC(e->ctx, from, 2 * max));
    to = from + max;
    nbl__to_f32(isa, m->a->dtype, m->a->data, from, in);
    for (int64_t k = 0; m->is_embedding && k < m->r; k++)
        for (int64_t i = 0; i < m->in; i++) to[i * m->r + k] = from[k * m->in + i];
    nbl_status status = nbl__export_check_values(e, m->path, NBL_GGML_F32, from, in);
    if (status == NBL_OK)
        status = nbl__gguf_write(&e->writer, p->a, m->is_embedding ? to : from, (size_t)in * sizeof(float),
                                 0);
    double factor = m->scale * (double)m->r / alpha * nbl__export_factor(e, &p->mapping);
    nbl__to_f32(isa, m->b->dtype, m->b->data, from, out);
    for (int64_t row = 0; row < m->out; row++) {
        const float *line = from + nbl__export_row(e, &p->mapping, row, m->out) * m->r;
        for (int64_t k = 0; k < m->r; k++) to[row * m->r + k] = (float)(factor * (double)line[k]);
    }
    if (status == NBL_OK) status = nbl__export_check_values(e, m->path, NBL_GGML_F32, to, out);
    if (status == NBL_OK) status = nbl__gguf_write(&e->writer, p->b, to, (size_t)out * sizeof(float), 0);
    nbl__progress_add(e->ctx, m->a->bytes + m->b->bytes);
    nbl__free(e->ctx, from, 2 * max * sizeof(float));
    return status;
}

nbl_status nbl__export_lora(nbl__export *e)
{
    const nbl__peft *p = e->merge.peft;
    NBL_TRY(check_contents(e));
    double alpha = p->modules[0].scale * (double)p->modules[0].r;
    if (alpha == 0) alpha = 1; /* llama.cpp reads alpha 0 as "do not scale" */
    nbl__gguf_put_text(&e->writer, "adapter.type", "lora", 4);
    nbl__gguf_put_f32(&e->writer, "adapter.lora.alpha", (float)alpha);
    pair *pairs = nbl__arena_alloc(&e->arena, (size_t)p->module_count * sizeof *pairs);
    if (pairs == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < p->module_count; i++) NBL_TRY(declare(e, &p->modules[i], &pairs[i]));
    NBL_TRY(nbl__gguf_begin(&e->writer, e->out));
    nbl__progress_begin(e->ctx, p->file.size);
    for (int64_t i = 0; i < p->module_count; i++) {
        NBL_TRY(nbl__progress_poll(e->ctx, p->modules[i].path));
        NBL_TRY(write_pair(e, &p->modules[i], &pairs[i], alpha));
    }
    return NBL_OK;
}
