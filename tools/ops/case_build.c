/* case_build.c - from a case's text to an operator's arguments.
 *
 *   words_known ─▶ read_attrs ─▶ read_special ─▶ read_slots ─▶ infer ─▶ make_cotangents
 *
 * A case that cannot be read is CASE_BAD and fails the table. A shape that does not allow a split,
 * or does not fit a storage format, is CASE_SKIP. */
#include <stdio.h>
#include <stdlib.h>

#include "case.h"

/* Words that are neither slots nor attributes. */
static bool is_engine_word(const char *name)
{
    static const char *const words[] = {"ranks",      "bound",   "backward", "grad", "flop",
                                        "accumulate", "scaling", "flopb",    "zero", "wider"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(name, words[i]) == 0) return true;
    return name[0] >= 'A' && name[0] <= 'Z' && name[1] == 0;
}

/* Writes the reason, and returns false for the caller to return. */
static bool bad(char why[CASE_TEXT], const char *what, const char *name, const char *value)
{
    snprintf(why, CASE_TEXT, "%s: %.64s=%.200s", what, name, value);
    return false;
}

/* Every word must mean something: a typing error would test nothing. */
static bool words_known(const nbl__family *family, const char *text, char why[CASE_TEXT])
{
    for (const char *at = text + strspn(text, " "); *at; at += strcspn(at, " "), at += strspn(at, " ")) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "= "), at);
        bool known = is_engine_word(name) || nbl__slot_find(family, name);
        for (const nbl__attr *attr = family->attrs; attr->name; attr++)
            known |= strcmp(attr->name, name) == 0;
        if (!known) return bad(why, "no such slot or attribute", name, "");
    }
    return true;
}

/* ---- attributes ---- */

/* yes, true, no, false. */
static bool read_flag(const char *value, bool *flag)
{
    *flag = strcmp(value, "true") == 0 || strcmp(value, "yes") == 0;
    return *flag || strcmp(value, "false") == 0 || strcmp(value, "no") == 0;
}

/* Reads one attribute into its field. False: the text is no value of the attribute's type. */
static bool read_attr(const char *text, const nbl__attr *attr, const char *value, void *field)
{
    double number = 0;
    switch (attr->type) {
    case NBL_ATTR_DTYPE: return nbl_dtype_parse(value, field);
    case NBL_ATTR_FLAG: return read_flag(value, field);
    case NBL_ATTR_WORD:
        for (int i = 0; attr->words[i]; i++) {
            if (strcmp(attr->words[i], value) != 0) continue;
            *(int *)field = i;
            return true;
        }
        return false;
    case NBL_ATTR_FLOAT:
        if (!case_number(text, value, &number)) return false;
        *(float *)field = (float)number;
        return true;
    case NBL_ATTR_INT:
        if (!case_number(text, value, &number)) return false;
        *(int64_t *)field = (int64_t)number;
        return true;
    case NBL_ATTR_SEED:
        if (!case_number(text, value, &number)) return false;
        *(uint64_t *)field = (uint64_t)number;
        return true;
    }
    return false;
}

/* Reads all attributes. A dtype must be given: a default would hide what a case tests. */
static bool read_attrs(op_case *c, char why[CASE_TEXT])
{
    nbl__attrs_reset(c->family, c->arguments);
    c->dtype = NBL_DTYPE_F32;
    for (const nbl__attr *attr = c->family->attrs; attr->name; attr++) {
        char value[CASE_TEXT];
        void *field = (char *)c->arguments + attr->offset;
        if (case_word(c->text, attr->name, value)) {
            if (!read_attr(c->text, attr, value, field)) return bad(why, "a bad value", attr->name, value);
        } else if (attr->type == NBL_ATTR_DTYPE) {
            return bad(why, "a case must say its", attr->name, "");
        }
        if (attr->type == NBL_ATTR_DTYPE && strcmp(attr->name, "dtype") == 0) c->dtype = *(nbl_dtype *)field;
    }
    return true;
}

/* Fields that the family's tables do not have. */
static bool read_special(op_case *c, char why[CASE_TEXT])
{
    char value[CASE_TEXT];
    if (case_word(c->text, "accumulate", value)) {
        bool *field = case_accumulate(c->family, c->arguments);
        if (field == NULL || !read_flag(value, field)) return bad(why, "a bad value", "accumulate", value);
    }
    if (case_word(c->text, "scaling", value) && !case_set_rope(c->family, value, c->arguments))
        return bad(why, "a bad value", "scaling", value);
    return true;
}

/* ---- shapes ---- */

/* The dimensions that T stands for, and whether `more` follow. SKIP: T has no such split. */
static case_status split_of(case_split split, int64_t t, bool more, nbl_tensor *shape)
{
    switch (split) {
    case SPLIT_ONE: shape->shape[shape->rank++] = 1; break;
    case SPLIT_TWO:
        if (t % 2 != 0) return CASE_SKIP;
        shape->shape[shape->rank++] = 2;
        shape->shape[shape->rank++] = 1;
        t /= 2;
        break;
    case SPLIT_DROP:
        if (t != 1) return CASE_SKIP;
        if (more) return CASE_READY;
        break; /* what has nothing but T keeps it */
    default: break;
    }
    shape->shape[shape->rank++] = t;
    return CASE_READY;
}

/* Reads "2xTxD" into a shape. Each dimension is a number, a named number or a product; T may
 * split. */
static case_status read_shape(const op_case *c, const char *text, case_split split, nbl_tensor *shape)
{
    shape->rank = 0;
    for (const char *at = text;; at++) {
        char dim[32];
        double number;
        size_t n = strcspn(at, "x:");
        if (n == 0 || n >= sizeof dim || shape->rank + 3 > NBL_MAX_RANK) return CASE_BAD;
        snprintf(dim, sizeof dim, "%.*s", (int)n, at);
        if (!case_number(c->text, dim, &number) || number < 0) return CASE_BAD;
        case_status status = split_of(strcmp(dim, "T") == 0 ? split : SPLIT_NONE, (int64_t)number,
                                      at[n] == 'x', shape);
        if (status != CASE_READY) return status;
        at += n;
        if (*at != 'x') return CASE_READY;
    }
}

/* The number of items of "[a,b,c]". */
static int list_length(const char *list)
{
    int n = list[1] != ']';
    for (; *list; list++) n += *list == ',';
    return n;
}

/* ---- slots ---- */

/* SHAPE[:DTYPE[:GENERATOR]], SHAPE:GENERATOR for integers, or LIST[:i64]. */
static case_status read_tensor(op_case *c, const nbl__slot *slot, const char *value, case_split split,
                               char why[CASE_TEXT])
{
    nbl_tensor *tensor = nbl__slot_tensor(slot, c->arguments);
    char dtype[64] = "", generator[256] = "";
    case_status status = CASE_READY;
    *tensor = (nbl_tensor){.dtype = c->dtype};
    if (*value == '[') {
        snprintf(generator, sizeof generator, "%.255s", value);
        tensor->rank = 1;
        tensor->shape[0] = list_length(value);
        const char *end = strstr(value, "]:");
        if (end && !nbl_dtype_parse(end + 2, &tensor->dtype)) status = CASE_BAD;
    } else {
        status = read_shape(c, value, split, tensor);
        const char *at = strchr(value, ':');
        if (at) {
            size_t n = strcspn(at + 1, ":");
            snprintf(dtype, sizeof dtype, "%.*s", (int)nbl__min_i64((int64_t)n, 63), at + 1);
            if (at[1 + n] == ':') snprintf(generator, sizeof generator, "%.255s", at + 2 + n);
        }
        if (case_is_integer(dtype)) memcpy(generator, dtype, sizeof dtype);
        else if (*dtype && !nbl_dtype_parse(dtype, &tensor->dtype)) status = CASE_BAD;
    }
    if (case_is_integer(generator) && tensor->dtype != NBL_DTYPE_I64) tensor->dtype = NBL_DTYPE_I32;
    if (status == CASE_READY) {
        size_t element = (size_t)nbl__dtype_bits(tensor->dtype) / 8;
        tensor->data = case_alloc(&c->memory, case_bytes(tensor), element);
        if (!case_fill(c->text, generator, c->seed, slot->name, tensor)) status = CASE_BAD;
        int64_t more = case_wider(c->text, slot->name);
        if (more > 0) case_spread(&c->memory, tensor, more, element);
    }
    if (status == CASE_BAD) bad(why, "cannot read", slot->name, value);
    return status;
}

/* SHAPE[:STORE]: a matrix, or a stack of matrices, in a storage format. */
static case_status read_weight(nbl_context *ctx, op_case *c, const nbl__slot *slot, const char *value,
                               char why[CASE_TEXT])
{
    nbl_tensor shape;
    const char *store = strchr(value, ':');
    case_status status = read_shape(c, value, SPLIT_NONE, &shape);
    if (status == CASE_READY && (shape.rank == 2 || shape.rank == 3)) {
        nbl_weight *weight = case_slot_weight(slot, c->arguments);
        status = case_weight(ctx, &c->memory, store ? store + 1 : nbl_dtype_name(c->dtype),
                             nbl__tensor_rows(&shape), nbl__last(&shape), c->seed, slot->name, weight, why);
        weight->rank = shape.rank;
        memcpy(weight->shape, shape.shape, sizeof weight->shape);
        return status;
    }
    bad(why, "no matrix", slot->name, value);
    return CASE_BAD;
}

/* Reads the slots that the text names; "none" leaves an optional slot absent. */
static case_status read_slots(nbl_context *ctx, op_case *c, case_split split, char why[CASE_TEXT])
{
    for (const nbl__slot *slot = c->family->slots; slot->name; slot++) {
        char value[CASE_TEXT];
        if (!case_word(c->text, slot->name, value) || strcmp(value, "none") == 0) continue;
        case_status status = case_is_weight(slot) ? read_weight(ctx, c, slot, value, why)
                                                  : read_tensor(c, slot, value, split, why);
        if (status != CASE_READY) return status;
    }
    return CASE_READY;
}

/* Cotangents that the text does not name: as their outputs. */
static bool make_cotangents(op_case *c)
{
    bool any = false;
    for (const nbl__slot *slot = c->family->slots; slot->name; slot++) {
        char value[CASE_TEXT];
        if (slot->role != NBL_ROLE_COTANGENT) continue;
        nbl_tensor *cotangent = nbl__slot_tensor(slot, c->arguments);
        if (!case_word(c->text, slot->name, value)) {
            const nbl_tensor *of = nbl__slot_tensor(nbl__slot_find(c->family, slot->of), c->arguments);
            if (of->rank == 0) continue;
            *cotangent = *of;
            cotangent->data = case_alloc(&c->memory, case_bytes(of), (size_t)nbl__dtype_bits(of->dtype) / 8);
            case_fill(c->text, "", c->seed, slot->name, cotangent);
            int64_t more = case_wider(c->text, slot->name);
            if (more > 0) case_spread(&c->memory, cotangent, more, (size_t)nbl__dtype_bits(of->dtype) / 8);
        }
        any |= nbl__has_data(cotangent);
    }
    return any;
}

case_status case_build_inputs(nbl_context *ctx, const nbl__family *family, const char *text, uint64_t seed,
                              case_split split, op_case *c, char why[CASE_TEXT])
{
    char value[CASE_TEXT];
    *c = (op_case){.family = family, .text = text, .seed = seed};
    c->arguments = calloc(1, family->size);
    if (c->arguments == NULL) exit(1);
    if (!words_known(family, text, why) || !read_attrs(c, why)) return CASE_BAD;
    if (!case_wider_known(family, text)) {
        bad(why, "no row stride of a slot", "wider", case_word(text, "wider", value));
        return CASE_BAD;
    }
    c->factor = case_word(text, "bound", value) ? atof(value) : 1;
    c->zero = case_word(text, "zero", value) ? atof(value) : 0;
    if (!read_special(c, why)) return CASE_BAD;
    return read_slots(ctx, c, split, why);
}

/* The checksum is that of the inputs: a run must not change them. */
case_status case_build(nbl_context *ctx, const nbl__family *family, const char *text, uint64_t seed,
                       case_split split, op_case *c, char why[CASE_TEXT])
{
    char value[CASE_TEXT];
    case_status status = case_build_inputs(ctx, family, text, seed, split, c, why);
    if (status != CASE_READY) return status;
    if (nbl__infer(ctx, family, false, c->arguments) != NBL_OK) {
        snprintf(why, CASE_TEXT, "refused: %.900s", nbl_error_message(ctx));
        return CASE_BAD;
    }
    c->backward = family->backward.name &&
                  !(case_word(text, "backward", value) && strcmp(value, "no") == 0) && make_cotangents(c);
    c->checksum = case_checksum(&c->memory);
    return CASE_READY;
}

void case_destroy(op_case *c)
{
    case_free(&c->memory);
    free(c->arguments);
    c->arguments = NULL;
}
