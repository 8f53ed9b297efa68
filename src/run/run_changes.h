/* run_changes.h - what a run's checkpoint remembers of its configuration, and what has changed since.
 *
 * Every key that decides about the bytes of a step is written into the checkpoint with its resolved value
 * (nbl__resume_rule). A run that goes on must have the same ones, or be allowed to change those that may. */
#ifndef NBL_RUN_CHANGES_H
#define NBL_RUN_CHANGES_H

#include "run/run_config.h"
#include "run/run_keys.h"

typedef struct nbl__run_value {
    const char *name; /* "lora_r", "datasets.0.type" */
    const char *text; /* on one line; a long one by its size and checksum */
    nbl__resume_rule rule;
} nbl__run_value;

typedef struct nbl__run_values {
    nbl__run_value *items;
    int64_t count, room;
} nbl__run_values;

/* The values of all keys that decide, in the table's order. */
nbl_status nbl__run_values_collect(nbl__arena *arena, const nbl__run_config *config, nbl__run_values *values);
nbl_status nbl__run_values_add(nbl__arena *arena, nbl__run_values *values, nbl__run_value value);
const char *nbl__run_value_find(const nbl__run_values *values, const char *name); /* NULL: none */

/* As one JSON object of texts, and back. What comes back has the rules that this version has. */
void nbl__run_values_print(nbl__text *out, const nbl__run_values *values);
nbl_status nbl__run_values_read(nbl__arena *arena, const char *where, const nbl__json *object,
                                nbl__run_values *values);

/* Compares. Values that differ are refused, all of them in one message that names `folder`, or, where they may
 * change (some only if `allow` is set), told in a line of *change: "learning_rate was 0.01, is 0.02". NULL: none
 * differ. */
nbl_status nbl__run_values_compare(nbl__arena *arena, const char *folder, const nbl__run_values *was,
                                   const nbl__run_values *is, bool allow, const char **change);

/* ---- the changes of a run ---- */

/* A list of texts, each on one line of printable ASCII, from JSON. */
nbl_status nbl__run_history_read(nbl__arena *arena, const char *where, const nbl__json *list,
                                 nbl__name_list *history);
nbl_status nbl__run_history_add(nbl__arena *arena, nbl__name_list *history, const char *line);
/* As comments of YAML, for the end of run.yml. Nothing if there are none. */
void nbl__run_history_write(nbl__text *out, const nbl__name_list *history);

#endif
