/* ptx_call.c - calls of functions. See ptx_parse.h.
 *
 * Functions do not call themselves: the memory of their parameters and the register with the address to go back to are
 * there once. Arguments and results are copied in local memory. */
#include "ptx_parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* (NAME, NAME) as symbols. */
static uint32_t read_list(ptx_parser *p, ptx_symbol *list[4])
{
    char name[PTX_NAME];
    uint32_t count = 0;
    if (!ptx_take(p, '(')) return 0;
    while (!ptx_take(p, ')') && !p->failed) {
        if (count == 4 || !ptx_word(p, name) || (list[count] = ptx_find_symbol(p, name)) == NULL) {
            ptx_wrong(p, "an argument of a call");
            return 0;
        }
        count++;
        ptx_take(p, ',');
    }
    return count;
}

/* The text of the function from .func on; a declaration alone has no braces. */
static const char *find_text(const ptx_module *m, const char *name)
{
    size_t length = strlen(name);
    for (const char *p = m->text; (p = strstr(p, ".func")) != NULL; p += 5) {
        size_t body = strcspn(p, "{;");
        const char *at = p;
        while (p[body] == '{' && (at = strstr(at, name)) != NULL && at < p + body) {
            if (strchr(" \t\n(", at[length]) && strchr(" \t\n)", at[-1])) return p;
            at += length;
        }
    }
    return NULL;
}

static ptx_function *find_function(ptx_parser *p, const char *name)
{
    for (uint32_t i = 0; i < p->function_count; i++)
        if (strcmp(p->functions[i].name, name) == 0) return &p->functions[i];
    const char *text = find_text(p->module, name);
    if (text == NULL || p->function_count == sizeof p->functions / sizeof *p->functions) {
        ptx_wrong(p, "function %s is not there", name);
        return NULL;
    }
    ptx_function *f = &p->functions[p->function_count++];
    *f = (ptx_function){.name = strdup(name), .at = text, .back = ptx_new_slot(p, PTX_B32)};
    if (f->name == NULL) abort();
    return f;
}

/* call.uni (result), name, (argument); */
void ptx_decode_call(ptx_parser *p)
{
    char name[PTX_NAME];
    ptx_symbol *results[4], *arguments[4];
    uint32_t result_count = read_list(p, results);
    ptx_take(p, ',');
    ptx_word(p, name);
    ptx_take(p, ',');
    uint32_t argument_count = read_list(p, arguments);
    ptx_function *f = p->failed ? NULL : find_function(p, name);
    if (f == NULL) return;
    uint32_t index = (uint32_t)(f - p->functions);
    for (uint32_t i = 0; i < argument_count; i++) {
        ptx_instruction *in = ptx_emit(p, PTX_COPY_LOCAL);
        in->action = 1;
        in->a = index, in->b = (uint32_t)arguments[i]->address, in->c = arguments[i]->bytes, in->d = i;
    }
    ptx_instruction *call = ptx_emit(p, PTX_CALL);
    call->a = index;
    call->d = f->back;
    for (uint32_t i = 0; i < result_count; i++) {
        ptx_instruction *in = ptx_emit(p, PTX_COPY_LOCAL);
        in->action = 2;
        in->a = index, in->imm = (int64_t)results[i]->address, in->c = results[i]->bytes;
    }
}
