/* bindings.c - how files become calls.
 *
 * Most operators are read off their family's slots and attributes (run_family). The few whose files
 * look different have a function each: those without a family, those with a list of tensors, and
 * those whose attributes are objects. docs/OPERATORS.md tells users. */
#include "device.h"
#include "ops/families.h"
#include "ops/rope/rope.h"
#include "run.h"

/* ---- operators without a family ---- */

/* dequantize: a weight to a dense tensor; no family has it. */
static nbl_status bind_dequantize(run *r)
{
    nbl_weight w;
    nbl_dtype dtype;
    bool transpose;
    NBL_TRY(run_dtype(r, "dtype", &dtype));
    NBL_TRY(run_flag(r, "transpose", false, &transpose));
    NBL_TRY(run_weight(r, "w", &w));
    nbl_tensor y = {.dtype = dtype, .rank = w.rank};
    memcpy(y.shape, w.shape, sizeof y.shape);
    int64_t rows = nbl__tensor_rows(&y);
    if (transpose) y = (nbl_tensor){.dtype = dtype, .rank = 2, .shape = {w.shape[w.rank - 1], rows}};
    NBL_TRY(run_output(r, "y", &y));
    r->impl = "dequantize";
    if (nbl__device_of(r->ctx)->separate_memory && w.format != NBL_FORMAT_DENSE)
        return device_dequantize(r->ctx, &w, dtype, transpose, &y);
    return nbl__dequantize_host(r->ctx, &w, 0, rows, dtype, transpose, y.data);
}

/* ---- families ---- */

/* Reads the attributes of a family into their fields. */
static nbl_status read_attrs(run *r, const nbl__family *family, void *arguments)
{
    for (const nbl__attr *attr = family->attrs; attr->name; attr++) {
        void *field = (char *)arguments + attr->offset;
        double number;
        switch (attr->type) {
        case NBL_ATTR_DTYPE: NBL_TRY(run_dtype(r, attr->name, field)); break;
        case NBL_ATTR_FLAG: NBL_TRY(run_flag(r, attr->name, attr->missing != 0, field)); break;
        case NBL_ATTR_WORD: NBL_TRY(run_choice(r, attr->name, attr->words, (int)attr->missing, field)); break;
        case NBL_ATTR_FLOAT:
            NBL_TRY(run_number(r, attr->name, attr->missing, &number));
            *(float *)field = (float)number;
            break;
        case NBL_ATTR_INT:
            NBL_TRY(run_integer(r, attr->name, attr->missing, -0x1p53, &number));
            *(int64_t *)field = (int64_t)number;
            break;
        case NBL_ATTR_SEED:
            NBL_TRY(run_integer(r, attr->name, attr->missing, 0, &number));
            *(uint64_t *)field = (uint64_t)number;
            break;
        }
    }
    return NBL_OK;
}

/* Reads the tensors that a file gives. *backward: a gradient of an output is among them. */
static nbl_status read_slots(run *r, const nbl__family *family, void *arguments, bool *backward)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        void *field = (char *)arguments + slot->offset;
        switch (slot->role) {
        case NBL_ROLE_INPUT: NBL_TRY(run_tensor(r, slot->name, field)); break;
        case NBL_ROLE_OPTIONAL: NBL_TRY(run_optional(r, slot->name, field)); break;
        case NBL_ROLE_WEIGHT: NBL_TRY(run_weight(r, slot->name, field)); break;
        case NBL_ROLE_OPTIONAL_WEIGHT:
            if (run_has_weight(r, slot->name)) NBL_TRY(run_weight(r, slot->name, field));
            break;
        case NBL_ROLE_COTANGENT:
            NBL_TRY(run_optional(r, slot->name, field));
            *backward |= nbl__has_data(field);
            break;
        default: break;
        }
    }
    return NBL_OK;
}

/* Memory for all slots of a role that infer has given a shape. */
static nbl_status give_memory(run *r, const nbl__family *family, void *arguments, nbl__role role)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        if (slot->role != role) continue;
        nbl_tensor *tensor = nbl__slot_tensor(slot, arguments);
        if (tensor->rank == 0) continue;
        NBL_TRY(role == NBL_ROLE_SAVED ? run_memory(r, slot->name, tensor)
                                       : run_output(r, slot->name, tensor));
    }
    return NBL_OK;
}

/* infer comes before memory, because it computes the shapes; gradients get theirs only when
 * backward runs. */
nbl_status run_family(run *r, const nbl__family *family, void *arguments)
{
    bool backward = false;
    NBL_TRY(read_attrs(r, family, arguments));
    NBL_TRY(read_slots(r, family, arguments, &backward));
    NBL_CHECK(r->ctx, !backward || family->backward.name, NBL_ERROR_ARGUMENT, "%s has no backward", r->op);
    NBL_TRY(family->forward.infer(r->ctx, arguments));
    if (backward) NBL_TRY(family->backward.infer(r->ctx, arguments));
    NBL_TRY(give_memory(r, family, arguments, NBL_ROLE_OUTPUT));
    NBL_TRY(give_memory(r, family, arguments, NBL_ROLE_SAVED));
    NBL_TRY(run_op(r, family, &family->forward, arguments));
    if (!backward) return NBL_OK;
    NBL_TRY(give_memory(r, family, arguments, NBL_ROLE_GRADIENT));
    return run_op(r, family, &family->backward, arguments);
}

/* ---- */

/* `scaling` is an object: the one that config.json has. */
static nbl_status bind_rope(run *r)
{
    nbl__rope_apply a = {0};
    NBL_TRY(nbl__rope_read_scaling(r->ctx, run_attribute(r, "scaling"), &a.rope));
    return run_family(r, &nbl__rope_family, &a);
}

/* rope_table has the same object. */
static nbl_status bind_rope_table(run *r)
{
    nbl__rope_table a = {0};
    NBL_TRY(nbl__rope_read_scaling(r->ctx, run_attribute(r, "scaling"), &a.rope));
    return run_family(r, &nbl__rope_table_family, &a);
}

/* The operators with a function of their own; all others are read off their family. */
static const struct {
    const char *op;
    nbl_status (*bind)(run *r);
} special[] = {
    {"dequantize", bind_dequantize}, {"rope", bind_rope},   {"rope_table", bind_rope_table},
    {"quantize", bind_quantize},     {"adamw", bind_adamw}, {"grad_norm", bind_grad_norm},
};

nbl_status run_bound(run *r)
{
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (strcmp(special[i].op, r->op) == 0) return special[i].bind(r);
    const nbl__family *family = nbl__family_find(r->op);
    NBL_CHECK(r->ctx, family, NBL_ERROR_ARGUMENT, "no operator is called \"%s\"", r->op);
    void *arguments = nbl__arena_alloc(&r->arena, family->size);
    if (arguments == NULL) return NBL_ERROR_MEMORY;
    memset(arguments, 0, family->size);
    return run_family(r, family, arguments);
}
