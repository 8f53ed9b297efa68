/* index.h - model.safetensors.index.json: which file holds which tensor. */
#ifndef NBL_INDEX_H
#define NBL_INDEX_H

#include "base/arena.h"
#include "format/json.h"

typedef struct nbl__index {
    json_t *root;
    json_t *map;  /* borrowed: tensor name -> file name */
    char **files; /* in order of name, each once; plain names without a path */
    int count;
} nbl__index;

/* Memory of `files` comes from the arena; free the rest with json_decref(index->root). */
nbl_status nbl__index_parse(nbl__arena *arena, const char *where, const char *text, size_t size, nbl__index *index);

#endif
