/* export_gguf.h - a model's folder as a GGUF file.
 *
 *   export.c         which tensors, and their bytes
 *   export_gguf_keys.c    the metadata of the architecture
 *   export_gguf_lora.c    an adapter as a file of its own
 *   modelfile.c      Ollama's description of the file; modelfile_turns.c: the chat template in pieces
 *
 * The text of the tokenizer is text/vocab/vocab_export.c, the file itself format/gguf/gguf_write.c. */
#ifndef NBL_EXPORT_H
#define NBL_EXPORT_H

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
    nbl__merge merge;
    nbl__decoder decoder;
    nbl__gguf_arch arch;
    const char *arch_name; /* "gemma3" */
    nbl__ggml_type type;   /* of matrices */
    double
        query_factor; /* q is multiplied by this: llama.cpp scales scores by 1 / sqrt(head_dim), whatever the
                              config says */
    nbl__gguf_writer writer;
    nbl__text_source text; /* where tokenizer and template come from */
    nbl__exported_vocab vocab;
    nbl_export_report report;
} nbl__export;

/* Fails if a value is not finite or beyond what the type holds. */
nbl_status nbl__export_check_values(const nbl__export *e, const char *name, nbl__ggml_type type,
                                    const float *values, int64_t n);

/* Puts the keys of the model; refuses what they cannot say. */
nbl_status nbl__export_keys(nbl__export *e);
/* Finds query_factor. */
void nbl__export_query(nbl__export *e);
/* llama3's rotary scaling: the divisors of the frequencies, [head_dim / 2]; false: there is none. */
bool nbl__export_divisors(const nbl__export *e, float *divisors);
/* Where the row is that belongs at `row` of a tensor of `rows`, in rotary pairs or as it is; nbl__model_check saw to
 * whole heads of whole pairs. */
int64_t nbl__export_row(const nbl__export *e, const nbl__gguf_mapping *mapping, int64_t row, int64_t rows);
/* What a weight is multiplied by. */
double nbl__export_factor(const nbl__export *e, const nbl__gguf_mapping *mapping);

/* Declares, begins and writes the adapter's tensors, up to the commit. */
nbl_status nbl__export_lora(nbl__export *e);
/* The text of a Modelfile. */
nbl_status nbl__export_modelfile(nbl__export *e, nbl__text *out);

#endif
