/* run_reader.h - a configuration while it is read: run_config.c fills in the values, run_resolve.c makes a whole
 * of them. */
#ifndef NBL_RUN_READER_H
#define NBL_RUN_READER_H

#include "train/run_keys.h"
#include "train/yaml.h"

typedef struct nbl__run_reader {
    nbl__arena *arena;
    nbl_context *ctx;
    nbl__yaml *root;
    nbl__run_draft draft;
    const nbl__yaml *given[NBL_RUN_KEYS]; /* by row; NULL: not given */
} nbl__run_reader;

/* Every value is in its field; completes draft.config or says what is wrong. */
nbl_status nbl__run_resolve(nbl__run_reader *r);

#endif
