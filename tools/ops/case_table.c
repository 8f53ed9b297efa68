/* case_table.c - the one table of operator cases; case.h explains its lines. A family that the library does
 * not have yet has lines all the same: they are text. */
#include "case.h"

const case_line case_table[] = {
#define CASE(family, text, note) {#family, text, note, CASE_PLAIN},
#define PERF(family, text, note) {#family, text, note, CASE_PERF},
#include "cases/linear.inc"
#undef CASE
#undef PERF
    {0},
};
