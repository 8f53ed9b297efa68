/* language_model.h - a model in memory: config, weights as they are kept, an adapter; and plans over it.
 *
 * Weights stay where they lie: mapped files, or memory of the model's own for what was converted on arrival
 * (--load, GGUF). A plan is made for the largest batch; parameters (norms, biases, adapters, whatever is trained)
 * are copied into its memory once, in the dtype that the graph declares: what is trained in f32. */
#ifndef NBL_LANGUAGE_MODEL_H
#define NBL_LANGUAGE_MODEL_H

#include "arch/arch.h"
#include "format/hf/checkpoint.h"
#include "format/gguf/gguf_model.h"
#include "format/peft/peft.h"
#include "graph/plan.h"

struct nbl_model {
    nbl_context *ctx;
    nbl__arena arena;
    const char *path;
    nbl__decoder decoder;
    nbl_dtype dtype;  /* of the computation */
    bool dequantized; /* int8: multiply with decoded weights instead of rounding activations */
    nbl_checkpoint *checkpoint;
    nbl__gguf_model *gguf;
    nbl__peft *peft;
    const nbl__json *config;
    const nbl__json *generation; /* generation_config.json; NULL: there is none */
    const char *adapter_end;     /* eos_token of the adapter's tokenizer_config.json; NULL: none */
    bool plan_only;              /* weights have formats and shapes, but not all have data */

    struct nbl__weight_entry {
        const char *name;
        nbl_weight weight;
        void *memory; /* of the model's own; or NULL */
        size_t bytes;
        bool used; /* a builder asked for it */
        bool
            dequantized; /* training on a device keeps it in the compute dtype there, and not as it is stored */
        bool on_host;    /* a device reads it where it is: in the host's memory */
        nbl_weight device_view; /* on a device: the same with the device's pointers; rank 0: not there yet */
        nbl_weight
            as_used; /* decoded: what the graph of training sees; with the device's pointer once it is there */
    } * weights;
    int64_t weight_count;
    void *quantized; /* the weights that were quantised on arrival, one after the other; or NULL */
    size_t quantized_bytes, quantized_used;

    struct nbl__upload { /* on a device: its weights, in the pieces in which they came */
        struct nbl__upload *next;
        void *memory;
        size_t bytes;
        bool on_host; /* pinned memory of the host's */
    } * uploads;

    /* What training changes besides adapters: all of it, or the tensors of these names ("lm_head.weight"). What the
     * adapter's modules_to_save brought is trained in any case. The trainer sets them, before sessions are made. */
    bool train_all;
    const char *const *trained;
    int64_t trained_count;
};

/* Bytes of all weights as they are kept: none of them where all are trained, for the masters are parameters. With
 * `train`: as training keeps them on a device, where some may be decoded. What stays on the host is not counted there. */
uint64_t nbl__model_bytes(const nbl_model *model, bool train);
/* A weight by its name; NULL: none. */
struct nbl__weight_entry *nbl__model_find(const nbl_model *model, const char *name);
/* Would training change this tensor? */
bool nbl__model_trains(const nbl_model *model, const char *name);

/* ---- upload.c ---- */

/* Where the context runs on a device: brings the weights that the graph multiplies with there, unless they are, and has
 * the graph point to them. Host memory of mapped files is given up. */
nbl_status nbl__upload_weights(nbl_model *model, nbl__graph *graph);
void nbl__upload_free(nbl_model *model); /* no session uses them any more */

/* ---- residence.c: how training on a device keeps weights ---- */

/* Packed weights that are decoded once, not in every step: marks as many as take no more than `room` bytes beyond what
 * they take packed, those first that gain most per byte; others are unmarked. Returns what they take beyond it; *more:
 * whether there was one that did not fit. */
uint64_t nbl__dequantized_choose(nbl_model *model, uint64_t room, bool *more);
/* Has the embedding stay in the host's memory, or not. Returns by how many bytes that changes what is on the device: 0
 * when it changes nothing, or cannot be: it is trained, or the head multiplies with it, or there is no device. */
uint64_t nbl__embedding_on_host(nbl_model *model, bool yes);

/* Are the tensors those that the config describes? The error lists the ones that are missing, have another shape or do
 * not belong there. Needs names, formats and shapes alone. Who opens a model calls it before anything is sized by the
 * config: a config may promise a vocabulary of 2^31 tokens. */
nbl_status nbl__model_check(nbl_model *model);

/* Gives the model a new adapter: the modules that the settings choose. Its tensors are zero until a trainer
 * fills them in. */
nbl_status nbl__model_new_adapter(nbl_model *model, const char *where, const nbl__peft_settings *settings);

/* At least one sequence, each of at least one token, every id in the vocabulary. */
nbl_status nbl__check_sequences(nbl_model *model, const nbl_ids *sequences, int64_t count);
/* As long as their sequences, each -100 or in the vocabulary. */
nbl_status nbl__check_labels(nbl_model *model, const nbl_ids *sequences, const nbl_ids *labels,
                             int64_t count);

/* A graph of the model and its plan. */
typedef struct nbl__session {
    nbl_model *model;
    nbl__graph graph;
    nbl__build build;
    nbl__plan plan;
    bool resized; /* an input has another size than the plan was inferred with */
    bool masters; /* what training changes is this session's own, or that of the one it shares with */
    bool drops;   /* the adapter's dropout is applied */
} nbl__session;

typedef struct nbl__session_options {
    nbl__mode mode;
    int64_t tokens, sequences, cache_size; /* the largest */
    nbl_dtype kv_dtype;
    bool train;
    bool drops;     /* with the adapter's dropout; only with `train` */
    bool split_mlp; /* nbl__build.split_mlp; on a device it is so in any case but decode */
    bool picks;     /* nbl__build.picks */
    nbl__plan_options plan;
    const nbl__session *shared; /* parameters and states are this one's */
} nbl__session_options;

/* Built and planned, but without memory: what would it take? */
nbl_status nbl__session_plan(nbl_model *model, const nbl__session_options *options, nbl__session *session);
nbl_status nbl__session_open(nbl_model *model, const nbl__session_options *options, nbl__session *session);
/* Gives a session that was planned its memory, and fills in the parameters (but for a new adapter's). */
nbl_status nbl__session_bind(nbl__session *session);
void nbl__session_close(nbl__session *session);
/* Gives a planned session the memory of an open one, all of it, for runs in turns: the host was opened with
 * options.plan.with = &session->plan, and outlives it. */
nbl_status nbl__session_join(nbl__session *session, const nbl__session *host);
/* The memory of an input that holds n numbers in the next run; nbl__session_resize makes it so. */
int32_t *nbl__session_input(nbl__session *s, nbl__value value, int64_t n);
/* Infers again if an input has changed its size. */
nbl_status nbl__session_resize(nbl__session *s);
/* Puts packed sequences into the inputs, at the sizes they have; labels may be NULL. */
nbl_status nbl__session_load(nbl__session *s, const nbl_ids *sequences, int64_t count, const nbl_ids *labels);

/* ---- generate.c ---- */

/* Plans the decode steps that go with a prefill. */
nbl_status nbl__generation_plan(nbl_model *m, const nbl__session_options *prefill, nbl__session *dequantize);
/* What choosing tokens takes beside the plans. */
uint64_t nbl__generation_bytes(const nbl_model *m, int64_t count);

/* ---- plan_model.c ---- */

typedef struct nbl__plan_request {
    bool train;                /* a training step over a pack; else generation */
    int64_t tokens, sequences; /* all tokens of the pack or of the prompts; tokens >= sequences >= 1 */
    int optimizer_bits;        /* of AdamW's moments: 32 or 8; 0: no optimiser */
    uint64_t memory;           /* the budget of everything, weights included; 0: no limit */
    uint64_t
        available; /* instead of one, where there is none: recompute to keep within this if that can be, else
                                  as much as there is to recompute; 0: unknown */
    nbl__recompute min; /* at least this much recomputation */
} nbl__plan_request;

/* What a step takes. With a budget: the least recomputation that keeps it; NBL_ERROR_MEMORY with a message that names
 * the smallest budget when there is none. longest_sequence is that of `sequences` equal ones. */
nbl_status nbl__model_plan(nbl_model *m, const nbl__plan_request *request, nbl_model_plan *plan);
/* Plans the session that takes the step which nbl__model_plan tells of. *total: all that the run takes. On a device a
 * budget that leaves room after recomputation is used: weights are kept decoded, then less is recomputed. */
nbl_status nbl__plan_training(nbl_model *m, const nbl__plan_request *request, nbl__session *session,
                              uint64_t *total);
/* Bits of AdamW's moments of a trained parameter when 32 or 8 are asked for, as bitsandbytes and transformers decide: with
 * fewer than 4,096 elements, and of an embedding, they stay f32. */
int nbl__moment_bits(const nbl__value_info *info, int bits);
/* Bytes of all moments of a graph: f32, or codes of 8 bits with a scale per 256. */
uint64_t nbl__moment_bytes(const nbl__graph *g, int bits);

#endif
