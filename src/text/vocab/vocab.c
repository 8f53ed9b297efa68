/* vocab.c - the hash tables of a vocabulary; see vocab.h.
 *
 *     tokens    [0] {text, size, id}  [1] …          in the order of the file
 *     by_text   0 2 0 1 0 …     index + 1 at the text's hash; 0: free
 *     by_id     1 0 0 2 0 …     index + 1 at the id's hash
 *
 * Open addressing with linear probing. The tables are made for the number of tokens and are at most
 * half full; they never grow. Texts are borrowed from the file or arena that they were read
 * from. */
#include "text/vocab/vocab.h"

/* Makes an empty vocabulary with room for `count` tokens. */
nbl_status nbl__vocab_open(nbl_context *ctx, nbl__vocab *v, size_t count)
{
    *v = (nbl__vocab){.ctx = ctx, .room = count, .slots = 16};
    NBL_CHECK(ctx, count < UINT32_MAX / 4, NBL_ERROR_UNSUPPORTED, "a vocabulary of %zu tokens", count);
    while (v->slots < 2 * count) v->slots *= 2;
    NBL_TRY(NBL_ALLOC(ctx, v->tokens, count));
    NBL_TRY(NBL_ALLOC(ctx, v->by_text, v->slots));
    return NBL_ALLOC(ctx, v->by_id, v->slots);
}

void nbl__vocab_close(nbl__vocab *v)
{
    nbl__free(v->ctx, v->tokens, v->room * sizeof *v->tokens);
    nbl__free(v->ctx, v->by_text, v->slots * sizeof *v->by_text);
    nbl__free(v->ctx, v->by_id, v->slots * sizeof *v->by_id);
    *v = (nbl__vocab){.ctx = v->ctx};
}

/* Returns the slot of a text, or the free slot where the text belongs. */
static size_t text_slot(const nbl__vocab *v, const char *text, size_t size)
{
    size_t slot = nbl__hash_bytes(text, size) & (v->slots - 1);
    for (uint32_t index; (index = v->by_text[slot]) != 0; slot = (slot + 1) & (v->slots - 1)) {
        const nbl__token *token = &v->tokens[index - 1];
        if (token->size == size && memcmp(token->text, text, size) == 0) break;
    }
    return slot;
}

/* Returns the slot of an id, or the free slot where the id belongs. */
static size_t id_slot(const nbl__vocab *v, int32_t id)
{
    size_t slot = nbl__hash_pair((uint32_t)id, 0) & (v->slots - 1);
    while (v->by_id[slot] && v->tokens[v->by_id[slot] - 1].id != id) slot = (slot + 1) & (v->slots - 1);
    return slot;
}

/* Of two tokens with one text the later is found; of two with one id the earlier. */
void nbl__vocab_add(nbl__vocab *v, const char *text, size_t size, int32_t id)
{
    assert(v->count < v->room && size < UINT32_MAX);
    v->tokens[v->count++] = (nbl__token){text, (uint32_t)size, id};
    v->by_text[text_slot(v, text, size)] = (uint32_t)v->count;
    size_t slot = id_slot(v, id);
    if (v->by_id[slot] == 0) v->by_id[slot] = (uint32_t)v->count;
}

int64_t nbl__vocab_index(const nbl__vocab *v, const char *text, size_t size)
{
    return v->slots ? (int64_t)v->by_text[text_slot(v, text, size)] - 1 : -1;
}

int32_t nbl__vocab_find(const nbl__vocab *v, const char *text, size_t size)
{
    int64_t index = nbl__vocab_index(v, text, size);
    return index < 0 ? -1 : v->tokens[index].id;
}

const nbl__token *nbl__vocab_get(const nbl__vocab *v, int32_t id)
{
    if (v->slots == 0) return NULL;
    uint32_t index = v->by_id[id_slot(v, id)];
    return index ? &v->tokens[index - 1] : NULL;
}
