/* yaml.h - YAML of configuration files, as a small tree in which everything knows its file and line.
 *
 * A file is hostile: its size, depth and number of values are bounded, aliases (which could multiply it) and
 * tags (which name code in other programs) are refused, and a key that stands twice in one map is refused with
 * both lines. libyaml reads the text; scalars keep theirs, and what one means (a number, yes, nothing) is decided
 * by the key it is given for. Words and numbers are YAML 1.1's as PyYAML has them, and 2e-4, which PyYAML takes
 * for text, is a number. */
#ifndef NBL_YAML_H
#define NBL_YAML_H

#include "base/arena.h"

enum { NBL_YAML_MAX_BYTES = 1 << 20, NBL_YAML_MAX_VALUES = 8192, NBL_YAML_MAX_DEPTH = 16 };

typedef enum nbl__yaml_kind { NBL_YAML_SCALAR, NBL_YAML_LIST, NBL_YAML_MAP } nbl__yaml_kind;

typedef struct nbl__yaml nbl__yaml;
struct nbl__yaml {
    nbl__yaml_kind kind;
    bool plain;        /* a scalar without quotes */
    const char *text;  /* of a scalar: valid UTF-8 without a zero byte */
    nbl__yaml *first;  /* items of a list or a map, in the order of the text */
    nbl__yaml *next;   /* the item after this one */
    int64_t count;     /* of items */
    const char *key;   /* of an item of a map */
    const char *where; /* the file, or "--set" */
    int64_t line;      /* of the key if there is one, else of the value; 0: not of a file */
};

/* One document. `where` opens messages and must outlive the tree; `lines`: whether lines mean something. An
 * empty text is an empty scalar. */
nbl_status nbl__yaml_parse(nbl__arena *arena, const char *where, bool lines, const char *text, size_t size,
                           nbl__yaml **root);
nbl_status nbl__yaml_read(nbl__arena *arena, const char *path, nbl__yaml **root);

/* Puts `value` (a tree of its own) at a path such as "seed" or "datasets.0.path" below `root`, a map; what is
 * missing on the way is made. `path` must outlive the tree. */
nbl_status nbl__yaml_put(nbl__arena *arena, nbl__yaml *root, const char *path, nbl__yaml *value);

nbl__yaml *nbl__yaml_get(const nbl__yaml *map, const char *key); /* NULL: no such key, or no map */
/* Nothing: an empty value, ~, null, or empty quotes. NULL is nothing, too. */
bool nbl__yaml_is_nothing(const nbl__yaml *value);
/* yes no on off true false, in small letters, Capitalised or in CAPITALS. */
bool nbl__yaml_boolean(const nbl__yaml *value, bool *boolean);
/* A finite decimal number; _ may stand between digits. */
bool nbl__yaml_real(const nbl__yaml *value, double *number);
/* A number without a fraction: 2048, 2_048, 2048.0, 1e3. */
bool nbl__yaml_integer(const nbl__yaml *value, int64_t *number);

/* Fails with "FILE:LINE: message", or "--set message" for what was given there. */
__attribute__((format(printf, 4, 5))) nbl_status nbl__yaml_fail(nbl_context *ctx, const nbl__yaml *at,
                                                                nbl_status code, const char *format, ...);

#endif
