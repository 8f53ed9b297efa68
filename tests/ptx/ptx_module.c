/* ptx_module.c - finds intermediate code in a fat binary, and kernels and variables in that. See ptx.h.
 *
 * A fat binary is a header of 16 bytes (the size of the header at 6, of the rest at 8), then entries. An entry's header
 * has its kind at 0 (1: intermediate code), its own size at 4, the size of the contents at 8, the size they have packed at
 * 16, the capability at 28, flags at 40 (0x8000: packed with zstd) and the size unpacked at 56. */
#include "ptx_code.h"
#include "ptx_zstd.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t number(const uint8_t *p, size_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, p, bytes);
    return value;
}

/* Comments become spaces, so that places in the text stay. */
static void blank_comments(char *p)
{
    while (*p) {
        if (p[0] == '/' && p[1] == '/') {
            while (*p && *p != '\n') *p++ = ' ';
        } else if (p[0] == '/' && p[1] == '*') {
            while (*p && !(p[0] == '*' && p[1] == '/')) *p++ = ' ';
            if (*p) p[0] = p[1] = ' ';
        } else {
            p++;
        }
    }
}

static char *unpack(const uint8_t *entry)
{
    enum { ZSTD = 0x8000, PACKED = 0xa000 };
    const uint8_t *contents = entry + number(entry + 4, 4);
    uint64_t stored = number(entry + 8, 8), packed = number(entry + 16, 4), flags = number(entry + 40, 8);
    bool zstd = (flags & ZSTD) != 0;
    if ((flags & PACKED) && !zstd) return NULL; /* packed in another way */
    size_t bytes = zstd ? number(entry + 56, 8) : stored;
    char *text = calloc(1, bytes + 1);
    if (text == NULL) abort();
    if (!zstd) memcpy(text, contents, bytes);
    else if (!ptx_unzstd((uint8_t *)text, bytes, contents, packed ? packed : stored)) {
        free(text);
        return NULL;
    }
    return text;
}

/* ---- variables of the module ---- */

static const char *skip_space(const char *p)
{
    while (isspace((unsigned char)*p)) p++;
    return p;
}

static size_t element_bytes(const char *type)
{
    const char *digits = type;
    while (*digits && !isdigit((unsigned char)*digits)) digits++;
    return (size_t)atoi(digits) / 8;
}

/* `= {1, 2, 3}`, or `= 5`. */
static void read_values(ptx_variable *v, const char *p, size_t each)
{
    size_t at = 0;
    p = skip_space(p);
    if (*p == '{') p++;
    while (at + each <= v->bytes) {
        char *end;
        p = skip_space(p);
        uint64_t value = *p == '-' ? (uint64_t)strtoll(p, &end, 0) : strtoull(p, &end, 0);
        if (end == p) break;
        memcpy(v->at + at, &value, each);
        at += each;
        p = skip_space(end);
        if (*p != ',') break;
        p++;
    }
}

/* From the words before the name on: .extern .shared .align 16 .b8 NAME[BYTES] = {...}; */
static void read_variable(ptx_module *m, const char *p)
{
    ptx_variable v = {.align = 1};
    size_t each = 1;
    while (*p == '.') {
        size_t length = strcspn(p, " \t\r\n");
        if (strncmp(p, ".extern", length) == 0) v.dynamic = true;
        else if (strncmp(p, ".shared", length) == 0) v.space = PTX_SHARED;
        else if (strncmp(p, ".global", length) == 0 || strncmp(p, ".const", length) == 0)
            v.space = PTX_GLOBAL;
        else if (strncmp(p, ".align", length) == 0) {
            v.align = (uint32_t)strtoul(p + length, NULL, 10);
            length += strspn(p + length, " \t0123456789");
        } else if (strncmp(p, ".visible", length) != 0 && strncmp(p, ".weak", length) != 0) {
            each = element_bytes(p);
        }
        p = skip_space(p + length);
    }
    size_t length = strcspn(p, "[]=; \t\r\n");
    v.name = strndup(p, length);
    if (v.name == NULL) abort();
    p = skip_space(p + length);
    v.bytes = (uint32_t)each;
    if (*p == '[') {
        v.bytes = (uint32_t)(strtoul(p + 1, NULL, 10) * each);
        p = skip_space(strchr(p, ']') + 1);
    }
    if (v.align < each) v.align = (uint32_t)each;
    if (v.space == PTX_GLOBAL) {
        v.at = calloc(1, v.bytes + 16);
        if (v.at == NULL) abort();
        if (*p == '=') read_values(&v, p + 1, each);
    }
    m->variables = realloc(m->variables, (m->variable_count + 1) * sizeof v);
    if (m->variables == NULL) abort();
    m->variables[m->variable_count++] = v;
}

/* Variables stand outside all braces. */
static void read_variables(ptx_module *m)
{
    int depth = 0;
    for (const char *p = m->text; *p; p++) {
        if (*p == '{') depth++;
        else if (*p == '}') depth--;
        if (depth != 0 || *p != '.' || (p > m->text && !isspace((unsigned char)p[-1]))) continue;
        size_t length = strcspn(p, ";{(");
        const char *shared = strstr(p, ".shared"), *global = strstr(p, ".global"),
                   *fixed = strstr(p, ".const");
        bool begins = strncmp(p, ".extern", 7) == 0 || strncmp(p, ".visible", 8) == 0 ||
                      strncmp(p, ".weak", 5) == 0;
        if (shared != p && global != p && fixed != p && !begins) continue;
        if (begins && !(shared && shared < p + length) && !(global && global < p + length) &&
            !(fixed && fixed < p + length))
            continue;
        read_variable(m, p);
        p += strcspn(p, ";") - 1;
    }
}

/* ---- modules ---- */

static ptx_module *make_module(char *text)
{
    ptx_module *m = calloc(1, sizeof *m);
    if (m == NULL) abort();
    blank_comments(text);
    m->text = text;
    read_variables(m);
    return m;
}

ptx_module *ptx_module_read(const char *text)
{
    char *copy = strdup(text);
    if (copy == NULL) abort();
    return make_module(copy);
}

ptx_module *ptx_module_open(const uint8_t *fatbin)
{
    const uint8_t *entry = fatbin + number(fatbin + 6, 2), *end = entry + number(fatbin + 8, 8);
    for (; entry < end; entry += number(entry + 4, 4) + number(entry + 8, 8)) {
        char *text = number(entry, 2) == 1 ? unpack(entry) : NULL;
        if (text) return make_module(text);
    }
    return NULL;
}

void ptx_module_close(ptx_module *m)
{
    if (m == NULL) return;
    while (m->kernels) {
        ptx_code *next = m->kernels->next;
        ptx_code_free(m->kernels);
        m->kernels = next;
    }
    for (size_t i = 0; i < m->variable_count; i++) {
        free(m->variables[i].name);
        free(m->variables[i].at);
    }
    free(m->variables);
    free(m->text);
    free(m);
}

ptx_code *ptx_find_kernel(ptx_module *m, const char *name, char why[PTX_WHY])
{
    for (ptx_code *it = m->kernels; it; it = it->next)
        if (strcmp(it->name, name) == 0) return it;
    size_t length = strlen(name);
    for (const char *p = m->text; (p = strstr(p, ".entry")) != NULL;) {
        p = skip_space(p + 6);
        if (strncmp(p, name, length) != 0 || (p[length] != '(' && !isspace((unsigned char)p[length])))
            continue;
        ptx_code *code = ptx_parse(m, name, p + length, why);
        if (code) {
            code->next = m->kernels;
            m->kernels = code;
        }
        return code;
    }
    snprintf(why, PTX_WHY, "there is no intermediate code of kernel %s", name);
    return NULL;
}
