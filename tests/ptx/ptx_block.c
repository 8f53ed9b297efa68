/* ptx_block.c - launches: arguments, blocks, barriers of a block, and failures. See ptx.h. */
#include "ptx_code.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHARED_POISON = 0xff, MAX_WARPS = 32 };

/* A launch that has run so many instructions of threads does not end. */
#define PATIENCE ((uint64_t)1 << 40)

static uint64_t instructions, epochs;

uint64_t ptx_instructions(void)
{
    return instructions;
}

void ptx_fail(ptx_block *b, const ptx_warp *w, int lane, const ptx_instruction *in, const char *format, ...)
{
    if (b->failed) return;
    b->failed = true;
    const unsigned *block = b->launch->shape.block;
    unsigned thread = (unsigned)(w->index * PTX_LANES + lane);
    size_t length = (size_t)snprintf(b->why, PTX_WHY, "%s: block %u,%u,%u thread %u,%u,%u: ", b->code->name,
                                     b->index[0], b->index[1], b->index[2], thread % block[0],
                                     thread / block[0] % block[1], thread / block[0] / block[1]);
    va_list arguments;
    va_start(arguments, format);
    if (length < PTX_WHY) length += (size_t)vsnprintf(b->why + length, PTX_WHY - length, format, arguments);
    va_end(arguments);
    if (length < PTX_WHY)
        snprintf(b->why + length, PTX_WHY - length, ", at instruction %u: %.*s",
                 (unsigned)(in - b->code->all), (int)in->text_bytes, b->launch->module->text + in->text);
}

/* ---- barriers ---- */

static uint32_t living(const ptx_block *b)
{
    uint32_t count = 0;
    for (int i = 0; i < b->warp_count; i++) count += (uint32_t)__builtin_popcount(b->warps[i].alive);
    return count;
}

/* The lanes go on; a barrier that reduces has a result for them. */
static void release(ptx_block *b, int index)
{
    ptx_barrier *it = &b->barriers[index];
    for (int i = 0; i < b->warp_count; i++) {
        ptx_warp *w = &b->warps[i];
        for (uint32_t left = w->blocked; left; left &= left - 1) {
            int lane = __builtin_ctz(left);
            if (w->barrier[lane] != index) continue;
            w->blocked &= ~(1u << lane);
            const ptx_instruction *in = &b->code->all[w->at[lane] - 1];
            if (in->operation != PTX_BARRIER_REDUCE) continue;
            bool holds = in->action == PTX_AND ? !it->not_all : it->any;
            if (in->action == PTX_POPULATION) ptx_words(w, in->d)[lane] = it->population;
            else if (holds) *ptx_words(w, in->d) |= 1u << lane;
            else *ptx_words(w, in->d) &= ~(1u << lane);
        }
    }
    *it = (ptx_barrier){0};
}

static void open_if_full(ptx_block *b, int index)
{
    const ptx_barrier *it = &b->barriers[index];
    if (it->arrived && it->arrived >= (it->expected ? it->expected : living(b))) release(b, index);
}

void ptx_open_barriers(ptx_block *b)
{
    for (int i = 0; i < 16; i++) open_if_full(b, i);
}

void ptx_arrive(ptx_block *b, ptx_warp *w, int index, uint32_t lanes, uint32_t threads, bool waits)
{
    b->barriers[index].arrived += (uint32_t)__builtin_popcount(lanes);
    b->barriers[index].expected = threads;
    for (uint32_t left = waits ? lanes : 0; left; left &= left - 1)
        w->barrier[__builtin_ctz(left)] = (uint8_t)index;
    if (waits) w->blocked |= lanes;
    open_if_full(b, index);
}

/* ---- blocks ---- */

static void fill_words(const ptx_block *b, ptx_special special, uint32_t value)
{
    uint32_t slot = b->code->special[special];
    for (int i = 0; slot && i < b->warp_count; i++)
        for (int lane = 0; lane < PTX_LANES; lane++) ptx_words(&b->warps[i], slot)[lane] = value;
}

/* What is the same in all blocks. */
static void prepare_warps(ptx_block *b)
{
    const ptx_code *code = b->code;
    const unsigned *block = b->launch->shape.block, *grid = b->launch->shape.grid;
    for (int i = 0; i < b->warp_count; i++) {
        ptx_warp *w = &b->warps[i];
        w->index = i;
        *ptx_words(w, PTX_TRUE) = UINT32_MAX;
        for (uint32_t k = 0; k < code->constant_count; k++) {
            const ptx_constant *it = &code->constants[k];
            if (it->class == PTX_PRED) *ptx_words(w, it->slot) = (uint32_t)it->value;
            for (int lane = 0; it->class != PTX_PRED && lane < PTX_LANES; lane++)
                ptx_set_lane(w, it->slot, it->class, lane, it->value);
        }
        for (int k = 0; k < 2; k++)
            for (int lane = 0; code->dynamic[k] && lane < PTX_LANES; lane++)
                ptx_set_lane(w, code->dynamic[k], k ? PTX_B64 : PTX_B32, lane, code->shared_bytes);
        for (unsigned lane = 0; lane < PTX_LANES; lane++) {
            unsigned thread = (unsigned)i * PTX_LANES + lane;
            const uint32_t values[] = {[PTX_TID_X] = thread % block[0],
                                       [PTX_TID_Y] = thread / block[0] % block[1],
                                       [PTX_TID_Z] = thread / block[0] / block[1],
                                       [PTX_LANEID] = lane,
                                       [PTX_WARPID] = (uint32_t)i,
                                       [PTX_LANEMASK_LT] = (1u << lane) - 1,
                                       [PTX_LANEMASK_LE] = (2u << lane) - 1,
                                       [PTX_LANEMASK_GT] = ~((2u << lane) - 1),
                                       [PTX_LANEMASK_GE] = ~((1u << lane) - 1),
                                       [PTX_LANEMASK_EQ] = 1u << lane,
                                       [PTX_SPECIALS] = 0};
            for (int k = 0; k < PTX_SPECIALS; k++)
                if (code->special[k]) ptx_words(w, code->special[k])[lane] = values[k];
        }
    }
    for (int k = 0; k < 3; k++) {
        fill_words(b, PTX_NTID_X + k, block[k]);
        fill_words(b, PTX_NCTAID_X + k, grid[k]);
    }
}

static void begin_block(ptx_block *b)
{
    unsigned threads = b->launch->shape.block[0] * b->launch->shape.block[1] * b->launch->shape.block[2];
    memset(b->shared, SHARED_POISON, b->shared_bytes);
    memset(b->barriers, 0, sizeof b->barriers);
    for (int i = 0; i < b->warp_count; i++) {
        ptx_warp *w = &b->warps[i];
        unsigned left = threads - (unsigned)i * PTX_LANES;
        w->alive = left >= PTX_LANES ? UINT32_MAX : (1u << left) - 1;
        w->waiting = w->blocked = w->copy_count = 0;
        w->turn = false;
        memset(w->at, 0, sizeof w->at);
        memset(w->group, 0, sizeof w->group);
        memset(w->local, SHARED_POISON, (size_t)b->code->local_bytes * PTX_LANES);
    }
    for (int k = 0; k < 3; k++) fill_words(b, PTX_CTAID_X + k, b->index[k]);
}

/* Nobody can go on: names the first lane that waits. */
static void fail_stuck(ptx_block *b)
{
    for (int i = 0; i < b->warp_count; i++) {
        ptx_warp *w = &b->warps[i];
        uint32_t waiting = w->alive & (w->waiting | w->blocked);
        if (waiting == 0) continue;
        int lane = __builtin_ctz(waiting);
        bool blocked = w->blocked >> lane & 1;
        const ptx_instruction *in = &b->code->all[w->at[lane] - blocked];
        const ptx_barrier *barrier = &b->barriers[w->barrier[lane]];
        if (blocked)
            ptx_fail(b, w, lane, in, "waits for ever: %u of %u threads have come to barrier %u",
                     barrier->arrived, barrier->expected ? barrier->expected : living(b), w->barrier[lane]);
        else
            ptx_fail(b, w, lane, in, "waits for ever: lanes %08x wait in the warp, of %08x", w->waiting,
                     w->alive);
        return;
    }
}

static void run_block(ptx_block *b)
{
    uint64_t before = b->instructions;
    begin_block(b);
    for (bool moved = true; !b->failed && living(b);) {
        if (!moved) {
            fail_stuck(b);
            break;
        }
        moved = false;
        for (int i = 0; i < b->warp_count && !b->failed; i++)
            if (b->warps[i].alive) moved |= ptx_run_warp(b, &b->warps[i]);
        if (b->instructions - before > PATIENCE)
            ptx_fail(b, &b->warps[0], 0, &b->code->all[b->warps[0].at[0]], "the block does not end");
    }
}

/* ---- launches ---- */

ptx_launch *ptx_launch_new(ptx_module *m, const char *kernel, const ptx_shape *shape, void *const *arguments,
                           char why[PTX_WHY])
{
    ptx_code *code = ptx_find_kernel(m, kernel, why);
    if (code == NULL) return NULL;
    ptx_launch *l = calloc(1, sizeof *l + code->parameter_bytes + 16);
    if (l == NULL) abort();
    l->code = code;
    l->module = m;
    l->shape = *shape;
    for (uint32_t i = 0; i < code->parameter_count; i++)
        memcpy(l->parameters + code->parameters[2 * i], arguments[i], code->parameters[2 * i + 1]);
    return l;
}

void ptx_launch_free(ptx_launch *l)
{
    free(l);
}

/* Memory of the launch: that of the one before, where it is enough. Registers hold what they held. */
static void take_memory(ptx_block *b)
{
    static ptx_warp warps[MAX_WARPS];
    static char *memory;
    static size_t capacity;
    size_t file = ((size_t)b->code->file_bytes + 63) / 64 * 64,
           local = ((size_t)b->code->local_bytes * PTX_LANES + 63) / 64 * 64,
           shared = ((size_t)b->shared_bytes + 127) / 128 * 128,
           wanted = shared + (file + local) * (size_t)b->warp_count;
    if (wanted > capacity) {
        free(memory);
        memory = aligned_alloc(128, (wanted + 127) / 128 * 128);
        if (memory == NULL) abort();
        memset(memory, 0, wanted);
        capacity = wanted;
    }
    b->shared = memory;
    b->warps = warps;
    for (int i = 0; i < b->warp_count; i++) {
        char *at = memory + shared + (file + local) * (size_t)i;
        warps[i] = (ptx_warp){.file = (unsigned char *)at, .local = at + file};
    }
}

bool ptx_launch_run(ptx_launch *l, ptx_find *find, char why[PTX_WHY])
{
    const ptx_shape *s = &l->shape;
    unsigned threads = s->block[0] * s->block[1] * s->block[2];
    ptx_block b = {.code = l->code, .launch = l, .find = find, .epoch = ++epochs, .why = why};
    b.warp_count = (int)((threads + PTX_LANES - 1) / PTX_LANES);
    b.shared_bytes = (uint32_t)(l->code->shared_bytes + s->dynamic);
    take_memory(&b);
    prepare_warps(&b);
    for (b.index[2] = 0; b.index[2] < s->grid[2] && !b.failed; b.index[2]++)
        for (b.index[1] = 0; b.index[1] < s->grid[1] && !b.failed; b.index[1]++)
            for (b.index[0] = 0; b.index[0] < s->grid[0] && !b.failed; b.index[0]++) run_block(&b);
    instructions += b.instructions;
    for (int i = 0; i < b.warp_count; i++) free(b.warps[i].copies);
    return !b.failed;
}
