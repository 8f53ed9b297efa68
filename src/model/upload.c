/* upload.c - copies a model's weights to a device. See language_model.h.
 *
 * All weights that a graph needs and the device lacks go into one allocation, so that the bytes
 * taken are those that were planned. Each part starts at a multiple of 256 bytes:
 *
 *     | W0.data | W0.scales | ... | W1.data | ...
 *
 *     packed        copied part by part
 *     dequantized   copied packed to temporary device memory, dequantized there into its final address
 *     on_host       copied to pinned host memory, one allocation per part
 *
 * walk() runs twice over the graph: first with base NULL to count bytes, then to copy. */
#include "model/language_model.h"
#include "device/device.h"

enum { ALIGNMENT = 256 };

/* One array of a weight: the offset of its pointer within nbl_weight, and its bytes. */
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

/* The state of an upload. */
typedef struct upload {
    nbl_model *m;
    const nbl__device *device;
    uint8_t *base;          /* device memory of all new weights; NULL: only count */
    size_t used, host_used; /* bytes so far, on the device and on the host */
    uint8_t *packed;        /* temporary device memory for one packed weight that is dequantized */
    size_t packed_bytes;    /* of the largest such weight */
} upload;

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Copies the parts of a weight to base + *used and advances *used; base NULL: only advances.
 * *device_view: the weight with device pointers. */
static nbl_status store(const upload *u, nbl_weight weight, uint8_t *base, size_t *used,
                        nbl_weight *device_view)
{
    part parts[5];
    *device_view = weight;
    if (weight.members) { /* the list stays on the host, its pointers are the device's */
        nbl_weight *list = nbl__arena_alloc(&u->m->arena, (size_t)weight.member_count * sizeof *list);
        if (list == NULL) return NBL_ERROR_MEMORY;
        for (int64_t i = 0; i < weight.member_count; i++)
            NBL_TRY(store(u, weight.members[i], base, used, &list[i]));
        device_view->members = list;
        return NBL_OK;
    }
    for (int i = 0, n = parts_of(&weight, parts); i < n; i++) {
        assert(*used % ALIGNMENT == 0);
        if (base) {
            const void *from = *pointer_of(&weight, &parts[i]);
            *pointer_of(device_view, &parts[i]) = base + *used;
            NBL_TRY(u->device->write(u->m->ctx, base + *used, from, parts[i].bytes));
        }
        *used += round_up(parts[i].bytes);
    }
    return NBL_OK;
}

/* Copies a packed weight to temporary memory and dequantizes it into its final address. */
static nbl_status store_dequantized(upload *u, struct nbl__weight_entry *entry)
{
    nbl_weight packed;
    size_t packed_bytes = 0;
    NBL_TRY(store(u, entry->weight, u->packed, &packed_bytes, &packed));
    if (packed_bytes > u->packed_bytes) u->packed_bytes = packed_bytes;
    if (u->base) {
        uint8_t *to = u->base + u->used;
        assert(u->packed && entry->as_used.data == NULL);
        NBL_TRY(
            u->device->dequantize(u->m->ctx, &packed, 0, packed.shape[0], entry->as_used.dtype, false, to));
        entry->as_used.data = to;
    }
    u->used += round_up(nbl__weight_bytes(&entry->as_used));
    return NBL_OK;
}

/* Allocates memory that nbl__upload_free frees. NULL: out of memory. */
static void *add_piece(upload *u, size_t bytes, bool on_host)
{
    struct nbl__upload *it = nbl__arena_alloc(&u->m->arena, sizeof *it);
    if (it == NULL) return NULL;
    void *memory = on_host ? u->device->alloc_host(u->m->ctx, bytes)
                           : u->device->alloc(u->m->ctx, bytes, false);
    if (memory == NULL) return NULL;
    *it = (struct nbl__upload){u->m->uploads, memory, bytes, on_host};
    u->m->uploads = it;
    return memory;
}

/* Copies the parts of a weight to pinned host memory, which the device reads over the bus. */
static nbl_status store_on_host(upload *u, const struct nbl__weight_entry *entry, nbl_weight *device_view)
{
    part parts[5];
    *device_view = entry->weight;
    for (int i = 0, n = parts_of(&entry->weight, parts); i < n; i++) {
        u->host_used += parts[i].bytes;
        if (u->base == NULL) continue;
        void *memory = add_piece(u, parts[i].bytes, true);
        if (memory == NULL) return NBL_ERROR_MEMORY;
        memcpy(memory, *pointer_of(device_view, &parts[i]), parts[i].bytes);
        *pointer_of(device_view, &parts[i]) = memory;
    }
    return NBL_OK;
}

/* True if the graph's weight is dense and the stored one packed. */
static bool is_dequantized(const nbl__value_info *info, const struct nbl__weight_entry *entry)
{
    return entry->weight.format != NBL_FORMAT_DENSE && info->weight.format == NBL_FORMAT_DENSE;
}

/* Visits the graph's weights that the device lacks: counts their bytes, or copies them. */
static nbl_status walk(upload *u, nbl__graph *g)
{
    nbl_model *m = u->m;
    for (nbl__value v = 1; v <= g->value_count; v++) {
        const nbl__value_info *info = nbl__info(g, v);
        if (info->kind != NBL_KIND_WEIGHT) continue;
        struct nbl__weight_entry *entry = nbl__model_find(m, info->name);
        NBL_CHECK(m->ctx, entry, NBL_ERROR_INTERNAL, "no weight \"%s\"", info->name);
        bool dequantized = is_dequantized(info, entry);
        nbl_weight device_view;
        if (dequantized ? entry->as_used.data != NULL : entry->device_view.rank > 0) continue;
        if (u->base) NBL_TRY(nbl__progress_poll(m->ctx, info->name));
        if (dequantized) NBL_TRY(store_dequantized(u, entry));
        else if (entry->on_host) NBL_TRY(store_on_host(u, entry, &device_view));
        else NBL_TRY(store(u, entry->weight, u->base, &u->used, &device_view));
        if (u->base == NULL) continue;
        if (!dequantized) entry->device_view = device_view;
        nbl__progress_add(m->ctx, nbl__weight_bytes(&entry->weight));
        if (m->checkpoint && entry->weight.data) nbl__checkpoint_drop_file(m->checkpoint, entry->weight.data);
        for (int64_t i = 0; m->checkpoint && i < entry->weight.member_count; i++)
            nbl__checkpoint_drop_file(m->checkpoint, entry->weight.members[i].data);
    }
    return NBL_OK;
}

nbl_status nbl__upload_weights(nbl_model *m, nbl__graph *g)
{
    upload u = {.m = m, .device = nbl__device_of(m->ctx)};
    if (!u.device->separate_memory) return NBL_OK;
    NBL_TRY(walk(&u, g));
    if (u.used || u.host_used) {
        u.base = add_piece(&u, u.used, false);
        if (u.base == NULL) return NBL_ERROR_MEMORY;
        if (u.packed_bytes) u.packed = u.device->alloc(m->ctx, u.packed_bytes, false);
        if (u.packed_bytes && u.packed == NULL) return NBL_ERROR_MEMORY;
        u.used = 0;
        nbl_status status = walk(&u, g);
        u.device->free(m->ctx, u.packed, u.packed_bytes);
        NBL_TRY(status);
    }
    /* Point the graph to the device copies, of earlier uploads too. */
    for (nbl__value v = 1; v <= g->value_count; v++) {
        nbl__value_info *info = nbl__info(g, v);
        if (info->kind != NBL_KIND_WEIGHT) continue;
        const struct nbl__weight_entry *entry = nbl__model_find(m, info->name);
        info->weight = is_dequantized(info, entry) ? entry->as_used : entry->device_view;
    }
    return NBL_OK;
}

void nbl__upload_free(nbl_model *m)
{
    const nbl__device *device = nbl__device_of(m->ctx);
    for (struct nbl__upload *it = m->uploads; it; it = it->next) {
        if (it->on_host) device->free_host(m->ctx, it->memory, it->bytes);
        else device->free(m->ctx, it->memory, it->bytes);
    }
    m->uploads = NULL;
    for (int64_t i = 0; m->weights && i < m->weight_count; i++) {
        m->weights[i].device_view.rank = 0;
        m->weights[i].as_used.data = NULL;
    }
}
