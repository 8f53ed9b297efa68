/* run_changes.h - the keys that a checkpoint records, and how they differ from a resumed run's.
 *
 * Every key that decides about the bytes of a step is recorded in the checkpoint with its
 * resolved value. A resumed run must have the same values, except where the key's
 * nbl__resume_rule permits a change. Permitted changes are recorded in the history, which
 * checkpoints and run.yml contain. */
#ifndef NBL_RUN_CHANGES_H
#define NBL_RUN_CHANGES_H

#include "run/run_config.h"
#include "run/run_keys.h"

typedef struct nbl__run_value {
    const char *name; /* "lora_r", "datasets.0.type" */
    const char *text; /* the value on one line; a long one is replaced with its size and checksum */
    nbl__resume_rule rule;
} nbl__run_value;

typedef struct nbl__run_values {
    nbl__run_value *items;
    int64_t count, room;
} nbl__run_values;

/* Collects the values of all keys whose rule is not NBL_RESUME_IGNORE, in the order of the table.
 * */
nbl_status nbl__run_values_collect(nbl__arena *arena, const nbl__run_config *config, nbl__run_values *values);
nbl_status nbl__run_values_add(nbl__arena *arena, nbl__run_values *values, nbl__run_value value);
const char *nbl__run_value_find(const nbl__run_values *values, const char *name); /* NULL: none */

/* Write and read the values as a JSON object of texts. A value that is read gets the rule of this
 * version's table; of a name that is no top-level key: NBL_RESUME_NEVER. */
void nbl__run_values_print(nbl__text *out, const nbl__run_values *values);
nbl_status nbl__run_values_read(nbl__arena *arena, const char *where, const nbl__json *object,
                                nbl__run_values *values);

/* Compares the checkpoint's values with this run's. Differences that the rules do not permit
 * (`allow` permits NBL_RESUME_ALLOW) are one error that names `folder` and all these keys.
 * *change: the permitted differences on one line, "learning_rate was 0.01, is 0.02"; NULL: there
 * are none. */
nbl_status nbl__run_values_compare(nbl__arena *arena, const char *folder, const nbl__run_values *was,
                                   const nbl__run_values *is, bool allow, const char **change);

/* ---- the changes of a run ---- */

/* Reads the history from a JSON list. Each entry must be one line of printable ASCII. */
nbl_status nbl__run_history_read(nbl__arena *arena, const char *where, const nbl__json *list,
                                 nbl__name_list *history);
nbl_status nbl__run_history_add(nbl__arena *arena, nbl__name_list *history, const char *line);
/* Appends the history as YAML comments, for the end of run.yml. Nothing if it is empty. */
void nbl__run_history_write(nbl__text *out, const nbl__name_list *history);

#endif
