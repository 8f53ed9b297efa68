/* ptx_run.c - runs a warp. See ptx_code.h.
 *
 * Lanes that stand at the same instruction go together; those furthest back go first, so that lanes meet again behind a
 * branch. Every lane may have its own way, as on a device from capability 7.0 on: nothing is assumed of lanes that
 * did not wait for each other.
 *
 * An operation on registers computes all lanes, into the register where all of them run, else beside it. */
#include "ptx_simple.h"
#include "ptx_math.h"

#include <string.h>

enum { SLICE = 1 << 20 }; /* instructions that a warp may run before others get a turn */

/* Lanes of a type of ptx_ops.inc: as they are stored, and as they are read and written. */
typedef ptx_u32 LANE_b8, LANE_s8, LANE_b16, LANE_s16, LANE_b32;
typedef ptx_s32 LANE_s32;
typedef ptx_f32 LANE_f32;
typedef ptx_u64 LANE_b64;
typedef ptx_s64 LANE_s64;
typedef ptx_f64 LANE_f64;
typedef uint8_t READ_b8;
typedef int8_t READ_s8;
typedef uint16_t READ_b16;
typedef int16_t READ_s16;
typedef uint32_t READ_b32;
typedef int32_t READ_s32;
typedef float READ_f32;
typedef uint64_t READ_b64;
typedef int64_t READ_s64;
typedef double READ_f64;

/* What is written: 16-bit registers have zeros above, a NaN that was computed is the one of the device. */
#define WRITE_b16(value) (uint16_t)(value)
#define WRITE_s16(value) (uint16_t)(value)
#define WRITE_b32(value) (uint32_t)(value)
#define WRITE_s32(value) (int32_t)(value)
#define WRITE_b64(value) (uint64_t)(value)
#define WRITE_s64(value) (int64_t)(value)
#define WRITE_f32(value) number_f32(value)
#define WRITE_f64(value) number_f64(value)
#define BLEND_b16 blend_words
#define BLEND_s16 blend_words
#define BLEND_b32 blend_words
#define BLEND_s32 blend_words
#define BLEND_f32 blend_words
#define BLEND_b64 blend_longs
#define BLEND_s64 blend_longs
#define BLEND_f64 blend_longs

static inline float number_f32(float value)
{
    return value == value ? value : ptx_float(0x7fffffff);
}

static inline double number_f64(double value)
{
    const uint64_t bits = 0x7fffffffffffffffu;
    double nan;
    memcpy(&nan, &bits, sizeof nan);
    return value == value ? value : nan;
}

/* The lanes that go next: those furthest back, or after a whole slice those furthest ahead. `limit` is where they meet
 * others. */
static uint32_t choose_lanes(const ptx_warp *w, bool ahead, uint32_t *at, uint32_t *limit)
{
    uint32_t ready = w->alive & ~w->waiting & ~w->blocked, best = ahead ? 0 : UINT32_MAX, lanes = 0;
    for (uint32_t left = ready; left; left &= left - 1) {
        uint32_t it = w->at[__builtin_ctz(left)];
        if (ahead ? it > best : it < best) best = it;
    }
    *limit = UINT32_MAX;
    for (uint32_t left = ready; left; left &= left - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(left);
        if (w->at[lane] == best) lanes |= 1u << lane;
        else if (w->at[lane] > best && w->at[lane] < *limit) *limit = w->at[lane];
    }
    *at = best;
    return lanes;
}

static void put_lanes(ptx_warp *w, uint32_t lanes, uint32_t at)
{
    for (uint32_t left = lanes; left; left &= left - 1) w->at[__builtin_ctz(left)] = at;
}

static uint32_t waiting_at(const ptx_warp *w, uint32_t at)
{
    uint32_t lanes = 0;
    for (uint32_t left = w->waiting; left; left &= left - 1)
        if (w->at[__builtin_ctz(left)] == at) lanes |= left & -left;
    return lanes;
}

/* Which lanes an exchange is of. */
static uint32_t members_of(const ptx_warp *w, const ptx_instruction *in, int lane)
{
    bool named = in->operation == PTX_WARP_BARRIER || in->operation == PTX_SHUFFLE ||
                 in->operation == PTX_VOTE || in->operation == PTX_REDUX || in->operation == PTX_MATCH;
    return (named ? ptx_words(w, in->c)[lane] : UINT32_MAX) & w->alive;
}

/* Which of these lanes, and of those that wait here, have all their partners here. */
static uint32_t complete(const ptx_warp *w, const ptx_instruction *in, uint32_t lanes, uint32_t at)
{
    uint32_t here = lanes | waiting_at(w, at), come = 0;
    for (uint32_t left = here; left; left &= left - 1) {
        int lane = __builtin_ctz(left);
        if ((members_of(w, in, lane) & ~here) == 0) come |= 1u << lane;
    }
    return come;
}

/* Lanes that waited for others that have left since: they try again. */
static uint32_t free_waiting(ptx_warp *w, const ptx_code *code)
{
    for (uint32_t left = w->waiting; left; left &= left - 1) {
        uint32_t at = w->at[__builtin_ctz(left)], come = complete(w, &code->all[at], 0, at);
        w->waiting &= ~come;
        if (come) return come;
    }
    return 0;
}

#define EACH_LANE _Pragma("GCC ivdep") for (int lane = 0; lane < PTX_LANES; lane++)
#define SOURCE(type, slot) (const LANE_##type *)(const void *)(file + in->slot)
#define RESULT(type) (LANE_##type *)(full ? (void *)(file + in->d) : (void *)beside)

#define UNARY(ID, name, r, ta, value)                                                                        \
    case PTX_##ID: {                                                                                         \
        LANE_##r *to = RESULT(r);                                                                            \
        const LANE_##ta *pa = SOURCE(ta, a);                                                                 \
        EACH_LANE                                                                                            \
        {                                                                                                    \
            const READ_##ta a = (READ_##ta)pa[lane];                                                         \
            to[lane] = WRITE_##r(value);                                                                     \
        }                                                                                                    \
        goto BLEND_##r;                                                                                      \
    }
#define BINARY(ID, name, r, ta, tb, value)                                                                   \
    case PTX_##ID: {                                                                                         \
        LANE_##r *to = RESULT(r);                                                                            \
        const LANE_##ta *pa = SOURCE(ta, a);                                                                 \
        const LANE_##tb *pb = SOURCE(tb, b);                                                                 \
        EACH_LANE                                                                                            \
        {                                                                                                    \
            const READ_##ta a = (READ_##ta)pa[lane];                                                         \
            const READ_##tb b = (READ_##tb)pb[lane];                                                         \
            to[lane] = WRITE_##r(value);                                                                     \
        }                                                                                                    \
        goto BLEND_##r;                                                                                      \
    }
#define TERNARY(ID, name, r, ta, tb, tc, value)                                                              \
    case PTX_##ID: {                                                                                         \
        LANE_##r *to = RESULT(r);                                                                            \
        const LANE_##ta *pa = SOURCE(ta, a);                                                                 \
        const LANE_##tb *pb = SOURCE(tb, b);                                                                 \
        const LANE_##tc *pc = SOURCE(tc, c);                                                                 \
        EACH_LANE                                                                                            \
        {                                                                                                    \
            const READ_##ta a = (READ_##ta)pa[lane];                                                         \
            const READ_##tb b = (READ_##tb)pb[lane];                                                         \
            const READ_##tc c = (READ_##tc)pc[lane];                                                         \
            to[lane] = WRITE_##r(value);                                                                     \
        }                                                                                                    \
        goto BLEND_##r;                                                                                      \
    }
#define QUATERNARY(ID, name, r, ta, tb, tc, td, value)                                                       \
    case PTX_##ID: {                                                                                         \
        LANE_##r *to = RESULT(r);                                                                            \
        const LANE_##ta *pa = SOURCE(ta, a);                                                                 \
        const LANE_##tb *pb = SOURCE(tb, b);                                                                 \
        const LANE_##tc *pc = SOURCE(tc, c);                                                                 \
        const LANE_##td *pd = SOURCE(td, e);                                                                 \
        EACH_LANE                                                                                            \
        {                                                                                                    \
            const READ_##ta a = (READ_##ta)pa[lane];                                                         \
            const READ_##tb b = (READ_##tb)pb[lane];                                                         \
            const READ_##tc c = (READ_##tc)pc[lane];                                                         \
            const READ_##td d = (READ_##td)pd[lane];                                                         \
            to[lane] = WRITE_##r(value);                                                                     \
        }                                                                                                    \
        goto BLEND_##r;                                                                                      \
    }
#define SELECT(ID, name, r)                                                                                  \
    case PTX_##ID: {                                                                                         \
        LANE_##r *to = RESULT(r);                                                                            \
        const LANE_##r *pa = SOURCE(r, a), *pb = SOURCE(r, b);                                               \
        const uint32_t chosen = *ptx_words(w, in->c);                                                        \
        EACH_LANE to[lane] = chosen >> lane & 1 ? pa[lane] : pb[lane];                                       \
        goto BLEND_##r;                                                                                      \
    }
#define COMPARE(ID, name, ta, condition)                                                                     \
    case PTX_##ID: {                                                                                         \
        const LANE_##ta *pa = SOURCE(ta, a), *pb = SOURCE(ta, b);                                            \
        uint32_t bits = 0;                                                                                   \
        EACH_LANE                                                                                            \
        {                                                                                                    \
            const READ_##ta a = (READ_##ta)pa[lane], b = (READ_##ta)pb[lane];                                \
            bits |= (uint32_t)(condition) << lane;                                                           \
        }                                                                                                    \
        ptx_u32 *to = ptx_words(w, in->d);                                                                   \
        *to = (*to & ~lanes) | (bits & lanes);                                                               \
        break;                                                                                               \
    }
#define LOGIC(ID, name, count, value)                                                                        \
    case PTX_##ID: {                                                                                         \
        const uint32_t a = *ptx_words(w, in->a), b = *ptx_words(w, in->b);                                   \
        ptx_u32 *to = ptx_words(w, in->d);                                                                   \
        (void)b;                                                                                             \
        *to = (*to & ~lanes) | ((value)&lanes);                                                              \
        break;                                                                                               \
    }

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORS __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define VECTORS
#endif

/* Runs the lanes `group` from `at` on, until they have to wait, meet others, part, or leave. Returns the instructions. */
VECTORS static uint64_t run_lanes(ptx_block *block, ptx_warp *w, uint32_t group, uint32_t at, uint32_t limit)
{
    _Alignas(64) unsigned char beside[8 * PTX_LANES];
    ptx_instruction *const all = block->code->all;
    unsigned char *const file = w->file;
    const uint32_t count = block->code->count;
    uint64_t steps = 0, threads = 0;
    for (; steps < SLICE; steps++) {
        if (at >= limit || at >= count) break;
        ptx_instruction *in = &all[at];
        uint32_t lanes = group & (*ptx_words(w, in->guard) ^ in->invert);
        if (lanes == 0) {
            at++;
            continue;
        }
        const bool full = lanes == UINT32_MAX;
        threads += (uint32_t)__builtin_popcount(lanes);
        switch (in->operation) {
#include "ptx_ops.inc"
        case PTX_NOTHING: break;
        case PTX_BRANCH:
            if (lanes == group) {
                at = (uint32_t)in->imm;
                continue;
            }
            put_lanes(w, lanes, (uint32_t)in->imm);
            put_lanes(w, group & ~lanes, at + 1);
            goto parted;
        case PTX_CALL:
            for (int lane = 0; lane < PTX_LANES; lane++)
                if (lanes >> lane & 1) ptx_words(w, in->d)[lane] = at + 1;
            put_lanes(w, lanes, (uint32_t)in->imm);
            put_lanes(w, group & ~lanes, at + 1);
            goto parted;
        case PTX_RETURN:
            for (int lane = 0; lane < PTX_LANES; lane++)
                if (lanes >> lane & 1) w->at[lane] = ptx_words(w, in->a)[lane];
            put_lanes(w, group & ~lanes, at + 1);
            goto parted;
        case PTX_EXIT:
            ptx_finish_copies(block, w, lanes, 0, true);
            put_lanes(w, group & ~lanes, at + 1);
            w->alive &= ~lanes;
            ptx_open_barriers(block);
            goto parted;
        case PTX_BARRIER:
        case PTX_BARRIER_ARRIVE:
        case PTX_BARRIER_REDUCE: {
            int lane = __builtin_ctz(lanes);
            uint32_t index = ptx_words(w, in->a)[lane], expected = in->b ? ptx_words(w, in->b)[lane] : 0;
            put_lanes(w, group, at + 1);
            if (index > 15) {
                ptx_fail(block, w, lane, in, "barrier %u is none", index);
                goto parted;
            }
            if (in->operation == PTX_BARRIER_REDUCE) {
                uint32_t holds = (*ptx_words(w, in->c) ^ (in->high ? UINT32_MAX : 0)) & lanes;
                block->barriers[index].any |= holds != 0;
                block->barriers[index].not_all |= holds != lanes;
                block->barriers[index].population += (uint32_t)__builtin_popcount(holds);
            }
            ptx_arrive(block, w, (int)index, lanes, expected, in->operation != PTX_BARRIER_ARRIVE);
            goto parted;
        }
        case PTX_WARP_BARRIER:
        case PTX_SHUFFLE:
        case PTX_VOTE:
        case PTX_REDUX:
        case PTX_MATCH:
        case PTX_LOAD_MATRIX:
        case PTX_MMA: {
            uint32_t come = lanes == w->alive ? lanes : complete(w, in, lanes, at);
            if (come != lanes) {
                put_lanes(w, lanes, at);
                w->waiting = (w->waiting | lanes) & ~come;
                put_lanes(w, group & ~lanes, at + 1);
                group = (group & ~lanes) | come;
                if (come == 0) goto parted;
                lanes = come;
            }
            if (in->operation == PTX_LOAD_MATRIX) ptx_load_matrix(block, w, in, lanes);
            else if (in->operation == PTX_MMA) ptx_mma(block, w, in);
            else ptx_exchange(block, w, in, lanes);
            break;
        }
        case PTX_ACTIVE:
            for (int lane = 0; lane < PTX_LANES; lane++)
                if (lanes >> lane & 1) ptx_words(w, in->d)[lane] = lanes;
            break;
        case PTX_LOAD: ptx_load(block, w, in, lanes); break;
        case PTX_STORE: ptx_store(block, w, in, lanes); break;
        case PTX_ATOMIC: ptx_atomic(block, w, in, lanes); break;
        case PTX_COPY_LOCAL:
            for (int lane = 0; lane < PTX_LANES; lane++) {
                char *memory = w->local + (size_t)lane * block->code->local_bytes;
                if (lanes >> lane & 1) memmove(memory + in->imm, memory + in->b, in->c);
            }
            break;
        case PTX_COPY_ASYNC: ptx_copy_async(block, w, in, lanes); break;
        case PTX_COMMIT:
            for (int lane = 0; lane < PTX_LANES; lane++) w->group[lane] += lanes >> lane & 1;
            break;
        case PTX_WAIT_GROUP: ptx_finish_copies(block, w, lanes, (uint32_t)in->imm, false); break;
        case PTX_WAIT_ALL: ptx_finish_copies(block, w, lanes, 0, true); break;
        case PTX_PACK:
        case PTX_UNPACK: ptx_pack(block, w, in, lanes); break;
        case PTX_CARRY: ptx_carry(block, w, in, lanes); break;
        case PTX_TRAP: ptx_fail(block, w, __builtin_ctz(lanes), in, "the kernel stops itself (trap)"); break;
        default: ptx_fail(block, w, __builtin_ctz(lanes), in, "the instruction is not known here"); break;
        }
        if (block->failed) break;
        at++;
        continue;
    blend_words:
        if (!full) {
            ptx_u32 *to = ptx_words(w, in->d);
            const ptx_u32 *from = (const ptx_u32 *)(const void *)beside;
            EACH_LANE to[lane] = lanes >> lane & 1 ? from[lane] : to[lane];
        }
        at++;
        continue;
    blend_longs:
        if (!full) {
            ptx_u64 *to = ptx_longs(w, in->d);
            const ptx_u64 *from = (const ptx_u64 *)(const void *)beside;
            EACH_LANE to[lane] = lanes >> lane & 1 ? from[lane] : to[lane];
        }
        at++;
    }
    put_lanes(w, group, at);
parted:
    block->instructions += threads;
    return steps + 1;
}

bool ptx_run_warp(ptx_block *b, ptx_warp *w)
{
    bool moved = false;
    for (uint64_t steps = 0; steps < SLICE && !b->failed;) {
        uint32_t at, limit, group = choose_lanes(w, w->turn, &at, &limit);
        w->turn = false;
        if (group == 0) {
            if (free_waiting(w, b->code) == 0) break;
            continue;
        }
        moved = true;
        uint64_t ran = run_lanes(b, w, group, at, limit);
        w->turn = ran > SLICE;
        steps += ran;
    }
    return moved;
}
