/* ptx_parse.c - reads the text of a kernel: declarations, labels, instructions. See ptx_parse.h.
 *
 * What an instruction means is decided in ptx_decode.c. A block in braces has names of its own, labels too. */
#include "ptx_parse.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *grow(void *array, uint32_t count, uint32_t *capacity, size_t each)
{
    if (count < *capacity) return array;
    *capacity = *capacity ? 2 * *capacity : 256;
    array = realloc(array, *capacity * each);
    if (array == NULL) abort();
    return array;
}

static char *copy_of(const char *name)
{
    char *copy = strdup(name);
    if (copy == NULL) abort();
    return copy;
}

void ptx_wrong(ptx_parser *p, const char *format, ...)
{
    if (p->failed) return;
    p->failed = true;
    size_t length = (size_t)snprintf(p->why, PTX_WHY, "kernel %s cannot be read: ", p->code->name);
    if (length >= PTX_WHY) return;
    va_list arguments;
    va_start(arguments, format);
    length += (size_t)vsnprintf(p->why + length, PTX_WHY - length, format, arguments);
    va_end(arguments);
    if (length < PTX_WHY)
        snprintf(p->why + length, PTX_WHY - length, ", at: %.*s", (int)strcspn(p->text, "\n"), p->text);
}

/* ---- registers and instructions ---- */

uint32_t ptx_new_slot(ptx_parser *p, ptx_class class)
{
    if (class == PTX_PRED) {
        if (p->code->predicates == PTX_PREDICATES) ptx_wrong(p, "too many predicates");
        else p->code->predicates++;
        return (p->code->predicates - 1) * 4;
    }
    uint32_t slot = PTX_PREDICATES * 4 + p->word_bytes;
    p->word_bytes += class == PTX_B64 ? 8 * PTX_LANES : 4 * PTX_LANES;
    return slot;
}

uint32_t ptx_constant_slot(ptx_parser *p, ptx_class class, uint64_t value)
{
    ptx_code *code = p->code;
    if (class == PTX_PRED) value = value ? UINT32_MAX : 0;
    else if (class == PTX_B16) value = (uint16_t)value;
    else if (class == PTX_B32) value = (uint32_t)value;
    ptx_class kept = class == PTX_B16 ? PTX_B32 : class;
    for (uint32_t i = 0; i < code->constant_count; i++)
        if (code->constants[i].class == kept && code->constants[i].value == value)
            return code->constants[i].slot;
    code->constants = grow(code->constants, code->constant_count, &code->constant_capacity,
                           sizeof *code->constants);
    uint32_t slot = ptx_new_slot(p, kept);
    code->constants[code->constant_count++] = (ptx_constant){slot, kept, value};
    return slot;
}

uint32_t ptx_dynamic_slot(ptx_parser *p, ptx_class class)
{
    uint32_t *slot = &p->code->dynamic[class == PTX_B64];
    if (*slot == 0) *slot = ptx_new_slot(p, class);
    return *slot;
}

uint32_t ptx_more(ptx_parser *p, uint32_t value)
{
    ptx_code *code = p->code;
    code->more = grow(code->more, code->more_count, &code->more_capacity, sizeof *code->more);
    code->more[code->more_count] = value;
    return code->more_count++;
}

ptx_instruction *ptx_emit(ptx_parser *p, ptx_operation operation)
{
    ptx_code *code = p->code;
    code->all = grow(code->all, code->count, &code->capacity, sizeof *code->all);
    ptx_instruction *in = &code->all[code->count++];
    *in = (ptx_instruction){.operation = (uint16_t)operation, .guard = PTX_TRUE};
    in->text = (uint32_t)(p->text - p->module->text);
    in->text_bytes = (uint32_t)strcspn(p->text, ";\n");
    return in;
}

void ptx_jump_to(ptx_parser *p, const char *label)
{
    p->jumps = grow(p->jumps, p->jump_count, &p->jump_capacity, sizeof *p->jumps);
    p->jumps[p->jump_count++] = (ptx_jump){copy_of(label), p->scope, p->code->count - 1};
}

/* Whether scope `inner` lies in `outer`. */
static bool lies_in(const ptx_parser *p, uint32_t inner, uint32_t outer)
{
    while (inner > outer) inner = p->parents[inner];
    return inner == outer;
}

static void resolve_jumps(ptx_parser *p)
{
    for (uint32_t i = 0; i < p->jump_count; i++) {
        const ptx_jump *jump = &p->jumps[i];
        const ptx_label *best = NULL;
        for (uint32_t k = 0; k < p->label_count; k++) {
            const ptx_label *it = &p->labels[k];
            if ((best == NULL || it->scope > best->scope) && lies_in(p, jump->scope, it->scope) &&
                strcmp(it->name, jump->name) == 0)
                best = it;
        }
        if (best == NULL) ptx_wrong(p, "there is no label %s", jump->name);
        else p->code->all[jump->instruction].imm = best->at;
    }
}

/* ---- names ---- */

ptx_symbol *ptx_find_symbol(ptx_parser *p, const char *name)
{
    size_t length = strlen(name), stem = length;
    while (stem > 0 && isdigit((unsigned char)name[stem - 1])) stem--;
    for (uint32_t i = p->symbol_count; i-- > 0;) {
        ptx_symbol *it = &p->symbols[i];
        if (it->numbered ? strncmp(it->name, name, stem) == 0 && it->name[stem] == '\0' && stem < length
                         : strcmp(it->name, name) == 0)
            return it;
    }
    return NULL;
}

static ptx_symbol *add_symbol(ptx_parser *p, const char *name)
{
    static ptx_symbol nowhere;
    if (p->symbol_count == PTX_SYMBOLS) {
        ptx_wrong(p, "too many names");
        return &nowhere;
    }
    ptx_symbol *it = &p->symbols[p->symbol_count++];
    *it = (ptx_symbol){.name = copy_of(name), .scope = p->scope};
    return it;
}

static void open_scope(ptx_parser *p)
{
    if (p->scope_count == sizeof p->parents / sizeof *p->parents) {
        ptx_wrong(p, "too many blocks");
        return;
    }
    p->parents[p->scope_count] = p->scope;
    p->scope = p->scope_count++;
}

static void close_scope(ptx_parser *p)
{
    while (p->symbol_count && p->symbols[p->symbol_count - 1].scope == p->scope)
        free(p->symbols[--p->symbol_count].name);
    p->scope = p->parents[p->scope];
}

/* ---- declarations ---- */

static bool class_of(const char *type, ptx_class *class, uint32_t *bytes)
{
    static const struct {
        const char *digits;
        ptx_class class;
        uint32_t bytes;
    } all[] = {{"8", PTX_B16, 1}, {"16", PTX_B16, 2}, {"32", PTX_B32, 4}, {"64", PTX_B64, 8}};
    if (strcmp(type, ".pred") == 0) {
        *class = PTX_PRED, *bytes = 4;
        return true;
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strlen(type) > 2 && strcmp(type + 2, all[i].digits) == 0 && strchr("busf", type[1])) {
            *class = all[i].class, *bytes = all[i].bytes;
            return true;
        }
    return false;
}

static void read_registers(ptx_parser *p)
{
    char type[PTX_NAME], name[PTX_NAME];
    ptx_class class;
    uint32_t bytes;
    if (!ptx_word(p, type) || !class_of(type, &class, &bytes)) {
        ptx_wrong(p, "a register's type");
        return;
    }
    do {
        if (!ptx_word(p, name)) break;
        ptx_symbol *it = add_symbol(p, name);
        it->is_register = true;
        it->class = class;
        it->count = 1;
        if (ptx_take(p, '<')) {
            it->numbered = true;
            it->count = (uint32_t)ptx_integer(p);
            ptx_take(p, '>');
        }
        for (uint32_t i = 0; i < it->count; i++) {
            uint32_t slot = ptx_new_slot(p, class);
            if (i == 0) it->slot = slot;
        }
    } while (ptx_take(p, ','));
}

/* A variable in shared or local memory, or a parameter that is passed on: in local memory, too. */
static ptx_symbol *read_memory(ptx_parser *p, ptx_space space)
{
    char type[PTX_NAME], name[PTX_NAME];
    ptx_class class;
    uint32_t bytes = 1, align = 1;
    while (ptx_word(p, type) && type[0] == '.') {
        if (strcmp(type, ".align") == 0) align = (uint32_t)ptx_integer(p);
        else if (strcmp(type, ".ptr") == 0 || strcmp(type, ".global") == 0) continue; /* what it points to */
        else if (!class_of(type, &class, &bytes)) ptx_wrong(p, "a variable's type");
    }
    snprintf(name, sizeof name, "%s", type);
    if (align < bytes) align = bytes;
    if (ptx_take(p, '[')) {
        bytes *= (uint32_t)ptx_integer(p);
        ptx_take(p, ']');
    }
    uint32_t *used = space == PTX_SHARED  ? &p->code->shared_bytes
                     : space == PTX_PARAM ? &p->code->parameter_bytes
                                          : &p->code->local_bytes;
    *used = (*used + align - 1) / align * align;
    ptx_symbol *it = add_symbol(p, name);
    it->space = space;
    it->address = *used;
    it->bytes = bytes;
    *used += bytes;
    return it;
}

static void read_declaration(ptx_parser *p)
{
    char word[PTX_NAME];
    ptx_word(p, word);
    if (strcmp(word, ".reg") == 0) read_registers(p);
    else if (strcmp(word, ".shared") == 0) read_memory(p, PTX_SHARED);
    else if (strcmp(word, ".local") == 0 || strcmp(word, ".param") == 0) read_memory(p, PTX_LOCAL);
    p->at += strcspn(p->at, ";");
    ptx_take(p, ';');
}

/* ---- bodies ---- */

static void read_instruction(ptx_parser *p, char name[PTX_NAME])
{
    ptx_operand *operands = calloc(PTX_OPERANDS + 1, sizeof *operands);
    uint32_t count = 0, first = p->code->count, guard = PTX_TRUE, invert = 0;
    if (operands == NULL) abort();
    if (name[0] == '@') {
        invert = ptx_take(p, '!') ? UINT32_MAX : 0;
        ptx_read_operand(p, &operands[0]);
        guard = ptx_slot_of(p, &operands[0], PTX_PRED);
        if (!ptx_word(p, name)) ptx_wrong(p, "an instruction");
    }
    if (strncmp(name, "call", 4) == 0) {
        ptx_decode_call(p);
    } else {
        ptx_skip(p);
        while (*p->at && *p->at != ';' && count < PTX_OPERANDS && ptx_read_operand(p, &operands[count])) {
            count++;
            if (!ptx_take(p, ',')) break;
        }
        ptx_skip(p);
        if (*p->at != ';') ptx_wrong(p, "operands");
        if (!p->failed) ptx_decode(p, name, operands, count);
    }
    for (uint32_t i = first; i < p->code->count; i++) {
        p->code->all[i].guard = guard;
        p->code->all[i].invert = invert;
    }
    for (uint32_t i = 0; i < count; i++) free(operands[i].second);
    free(operands);
    ptx_take(p, ';');
}

/* From behind the opening brace to behind the closing one. */
static void read_body(ptx_parser *p)
{
    char name[PTX_NAME];
    for (uint32_t depth = 1; depth && !p->failed;) {
        ptx_skip(p);
        p->text = p->at;
        if (ptx_take(p, '{')) {
            depth++;
            open_scope(p);
        } else if (ptx_take(p, '}')) {
            if (--depth) close_scope(p);
        } else if (ptx_take(p, ';')) {
        } else if (*p->at == '.') {
            read_declaration(p);
        } else if (*p->at == '@') {
            p->at++;
            read_instruction(p, strcpy(name, "@"));
        } else if (!ptx_word(p, name)) {
            ptx_wrong(p, "neither an instruction nor a label");
        } else if (ptx_take(p, ':')) {
            p->labels = grow(p->labels, p->label_count, &p->label_capacity, sizeof *p->labels);
            p->labels[p->label_count++] = (ptx_label){copy_of(name), p->scope, p->code->count};
        } else {
            read_instruction(p, name);
        }
    }
}

/* (.param .u64 NAME, .param .align 4 .b8 NAME[BYTES]); a function's lie in local memory. */
static void read_parameters(ptx_parser *p, uint32_t *list, uint32_t *count, uint32_t limit)
{
    char word[PTX_NAME];
    if (!ptx_take(p, '(')) return;
    while (!ptx_take(p, ')') && !p->failed) {
        if (!ptx_word(p, word) || strcmp(word, ".param") != 0 || *count == limit) {
            ptx_wrong(p, "a parameter");
            return;
        }
        const ptx_symbol *it = read_memory(p, p->function ? PTX_LOCAL : PTX_PARAM);
        list[2 * *count] = (uint32_t)it->address;
        list[2 * *count + 1] = it->bytes;
        ++*count;
        ptx_take(p, ',');
    }
}

static void read_function(ptx_parser *p, ptx_function *f)
{
    uint32_t list[2 * 4] = {0}, count = 0, result[2] = {0}, results = 0;
    p->function = f;
    open_scope(p);
    p->at = strstr(f->at, ".func") + 5;
    p->text = p->at;
    read_parameters(p, result, &results, 1);
    char name[PTX_NAME];
    ptx_word(p, name);
    read_parameters(p, list, &count, 4);
    f->result = result[0];
    f->parameter_count = count;
    for (uint32_t i = 0; i < count; i++) f->parameters[i] = list[2 * i], f->sizes[i] = list[2 * i + 1];
    f->entry = p->code->count;
    p->at += strcspn(p->at, "{");
    ptx_take(p, '{');
    read_body(p);
    close_scope(p);
    f->done = true;
}

/* Calls were written before the function was read: they are completed here. */
static void complete_calls(ptx_parser *p)
{
    for (uint32_t i = 0; i < p->code->count; i++) {
        ptx_instruction *in = &p->code->all[i];
        if (in->operation == PTX_CALL) {
            in->imm = p->functions[in->a].entry;
        } else if (in->operation == PTX_COPY_LOCAL && in->action) { /* action: 1 an argument, 2 a result */
            const ptx_function *f = &p->functions[in->a];
            if (in->action == 1) in->imm = f->parameters[in->d];
            else in->b = f->result;
        }
    }
}

static void free_parser(ptx_parser *p)
{
    for (uint32_t i = 0; i < p->symbol_count; i++) free(p->symbols[i].name);
    for (uint32_t i = 0; i < p->label_count; i++) free(p->labels[i].name);
    for (uint32_t i = 0; i < p->jump_count; i++) free(p->jumps[i].name);
    for (uint32_t i = 0; i < p->function_count; i++) free(p->functions[i].name);
    free(p->symbols);
    free(p->labels);
    free(p->jumps);
    free(p->placed);
    free(p->places);
    free(p);
}

void ptx_code_free(ptx_code *code)
{
    free((char *)(uintptr_t)code->name);
    free(code->all);
    free(code->more);
    free(code->constants);
    free(code->parameters);
    free(code);
}

ptx_code *ptx_parse(ptx_module *m, const char *name, const char *at, char why[PTX_WHY])
{
    enum { MAX_PARAMETERS = 64 };
    ptx_parser *p = calloc(1, sizeof *p);
    if (p == NULL || (p->code = calloc(1, sizeof *p->code)) == NULL) abort();
    ptx_code *code = p->code;
    p->symbols = calloc(PTX_SYMBOLS, sizeof *p->symbols);
    p->placed = calloc(m->variable_count + 1, sizeof *p->placed);
    p->places = calloc(m->variable_count + 1, sizeof *p->places);
    code->parameters = calloc(2 * MAX_PARAMETERS, sizeof *code->parameters);
    if (p->symbols == NULL || p->placed == NULL || p->places == NULL || code->parameters == NULL) abort();
    p->module = m;
    p->at = p->text = at;
    p->why = why;
    p->scope_count = 1;
    code->name = copy_of(name);
    code->predicates = 1; /* PTX_TRUE */
    code->shared_bytes = PTX_SHARED_BEGIN;
    code->carry = ptx_new_slot(p, PTX_PRED);
    read_parameters(p, code->parameters, &code->parameter_count, MAX_PARAMETERS);
    p->at += strcspn(p->at, "{");
    ptx_take(p, '{');
    if (!p->failed) read_body(p);
    for (uint32_t i = 0; i < p->function_count && !p->failed; i++) read_function(p, &p->functions[i]);
    if (!p->failed) resolve_jumps(p);
    complete_calls(p);
    code->file_bytes = PTX_PREDICATES * 4 + p->word_bytes;
    code->shared_bytes = (code->shared_bytes + 127) / 128 * 128; /* where dynamic shared memory begins */
    bool failed = p->failed;
    free_parser(p);
    if (!failed) return code;
    ptx_code_free(code);
    return NULL;
}
