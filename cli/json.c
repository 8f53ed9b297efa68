/* json.c - makes JSON values. These functions never fail: if memory runs out, the tool ends;
 * invalid UTF-8 is cleaned; NaN and infinities become null. */
#include <math.h>
#include <stdlib.h>

#include "output.h"

static json_t *must(json_t *value)
{
    if (value == NULL) cli_no_memory();
    return value;
}

json_t *cli_json_object(void)
{
    return must(json_object());
}

json_t *cli_json_array(void)
{
    return must(json_array());
}

json_t *cli_json_text(const char *text)
{
    if (text == NULL) return json_null();
    json_t *value = json_string(text);
    return value ? value : must(json_string(cli_clean(text)));
}

json_t *cli_json_unsigned(uint64_t value)
{
    /* jansson's integers are signed. Sizes of files are below 2^63. */
    return must(json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value));
}

json_t *cli_json_number(double value)
{
    return isfinite(value) ? must(json_real(value)) : json_null();
}

void cli_json_set(json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, must(value)) != 0) cli_no_memory();
}

void cli_json_add(json_t *array, json_t *value)
{
    if (json_array_append_new(array, must(value)) != 0) cli_no_memory();
}

static void print(json_t *document, size_t flags)
{
    char *text = json_dumps(document, flags);
    if (text == NULL) cli_no_memory();
    cli_put_json(cli_out(), text);
    fputc('\n', cli_out());
    free(text);
    json_decref(document);
}

void cli_json_print(json_t *document)
{
    print(document, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
}

void cli_json_print_compact(json_t *document)
{
    print(document, JSON_COMPACT);
}
