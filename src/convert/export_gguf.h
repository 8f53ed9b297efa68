/* export_gguf.h - exports a model's folder, or an adapter, to a GGUF file.
 *
 *   export_gguf.c         the tensors and the whole file
 *   export_gguf_keys.c    the metadata of the architecture
 *   export_gguf_lora.c    an adapter as a file of its own
 *   modelfile.c           Ollama's Modelfile; chat_frames.c splits the chat template for it
 *
 * The tokenizer's metadata is made by text/vocab/vocab_export.c, the file by
 * format/gguf/gguf_write.c. */
#ifndef NBL_EXPORT_GGUF_H
#define NBL_EXPORT_GGUF_H

#include "arch/arch.h"
#include "convert/merge.h"
#include "format/gguf/gguf_model.h"
#include "text/vocab/vocab_export.h"

typedef struct nbl__export {
    nbl_context *ctx;
    nbl__arena arena;
    const char *folder, *out;
    const nbl_export_options *options;
    nbl_checkpoint *checkpoint;
    nbl__merge_job merge;
    nbl__decoder decoder;
    nbl__gguf_arch arch;
    const char *arch_name; /* "gemma3" */
    nbl__ggml_type type;   /* of matrices */
    /* q's weights are multiplied by this. llama.cpp scales attention scores by a rule of its own,
     * mostly 1 / sqrt(head_dim); the factor makes up for a config with another scale. 1: none
     * needed. */
    double query_factor;
    nbl__gguf_writer writer;
    nbl__text_source text; /* source of tokenizer and chat template */
    nbl__exported_vocab vocab;
    nbl_export_report report;
} nbl__export;

/* NBL_ERROR_DTYPE if a value is not finite or beyond the type's range. `name` is for the
 * message. */
nbl_status nbl__export_check_values(const nbl__export *e, const char *name, nbl__ggml_type type,
                                    const float *values, int64_t n);

/* Puts the architecture's keys. NBL_ERROR_UNSUPPORTED if they cannot express the config. */
nbl_status nbl__export_keys(nbl__export *e);
/* Sets query_factor from the config's scale of attention scores. */
void nbl__export_query(nbl__export *e);
/* The i-th tensor of divisors of the rotary frequencies, [rotary / 2], and its name: Llama 3's
 * scaling has one, longrope two. NULL: there are no more. */
const char *nbl__export_divisors(const nbl__export *e, int i, float *divisors);
/* The source row for row `row` of the exported tensor, which has `rows` rows: of the same pair for
 * tensors in rotary pairs, else `row`. `rows` must be whole heads of even width, which
 * nbl__model_check ensures. */
int64_t nbl__export_row(const nbl__export *e, const nbl__gguf_mapping *mapping, int64_t row, int64_t rows);
/* The factor for the values of a weight: query_factor for q, else 1. */
double nbl__export_factor(const nbl__export *e, const nbl__gguf_mapping *mapping);

/* Declares and writes all tensors of the adapter; the caller commits the file. */
nbl_status nbl__export_lora(nbl__export *e);
/* Appends the text of a Modelfile. */
nbl_status nbl__export_modelfile(nbl__export *e, nbl__text *out);

#endif
