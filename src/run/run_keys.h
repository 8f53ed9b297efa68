/* run_keys.h - the keys of a training run, a row each: the one place that knows their names, types, ranges,
 * defaults and help. Reading, writing, the hint at the nearest name and docs/CONFIG.md follow from it.
 *
 * A row says where its value goes: an offset into nbl__run_parse (top level) or nbl__dataset_config (an entry of
 * datasets). The draft is the configuration plus the few answers that become something else once all are known. */
#ifndef NBL_RUN_KEYS_H
#define NBL_RUN_KEYS_H

#include "run/run_config.h"

typedef enum nbl__run_key_type {
    NBL_KEY_BOOLEAN, /* bool */
    NBL_KEY_AUTO,    /* int: 0 false, 1 true, 2 auto */
    NBL_KEY_INTEGER, /* int64_t or uint64_t */
    NBL_KEY_REAL,    /* double */
    NBL_KEY_BYTES,   /* uint64_t: 4G, 512MiB */
    NBL_KEY_TEXT,    /* const char *; one of `choices` if there are any */
    NBL_KEY_CHOICE,  /* bool or an int-sized enum: the value of the choice */
    NBL_KEY_NAMES,   /* nbl__name_list */
    NBL_KEY_TARGETS, /* nbl__name_list, or one text at `other` */
    NBL_KEY_MAP,     /* the rows of `inner`, with the same origin */
    NBL_KEY_DATASETS /* a list of maps of `inner`, each with its own origin */
} nbl__run_key_type;

typedef struct nbl__run_choice {
    const char *name;
    int value;
} nbl__run_choice;

/* A value of axolotl's that means one of ours; told in a notice. */
typedef struct nbl__run_alias {
    const char *name, *as;
} nbl__run_alias;

/* Whether a run that is resumed may have another value than before. docs/TRAINING.md lists the keys of each kind. */
typedef enum nbl__resume_rule {
    NBL_RESUME_NEVER, /* it decides what is trained on what, or how that is stored */
    NBL_RESUME_ALLOW, /* only if the caller allows changes; the run's history tells */
    NBL_RESUME_TELL,  /* it decides how later steps are made or how many; the run's history tells */
    NBL_RESUME_FREE   /* no step that both runs do depends on it */
} nbl__resume_rule;

typedef struct nbl__run_key {
    const char *name;
    nbl__run_key_type type;
    size_t offset, size, other;
    double min, max;                /* of a number */
    const char *range;              /* the same in words */
    const nbl__run_choice *choices; /* ends with a NULL name */
    const nbl__run_alias *aliases;  /* the same; or NULL */
    const struct nbl__run_key *inner;
    int inner_count;
    nbl__resume_rule resume;
    bool unwritten;       /* another spelling: read, and written as the key that it stands for */
    const char *fallback; /* YAML; NULL: none */
    const char *help;     /* one line */
} nbl__run_key;

enum { NBL_ADAPTER_NONE, NBL_ADAPTER_LORA, NBL_ADAPTER_QLORA };

typedef struct nbl__run_parse {
    nbl__run_config config;
    int adapter;
    int bf16, tf32;
    bool fp16;
    int64_t batch_size;        /* 0: not given */
    const char *template_text; /* chat_template_jinja */
} nbl__run_parse;

enum { NBL_RUN_KEYS = 76 };
extern const nbl__run_key nbl__run_keys[NBL_RUN_KEYS];

/* The row of a name among `count` rows; NULL: none. */
const nbl__run_key *nbl__run_key_find(const nbl__run_key *keys, int count, const char *name);
/* The known name that a wrong one most likely means: a usual synonym, or the least edits away. NULL: none is near,
 * that is, within a quarter of the word's letters. */
const char *nbl__run_key_nearest(const nbl__run_key *keys, int count, const char *name);
/* The value of a key as docs/CONFIG.md puts it: "whole number, 1 or more", "lora, qlora". */
void nbl__run_key_allowed(const nbl__run_key *key, nbl__text *out);

/* ---- run_config_write.c: values as they are written ---- */

/* A configuration as the table's rows see it. */
nbl__run_parse nbl__run_parse_of(const nbl__run_config *config);
/* Whether a row means anything in this run: keys of adapters do not when every weight is trained. */
bool nbl__run_key_counts(const nbl__run_key *key, const nbl__run_config *config);
/* Whether a row holds something: what is outside its range stands for "not given". */
bool nbl__run_key_holds(const nbl__run_key *key, const void *origin);
/* The value on one line, as YAML; not of maps and datasets. */
void nbl__run_key_print(nbl__text *out, const nbl__run_key *key, const void *origin);

#endif
