/* ptx_simple.c - the names of operations on registers alone, from ptx_ops.inc. See ptx_code.h. */
#include "ptx_simple.h"

#include <string.h>

/* The class of a type of ptx_ops.inc. */
enum {
    CLASS_b8 = PTX_B16,
    CLASS_s8 = PTX_B16,
    CLASS_b16 = PTX_B16,
    CLASS_s16 = PTX_B16,
    CLASS_b32 = PTX_B32,
    CLASS_s32 = PTX_B32,
    CLASS_f32 = PTX_B32,
    CLASS_b64 = PTX_B64,
    CLASS_s64 = PTX_B64,
    CLASS_f64 = PTX_B64
};

#define UNARY(ID, name, r, a, value) {name, PTX_##ID, CLASS_##r, {CLASS_##a}, 1},
#define BINARY(ID, name, r, a, b, value) {name, PTX_##ID, CLASS_##r, {CLASS_##a, CLASS_##b}, 2},
#define TERNARY(ID, name, r, a, b, c, value)                                                                 \
    {name, PTX_##ID, CLASS_##r, {CLASS_##a, CLASS_##b, CLASS_##c}, 3},
#define QUATERNARY(ID, name, r, a, b, c, d, value)                                                           \
    {name, PTX_##ID, CLASS_##r, {CLASS_##a, CLASS_##b, CLASS_##c, CLASS_##d}, 4},
#define SELECT(ID, name, r) {name, PTX_##ID, CLASS_##r, {CLASS_##r, CLASS_##r, PTX_PRED}, 3},
#define COMPARE(ID, name, a, condition) {name, PTX_##ID, PTX_PRED, {CLASS_##a, CLASS_##a}, 2},
#define LOGIC(ID, name, count, value) {name, PTX_##ID, PTX_PRED, {PTX_PRED, PTX_PRED}, count},

static const ptx_simple all[] = {
#include "ptx_ops.inc"
};

const ptx_simple *ptx_find_simple(const char *name)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, name) == 0) return &all[i];
    return NULL;
}
