/* json_get.c - reads one value of a JSON file, for tests written in shell.
 *
 *     json_get FILE [PATH]        e.g. json_get out.json formats.nf4.tensors
 *
 * PATH is keys and list indices joined by dots, or by slashes when it has any; "#" is the number of
 * entries of a list or object, "key=text" the first entry of a list whose `key` is that text.
 * Strings are printed as they are, everything else as JSON; without a PATH nothing is printed. Exit
 * status 1: no such value; 2: the file is not exactly one JSON document. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The entry of a list that a step of the path means, or NULL. */
static json_t *list_entry(const json_t *list, const char *step)
{
    char key[64];
    const char *equals = strchr(step, '=');
    if (equals == NULL || equals - step >= (long)sizeof key)
        return json_array_get(list, (size_t)strtoul(step, NULL, 10));
    memcpy(key, step, (size_t)(equals - step));
    key[equals - step] = '\0';
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *entry = json_array_get(list, i);
        const char *text = json_string_value(json_object_get(entry, key));
        if (text && strcmp(text, equals + 1) == 0) return entry;
    }
    return NULL;
}

int main(int count, char **words)
{
    if (count < 2 || count > 3) {
        fputs("usage: json_get FILE [PATH]\n", stderr);
        return 2;
    }
    json_error_t error;
    json_t *document = json_load_file(words[1], JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (document == NULL) {
        fprintf(stderr, "json_get: %s:%d: %s\n", words[1], error.line, error.text);
        return 2;
    }
    json_t *value = document;
    long entries = -1; /* "#" was met */
    const char *between = count == 3 && strchr(words[2], '/') ? "/" : ".";
    for (char *key = count == 3 ? strtok(words[2], between) : NULL; key && value;
         key = strtok(NULL, between)) {
        if (strcmp(key, "#") == 0 && (json_is_array(value) || json_is_object(value)))
            entries = (long)(json_is_array(value) ? json_array_size(value) : json_object_size(value));
        else if (json_is_array(value)) value = list_entry(value, key);
        else value = json_object_get(value, key);
    }
    if (value == NULL) fprintf(stderr, "json_get: %s: no such value\n", words[1]);
    else if (entries >= 0) printf("%ld\n", entries);
    else if (json_is_string(value)) printf("%s\n", json_string_value(value));
    else if (count == 3) {
        json_dumpf(value, stdout, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(12));
        putchar('\n');
    }
    int status = value ? 0 : 1;
    json_decref(document);
    return status;
}
