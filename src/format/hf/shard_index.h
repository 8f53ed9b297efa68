/* shard_index.h - parses model.safetensors.index.json, which says in which file each tensor is:
 *
 *     {"weight_map": {"lm_head.weight": "model-00003-of-00003.safetensors", ...}, "metadata": {...}} */
#ifndef NBL_SHARD_INDEX_H
#define NBL_SHARD_INDEX_H

#include "base/arena.h"
#include "base/json/json.h"

typedef struct nbl__index {
    const nbl__json *map; /* tensor name -> file name */
    const char **files;   /* sorted, each once; plain names without a path */
    int count;
} nbl__index;

/* Parses the text of an index; `where` names it in messages. All memory comes from the arena. A
 * file name with a path in it, or an empty weight_map, is NBL_ERROR_FORMAT. */
nbl_status nbl__index_parse(nbl__arena *arena, const char *where, const char *text, size_t size,
                            nbl__index *index);

#endif
