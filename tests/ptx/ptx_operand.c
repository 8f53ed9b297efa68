/* ptx_operand.c - words, numbers and operands in the text of a kernel. See ptx_parse.h. */
#include "ptx_parse.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ptx_skip(ptx_parser *p)
{
    while (isspace((unsigned char)*p->at)) p->at++;
}

bool ptx_take(ptx_parser *p, char c)
{
    ptx_skip(p);
    if (*p->at != c) return false;
    p->at++;
    return true;
}

static bool in_word(const char *p)
{
    return isalnum((unsigned char)*p) || (*p && strchr("_$%.", *p));
}

/* Two colons are part of a word, as in .shared::cta; one ends a label. */
bool ptx_word(ptx_parser *p, char name[PTX_NAME])
{
    size_t length = 0;
    ptx_skip(p);
    const char *at = p->at;
    for (; in_word(at) || (at[0] == ':' && at[1] == ':') || (length && at[0] == ':' && at[-1] == ':'); at++) {
        if (length + 1 < PTX_NAME) name[length++] = *at;
        else ptx_wrong(p, "a name of more than %d bytes", PTX_NAME);
    }
    name[length] = '\0';
    p->at = at;
    return length > 0;
}

int64_t ptx_integer(ptx_parser *p)
{
    char *end;
    ptx_skip(p);
    int64_t value = *p->at == '-' ? strtoll(p->at, &end, 0) : (int64_t)strtoull(p->at, &end, 0);
    if (end == p->at) ptx_wrong(p, "a number");
    while (*end == 'U') end++;
    p->at = end;
    return value;
}

/* 0fXXXXXXXX and 0dXXXXXXXXXXXXXXXX are the bits of a float. */
static void read_number(ptx_parser *p, ptx_operand *o)
{
    o->what = PTX_IS_VALUE;
    if (p->at[0] == '0' && p->at[1] && strchr("fFdD", p->at[1])) {
        char *end;
        o->value = strtoull(p->at + 2, &end, 16);
        p->at = end;
    } else {
        o->value = (uint64_t)ptx_integer(p);
    }
}

/* ---- names that stand for values ---- */

static uint32_t special_slot(ptx_parser *p, const char *name)
{
    static const char *const names[PTX_SPECIALS] = {
        "%tid.x",       "%tid.y",   "%tid.z",          "%ntid.x",      "%ntid.y",      "%ntid.z",
        "%ctaid.x",     "%ctaid.y", "%ctaid.z",        "%nctaid.x",    "%nctaid.y",    "%nctaid.z",
        "%laneid",      "%warpid",  "%lanemask_lt",    "%lanemask_le", "%lanemask_gt", "%lanemask_ge",
        "%lanemask_eq", "%clock",   "%cluster_ctarank"};
    for (int i = 0; i < PTX_SPECIALS; i++)
        if (strcmp(names[i], name) == 0) {
            if (p->code->special[i] == 0) p->code->special[i] = ptx_new_slot(p, PTX_B32);
            return p->code->special[i];
        }
    return 0;
}

/* A variable of the module. One in shared memory gets its place where it is first named; dynamic ones lie behind all
 * others, and ptx_decode.c adds where that is: here they begin at 0. */
static bool module_variable(ptx_parser *p, ptx_operand *o)
{
    for (size_t i = 0; i < p->module->variable_count; i++) {
        const ptx_variable *v = &p->module->variables[i];
        if (strcmp(v->name, o->name) != 0) continue;
        o->space = v->space;
        if (v->space == PTX_GLOBAL) {
            o->value = (uintptr_t)v->at;
        } else if (v->dynamic) {
            o->value = PTX_DYNAMIC;
        } else {
            if (!p->placed[i]) {
                p->places[i] = p->code->shared_bytes = (p->code->shared_bytes + v->align - 1) / v->align *
                                                       v->align;
                p->code->shared_bytes += v->bytes;
                p->placed[i] = true;
            }
            o->value = p->places[i];
        }
        o->what = PTX_IS_VALUE;
        o->variable = true;
        return true;
    }
    return false;
}

static void resolve(ptx_parser *p, ptx_operand *o)
{
    const ptx_symbol *it = ptx_find_symbol(p, o->name);
    o->what = PTX_IS_NAME;
    if (strcmp(o->name, "_") == 0) {
        o->what = PTX_IS_REGISTER;
        o->sink = true;
    } else if (it && it->is_register) {
        uint32_t index = it->numbered ? (uint32_t)strtoul(o->name + strlen(it->name), NULL, 10) : 0;
        if (index >= it->count) ptx_wrong(p, "register %s is not declared", o->name);
        o->what = PTX_IS_REGISTER;
        o->class = it->class;
        o->slot = it->slot + index * (it->class == PTX_PRED  ? 4
                                      : it->class == PTX_B64 ? 8 * PTX_LANES
                                                             : 4 * PTX_LANES);
    } else if (it) {
        o->what = PTX_IS_VALUE;
        o->variable = true;
        o->space = it->space;
        o->value = it->address;
    } else if (o->name[0] == '%') {
        o->what = PTX_IS_REGISTER;
        o->class = PTX_B32;
        o->slot = special_slot(p, o->name);
        if (o->slot == 0) o->what = PTX_IS_NAME; /* and the instruction is unknown */
    } else if (strcmp(o->name, "WARP_SZ") == 0) {
        o->what = PTX_IS_VALUE;
        o->value = PTX_LANES;
    } else {
        module_variable(p, o);
    }
}

/* ---- operands ---- */

static void read_vector(ptx_parser *p, ptx_operand *o)
{
    ptx_operand *part = calloc(1, sizeof *part);
    if (part == NULL) abort();
    o->what = PTX_IS_VECTOR;
    while (!ptx_take(p, '}') && !p->failed) {
        if (o->parts == PTX_PARTS || !ptx_read_operand(p, part)) {
            ptx_wrong(p, "a vector");
            break;
        }
        o->classes[o->parts] = part->what == PTX_IS_VALUE ? PTX_B64 : part->class;
        if (part->sink) o->classes[o->parts] = PTX_B64;
        if (part->what == PTX_IS_VALUE) o->slots[o->parts++] = ptx_constant_slot(p, PTX_B64, part->value);
        else if (part->sink) o->slots[o->parts++] = ptx_new_slot(p, PTX_B64);
        else o->slots[o->parts++] = part->slot;
        ptx_take(p, ',');
    }
    free(part);
}

static void read_address(ptx_parser *p, ptx_operand *o)
{
    if (!ptx_read_operand(p, o)) ptx_wrong(p, "an address");
    o->memory = true;
    if (ptx_take(p, '+')) o->offset = ptx_integer(p);
    else if (*p->at == '-') o->offset = ptx_integer(p);
    if (!ptx_take(p, ']')) ptx_wrong(p, "the end of an address");
}

bool ptx_read_operand(ptx_parser *p, ptx_operand *o)
{
    *o = (ptx_operand){0};
    ptx_skip(p);
    if (ptx_take(p, '!')) o->negated = true;
    if (ptx_take(p, '[')) {
        read_address(p, o);
    } else if (ptx_take(p, '{')) {
        read_vector(p, o);
    } else if (*p->at == '-' || isdigit((unsigned char)*p->at)) {
        read_number(p, o);
    } else {
        bool negated = o->negated;
        if (!ptx_word(p, o->name)) return false;
        resolve(p, o);
        o->negated = negated;
        if (ptx_take(p, '|')) {
            o->second = calloc(1, sizeof *o->second);
            if (o->second == NULL) abort();
            return ptx_read_operand(p, o->second);
        }
    }
    return !p->failed;
}

static uint32_t low_part(ptx_parser *p, uint32_t slot)
{
    uint32_t narrow = ptx_new_slot(p, PTX_B32);
    ptx_instruction *in = ptx_emit(p, (ptx_operation)ptx_find_simple("cvt.u32.u64")->operation);
    in->d = narrow;
    in->a = slot;
    return narrow;
}

uint32_t ptx_slot_of(ptx_parser *p, const ptx_operand *o, ptx_class class)
{
    if (o->what == PTX_IS_REGISTER) {
        if (o->sink) return ptx_new_slot(p, class);
        if ((o->class == PTX_PRED) != (class == PTX_PRED))
            ptx_wrong(p, "register %s is a predicate, or is none", o->name);
        if ((o->class == PTX_B64) != (class == PTX_B64)) {
            /* An operand may be the low part of a wider register; a result may not be so here. */
            if (class == PTX_B64 || !o->reads) ptx_wrong(p, "register %s has another size", o->name);
            return low_part(p, o->slot);
        }
        return o->slot;
    }
    if (o->what != PTX_IS_VALUE) ptx_wrong(p, "an operand is neither a register nor a value");
    if (o->variable && o->space == PTX_SHARED && o->value == PTX_DYNAMIC) return ptx_dynamic_slot(p, class);
    return ptx_constant_slot(p, class, o->value);
}
