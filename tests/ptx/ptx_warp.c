/* ptx_warp.c - exchanges between the lanes of a warp, and instructions that are rare. See ptx_code.h. */
#include "ptx_code.h"

#include <string.h>

/* ---- exchanges ---- */

/* The lane that `lane` reads, and whether it is in range. */
static int source_of(const ptx_instruction *in, int lane, uint32_t b, uint32_t c, bool *valid)
{
    int segment = (int)(c >> 8 & 31), clamp = (int)(c & 31), offset = (int)(b & 31);
    int low = lane & segment, high = low | (clamp & ~segment), from;
    switch ((ptx_action)in->action) {
    case PTX_UP:
        from = lane - offset;
        *valid = from >= high;
        break;
    case PTX_DOWN:
        from = lane + offset;
        *valid = from <= high;
        break;
    case PTX_BUTTERFLY:
        from = lane ^ offset;
        *valid = from <= high;
        break;
    default:
        from = low | (offset & ~segment);
        *valid = from <= high;
        break;
    }
    return *valid ? from : lane;
}

/* All lanes, across the whole warp, the same distance: what nearly every shuffle is. */
static bool shuffle_whole(ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    const ptx_u32 *offsets = ptx_words(w, in->b), *clamps = ptx_words(w, in->e);
    uint32_t values[PTX_LANES], same = 1;
    if (lanes != UINT32_MAX || in->action != PTX_BUTTERFLY) return false;
    for (int lane = 0; lane < PTX_LANES; lane++) same &= offsets[lane] == offsets[0] && clamps[lane] == 31;
    if (!same) return false;
    memcpy(values, ptx_words(w, in->a), sizeof values);
    for (uint32_t lane = 0; lane < PTX_LANES; lane++)
        ptx_words(w, in->d)[lane] = values[lane ^ (offsets[0] & 31)];
    if (in->more) *ptx_words(w, in->more) = UINT32_MAX;
    return true;
}

static void shuffle(ptx_block *b, ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    uint32_t values[PTX_LANES];
    if (shuffle_whole(w, in, lanes)) return;
    memcpy(values, ptx_words(w, in->a), sizeof values);
    uint32_t valid_lanes = 0, reads[PTX_LANES];
    for (int lane = 0; lane < PTX_LANES; lane++) {
        bool valid;
        if (!(lanes >> lane & 1)) continue;
        int from = source_of(in, lane, ptx_words(w, in->b)[lane], ptx_words(w, in->e)[lane], &valid);
        if (!(lanes >> from & 1)) {
            ptx_fail(b, w, lane, in, "reads lane %d, which takes no part (lanes %08x)", from, lanes);
            return;
        }
        reads[lane] = values[from];
        valid_lanes |= (uint32_t)valid << lane;
    }
    for (int lane = 0; lane < PTX_LANES; lane++)
        if (lanes >> lane & 1) ptx_words(w, in->d)[lane] = reads[lane];
    if (in->more) *ptx_words(w, in->more) = (*ptx_words(w, in->more) & ~lanes) | valid_lanes;
}

static void vote(ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    uint32_t holds = (*ptx_words(w, in->a) ^ (in->high ? UINT32_MAX : 0)) & lanes;
    bool result = in->action == PTX_ALL   ? holds == lanes
                  : in->action == PTX_ANY ? holds != 0
                                          : holds == 0 || holds == lanes;
    if (in->action != PTX_BALLOT) {
        *ptx_words(w, in->d) = (*ptx_words(w, in->d) & ~lanes) | (result ? lanes : 0);
        return;
    }
    for (int lane = 0; lane < PTX_LANES; lane++)
        if (lanes >> lane & 1) ptx_words(w, in->d)[lane] = holds;
}

static void reduce(ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    uint32_t result = ptx_words(w, in->a)[__builtin_ctz(lanes)];
    for (uint32_t left = lanes & (lanes - 1); left; left &= left - 1) {
        uint32_t it = ptx_words(w, in->a)[__builtin_ctz(left)];
        bool less = in->kind == PTX_SIGNED ? (int32_t)it < (int32_t)result : it < result;
        switch ((ptx_action)in->action) {
        case PTX_ADD: result += it; break;
        case PTX_MIN: result = less ? it : result; break;
        case PTX_MAX: result = less ? result : it; break;
        case PTX_AND: result &= it; break;
        case PTX_OR: result |= it; break;
        default: result ^= it; break;
        }
    }
    for (uint32_t left = lanes; left; left &= left - 1) ptx_words(w, in->d)[__builtin_ctz(left)] = result;
}

/* match.any: the lanes with the same value. match.all has a predicate, too, and is not decoded. */
static void match(ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    uint32_t results[PTX_LANES] = {0};
    ptx_class class = in->width == 8 ? PTX_B64 : PTX_B32;
    for (int lane = 0; lane < PTX_LANES; lane++)
        for (int other = 0; other < PTX_LANES; other++)
            if (lanes >> other & 1 && ptx_lane(w, in->a, class, lane) == ptx_lane(w, in->a, class, other))
                results[lane] |= 1u << other;
    for (int lane = 0; lane < PTX_LANES; lane++)
        if (lanes >> lane & 1) ptx_words(w, in->d)[lane] = results[lane];
}

/* An exchange is of the lanes that are named: others at the same instruction would be in another exchange. */
void ptx_exchange(ptx_block *b, ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    while (lanes && !b->failed) {
        uint32_t members = ptx_words(w, in->c)[__builtin_ctz(lanes)], these = lanes & members;
        if (these == 0 || !(members >> __builtin_ctz(lanes) & 1)) {
            ptx_fail(b, w, __builtin_ctz(lanes), in, "the lane is not among those it names (%08x)", members);
            return;
        }
        switch (in->operation) {
        case PTX_SHUFFLE: shuffle(b, w, in, these); break;
        case PTX_VOTE: vote(w, in, these); break;
        case PTX_REDUX: reduce(w, in, these); break;
        case PTX_MATCH: match(w, in, these); break;
        default: break;
        }
        lanes &= ~these;
    }
}

/* ---- parts of registers ---- */

/* Two halves of a 32-bit register, in all lanes: what nearly every one is. */
static bool pack_halves(const ptx_warp *w, const ptx_instruction *in, const uint32_t *more, uint32_t lanes)
{
    if (lanes != UINT32_MAX || in->width != 2 || in->count != 2) return false;
    if (more[1] == PTX_B64 || more[3] == PTX_B64) return false;
    ptx_u32 *low = ptx_words(w, more[0]), *high = ptx_words(w, more[2]);
    for (int lane = 0; lane < PTX_LANES; lane++) {
        if (in->operation == PTX_UNPACK) {
            uint32_t value = ptx_words(w, in->a)[lane];
            low[lane] = value & 0xffff;
            high[lane] = value >> 16;
        } else {
            ptx_words(w, in->d)[lane] = (low[lane] & 0xffff) | high[lane] << 16;
        }
    }
    return true;
}

void ptx_pack(ptx_block *b, ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    const uint32_t *more = b->code->more + in->more;
    if (pack_halves(w, in, more, lanes)) return;
    uint64_t mask = in->width == 8 ? ~(uint64_t)0 : ((uint64_t)1 << 8 * in->width) - 1;
    for (uint32_t left = lanes; left; left &= left - 1) {
        int lane = __builtin_ctz(left);
        if (in->operation == PTX_UNPACK) {
            uint64_t value = ptx_lane(w, in->a, (ptx_class)in->classes, lane);
            for (uint32_t i = 0; i < in->count; i++, value >>= 8 * in->width)
                ptx_set_lane(w, more[2 * i], (ptx_class)more[2 * i + 1], lane, value & mask);
        } else {
            uint64_t value = 0;
            for (uint32_t i = in->count; i-- > 0;)
                value = value << 8 * in->width |
                        (ptx_lane(w, more[2 * i], (ptx_class)more[2 * i + 1], lane) & mask);
            ptx_set_lane(w, in->d, (ptx_class)in->classes, lane, value);
        }
    }
}

/* ---- carries ---- */

static unsigned __int128 product(const ptx_instruction *in, uint64_t a, uint64_t b)
{
    if (in->kind != PTX_SIGNED) return (unsigned __int128)a * b;
    if (in->classes == PTX_B64) return (unsigned __int128)((__int128)(int64_t)a * (int64_t)b);
    return (unsigned __int128)((__int128)(int32_t)a * (int32_t)b);
}

void ptx_carry(ptx_block *b, ptx_warp *w, const ptx_instruction *in, uint32_t lanes)
{
    ptx_class class = (ptx_class)in->classes;
    uint32_t bits = class == PTX_B64 ? 64 : 32;
    uint64_t mask = class == PTX_B64 ? ~(uint64_t)0 : UINT32_MAX;
    for (uint32_t left = lanes; left; left &= left - 1) {
        int lane = __builtin_ctz(left);
        uint32_t *carries = &((uint32_t *)(void *)w->file)[b->code->carry / 4];
        uint64_t x = ptx_lane(w, in->a, class, lane), y = ptx_lane(w, in->b, class, lane),
                 carry = in->carries_in ? *carries >> lane & 1 : 0;
        if (in->action == PTX_ALL) {
            unsigned __int128 whole = product(in, x, y);
            x = (uint64_t)(in->high ? whole >> bits : whole) & mask;
            y = ptx_lane(w, in->c, class, lane);
        }
        unsigned __int128 sum = in->action == PTX_DOWN ? (unsigned __int128)x - y - carry
                                                       : (unsigned __int128)x + y + carry;
        ptx_set_lane(w, in->d, class, lane, (uint64_t)sum & mask);
        if (in->carries_out) *carries = (*carries & ~(1u << lane)) | (uint32_t)(sum >> bits & 1) << lane;
    }
}
