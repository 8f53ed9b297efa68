/* ptx_simple.h - operations on registers alone. Internal to tests/ptx. */
#ifndef NIBBLE_PTX_SIMPLE_H
#define NIBBLE_PTX_SIMPLE_H

#include "ptx_code.h"

#define UNARY(ID, ...) PTX_##ID,
#define BINARY UNARY
#define TERNARY UNARY
#define QUATERNARY UNARY
#define SELECT UNARY
#define COMPARE UNARY
#define LOGIC UNARY
enum {
    PTX_BEFORE_SIMPLE = PTX_FIRST_SIMPLE - 1,
#include "ptx_ops.inc"
    PTX_OPERATIONS
};
#undef UNARY
#undef BINARY
#undef TERNARY
#undef QUATERNARY
#undef SELECT
#undef COMPARE
#undef LOGIC

#endif
