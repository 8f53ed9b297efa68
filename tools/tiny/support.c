/* support.c - files, random numbers and patterns of make_tiny; any failure ends the program with a
 * message. Nothing is cleaned up then. */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tiny.h"

_Noreturn void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("make_tiny: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

void *allocate(size_t size)
{
    void *memory = calloc(1, size ? size : 1);
    if (memory == NULL) fail("out of memory");
    return memory;
}

/* Opens a file in a folder for writing. */
FILE *create(const char *folder, const char *name)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        fail("%s: too long a name", folder);
    FILE *file = fopen(path, "wb");
    if (file == NULL) fail("%s: %s", path, strerror(errno));
    return file;
}

/* Closes a file. A write error may show only here. */
void finish(FILE *file, const char *name)
{
    bool bad = ferror(file);
    if (fclose(file) != 0 || bad) fail("%s: cannot be written: %s", name, strerror(errno));
}

void write_chat(FILE *file, const chat *c) /* no chat has a quote or a backslash */
{
    fprintf(
        file,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", \"content\": "
        "\"%s\"}]}\n",
        c->question, c->answer);
}

/* FNV-1a with its high bits mixed in, for callers take it modulo a small number. */
uint64_t hash_text(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash ^ (hash >> 29);
}

/* splitmix64: the state is a counter, so any seed is a good one. */
uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The remainder prefers small numbers by at most n / 2^64, which does not matter here. */
int below(uint64_t *state, int n)
{
    return (int)(next_random(state) % (uint64_t)n);
}

/* Sets a slot. */
void put(slots *s, int slot, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(s->text[slot], sizeof s->text[slot], format, arguments);
    va_end(arguments);
    if (size < 0 || size >= (int)sizeof s->text[slot]) fail("too long a text in a slot");
}

/* Copies the pattern; {a} … {e} are replaced by the slots. The text of a slot is not searched for
 * slots. */
void fill(char out[TEXT_SIZE], const char *pattern, const slots *s)
{
    size_t size = 0;
    for (const char *p = pattern; *p; p++) {
        char one[2] = {*p, '\0'};
        const char *piece = one;
        bool capital = false;
        if (*p == '{') {
            capital = isupper((unsigned char)p[1]);
            piece = s->text[tolower((unsigned char)p[1]) - 'a'];
            p += 2;
        }
        size_t length = strlen(piece);
        if (size + length >= TEXT_SIZE) fail("too long a chat: %s", pattern);
        memcpy(out + size, piece, length);
        if (capital) out[size] = (char)toupper((unsigned char)out[size]);
        size += length;
    }
    out[size] = '\0';
}
