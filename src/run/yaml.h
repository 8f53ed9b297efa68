/* yaml.h - YAML of configuration files, as a tree whose nodes know their file and line.
 *
 * Files are not trusted. Size, depth and number of values are bounded. Aliases (which could
 * multiply the text), tags (which name code in other programs) and a key that occurs twice in one
 * map are errors.
 *
 * libyaml parses the text. A scalar keeps its text; the key it belongs to decides whether it is
 * read as a number, a boolean or a text. Words and numbers are those of YAML 1.1 as PyYAML reads
 * them, with one exception: 2e-4, which PyYAML reads as text, is a number. */
#ifndef NBL_YAML_H
#define NBL_YAML_H

#include "base/arena.h"

enum { NBL_YAML_MAX_BYTES = 1 << 20, NBL_YAML_MAX_VALUES = 8192, NBL_YAML_MAX_DEPTH = 16 };

typedef enum nbl__yaml_kind { NBL_YAML_SCALAR, NBL_YAML_LIST, NBL_YAML_MAP } nbl__yaml_kind;

typedef struct nbl__yaml nbl__yaml;
struct nbl__yaml {
    nbl__yaml_kind kind;
    bool plain;        /* a scalar without quotes */
    const char *text;  /* scalar only: valid UTF-8 without a zero byte */
    nbl__yaml *first;  /* first item of a list or a map, in the order of the text */
    nbl__yaml *next;   /* the item after this one */
    int64_t count;     /* number of items */
    const char *key;   /* key of this node in its map; NULL: not in a map */
    const char *where; /* the file, or "--set" */
    int64_t line;      /* of the key if there is one, else of the value; 0: not of a file */
};

/* Parses one document into the arena. where: the file's name, with which messages begin; must
 * outlive the tree. lines: nodes get line numbers. An empty text gives an empty scalar. */
nbl_status nbl__yaml_parse(nbl__arena *arena, const char *where, bool lines, const char *text, size_t size,
                           nbl__yaml **root);
nbl_status nbl__yaml_read(nbl__arena *arena, const char *path, nbl__yaml **root);

/* Sets the node at a path such as "seed" or "datasets.0.path" below the map `root` to the tree
 * `value`. Missing maps and lists on the way are created. `path` must outlive the tree. */
nbl_status nbl__yaml_put(nbl__arena *arena, nbl__yaml *root, const char *path, nbl__yaml *value);

nbl__yaml *nbl__yaml_get(const nbl__yaml *map, const char *key); /* NULL: no such key, or no map */
/* True for an empty value, ~, null, empty quotes, and the pointer NULL. */
bool nbl__yaml_is_null(const nbl__yaml *value);
/* Reads yes no on off true false, in lower case, Capitalised or in CAPITALS. False: the value is
 * no boolean. */
bool nbl__yaml_boolean(const nbl__yaml *value, bool *boolean);
/* Reads a finite decimal number; _ is allowed between digits. */
bool nbl__yaml_real(const nbl__yaml *value, double *number);
/* Reads a number without a fraction: 2048, 2_048, 2048.0, 1e3. */
bool nbl__yaml_integer(const nbl__yaml *value, int64_t *number);

/* Fails with "FILE:LINE: message"; for a value from --set with "--set message". */
__attribute__((format(printf, 4, 5))) nbl_status nbl__yaml_fail(nbl_context *ctx, const nbl__yaml *at,
                                                                nbl_status code, const char *format, ...);

#endif
