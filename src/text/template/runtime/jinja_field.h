/* jinja_field.h - writes a value into a field of a given width, for `%` and str.format.
 *
 *     %+08.3f  and  {:+08.3f}     fill '0', align '=', sign '+', width 8, precision 3, kind 'f'
 *     3.14159 -> "+003.142"
 *
 * Widths are in characters. */
#ifndef NBL_JINJA_FIELD_H
#define NBL_JINJA_FIELD_H

#include "text/template/runtime/jinja_runtime.h"

/* A format specification, such as ">8.2f". */
typedef struct tpl_field {
    uint32_t fill; /* the padding character */
    char align;    /* '<' '>' '^' '=' or 0 */
    char sign;     /* '+' ' ' or 0 */
    char grouping; /* ',' '_' or 0 */
    char kind;     /* the conversion, such as 'd' or 'f', or 0 */
    bool alternate, zero;
    int64_t width, precision; /* -1: none */
} tpl_field;

/* Appends a number: sign, prefix and body, padded to the width. A separator is put after every
 * `group_size` digits. */
nbl_status nbl__tpl_put_number(tpl_vm *vm, const tpl_field *f, bool negative, const char *prefix,
                               const char *body, int group_size, tpl_text *out);
/* Appends a text. `usual` is the alignment if the field has none. */
nbl_status nbl__tpl_put_string(tpl_vm *vm, const tpl_field *f, const tpl_string *s, char usual,
                               tpl_text *out);
nbl_status nbl__tpl_put_integer(tpl_vm *vm, const tpl_field *f, int64_t value, char kind, tpl_text *out);
nbl_status nbl__tpl_put_float(tpl_vm *vm, const tpl_field *f, double value, char kind, int64_t precision,
                              tpl_text *out);

#endif
