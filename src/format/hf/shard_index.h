/* shard_index.h - model.safetensors.index.json: which file holds which tensor. */
#ifndef NBL_INDEX_H
#define NBL_INDEX_H

#include "base/arena.h"
#include "base/json/json.h"

typedef struct nbl__index {
    const nbl__json *map; /* tensor name -> file name */
    const char **files;   /* in order of name, each once; plain names without a path */
    int count;
} nbl__index;

/* All memory comes from the arena. */
nbl_status nbl__index_parse(nbl__arena *arena, const char *where, const char *text, size_t size,
                            nbl__index *index);

#endif
