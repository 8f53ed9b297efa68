/* json_get.c - reads one value of a JSON file, for tests written in shell.
 *
 *     json_get FILE [PATH]        e.g. json_get out.json formats.nf4.tensors
 *
 * PATH is keys and list indices joined by dots, or by slashes when it has any; "#" is the number of
 * entries of a list or object, "key=text" the first entry of a list whose `key` is that text.
 * Strings are printed as they are, everything else as JSON; without a PATH nothing is printed. Exit
 * status 1: no such value; 2: the file is not exactly one JSON document. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/json_write.h"

/* The entry of a list that a step of the path means, or NULL. */
static const nbl__json *list_entry(const nbl__json *list, const char *step)
{
    char key[64];
    const char *equals = strchr(step, '=');
    if (equals == NULL || equals - step >= (long)sizeof key) {
        int64_t index = (int64_t)strtoul(step, NULL, 10);
        return index < list->count ? &list->items[index] : NULL;
    }
    memcpy(key, step, (size_t)(equals - step));
    key[equals - step] = '\0';
    for (int64_t i = 0; i < list->count; i++) {
        const char *text = nbl__json_text(&list->items[i], key);
        if (text && strcmp(text, equals + 1) == 0) return &list->items[i];
    }
    return NULL;
}

static nbl_status add(void *to, const char *bytes, size_t size)
{
    fwrite(bytes, 1, size, to);
    return NBL_OK;
}

static void print(const nbl__json *value)
{
    static const nbl__json_style compact = {.item = {",", 1}, .key = {":", 1}};
    nbl__json_writer w = {.add = add, .to = stdout, .style = &compact};
    char number[40];
    if (value->type == NBL_JSON_STRING) {
        fwrite(value->string, 1, (size_t)value->count, stdout);
    } else if (value->type == NBL_JSON_REAL) {
        snprintf(number, sizeof number, "%.12g", value->real);
        printf("%s%s", number, strpbrk(number, ".e") ? "" : ".0");
    } else {
        (void)nbl__json_write(&w, value);
    }
    putchar('\n');
}

/* Reads a whole file. NULL: it cannot be read. */
static char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    FILE *to = file ? open_memstream(&text, size) : NULL;
    for (int c; to && (c = getc(file)) != EOF;) putc(c, to);
    if (to) fclose(to);
    if (file) fclose(file);
    return text;
}

static int get(nbl_context *ctx, const char *path, char *steps)
{
    size_t size = 0;
    char *text = read_file(path, &size);
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__json_error error = {.what = "cannot be read"};
    const nbl__json *value;
    if (text == NULL || nbl__json_read(&arena, text, size,
                                       NBL_JSON_ZERO_BYTES | NBL_JSON_DIGITS | NBL_JSON_DEEP | NBL_JSON_MANY,
                                       &value, &error) != NBL_OK) {
        fprintf(stderr, "json_get: %s:%" PRId64 ": %s\n", path, error.line, error.what);
        return 2;
    }
    int64_t entries = -1; /* "#" was met */
    const char *between = steps && strchr(steps, '/') ? "/" : ".";
    for (char *key = steps ? strtok(steps, between) : NULL; key && value; key = strtok(NULL, between)) {
        bool list = value->type == NBL_JSON_ARRAY;
        if (strcmp(key, "#") == 0 && (list || value->type == NBL_JSON_OBJECT)) entries = value->count;
        else value = list ? list_entry(value, key) : nbl__json_get(value, key);
    }
    if (value == NULL) fprintf(stderr, "json_get: %s: no such value\n", path);
    else if (entries >= 0) printf("%" PRId64 "\n", entries);
    else if (steps) print(value);
    nbl__arena_free(&arena);
    free(text);
    return value ? 0 : 1;
}

int main(int count, char **words)
{
    nbl_context *ctx;
    if (count < 2 || count > 3) {
        fputs("usage: json_get FILE [PATH]\n", stderr);
        return 2;
    }
    if (nbl_context_create(NULL, &ctx) != NBL_OK) return 2;
    int status = get(ctx, words[1], count == 3 ? words[2] : NULL);
    nbl_context_destroy(ctx);
    return status;
}
