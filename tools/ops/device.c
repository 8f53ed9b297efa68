/* device.c - see device.h. One piece of device memory holds all tensors of a call, so that a call
 * costs one copy to the device and one back:
 *
 *     | zone | x | zone | w codes | zone | w scales | zone | y | zone |
 *
 * The zones are filled with 0xff bytes. These are NaN to a kernel that reads beyond a tensor, and a
 * kernel that writes there changes them. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>

#include "ops/optimizer/adamw.h"
#include "ops/families.h"
#include "ops/optimizer/grad_norm.h"

enum { POISON = 0xff };

nbl_context *device_context(int threads, nbl_log_fn log, char why[512])
{
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = threads, .log = log};
    nbl_context *ctx = NULL;
    if (nbl_context_create(&options, &ctx) != NBL_OK) {
        snprintf(why, 512, "a bad number of threads, or a bad NIBBLE_ISA");
        return NULL;
    }
    /* NIBBLE_OPS_BORROWED: on a stream that is not the context's, the default one of the thread (cudaStreamPerThread) */
    void *per_thread = (void *)(uintptr_t)2;
    nbl_status status = getenv("NIBBLE_OPS_BORROWED") ? nbl_context_use_cuda_stream(ctx, 0, per_thread, NULL)
                                                      : nbl_context_use_cuda(ctx, 0);
    if (status == NBL_OK) return ctx;
    snprintf(why, 512, "%s", nbl_error_message(ctx));
    nbl_context_destroy(ctx);
    return NULL;
}

/* Memory of the tool. There is nothing to clean up when it runs out. */
static void *memory_of(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (memory == NULL) {
        fprintf(stderr, "nibble: ops: out of memory\n");
        exit(1);
    }
    return memory;
}

/* ---- addresses in an image ---- */

/* Memory that two slots share is shared on the device, too. */
static int find_block(const device_image *image, const void *host, size_t bytes)
{
    for (int i = 0; bytes > 0 && i < image->count; i++)
        if (image->blocks[i].host == host && image->blocks[i].bytes == bytes) return i;
    return -1;
}

/* Adds the memory behind a pointer in the arguments, and remembers where the pointer is, so that
 * upload() can replace it. A NULL pointer stays NULL. `written`: the operator may change the
 * memory. */
static nbl_status add(device_image *image, void *address, size_t bytes, size_t element, bool written)
{
    void *host;
    memcpy(&host, address, sizeof host);
    if (host == NULL) return NBL_OK;
    NBL_CHECK(image->ctx, image->count < DEVICE_BLOCKS && image->pointer_count < DEVICE_BLOCKS,
              NBL_ERROR_INTERNAL, "more tensors than there is room for");
    int block = find_block(image, host, bytes);
    if (block < 0) {
        size_t begin = image->bytes + DEVICE_ZONE + (image->skewed ? element : 0);
        block = image->count++;
        image->blocks[block] = (device_block){host, bytes, begin, false};
        image->bytes = (begin + bytes + 255) / 256 * 256;
    }
    image->blocks[block].written |= written;
    image->pointers[image->pointer_count].address = address;
    image->pointers[image->pointer_count++].block = block;
    return NBL_OK;
}

/* Adds a tensor. */
static nbl_status add_tensor(device_image *image, nbl_tensor *t, bool written)
{
    uint64_t bytes;
    int64_t elements = nbl__tensor_elements(t);
    if (elements > 0 && t->row_stride) /* with what lies between its rows */
        elements = (t->shape[0] - 1) * t->row_stride + nbl__row_elements(t);
    NBL_CHECK(image->ctx, nbl__dtype_bytes(t->dtype, (uint64_t)elements, &bytes), NBL_ERROR_SHAPE,
              "a tensor is too large");
    return add(image, &t->data, bytes, (size_t)nbl__dtype_bits(t->dtype) / 8, written);
}

/* Adds the parts of a packed weight: codes, scales, and for nested scales their codes and table.
 * Sizes follow from format and shape, as in nbl__weight_sizes_of. */
static nbl_status add_weight(device_image *image, nbl_weight *w)
{
    if (w->rank == 0 || w->data == NULL) return NBL_OK;
    int64_t n = 1;
    for (int i = 0; i < w->rank; i++) n *= w->shape[i];
    int64_t last = w->shape[w->rank - 1], block = w->block > 0 ? w->block : 1;
    int64_t blocks = w->format == NBL_FORMAT_INT8 ? (last > 0 ? n / last : 0) : nbl__ceil_div(n, block);
    bool dense = w->format == NBL_FORMAT_DENSE, nested = w->nested_scales != NULL;
    size_t element = dense ? nbl__size_of(w->dtype) : 1;
    int64_t groups = nested ? nbl__ceil_div(blocks, w->nested_block) : 0;
    NBL_TRY(add(image, &w->data,
                dense                          ? (size_t)n * element
                : w->format == NBL_FORMAT_INT8 ? (size_t)n
                                               : (size_t)nbl__ceil_div(n, 2),
                element, false));
    if (dense) return NBL_OK;
    if (nested || w->format == NBL_FORMAT_MXFP4) w->scales = NULL; /* of no meaning there */
    NBL_TRY(add(image, &w->scales, (size_t)blocks * sizeof(float), sizeof(float), false));
    NBL_TRY(add(image, &w->scale_codes, (size_t)blocks, 1, false));
    NBL_TRY(add(image, &w->nested_scales, (size_t)groups * sizeof(float), sizeof(float), false));
    return add(image, &w->nested_table, 256 * sizeof(float), sizeof(float), false);
}

/* Adds the tensors of one direction. Forward has no gradients, and results of rank 0 do not exist:
 * their pointers become NULL, so that a kernel that uses them fails. */
static nbl_status add_slots(device_image *image, const nbl__family *family, bool backward)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        if (nbl__slot_is_weight(slot)) {
            NBL_TRY(add_weight(image, (nbl_weight *)(void *)((char *)image->arguments + slot->offset)));
            continue;
        }
        nbl_tensor *t = nbl__slot_tensor(slot, image->arguments);
        /* a cache is an input of these two families, and they write to it */
        bool result = slot->role == NBL_ROLE_OUTPUT || slot->role == NBL_ROLE_SAVED;
        bool gradient = slot->role == NBL_ROLE_GRADIENT;
        bool in_place = (family == &nbl__kv_write_family && strcmp(slot->name, "cache") == 0) ||
                        (family == &nbl__attention_step_family &&
                         (strcmp(slot->name, "keys") == 0 || strcmp(slot->name, "values") == 0));
        if ((gradient && !backward) || ((gradient || result) && t->rank == 0)) t->data = NULL;
        NBL_TRY(add_tensor(image, t, backward ? gradient : result || in_place));
    }
    return NBL_OK;
}

/* Adds the tensors of adamw, which has a list of them. The list itself is copied, since its
 * pointers change. */
static nbl_status add_adamw(device_image *image)
{
    nbl__adamw *a = image->arguments;
    size_t bytes = (size_t)a->count * sizeof(nbl__adamw_tensor);
    nbl__adamw_tensor *list = image->list = memory_of(bytes);
    if (bytes) memcpy(list, a->tensors, bytes);
    a->tensors = list;
    for (int64_t i = 0; i < a->count; i++) {
        NBL_TRY(add_tensor(image, &list[i].p, true));
        NBL_TRY(add_tensor(image, &list[i].g, false));
        NBL_TRY(add_tensor(image, &list[i].m, true));
        NBL_TRY(add_tensor(image, &list[i].v, true));
        NBL_TRY(add_tensor(image, &list[i].m_absmax, true));
        NBL_TRY(add_tensor(image, &list[i].v_absmax, true));
    }
    return NBL_OK;
}

/* The same for grad_norm. */
static nbl_status add_grad_norm(device_image *image)
{
    nbl__grad_norm *a = image->arguments;
    size_t bytes = (size_t)a->count * sizeof(nbl_tensor);
    nbl_tensor *list = image->list = memory_of(bytes);
    if (bytes) memcpy(list, a->gradients, bytes);
    a->gradients = list;
    for (int64_t i = 0; i < a->count; i++) NBL_TRY(add_tensor(image, &list[i], true));
    NBL_TRY(add_tensor(image, &a->norm, true));
    return add(image, &a->non_finite, sizeof *a->non_finite, sizeof *a->non_finite, true);
}

/* ---- there ---- */

/* Makes the image on the host, copies it to the device and points the arguments there. */
static nbl_status upload(device_image *image)
{
    image->bytes += DEVICE_ZONE;
    image->host = memory_of(image->bytes);
    memset(image->host, POISON, image->bytes);
    for (int i = 0; i < image->count; i++)
        if (image->blocks[i].bytes)
            memcpy(image->host + image->blocks[i].begin, image->blocks[i].host, image->blocks[i].bytes);
    image->device = image->runs_on->alloc(image->ctx, image->bytes, false);
    if (image->device == NULL) return NBL_ERROR_MEMORY;
    for (int i = 0; i < image->pointer_count; i++) {
        void *there = image->device + image->blocks[image->pointers[i].block].begin;
        memcpy(image->pointers[i].address, &there, sizeof there);
    }
    return image->runs_on->write(image->ctx, image->device, image->host, image->bytes);
}

nbl_status device_open(nbl_context *ctx, const nbl__family *family, const nbl__op *op, const void *arguments,
                       bool skewed, device_image *image)
{
    memset(image, 0, sizeof *image);
    image->ctx = ctx;
    image->runs_on = nbl__device_of(ctx);
    image->skewed = skewed;
    image->arguments_bytes = family->size;
    image->arguments = memory_of(family->size);
    image->before = memory_of(family->size);
    memcpy(image->arguments, arguments, family->size);
    if (family == &nbl__adamw_family) NBL_TRY(add_adamw(image));
    else if (family == &nbl__grad_norm_family) NBL_TRY(add_grad_norm(image));
    else NBL_TRY(add_slots(image, family, op == &family->backward));
    NBL_TRY(upload(image));
    memcpy(image->before, image->arguments, family->size);
    return NBL_OK;
}

nbl_status device_scratch(device_image *image, const nbl__impl *impl)
{
    image->scratch_bytes = nbl__op_scratch(image->ctx, impl, image->arguments);
    size_t all = image->scratch_bytes + 2 * DEVICE_ZONE;
    image->scratch_base = image->runs_on->alloc(image->ctx, all, false);
    if (image->scratch_base == NULL) return NBL_ERROR_MEMORY;
    image->scratch = image->scratch_base + DEVICE_ZONE;
    return image->runs_on->fill(image->ctx, image->scratch_base, POISON, all);
}

/* A block that was never opened is zeros, so this works after any failure. */
void device_close(device_image *image)
{
    if (image->scratch_base)
        image->runs_on->free(image->ctx, image->scratch_base, image->scratch_bytes + 2 * DEVICE_ZONE);
    if (image->device) image->runs_on->free(image->ctx, image->device, image->bytes);
    free(image->host);
    free(image->list);
    free(image->before);
    free(image->arguments);
    memset(image, 0, sizeof *image);
}

/* ---- and back ---- */

/* True if all bytes of a zone are unchanged. */
static bool is_poison(const uint8_t *bytes, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        if (bytes[i] != POISON) return false;
    return true;
}

/* Checks the zones around the scratch, which has memory of its own. */
static nbl_status check_scratch(device_image *image, const char *who)
{
    uint8_t zones[2][DEVICE_ZONE];
    if (image->scratch_base == NULL) return NBL_OK;
    NBL_TRY(image->runs_on->read(image->ctx, zones[0], image->scratch_base, DEVICE_ZONE));
    NBL_TRY(image->runs_on->read(image->ctx, zones[1], image->scratch + image->scratch_bytes, DEVICE_ZONE));
    NBL_CHECK(image->ctx, is_poison(zones[0], 0, sizeof zones), NBL_ERROR_INTERNAL,
              "%s wrote outside its scratch", who);
    return NBL_OK;
}

nbl_status device_fetch(device_image *image, const char *who)
{
    nbl_context *ctx = image->ctx;
    size_t zone = 0;
    NBL_TRY(image->runs_on->wait(image->ctx, who));
    NBL_TRY(image->runs_on->read(image->ctx, image->host, image->device, image->bytes));
    NBL_CHECK(ctx, memcmp(image->before, image->arguments, image->arguments_bytes) == 0, NBL_ERROR_INTERNAL,
              "%s wrote to its arguments", who);
    for (int i = 0; i <= image->count; i++) {
        const device_block *block = &image->blocks[i];
        size_t end = i < image->count ? block->begin : image->bytes;
        NBL_CHECK(ctx, is_poison(image->host, zone, end), NBL_ERROR_INTERNAL, "%s wrote beside a tensor",
                  who);
        if (i == image->count) break;
        zone = block->begin + block->bytes;
        if (block->bytes == 0) continue;
        if (block->written) memcpy(block->host, image->host + block->begin, block->bytes);
        else
            NBL_CHECK(ctx, memcmp(block->host, image->host + block->begin, block->bytes) == 0,
                      NBL_ERROR_INTERNAL, "%s wrote to an input", who);
    }
    return check_scratch(image, who);
}

/* ---- a run ---- */

/* Captures the call as a CUDA graph and replays it: what a planned step does. */
static nbl_status run_captured(nbl_context *ctx, const nbl__op *op, const nbl__impl *impl,
                               device_image *image)
{
    void *graph = NULL;
    NBL_TRY(image->runs_on->capture_begin(image->ctx));
    nbl_status status = nbl__op_run(ctx, op, impl, image->arguments, image->scratch, image->scratch_bytes);
    nbl_status ended = image->runs_on->capture_end(image->ctx, status == NBL_OK, &graph);
    if (status == NBL_OK) status = ended;
    if (status == NBL_OK) status = image->runs_on->replay(image->ctx, graph);
    if (status == NBL_OK) status = image->runs_on->wait(image->ctx, impl->name);
    image->runs_on->graph_free(image->ctx, graph);
    return status;
}

/* Chooses an implementation if none is given, runs it and fetches the results. An implementation
 * that declines the arguments is NBL_ERROR_UNSUPPORTED: another may take them. */
static nbl_status run_image(nbl_context *ctx, const nbl__op *op, const nbl__impl *impl, const char *force,
                            device_how how, device_image *image, const nbl__impl **ran)
{
    if (impl == NULL) NBL_TRY(nbl__op_choose(ctx, op, image->arguments, force, &impl));
    const char *why = impl->can ? impl->can(ctx, image->arguments) : NULL;
    NBL_CHECK(ctx, why == NULL, NBL_ERROR_UNSUPPORTED, "%s declines: %s", impl->name, why);
    if (ran) *ran = impl;
    NBL_TRY(device_scratch(image, impl));
    NBL_TRY(how == DEVICE_CAPTURED
                ? run_captured(ctx, op, impl, image)
                : nbl__op_run(ctx, op, impl, image->arguments, image->scratch, image->scratch_bytes));
    nbl_status status = device_fetch(image, impl->name);
    if (status != NBL_ERROR_ARGUMENT) return status;
    char fault[512]; /* what a kernel found in the data: it does not know whose kernel it is */
    snprintf(fault, sizeof fault, "%s", nbl_error_message(ctx));
    return nbl__fail(ctx, status, "%s: %s", op->name, fault);
}

nbl_status device_run(nbl_context *ctx, const nbl__family *family, const nbl__op *op, const nbl__impl *impl,
                      const char *force, const void *arguments, device_how how, const nbl__impl **ran)
{
    device_image *image = memory_of(sizeof *image);
    nbl_status status = device_open(ctx, family, op, arguments, how == DEVICE_SKEWED, image);
    if (status == NBL_OK) status = run_image(ctx, op, impl, force, how, image, ran);
    device_close(image);
    free(image);
    return status;
}
