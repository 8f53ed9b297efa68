/* upload.c - weights on a device. See language_model.h.
 *
 * All that a graph needs and that is not there yet goes into one piece of the device's memory, so that what is taken is
 * what was planned: the parts of a weight one after the other, each at a multiple of 256 bytes. */
#include "infer/language_model.h"
#include "ops/cuda/cuda.h"

enum { ALIGNMENT = 256 };

/* The parts of a weight: where its pointer lies in the struct, and its bytes. */
typedef struct part {
    size_t offset, bytes;
} part;

static int parts_of(const nbl_weight *w, part parts[5])
{
    nbl__weight_sizes sizes = nbl__weight_sizes_of(w);
    int n = 0;
    parts[n++] = (part){offsetof(nbl_weight, data), sizes.data};
    if (sizes.scales) parts[n++] = (part){offsetof(nbl_weight, scales), sizes.scales};
    if (sizes.scale_codes) parts[n++] = (part){offsetof(nbl_weight, scale_codes), sizes.scale_codes};
    if (sizes.nested_scales) parts[n++] = (part){offsetof(nbl_weight, nested_scales), sizes.nested_scales};
    if (sizes.nested_table) parts[n++] = (part){offsetof(nbl_weight, nested_table), sizes.nested_table};
    return n;
}

static const void **pointer_of(nbl_weight *w, const part *p)
{
    return (const void **)(void *)((char *)w + p->offset);
}

/* Cuts the parts off `base`, from `used` on, and copies them there; without a base it only counts. */
static nbl_status place(nbl__cuda *cuda, struct nbl__held *held, uint8_t *base, size_t *used)
{
    part parts[5];
    nbl_weight placed = held->weight;
    for (int i = 0, n = parts_of(&held->weight, parts); i < n; i++) {
        if (base) {
            const void *from = *pointer_of(&placed, &parts[i]);
            *pointer_of(&placed, &parts[i]) = base + *used;
            NBL_TRY(nbl__cuda_write(cuda, base + *used, from, parts[i].bytes));
        }
        *used += (parts[i].bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    if (base) held->placed = placed;
    return NBL_OK;
}

/* The weights of the graph that are not on the device: counts their bytes, or brings them to `base`. */
static nbl_status walk(nbl_model *m, nbl__cuda *cuda, nbl__graph *g, uint8_t *base, size_t *used)
{
    for (nbl__value v = 1; v <= g->value_count; v++) {
        const nbl__value_info *info = nbl__info(g, v);
        if (info->kind != NBL_KIND_WEIGHT) continue;
        struct nbl__held *held = nbl__model_find(m, info->name);
        NBL_CHECK(m->ctx, held, NBL_ERROR_INTERNAL, "no weight \"%s\"", info->name);
        if (held->placed.rank) continue;
        NBL_TRY(place(cuda, held, base, used));
        if (base) {
            nbl__progress_add(m->ctx, nbl__weight_bytes(&held->weight));
            if (m->checkpoint) nbl__checkpoint_drop_file(m->checkpoint, held->weight.data);
        }
    }
    return NBL_OK;
}

nbl_status nbl__upload_weights(nbl_model *m, nbl__graph *g)
{
    nbl__cuda *cuda = nbl__cuda_of(m->ctx);
    size_t bytes = 0, used = 0;
    if (cuda == NULL) return NBL_OK;
    NBL_TRY(walk(m, cuda, g, NULL, &bytes));
    if (bytes) {
        struct nbl__upload *upload = nbl__arena_alloc(&m->arena, sizeof *upload);
        if (upload == NULL) return NBL_ERROR_MEMORY;
        *upload = (struct nbl__upload){m->uploads, nbl__cuda_alloc(cuda, bytes), bytes};
        if (upload->memory == NULL) return NBL_ERROR_MEMORY;
        m->uploads = upload;
        NBL_TRY(walk(m, cuda, g, upload->memory, &used));
    }
    for (nbl__value v = 1; v <= g->value_count; v++) {
        nbl__value_info *info = nbl__info(g, v);
        if (info->kind == NBL_KIND_WEIGHT) info->weight = nbl__model_find(m, info->name)->placed;
    }
    return NBL_OK;
}

void nbl__upload_free(nbl_model *m)
{
    nbl__cuda *cuda = nbl__cuda_of(m->ctx);
    for (struct nbl__upload *it = m->uploads; it; it = it->next) nbl__cuda_free(cuda, it->memory, it->bytes);
    m->uploads = NULL;
}
