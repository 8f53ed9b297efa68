/* language_model.h - a model in memory: config, weights as they are kept, an adapter; and plans over it.
 *
 * Weights stay where they lie: mapped files, or memory of the model's own for what was converted on arrival
 * (--load, GGUF). A plan is made for the largest batch; parameters (norms, biases, adapters) are copied into
 * its memory once, in the dtype that the graph declares. */
#ifndef NBL_LANGUAGE_MODEL_H
#define NBL_LANGUAGE_MODEL_H

#include "arch/arch.h"
#include "format/checkpoint.h"
#include "format/gguf_model.h"
#include "format/peft.h"
#include "graph/plan.h"

struct nbl_model {
    nbl_context *ctx;
    nbl__arena arena;
    const char *path;
    nbl__decoder decoder;
    nbl_dtype dtype; /* of the computation */
    nbl_checkpoint *checkpoint;
    nbl__gguf_model *gguf;
    nbl__peft *peft;
    const nbl__json *config;
    const nbl__json *generation; /* generation_config.json; NULL: there is none */

    struct nbl__held {
        const char *name;
        nbl_weight weight;
        void *memory; /* of the model's own; or NULL */
        size_t bytes;
        bool used; /* a builder asked for it */
    } * weights;
    int64_t weight_count;
    void *quantized; /* the weights that were quantised on arrival, one after the other; or NULL */
    size_t quantized_bytes;
};

/* A weight by its name; NULL: none. */
struct nbl__held *nbl__model_find(const nbl_model *model, const char *name);

/* A graph of the model and its plan. */
typedef struct nbl__session {
    nbl_model *model;
    nbl__graph graph;
    nbl__build build;
    nbl__plan plan;
} nbl__session;

typedef struct nbl__session_options {
    nbl__mode mode;
    int64_t tokens, sequences, cache_size; /* the largest */
    nbl_dtype kv_dtype;
    bool train;
    nbl__plan_options plan;
    const nbl__session *shared; /* parameters and states are this one's */
} nbl__session_options;

/* Built and planned, but without memory: what would it take? */
nbl_status nbl__session_plan(nbl_model *model, const nbl__session_options *options, nbl__session *session);
nbl_status nbl__session_open(nbl_model *model, const nbl__session_options *options, nbl__session *session);
void nbl__session_close(nbl__session *session);
/* The memory of an input that holds n numbers in the next run; nbl__plan_resize makes it so. */
int32_t *nbl__session_input(nbl__session *s, nbl__value value, int64_t n);
/* Puts packed sequences into the inputs, at the sizes they have; labels may be NULL. */
nbl_status nbl__session_load(nbl__session *s, const nbl_ids *sequences, int64_t count, const nbl_ids *labels);

#endif
