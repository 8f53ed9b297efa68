/* run_keys.h - the table of the keys of a training run: one row per key.
 *
 * The table alone knows the names, types, ranges, defaults and help of keys. Reading, writing, the
 * hint at the nearest name, the keys of checkpoints and docs/CONFIG.md are derived from it.
 *
 * A row has the offset of its value: in nbl__run_parse (keys at the top level) or in
 * nbl__dataset_config (keys of an entry of datasets). nbl__run_parse is the configuration plus
 * values that run_resolve.c replaces once all keys are known. */
#ifndef NBL_RUN_KEYS_H
#define NBL_RUN_KEYS_H

#include "run/run_config.h"

typedef enum nbl__run_key_type {
    NBL_KEY_BOOLEAN, /* bool */
    NBL_KEY_AUTO,    /* int: 0 false, 1 true, 2 auto */
    NBL_KEY_INTEGER, /* int64_t or uint64_t */
    NBL_KEY_REAL,    /* double */
    NBL_KEY_BYTES,   /* uint64_t, written with a unit: 4G, 512MiB */
    NBL_KEY_TEXT,    /* const char *; one of `choices` if there are any */
    NBL_KEY_CHOICE,  /* bool or an int-sized enum: the value of the choice */
    NBL_KEY_NAMES,   /* nbl__name_list */
    NBL_KEY_TARGETS, /* nbl__name_list, or one text, stored at offset `other` */
    NBL_KEY_MAP,     /* a map with the keys of `inner`, whose offsets count from the same struct */
    NBL_KEY_DATASETS /* a list of maps with the keys of `inner`, each a nbl__dataset_config */
} nbl__run_key_type;

typedef struct nbl__run_choice {
    const char *name;
    int value;
} nbl__run_choice;

/* A value of axolotl, `name`, that means nibble's value `as`. Its use is logged. */
typedef struct nbl__run_alias {
    const char *name, *as;
} nbl__run_alias;

/* Whether a resumed run may have another value than its checkpoint. docs/TRAINING.md lists the
 * keys of each rule. */
typedef enum nbl__resume_rule {
    NBL_RESUME_NEVER,  /* no: it decides what is trained, on what data, or how that is stored */
    NBL_RESUME_ALLOW,  /* if the caller allows changes; the change is recorded in the history */
    NBL_RESUME_RECORD, /* yes: it concerns later steps only; the change is recorded in the history */
    NBL_RESUME_IGNORE  /* yes: the parameters do not depend on it; it is not recorded */
} nbl__resume_rule;

typedef struct nbl__run_key {
    const char *name;
    nbl__run_key_type type;
    size_t offset, size, other;     /* of the value, in bytes; other: see NBL_KEY_TARGETS */
    double min, max;                /* inclusive range of a number */
    const char *range;              /* the range in words */
    const nbl__run_choice *choices; /* up to an entry with a NULL name; or NULL */
    const nbl__run_alias *aliases;  /* up to an entry with a NULL name; or NULL */
    const struct nbl__run_key *inner;
    int inner_count;
    nbl__resume_rule resume;
    bool unwritten;       /* another spelling of a key: is read, but never written */
    const char *fallback; /* the default as YAML; NULL: none */
    const char *help;     /* one line */
} nbl__run_key;

enum { NBL_ADAPTER_NONE, NBL_ADAPTER_LORA, NBL_ADAPTER_QLORA };

/* What keys are read into: the configuration, and values that run_resolve.c translates to its
 * fields. */
typedef struct nbl__run_parse {
    nbl__run_config config;
    int adapter;
    int bf16, tf32;
    bool fp16;
    int64_t batch_size;        /* 0: not given */
    const char *template_text; /* chat_template_jinja */
} nbl__run_parse;

enum { NBL_RUN_KEYS = 77 };
extern const nbl__run_key nbl__run_keys[NBL_RUN_KEYS];

/* The row of a name among `count` rows; NULL: none. */
const nbl__run_key *nbl__run_key_find(const nbl__run_key *keys, int count, const char *name);
/* The known name that an unknown one most likely means: a usual synonym, else the name with the
 * fewest edits. NULL: more than about a quarter of the letters would have to be edited. */
const char *nbl__run_key_nearest(const nbl__run_key *keys, int count, const char *name);
/* Appends the permitted values of a key as docs/CONFIG.md describes them: "whole number, 1 or
 * more", "lora, qlora". */
void nbl__run_key_allowed(const nbl__run_key *key, nbl__text *out);

/* ---- run_config_write.c ---- */

/* The inverse of resolving: a configuration with the values that the rows' offsets point to. */
nbl__run_parse nbl__run_parse_of(const nbl__run_config *config);
/* True if the key applies to this run. In full training the keys of adapters do not. */
bool nbl__run_key_counts(const nbl__run_key *key, const nbl__run_config *config);
/* True if the key has a value. A number outside its range stands for "not given". `origin`: the
 * struct of the row. */
bool nbl__run_key_holds(const nbl__run_key *key, const void *origin);
/* Appends the value as YAML on one line. Not for maps and datasets. */
void nbl__run_key_print(nbl__text *out, const nbl__run_key *key, const void *origin);

#endif
