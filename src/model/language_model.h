/* language_model.h - a model in memory (config, weights, adapter) and the sessions that run it.
 *
 *     files ──▶ nbl_model ──▶ nbl__session
 *               weights       graph ─▶ plan ─▶ memory, filled parameters
 *
 * Weights. A frozen weight is read where it is stored: in the mapped file, or in memory that the
 * model owns if it was converted while loading (--load quantizes, .gguf is dequantized). On a
 * device the weight is uploaded once and shared by all sessions (upload.c).
 * Parameters. Norms, biases, adapters and everything trained are copied into the plan's memory
 * once, in the dtype that the graph declares. Trained parameters are f32.
 * Sizes. A plan is made for the largest batch. Smaller batches run at the same addresses.
 * Threads. A model and its sessions are used by one thread at a time. */
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
    nbl_dtype dtype;  /* compute dtype: f32, f16 or bf16 */
    bool dequantized; /* int8: multiply with dequantized weights, do not round activations to int8 */
    nbl_checkpoint *checkpoint;  /* the source of the weights; NULL: a .gguf file */
    nbl__gguf_model *gguf;       /* the source of the weights; NULL: a checkpoint */
    nbl__peft *peft;             /* the adapter; NULL: none */
    const nbl__json *config;     /* root of config.json, or of the text made from GGUF's metadata */
    const nbl__json *generation; /* generation_config.json; NULL: there is none */
    const char *adapter_end;     /* eos_token of the adapter's tokenizer_config.json; NULL: none */
    bool plan_only;              /* weights have formats and shapes, but not all have data */

    /* Weight entries: one per logical weight, with one free entry for a head that is untied
     * later. */
    struct nbl__weight_entry {
        const char *name;  /* as transformers names it: "model.layers.0.mlp.up_proj.weight" */
        nbl_weight weight; /* in the host's memory: format, shape and pointers */
        void *memory; /* owned copy of `bytes` bytes (GGUF); NULL: data lies in a file or in `quantized` */
        size_t bytes;
        int32_t stack;         /* of expert_stacks.c while it runs; -1: none */
        bool used;             /* a graph builder asked for this weight */
        nbl__weight_role role; /* what for; NBL_WEIGHT_NONE: no builder has asked */
        /* Training on a device keeps this weight dequantized to the compute dtype (residence.c). */
        bool dequantized;
        bool on_host; /* the device reads this weight from pinned host memory (residence.c) */
        /* `weight` with device pointers; rank 0: not uploaded. Unused while `dequantized`. */
        nbl_weight device_view;
        /* The dense weight that the training graph sees if `dequantized`. data is a device pointer;
         * NULL: not uploaded. */
        nbl_weight as_used;
    } * weights;
    int64_t weight_count;
    /* Hash table of the entries by name: indices + 1, 0: free. A power of two slots; NULL: no table. */
    int32_t *by_name;
    int64_t by_name_size;
    const char *misfits; /* tensors of experts that do not fit, for nbl__model_check; NULL: none */
    void *quantized;     /* owned: all weights that --load quantized, one after the other; or NULL */
    size_t quantized_bytes, quantized_used;

    struct nbl__upload { /* one allocation that holds uploaded weights; freed by nbl__upload_free */
        struct nbl__upload *next;
        void *memory;
        size_t bytes;
        bool on_host; /* pinned host memory; else device memory */
    } * uploads;

    /* Base weights that training changes: all of them, or those named in `trained`
     * ("lm_head.weight"). Tensors of the adapter's modules_to_save are trained in any case. The
     * trainer sets these fields before it opens sessions. */
    bool train_all;
    const char *const *trained;
    int64_t trained_count;
};

/* Bytes of all weights where the model runs. `train`: count entries marked `dequantized` in the
 * compute dtype. Entries marked `on_host` count 0. Returns 0 with `train_all`: the trained copies
 * are parameters of the plan. */
uint64_t nbl__model_bytes(const nbl_model *model, bool train);
/* Makes room for `count` entries and one more, and the table of their names. */
nbl_status nbl__model_make_entries(nbl_model *model, int64_t count);
/* Adds an entry. There is room. The name is not copied. */
struct nbl__weight_entry *nbl__model_add(nbl_model *model, const char *name);
/* The weight entry of this name; NULL: none. */
struct nbl__weight_entry *nbl__model_find(const nbl_model *model, const char *name);
/* The first weight entry of this role; NULL: none. Linear search. */
struct nbl__weight_entry *nbl__model_find_role(const nbl_model *model, nbl__weight_role role);
/* True if training changes this tensor: `train_all`, a name in `trained`, or modules_to_save. */
bool nbl__model_trains(const nbl_model *model, const char *name);

/* ---- expert_stacks.c ---- */

/* Makes the entries of a checkpoint's tensors; tensors of single experts become stacks. */
nbl_status nbl__model_hold_checkpoint(nbl_model *model);

/* ---- upload.c ---- */

/* Uploads every weight of the graph that is not on the device, and points the graph's weights to
 * the device copies. Mapped pages of uploaded files are dropped. Does nothing on the CPU. */
nbl_status nbl__upload_weights(nbl_model *model, nbl__graph *graph);
/* Frees the device copies. No session may use them any more. */
void nbl__upload_free(nbl_model *model);

/* ---- residence.c: how training on a device keeps weights ---- */

/* Chooses the packed weights that stay dequantized on the device instead of being dequantized in
 * every step. Marks entries, smallest first, while their additional bytes (dense minus packed) stay
 * within `room`; unmarks all others. Returns the additional bytes. *more: at least one weight did
 * not fit, or `room` is 0. */
uint64_t nbl__dequantized_choose(nbl_model *model, uint64_t room, bool *more);
/* Keeps the embedding in host memory (yes) or on the device (no). Returns the bytes that move; 0 if
 * nothing changes or the embedding cannot move: it is trained, it is tied to the head, or there is
 * no device. */
uint64_t nbl__embedding_on_host(nbl_model *model, bool yes);

/* Sets the roles of the weight entries: what the architecture's builder asks for. Reads names and
 * shapes only, and reports no misfits: nbl__model_check does. */
nbl_status nbl__model_find_roles(nbl_model *model);
/* Checks that the tensors are those that the config describes. NBL_ERROR_FORMAT lists every tensor
 * that is missing, has another shape or is unknown to the architecture. Reads names, formats and
 * shapes only. Call it before memory is sized by the config: a bad config may promise a vocabulary
 * of 2^31 tokens. */
nbl_status nbl__model_check(nbl_model *model);

/* Gives the model a new adapter for the modules that the settings choose. The trainer initialises
 * its tensors. `where` names the settings in messages. */
nbl_status nbl__model_new_adapter(nbl_model *model, const char *where, const nbl__peft_settings *settings);

/* Checks sequences: at least one, each with 1 to INT32_MAX / 2 tokens, every id in the
 * vocabulary. */
nbl_status nbl__check_sequences(nbl_model *model, const nbl_ids *sequences, int64_t count);
/* Checks labels: as many as tokens in the sequence, each -100 (ignored) or in the vocabulary. */
nbl_status nbl__check_labels(nbl_model *model, const nbl_ids *sequences, const nbl_ids *labels,
                             int64_t count);

/* ---- session.c ----
 *
 * A session is one graph of the model with its plan. The caller provides the struct. Its life:
 *
 *     plan ─▶ bind ─▶ { load or input, resize, nbl__plan_run } ... ─▶ close        open = plan + bind
 *     plan ─▶ join ─▶ ...                                          shares another session's memory */
typedef struct nbl__session {
    nbl_model *model; /* NULL: closed */
    nbl__graph graph;
    nbl__build build;
    nbl__plan plan;
    nbl__value seeds; /* input: i64 [layers], the seeds of dropout; 0: nothing is dropped */
    bool resized; /* the size of an input differs from the size that the plan's shapes were inferred with */
    bool masters; /* trained weights are read from f32 parameters: of this session or of `shared` */
    bool drops;   /* the adapter's dropout is applied */
} nbl__session;

typedef struct nbl__session_options {
    nbl__mode mode;
    /* Upper bounds of one run: tokens and sequences (below INT32_MAX), KV cache rows per sequence
     * (0: none). */
    int64_t tokens, sequences, cache_size;
    nbl_dtype kv_dtype; /* of the KV cache */
    bool train;         /* add the backward pass */
    bool drops;         /* apply the adapter's dropout; only with `train` */
    bool split_mlp;     /* nbl__build.split_mlp, in every mode but GENERATE where the device splits_mlp */
    bool argmax;        /* nbl__build.argmax: argmax on the device instead of logits as a result */
    nbl__plan_options plan;
    const nbl__session *shared; /* its parameters and states are used; it must outlive this session */
} nbl__session_options;

/* Builds the graph and plans it, without memory: plan.bytes says what it would take. On an error
 * the session is closed. */
nbl_status nbl__session_plan(nbl_model *model, const nbl__session_options *options, nbl__session *session);
/* Plans and binds. On an error the session is closed. */
nbl_status nbl__session_open(nbl_model *model, const nbl__session_options *options, nbl__session *session);
/* Allocates the memory of a planned session, uploads weights and fills the parameters. LoRA tensors
 * of a new adapter are left for the trainer. NBL_ERROR_ARGUMENT if the model was opened with
 * plan_only. */
nbl_status nbl__session_bind(nbl__session *session);
void nbl__session_close(nbl__session *session);
/* Gives a planned session all memory of an open one. The two run alternately. `host` must have been
 * opened with options.plan.with = &session->plan, and must outlive `session`. */
nbl_status nbl__session_join(nbl__session *session, const nbl__session *host);
/* Sets the first dimension of an input to n for the next run and returns its memory to write to.
 * Call nbl__session_resize after the last such call. */
int32_t *nbl__session_input(nbl__session *s, nbl__value value, int64_t n);
/* Infers all shapes again if the size of an input has changed. */
nbl_status nbl__session_resize(nbl__session *s);
/* Writes sequences to the inputs one after the other without padding (ids, positions, cu_seqlens,
 * labels) and resizes. Labels are shifted by one token: the target at t is label t + 1, at a
 * sequence's last token -100. labels may be NULL. */
nbl_status nbl__session_load(nbl__session *s, const nbl_ids *sequences, int64_t count, const nbl_ids *labels);

/* ---- generate.c ---- */

/* Plans the session that generates one token per sequence, with the cache of the given prefill. */
nbl_status nbl__decode_plan(nbl_model *m, const nbl__session_options *prefill, nbl__session *decode);
/* The most tokens of one sequence that a prefill computes: those of the prompt, or more where the rope
 * makes generation start again (nbl__decoder_restarts). */
int64_t nbl__prefill_tokens(const nbl_model *m, int64_t prompt, int64_t max_tokens);
/* Host bytes that sampling takes for `count` sequences, in addition to the plans. */
uint64_t nbl__generation_bytes(const nbl_model *m, int64_t count);

/* ---- plan_model.c ---- */

typedef struct nbl__plan_request {
    bool train;                /* a training step over a pack; else generation */
    int64_t tokens, sequences; /* all tokens of the pack or of the prompts; tokens >= sequences >= 1 */
    int optimizer_bits;        /* of AdamW's moments: 32 or 8; 0: no optimizer */
    uint64_t memory;           /* budget in bytes for everything, weights included; 0: no limit */
    /* Soft limit in bytes, used if `memory` is 0: recompute until the step fits, or up to the
     * highest recompute level. Exceeding it is no error. 0: unknown. */
    uint64_t available;
    nbl__recompute min; /* lowest recompute level to use */
} nbl__plan_request;

/* Reports what a step takes, without keeping a session. With a budget the plan recomputes as little
 * as the budget allows; NBL_ERROR_MEMORY names the smallest possible budget. longest_sequence
 * is the longest length of `sequences` equal sequences that fits the budget, found by bisection:
 * one to a few plans per probe. */
nbl_status nbl__model_plan(nbl_model *m, const nbl__plan_request *request, nbl_model_plan **plan);
/* Plans the session for the step that nbl__model_plan reports; nbl__session_bind makes it ready.
 * *total: bytes of the whole run. On a device, what the budget leaves is used: first weights are
 * kept dequantized, then less is recomputed. On an error the session is closed. */
nbl_status nbl__plan_training(nbl_model *m, const nbl__plan_request *request, nbl__session *session,
                              uint64_t *total);
/* Bits of AdamW's moments for one trained parameter; `bits` is what the user asked for, 32 or 8. As
 * in bitsandbytes and transformers, parameters with fewer than 4,096 elements and embeddings stay
 * at 32. */
int nbl__moment_bits(const nbl__value_info *info, int bits);
/* Bytes of both moments of all trained parameters: f32, or 8-bit codes with an f32 scale per 256
 * elements. Each array is rounded up to 64 bytes. bits = 0: 0 bytes. */
uint64_t nbl__moment_bytes(const nbl__graph *g, int bits);

#endif
