/* run_reader.h - the state of reading a configuration, shared by three files:
 *
 *     run_config.c    parses the file and reads each key's value
 *     run_remarks.c   collects errors and notices about single keys, and reports each kind together
 *     run_resolve.c   checks the keys against each other and fills in what follows from them */
#ifndef NBL_RUN_READER_H
#define NBL_RUN_READER_H

#include "run/run_keys.h"
#include "run/yaml.h"

/* An error or notice about one key. Remarks with equal texts are reported together. */
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
    nbl__run_parse parse;
    const nbl__yaml *given[NBL_RUN_KEYS]; /* node of each row's key; NULL: not given */
    nbl__run_remarks refusals, notices, aliases;
} nbl__run_reader;

/* Adds a remark; `text` (printf style) lives in the arena. */
__attribute__((format(printf, 5, 6))) nbl_status nbl__run_remark_add(nbl__run_reader *r,
                                                                     nbl__run_remarks *remarks,
                                                                     const nbl__yaml *at, const char *name,
                                                                     const char *format, ...);
/* Fails with all refused keys in one message, if there are any. */
nbl_status nbl__run_refuse(nbl__run_reader *r);
/* Logs the notices on one line, the aliases on another. */
nbl_status nbl__run_notify(nbl__run_reader *r);

/* Completes the configuration when every given value is in its field, or fails with the
 * contradiction. */
nbl_status nbl__run_resolve(nbl__run_reader *r);

#endif
