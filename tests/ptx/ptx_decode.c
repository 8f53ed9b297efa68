/* ptx_decode.c - what an instruction means. See ptx_parse.h.
 *
 * An instruction that is not known becomes PTX_UNKNOWN: it is an error where it runs, not where it stands. */
#include "ptx_parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The words of a name, which is separated by dots. */
typedef struct words {
    char text[PTX_NAME];
    const char *all[16];
    uint32_t count;
} words;

static void split(words *w, const char *name)
{
    char *save = NULL;
    w->count = 0;
    snprintf(w->text, sizeof w->text, "%s", name);
    for (char *word = strtok_r(w->text, ".", &save); word && w->count < 16; word = strtok_r(NULL, ".", &save))
        w->all[w->count++] = word;
}

static bool has(const words *w, const char *word)
{
    for (uint32_t i = 0; i < w->count; i++)
        if (strcmp(w->all[i], word) == 0) return true;
    return false;
}

static const char *last(const words *w)
{
    return w->all[w->count - 1];
}

static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

/* ---- simple operations ---- */

/* Where the sign of an integer does not matter, there is one name. */
static void drop_sign(words *w)
{
    static const char *const all[] = {"add", "sub", "mov", "selp", "and", "or", "xor", "not", "shl", "neg"};
    static char type[8];
    const char *first = w->all[0], *t = last(w);
    bool moves = strcmp(first, "mov") == 0 || strcmp(first, "selp") == 0, drops = false;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drops |= strcmp(all[i], first) == 0;
    if (w->count > 2 && strcmp(w->all[1], "lo") == 0) drops = true;
    if (strcmp(first, "setp") == 0 && (strcmp(w->all[1], "eq") == 0 || strcmp(w->all[1], "ne") == 0))
        drops = true;
    if (!drops || !(t[0] == 's' || t[0] == 'u' || (moves && t[0] == 'f'))) return;
    snprintf(type, sizeof type, "b%s", t + 1);
    w->all[w->count - 1] = type;
}

/* A conversion of integers: the sign of the result does not matter, and that of the operand only where it grows. */
static void drop_conversion(words *w)
{
    static char to[8], from[8];
    if (w->count != 3 || !strchr("us", w->all[1][0]) || !strchr("us", w->all[2][0])) return;
    int to_bits = atoi(w->all[1] + 1), from_bits = atoi(w->all[2] + 1);
    if (to_bits == from_bits) {
        snprintf(to, sizeof to, "b%d", to_bits);
        w->all[0] = "mov";
        w->all[1] = to;
        w->count = 2;
        return;
    }
    snprintf(to, sizeof to, "u%d", to_bits);
    snprintf(from, sizeof from, "%c%d", from_bits > to_bits ? 'u' : w->all[2][0], from_bits);
    w->all[1] = to;
    w->all[2] = from;
}

static void drop_rounding(words *w)
{
    if (w->count != 3 || strcmp(w->all[1], "rn") != 0) return;
    if (strcmp(w->all[0], "add") != 0 && strcmp(w->all[0], "sub") != 0 && strcmp(w->all[0], "mul") != 0)
        return;
    w->all[1] = w->all[2];
    w->count = 2;
}

static bool decode_simple(ptx_parser *p, words *w, ptx_operand *operands, uint32_t count)
{
    char name[PTX_NAME] = "";
    if (strcmp(w->all[0], "cvt") == 0) drop_conversion(w);
    drop_rounding(w);
    drop_sign(w);
    for (uint32_t i = 0, at = 0; i < w->count; i++)
        at += (uint32_t)snprintf(name + at, sizeof name - at, "%s%s", i ? "." : "", w->all[i]);
    const ptx_simple *it = ptx_find_simple(name);
    if (it == NULL || count != it->operand_count + 1u) return false;
    uint32_t slots[5] = {0};
    for (uint32_t i = 0; i < count; i++) {
        const ptx_operand *o = &operands[i];
        ptx_class class = i ? it->operands[i - 1] : it->result;
        if (o->what == PTX_IS_NAME || o->what == PTX_IS_VECTOR || o->memory || o->second || o->negated)
            return false;
        operands[i].reads = i > 0;
        slots[i] = ptx_slot_of(p, o, class);
    }
    ptx_instruction *in = ptx_emit(p, (ptx_operation)it->operation);
    in->d = slots[0], in->a = slots[1], in->b = slots[2], in->c = slots[3], in->e = slots[4];
    return true;
}

/* ---- moves ---- */

static bool decode_move(ptx_parser *p, const words *w, ptx_operand *operands, uint32_t count)
{
    const ptx_operand *vector = operands[0].what == PTX_IS_VECTOR ? &operands[0] : &operands[1];
    if (count != 2 || vector->what != PTX_IS_VECTOR) return false;
    bool unpacks = vector == &operands[0];
    uint32_t bits = (uint32_t)atoi(last(w) + 1), slot;
    slot = ptx_slot_of(p, &operands[unpacks], bits == 64 ? PTX_B64 : PTX_B32);
    ptx_instruction *in = ptx_emit(p, unpacks ? PTX_UNPACK : PTX_PACK);
    in->count = (uint8_t)vector->parts;
    in->width = (uint8_t)(bits / 8 / vector->parts);
    in->classes = bits == 64 ? PTX_B64 : PTX_B32;
    *(unpacks ? &in->a : &in->d) = slot;
    in->more = p->code->more_count;
    for (uint32_t i = 0; i < vector->parts; i++) {
        ptx_more(p, vector->slots[i]);
        ptx_more(p, vector->classes[i]);
    }
    return true;
}

/* cvta: shared and local memory are windows of the generic addresses, and all others are generic. */
static bool decode_address(ptx_parser *p, const words *w, ptx_operand *operands, uint32_t count)
{
    bool shared = has(w, "shared") || has(w, "shared::cta"), local = has(w, "local");
    ptx_class class = strcmp(last(w), "u64") == 0 ? PTX_B64 : PTX_B32;
    if (count != 2 || (!shared && !local && !has(w, "global") && !has(w, "const") && !has(w, "param")))
        return false;
    uint64_t window = shared ? PTX_SHARED_WINDOW : local ? PTX_LOCAL_WINDOW : 0;
    uint32_t to = ptx_slot_of(p, &operands[0], class), from = ptx_slot_of(p, &operands[1], class);
    uint32_t offset = ptx_constant_slot(p, class, has(w, "to") ? 0 - window : window);
    ptx_instruction *in = ptx_emit(
        p, (ptx_operation)ptx_find_simple(class == PTX_B64 ? "add.b64" : "add.b32")->operation);
    in->d = to, in->a = from, in->b = offset;
    return true;
}

/* ---- memory ---- */

static ptx_space space_of(const words *w)
{
    if (has(w, "global") || has(w, "const")) return PTX_GLOBAL;
    if (has(w, "shared") || has(w, "shared::cta")) return PTX_SHARED;
    if (has(w, "local")) return PTX_LOCAL;
    if (has(w, "param")) return PTX_PARAM;
    return PTX_GENERIC;
}

/* The type of an element: its bytes and what it is. */
static bool type_of(const char *type, ptx_instruction *in)
{
    int bits = 0;
    if (begins(type, "bf16")) in->kind = PTX_BFLOAT, bits = 16;
    else if (type[0] == 'f') in->kind = PTX_FLOAT, bits = atoi(type + 1);
    else if (type[0] == 's') in->kind = PTX_SIGNED, bits = atoi(type + 1);
    else if (type[0] == 'u' || type[0] == 'b') in->kind = PTX_BITS, bits = atoi(type + 1);
    if (in->kind == PTX_FLOAT && bits == 16) in->kind = PTX_HALF;
    in->width = (uint8_t)(bits / 8);
    return in->width != 0;
}

static void set_address(ptx_parser *p, ptx_instruction *in, const ptx_operand *o, uint32_t slot)
{
    in->a = slot;
    in->wide_address = o->what != PTX_IS_REGISTER ? !(o->variable && o->value == PTX_DYNAMIC)
                                                  : o->class == PTX_B64;
    in->imm = o->offset;
    if (in->space == PTX_PARAM && o->variable && o->space == PTX_LOCAL) in->space = PTX_LOCAL;
    (void)p;
}

static uint32_t address_slot(ptx_parser *p, const ptx_operand *o)
{
    if (o->what == PTX_IS_REGISTER) return ptx_slot_of(p, o, o->class);
    return ptx_slot_of(p, o, o->variable && o->value == PTX_DYNAMIC ? PTX_B32 : PTX_B64);
}

/* Registers of a load or a store: one, or a vector. */
static uint32_t list_registers(ptx_parser *p, const ptx_operand *o, uint32_t width)
{
    uint32_t first, slot = 0;
    if (o->what != PTX_IS_VECTOR)
        slot = ptx_slot_of(p, o,
                           o->what == PTX_IS_REGISTER && !o->sink ? o->class
                           : width == 8                           ? PTX_B64
                                                                  : PTX_B32);
    first = p->code->more_count;
    if (o->what != PTX_IS_VECTOR) {
        ptx_more(p, slot);
        ptx_more(p, o->what == PTX_IS_REGISTER && !o->sink ? o->class : width == 8 ? PTX_B64 : PTX_B32);
    }
    for (uint32_t i = 0; i < o->parts; i++) {
        ptx_more(p, o->slots[i]);
        ptx_more(p, o->classes[i]);
    }
    return first;
}

static bool decode_memory(ptx_parser *p, const words *w, ptx_operand *operands, uint32_t count)
{
    bool loads = begins(w->all[0], "ld");
    const ptx_operand *address = &operands[loads], *data = &operands[!loads];
    ptx_instruction type = {0};
    if (count != 2 || !address->memory || !type_of(last(w), &type)) return false;
    if (has(w, "shared::cluster") || has(w, "async")) return false;
    uint32_t slot = address_slot(p, address), more = list_registers(p, data, type.width);
    ptx_instruction *in = ptx_emit(p, loads ? PTX_LOAD : PTX_STORE);
    in->width = type.width;
    in->kind = type.kind;
    in->space = (uint8_t)space_of(w);
    in->count = (uint8_t)(data->parts ? data->parts : 1);
    in->more = more;
    set_address(p, in, address, slot);
    return true;
}

static bool action_of(const words *w, uint8_t *action)
{
    static const struct {
        const char *word;
        ptx_action action;
    } all[] = {{"add", PTX_ADD},         {"min", PTX_MIN},
               {"max", PTX_MAX},         {"and", PTX_AND},
               {"or", PTX_OR},           {"xor", PTX_XOR},
               {"exch", PTX_EXCHANGE},   {"cas", PTX_COMPARE_AND_SWAP},
               {"inc", PTX_INCREMENT},   {"dec", PTX_DECREMENT},
               {"popc", PTX_POPULATION}, {"all", PTX_ALL},
               {"any", PTX_ANY},         {"uni", PTX_UNIFORM},
               {"ballot", PTX_BALLOT},   {"up", PTX_UP},
               {"down", PTX_DOWN},       {"bfly", PTX_BUTTERFLY},
               {"idx", PTX_INDEX}};
    for (uint32_t i = 1; i < w->count; i++)
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            if (strcmp(w->all[i], all[k].word) == 0) {
                *action = (uint8_t)all[k].action;
                return true;
            }
    return false;
}

/* atom d, [a], b, c and red [a], b. */
static bool decode_atomic(ptx_parser *p, const words *w, ptx_operand *operands, uint32_t count)
{
    uint32_t first = strcmp(w->all[0], "atom") == 0, b, c = 0, d = 0;
    ptx_instruction type = {0};
    if (count < first + 2 || count > first + 3 || !operands[first].memory || !type_of(last(w), &type))
        return false;
    if (!action_of(w, &type.action) || has(w, "v2") || has(w, "v4") || has(w, "noftz")) return false;
    ptx_class class = type.width == 8 ? PTX_B64 : type.width == 2 ? PTX_B16 : PTX_B32;
    if (first) d = ptx_slot_of(p, &operands[0], class);
    b = ptx_slot_of(p, &operands[first + 1], class);
    if (count == first + 3) c = ptx_slot_of(p, &operands[first + 2], class);
    uint32_t slot = address_slot(p, &operands[first]);
    ptx_instruction *in = ptx_emit(p, PTX_ATOMIC);
    in->width = type.width;
    in->kind = type.kind;
    in->action = type.action;
    in->space = (uint8_t)space_of(w);
    in->classes = (uint8_t) class;
    in->d = d, in->b = b, in->c = c;
    set_address(p, in, &operands[first], slot);
    return true;
}

static bool decode_copy(ptx_parser *p, const words *w, ptx_operand *operands, uint32_t count)
{
    if (has(w, "commit_group")) {
        ptx_emit(p, PTX_COMMIT);
        return true;
    }
    if (has(w, "wait_all")) {
        ptx_emit(p, PTX_WAIT_ALL);
        return true;
    }
    if (has(w, "wait_group")) {
        ptx_emit(p, PTX_WAIT_GROUP)->imm = (int64_t)operands[0].value;
        return count == 1;
    }
    if (has(w, "bulk") || has(w, "mbarrier") || count < 3 || !operands[0].memory || !operands[1].memory)
        return false;
    uint32_t to = address_slot(p, &operands[0]), from = address_slot(p, &operands[1]);
    uint32_t read = count > 3 ? ptx_slot_of(p, &operands[3], PTX_B32) : 0;
    ptx_instruction *in = ptx_emit(p, PTX_COPY_ASYNC);
    set_address(p, in, &operands[0], to);
    in->space = PTX_GLOBAL;
    in->b = from;
    in->d = (uint32_t)(int32_t)operands[1].offset;
    in->c = read;
    in->width = (uint8_t)operands[2].value;
    return true;
}

/* ---- the warp, the block ---- */

static bool decode_shuffle(ptx_parser *p, const words *w, ptx_operand *o, uint32_t count)
{
    uint8_t action = 0;
    if (count != 5 || !action_of(w, &action)) return false;
    uint32_t d = ptx_slot_of(p, &o[0], PTX_B32), a = ptx_slot_of(p, &o[1], PTX_B32);
    uint32_t b = ptx_slot_of(p, &o[2], PTX_B32), e = ptx_slot_of(p, &o[3], PTX_B32),
             c = ptx_slot_of(p, &o[4], PTX_B32);
    uint32_t valid = o[0].second && !o[0].second->sink ? ptx_slot_of(p, o[0].second, PTX_PRED) : 0;
    ptx_instruction *in = ptx_emit(p, PTX_SHUFFLE);
    in->action = action;
    in->d = d, in->a = a, in->b = b, in->c = c, in->e = e, in->more = valid;
    return true;
}

/* vote.sync.ballot.b32 d, {!}a, members; redux.sync.add.s32 d, a, members; match.any.sync.b32 d, a, members. */
static bool decode_vote(ptx_parser *p, const words *w, ptx_operand *o, uint32_t count)
{
    bool votes = strcmp(w->all[0], "vote") == 0, matches = strcmp(w->all[0], "match") == 0;
    ptx_instruction type = {0};
    if (count != 3 || o[0].second || !action_of(w, &type.action)) return false;
    type_of(last(w), &type);
    ptx_class result = votes && type.action != PTX_BALLOT ? PTX_PRED : PTX_B32;
    uint32_t d = ptx_slot_of(p, &o[0], result), c = ptx_slot_of(p, &o[2], PTX_B32);
    uint32_t a = ptx_slot_of(p, &o[1], votes ? PTX_PRED : type.width == 8 ? PTX_B64 : PTX_B32);
    ptx_instruction *in = ptx_emit(p, votes ? PTX_VOTE : matches ? PTX_MATCH : PTX_REDUX);
    in->action = type.action;
    in->kind = type.kind;
    in->width = type.width;
    in->d = d, in->a = a, in->c = c;
    in->high = o[1].negated;
    return true;
}

static bool decode_barrier(ptx_parser *p, const words *w, ptx_operand *o, uint32_t count)
{
    if (has(w, "cluster")) return false;
    if (has(w, "warp")) {
        uint32_t c = ptx_slot_of(p, &o[0], PTX_B32);
        ptx_emit(p, PTX_WARP_BARRIER)->c = c;
        return count == 1;
    }
    bool reduces = has(w, "red"), arrives = has(w, "arrive");
    uint8_t action = 0;
    uint32_t first = reduces, d = 0, c = 0, threads = 0;
    if (count < first + 1 || count > first + 3 || (reduces && !action_of(w, &action))) return false;
    if (reduces) {
        d = ptx_slot_of(p, &o[0], action == PTX_POPULATION ? PTX_B32 : PTX_PRED);
        c = ptx_slot_of(p, &o[count - 1], PTX_PRED);
    }
    uint32_t index = ptx_slot_of(p, &o[first], PTX_B32);
    if (count == first + (reduces ? 3 : 2)) threads = ptx_slot_of(p, &o[first + 1], PTX_B32);
    bool negated = reduces && o[count - 1].negated;
    ptx_instruction *in = ptx_emit(p, reduces   ? PTX_BARRIER_REDUCE
                                      : arrives ? PTX_BARRIER_ARRIVE
                                                : PTX_BARRIER);
    in->a = index, in->b = threads, in->c = c, in->d = d;
    in->action = action;
    in->high = negated;
    return true;
}

/* ---- matrices ---- */

static bool decode_matrix(ptx_parser *p, const words *w, ptx_operand *o, uint32_t count)
{
    bool loads = strcmp(w->all[0], "ldmatrix") == 0;
    if (loads) {
        if (count != 2 || !o[1].memory || !has(w, "m8n8") || !has(w, "b16")) return false;
        uint32_t slot = address_slot(p, &o[1]), more = list_registers(p, &o[0], 4);
        ptx_instruction *in = ptx_emit(p, PTX_LOAD_MATRIX);
        in->count = (uint8_t)(o[0].parts ? o[0].parts : 1);
        in->high = has(w, "trans");
        in->space = PTX_SHARED;
        in->more = more;
        set_address(p, in, &o[1], slot);
        return true;
    }
    /* mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 */
    if (w->count != 10 || count != 4 || strcmp(w->all[6], "f32") != 0 || strcmp(w->all[9], "f32") != 0)
        return false;
    bool deep = strcmp(w->all[3], "m16n8k16") == 0;
    if (!deep && strcmp(w->all[3], "m16n8k8") != 0) return false;
    uint8_t kind = strcmp(w->all[7], "bf16") == 0 ? PTX_BFLOAT : PTX_HALF;
    if ((kind == PTX_HALF && strcmp(w->all[7], "f16") != 0) || strcmp(w->all[7], w->all[8]) != 0)
        return false;
    const uint32_t parts[4] = {4, deep ? 4 : 2, deep ? 2 : 1, 4};
    uint32_t slots[14], at = 0;
    for (uint32_t i = 0; i < 4; i++) {
        if (parts[i] == 1 && o[i].what == PTX_IS_REGISTER) slots[at++] = o[i].slot;
        else if (o[i].parts != parts[i]) return false;
        for (uint32_t k = 0; k < o[i].parts; k++)
            slots[at++] = o[i].classes[k] == PTX_B64 ? ptx_constant_slot(p, PTX_B32, 0) : o[i].slots[k];
    }
    ptx_instruction *in = ptx_emit(p, PTX_MMA);
    in->kind = kind;
    in->count = deep ? 16 : 8;
    in->more = p->code->more_count;
    for (uint32_t i = 0; i < at; i++) ptx_more(p, slots[i]);
    return true;
}

/* ---- carries: add.cc, addc, addc.cc, sub.cc, subc, subc.cc, mad.lo.cc, madc.hi and so on ---- */

static bool decode_carry(ptx_parser *p, const words *w, ptx_operand *o, uint32_t count)
{
    const char *first = w->all[0];
    bool in_carry = first[strlen(first) - 1] == 'c', mad = begins(first, "mad"), sub = begins(first, "sub");
    if ((!in_carry && !has(w, "cc")) || count != (mad ? 4u : 3u)) return false;
    ptx_class class = atoi(last(w) + 1) == 64 ? PTX_B64 : PTX_B32;
    uint32_t slots[4] = {0};
    for (uint32_t i = 0; i < count; i++) slots[i] = ptx_slot_of(p, &o[i], class);
    ptx_instruction *in = ptx_emit(p, PTX_CARRY);
    in->d = slots[0], in->a = slots[1], in->b = slots[2], in->c = slots[3];
    in->classes = (uint8_t) class;
    in->action = mad ? PTX_ALL : sub ? PTX_DOWN : PTX_ADD;
    in->high = has(w, "hi");
    in->kind = last(w)[0] == 's' ? PTX_SIGNED : PTX_BITS;
    in->carries_in = in_carry;
    in->carries_out = has(w, "cc");
    return true;
}

/* ---- all of them ---- */

static bool decode_flow(ptx_parser *p, const words *w, ptx_operand *o, uint32_t count)
{
    if (strcmp(w->all[0], "bra") == 0 && count == 1 && o[0].what == PTX_IS_NAME) {
        ptx_emit(p, PTX_BRANCH);
        ptx_jump_to(p, o[0].name);
    } else if (strcmp(w->all[0], "ret") == 0 && p->function) {
        ptx_emit(p, PTX_RETURN)->a = p->function->back;
    } else if (strcmp(w->all[0], "ret") == 0 || strcmp(w->all[0], "exit") == 0) {
        ptx_emit(p, PTX_EXIT);
    } else if (strcmp(w->all[0], "trap") == 0) {
        ptx_emit(p, PTX_TRAP);
    } else if (strcmp(w->all[0], "activemask") == 0 && count == 1) {
        uint32_t d = ptx_slot_of(p, &o[0], PTX_B32);
        ptx_emit(p, PTX_ACTIVE)->d = d;
    } else {
        return false;
    }
    return true;
}

void ptx_decode(ptx_parser *p, const char *name, ptx_operand *operands, uint32_t count)
{
    static const struct {
        const char *first;
        bool (*decode)(ptx_parser *p, const words *w, ptx_operand *operands, uint32_t count);
    } all[] = {{"mov", decode_move},    {"cvta", decode_address},    {"ld", decode_memory},
               {"st", decode_memory},   {"ldu", decode_memory},      {"atom", decode_atomic},
               {"red", decode_atomic},  {"cp", decode_copy},         {"shfl", decode_shuffle},
               {"vote", decode_vote},   {"redux", decode_vote},      {"match", decode_vote},
               {"bar", decode_barrier}, {"barrier", decode_barrier}, {"ldmatrix", decode_matrix},
               {"mma", decode_matrix},  {"add", decode_carry},       {"addc", decode_carry},
               {"sub", decode_carry},   {"subc", decode_carry},      {"mad", decode_carry},
               {"madc", decode_carry}};
    static const char *const nothing[] = {"membar",   "fence",     "griddepcontrol",
                                          "prefetch", "nanosleep", "discard"};
    words w;
    split(&w, name);
    if (w.count == 0) {
        ptx_wrong(p, "an instruction");
        return;
    }
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++)
        if (strcmp(w.all[0], nothing[i]) == 0) {
            ptx_emit(p, PTX_NOTHING);
            return;
        }
    if (decode_flow(p, &w, operands, count)) return;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(w.all[0], all[i].first) == 0 && all[i].decode(p, &w, operands, count)) return;
    if (decode_simple(p, &w, operands, count) || p->failed) return;
    ptx_emit(p, PTX_UNKNOWN);
}
