/* ptx_memory.c - loads, stores, atomics and asynchronous copies. See ptx_code.h. */
#include "ptx_code.h"

#include <stdlib.h>
#include <string.h>

static uint64_t address_of(const ptx_warp *w, const ptx_instruction *in, int lane)
{
    return (in->wide_address ? ptx_longs(w, in->a)[lane] : ptx_words(w, in->a)[lane]) + (uint64_t)in->imm;
}

static const char *name_of(ptx_space space)
{
    static const char *const names[] = {"memory", "global memory", "shared memory", "local memory",
                                        "parameters"};
    return names[space];
}

/* Finds the variable of the module or the allocation that has the address, and keeps it for the next access. */
static bool find_range(ptx_block *b, ptx_instruction *in, uint64_t address)
{
    const ptx_module *m = b->launch->module;
    ptx_range range;
    for (size_t i = 0; i < m->variable_count; i++) {
        const ptx_variable *v = &m->variables[i];
        if (v->space == PTX_GLOBAL && address - (uintptr_t)v->at < v->bytes) {
            in->begin = (uintptr_t)v->at;
            in->bytes = v->bytes;
            in->at = v->at;
            in->epoch = b->epoch;
            return true;
        }
    }
    if (!b->find(address, &range)) return false;
    in->begin = range.begin;
    in->bytes = range.bytes;
    in->at = range.at;
    in->epoch = b->epoch;
    return true;
}

static void *where_global(ptx_block *b, ptx_warp *w, ptx_instruction *in, int lane, uint64_t address,
                          uint32_t bytes)
{
    uint64_t offset = address - in->begin;
    if (in->epoch != b->epoch || offset >= in->bytes || bytes > in->bytes - offset) {
        if (!find_range(b, in, address)) {
            ptx_fail(b, w, lane, in, "%u bytes at %#llx lie in no allocation", bytes,
                     (unsigned long long)address);
            return NULL;
        }
        offset = address - in->begin;
        if (offset >= in->bytes || bytes > in->bytes - offset) {
            ptx_fail(b, w, lane, in, "%u bytes at %#llx reach beyond the allocation of %llu bytes at %#llx",
                     bytes, (unsigned long long)address, (unsigned long long)in->bytes,
                     (unsigned long long)in->begin);
            in->epoch = 0;
            return NULL;
        }
    }
    return in->at + offset;
}

void *ptx_where(ptx_block *b, ptx_warp *w, ptx_instruction *in, int lane, ptx_space space, uint64_t address,
                uint32_t bytes, uint32_t align)
{
    uint64_t low = 0, high = 0;
    char *base = NULL;
    if (address & (align - 1)) {
        ptx_fail(b, w, lane, in, "%#llx is not a multiple of %u", (unsigned long long)address, align);
        return NULL;
    }
    if (space == PTX_GENERIC && address - PTX_SHARED_WINDOW < PTX_WINDOW_BYTES) {
        address -= PTX_SHARED_WINDOW;
        space = PTX_SHARED;
    } else if (space == PTX_GENERIC && address - PTX_LOCAL_WINDOW < PTX_WINDOW_BYTES) {
        address -= PTX_LOCAL_WINDOW;
        space = PTX_LOCAL;
    }
    switch (space) {
    case PTX_SHARED: low = PTX_SHARED_BEGIN, high = b->shared_bytes, base = b->shared; break;
    case PTX_LOCAL: high = b->code->local_bytes, base = w->local + (size_t)lane * high; break;
    case PTX_PARAM: high = b->code->parameter_bytes, base = b->launch->parameters; break;
    default: return where_global(b, w, in, lane, address, bytes);
    }
    if (address < low || address >= high || bytes > high - address) {
        ptx_fail(b, w, lane, in, "%u bytes at %#llx are outside of %s, which has [%#llx, %#llx)", bytes,
                 (unsigned long long)address, name_of(space), (unsigned long long)low,
                 (unsigned long long)high);
        return NULL;
    }
    return base + address;
}

/* ---- loads and stores ---- */

/* As ptx_where: what nearly every access is, without a call. */
static inline char *where(ptx_block *b, ptx_warp *w, ptx_instruction *in, int lane, uint32_t bytes)
{
    uint64_t address = address_of(w, in, lane);
    if (in->space == PTX_SHARED) {
        uint64_t offset = address - PTX_SHARED_BEGIN;
        if (offset + bytes <= b->shared_bytes - PTX_SHARED_BEGIN && offset < b->shared_bytes &&
            !(address & (bytes - 1)))
            return b->shared + address;
    } else if (in->space != PTX_PARAM && in->epoch == b->epoch) {
        uint64_t offset = address - in->begin;
        if (offset < in->bytes && bytes <= in->bytes - offset && !(address & (bytes - 1)))
            return in->at + offset;
    }
    return ptx_where(b, w, in, lane, (ptx_space)in->space, address, bytes, bytes);
}

static inline uint64_t extended(uint64_t value, uint32_t width, bool is_signed)
{
    uint64_t sign = (uint64_t)1 << (8 * width - 1);
    return is_signed ? (value ^ sign) - sign : value;
}

/* `count` elements of `width` bytes for each lane. Inlined for each width: copies of a constant size are one move. */
static inline __attribute__((always_inline)) void
load_elements(ptx_block *b, ptx_warp *w, ptx_instruction *in, uint32_t lanes, uint32_t width)
{
    const uint32_t *more = b->code->more + in->more;
    const uint32_t count = in->count, bytes = width * count;
    const bool is_signed = in->kind == PTX_SIGNED && width < 8;
    for (uint32_t left = lanes; left; left &= left - 1) {
        int lane = __builtin_ctz(left);
        const char *from = where(b, w, in, lane, bytes);
        if (from == NULL) return;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t value = 0;
            memcpy(&value, from + i * width, width);
            ptx_set_lane(w, more[2 * i], (ptx_class)more[2 * i + 1], lane, extended(value, width, is_signed));
        }
    }
}

static inline __attribute__((always_inline)) void
store_elements(ptx_block *b, ptx_warp *w, ptx_instruction *in, uint32_t lanes, uint32_t width)
{
    const uint32_t *more = b->code->more + in->more;
    const uint32_t count = in->count, bytes = width * count;
    for (uint32_t left = lanes; left; left &= left - 1) {
        int lane = __builtin_ctz(left);
        char *to = where(b, w, in, lane, bytes);
        if (to == NULL) return;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t value = ptx_lane(w, more[2 * i], (ptx_class)more[2 * i + 1], lane);
            memcpy(to + i * width, &value, width);
        }
    }
}

void ptx_load(ptx_block *b, ptx_warp *w, ptx_instruction *in, uint32_t lanes)
{
    switch (in->width) {
    case 1: load_elements(b, w, in, lanes, 1); break;
    case 2: load_elements(b, w, in, lanes, 2); break;
    case 4: load_elements(b, w, in, lanes, 4); break;
    default: load_elements(b, w, in, lanes, 8); break;
    }
}

void ptx_store(ptx_block *b, ptx_warp *w, ptx_instruction *in, uint32_t lanes)
{
    switch (in->width) {
    case 1: store_elements(b, w, in, lanes, 1); break;
    case 2: store_elements(b, w, in, lanes, 2); break;
    case 4: store_elements(b, w, in, lanes, 4); break;
    default: store_elements(b, w, in, lanes, 8); break;
    }
}

/* ---- atomics ---- */

static uint64_t add_floats(const ptx_instruction *in, uint64_t old, uint64_t value)
{
    if (in->width == 4) {
        float a, b;
        memcpy(&a, &old, 4);
        memcpy(&b, &value, 4);
        a += b;
        old = 0;
        memcpy(&old, &a, 4);
    } else {
        double a, b;
        memcpy(&a, &old, 8);
        memcpy(&b, &value, 8);
        a += b;
        memcpy(&old, &a, 8);
    }
    return old;
}

static uint64_t changed(const ptx_instruction *in, uint64_t old, uint64_t b, uint64_t c)
{
    bool is_signed = in->kind == PTX_SIGNED;
    int64_t old_signed = (int64_t)extended(old, in->width, true),
            b_signed = (int64_t)extended(b, in->width, true);
    switch ((ptx_action)in->action) {
    case PTX_ADD: return in->kind == PTX_FLOAT ? add_floats(in, old, b) : old + b;
    case PTX_MIN: return is_signed ? (old_signed < b_signed ? old : b) : old < b ? old : b;
    case PTX_MAX: return is_signed ? (old_signed > b_signed ? old : b) : old > b ? old : b;
    case PTX_AND: return old & b;
    case PTX_OR: return old | b;
    case PTX_XOR: return old ^ b;
    case PTX_EXCHANGE: return b;
    case PTX_COMPARE_AND_SWAP: return old == b ? c : old;
    case PTX_INCREMENT: return old >= b ? 0 : old + 1;
    default: return old == 0 || old > b ? b : old - 1; /* PTX_DECREMENT */
    }
}

void ptx_atomic(ptx_block *b, ptx_warp *w, ptx_instruction *in, uint32_t lanes)
{
    if (in->kind == PTX_HALF || in->kind == PTX_BFLOAT || (in->kind == PTX_FLOAT && in->action != PTX_ADD)) {
        ptx_fail(b, w, __builtin_ctz(lanes), in, "the instruction is not known here");
        return;
    }
    for (uint32_t left = lanes; left; left &= left - 1) {
        int lane = __builtin_ctz(left);
        char *at = ptx_where(b, w, in, lane, (ptx_space)in->space, address_of(w, in, lane), in->width,
                             in->width);
        if (at == NULL) return;
        uint64_t old = 0, value;
        memcpy(&old, at, in->width);
        value = changed(in, old, ptx_lane(w, in->b, (ptx_class)in->classes, lane),
                        in->c ? ptx_lane(w, in->c, (ptx_class)in->classes, lane) : 0);
        memcpy(at, &value, in->width);
        if (in->d) ptx_set_lane(w, in->d, (ptx_class)in->classes, lane, old);
    }
}

/* ---- asynchronous copies ---- */

static void carry_out(ptx_block *b, ptx_warp *w, const ptx_copy *it)
{
    ptx_instruction *in = &b->code->all[it->instruction];
    char *to = ptx_where(b, w, in, it->lane, PTX_SHARED, it->to, it->bytes, it->bytes);
    if (to == NULL) return;
    memset(to, 0, it->bytes);
    if (it->read == 0) return;
    const char *from = ptx_where(b, w, in, it->lane, PTX_GLOBAL, it->from, it->read, it->read);
    if (from) memcpy(to, from, it->read);
}

void ptx_copy_async(ptx_block *b, ptx_warp *w, ptx_instruction *in, uint32_t lanes)
{
    for (uint32_t left = lanes; left; left &= left - 1) {
        int lane = __builtin_ctz(left);
        if (w->copy_count == w->copy_capacity) {
            w->copy_capacity = w->copy_capacity ? 2 * w->copy_capacity : 256;
            w->copies = realloc(w->copies, w->copy_capacity * sizeof *w->copies);
            if (w->copies == NULL) abort();
        }
        uint64_t from = ptx_longs(w, in->b)[lane] + (uint64_t)(int64_t)(int32_t)in->d;
        uint32_t read = in->c ? ptx_words(w, in->c)[lane] : in->width;
        if (from & (in->width - 1u))
            ptx_fail(b, w, lane, in, "%#llx is not a multiple of %u", (unsigned long long)from, in->width);
        if (read > in->width) ptx_fail(b, w, lane, in, "%u bytes are read for %u", read, in->width);
        w->copies[w->copy_count++] = (ptx_copy){.from = from,
                                                .to = (uint32_t)address_of(w, in, lane),
                                                .group = w->group[lane],
                                                .lane = (uint8_t)lane,
                                                .bytes = in->width,
                                                .read = (uint8_t)read,
                                                .instruction = (uint32_t)(in - b->code->all)};
    }
}

void ptx_finish_copies(ptx_block *b, ptx_warp *w, uint32_t lanes, uint32_t keep, bool all)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < w->copy_count; i++) {
        const ptx_copy it = w->copies[i];
        /* Groups [0, open) were ended; the newest `keep` of them may go on. */
        bool done = lanes >> it.lane & 1 && (all || it.group + (uint64_t)keep < w->group[it.lane]);
        if (done && !b->failed) carry_out(b, w, &it);
        else w->copies[left++] = it;
    }
    w->copy_count = left;
}
