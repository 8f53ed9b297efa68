/* jinja_field.h - values in fields of a width: what both ways of formatting text end in. */
#ifndef NBL_JINJA_FIELD_H
#define NBL_JINJA_FIELD_H

#include "text/template/runtime/jinja_runtime.h"

typedef struct tpl_field {
    uint32_t fill;
    char align;    /* '<' '>' '^' '=' or 0 */
    char sign;     /* '+' ' ' or 0 */
    char grouping; /* ',' '_' or 0 */
    char kind;     /* conversion, or 0 */
    bool alternate, zero;
    int64_t width, precision; /* -1: none */
} tpl_field;

/* A number: sign, prefix and body, padded; `group` digits between separators. */
nbl_status nbl__tpl_put_number(tpl_vm *vm, const tpl_field *f, bool negative, const char *prefix,
                               const char *body, int group_size, tpl_text *out);
/* A text; `usual` is where it goes when the field does not say. */
nbl_status nbl__tpl_put_string(tpl_vm *vm, const tpl_field *f, const tpl_string *s, char usual,
                               tpl_text *out);
nbl_status nbl__tpl_put_integer(tpl_vm *vm, const tpl_field *f, int64_t value, char kind, tpl_text *out);
nbl_status nbl__tpl_put_float(tpl_vm *vm, const tpl_field *f, double value, char kind, int64_t precision,
                              tpl_text *out);

#endif
