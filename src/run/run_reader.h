/* run_reader.h - a configuration while it is read: run_config.c fills in the values, run_remarks.c collects what is
 * to be said about single keys, run_resolve.c makes a whole of the values. */
#ifndef NBL_RUN_READER_H
#define NBL_RUN_READER_H

#include "run/run_keys.h"
#include "run/yaml.h"

/* What is said about one key. Remarks with equal texts are told together. */
typedef struct nbl__run_remark {
    const nbl__yaml *at;
    const char *name, *text;
    bool told;
    struct nbl__run_remark *next;
} nbl__run_remark;

typedef struct nbl__run_remarks {
    nbl__run_remark *first, *last;
    int64_t count;
} nbl__run_remarks;

typedef struct nbl__run_reader {
    nbl__arena *arena;
    nbl_context *ctx;
    nbl__yaml *root;
    nbl__run_parse example_text;
    const nbl__yaml *given[NBL_RUN_KEYS]; /* by row; NULL: not given */
    nbl__run_remarks refusals, notices, aliases;
} nbl__run_reader;

/* Adds a remark; `text` (printf style) lives in the arena. */
__attribute__((format(printf, 5, 6))) nbl_status nbl__run_remark_add(nbl__run_reader *r,
                                                                     nbl__run_remarks *remarks,
                                                                     const nbl__yaml *at, const char *name,
                                                                     const char *format, ...);
/* Fails with all refusals in one message if there are any. */
nbl_status nbl__run_refuse(nbl__run_reader *r);
/* Logs the notices on one line, the aliases on another. */
nbl_status nbl__run_notify(nbl__run_reader *r);

/* Every value is in its field; completes draft.config or says what is wrong. */
nbl_status nbl__run_resolve(nbl__run_reader *r);

#endif
