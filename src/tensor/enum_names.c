/* enum_names.c - names of the enums of nibble.h, and the way back. dtype.c has those of dtypes and
 * formats. */
#include "base/base.h"

/* The index of a name in a list, or -1. */
static int index_of(const char *const *names, int count, const char *name)
{
    for (int i = 0; name && i < count; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}

/* nbl_ENUM_name and nbl_ENUM_parse. The names are in the order of the constants. */
#define ENUM_NAMES(type, ...)                                                                                \
    static const char *const type##_list[] = {__VA_ARGS__};                                                  \
    enum { type##_count = sizeof type##_list / sizeof *type##_list };                                        \
    const char *type##_name(type value)                                                                      \
    {                                                                                                        \
        return (unsigned)value < type##_count ? type##_list[value] : "unknown";                              \
    }                                                                                                        \
    bool type##_parse(const char *name, type *value)                                                         \
    {                                                                                                        \
        int i = index_of(type##_list, type##_count, name);                                                   \
        if (i >= 0) *value = (type)i;                                                                        \
        return i >= 0;                                                                                       \
    }

ENUM_NAMES(nbl_device_kind, "cpu", "cuda")
ENUM_NAMES(nbl_export_type, "default", "f32", "f16", "bf16", "q8_0", "q4_0")
ENUM_NAMES(nbl_plan_arena, "weights", "adapters", "optimizer", "saved", "scratch", "kv", "device")
ENUM_NAMES(nbl_plan_pass, "prepare", "forward", "again", "backward", "decode")
ENUM_NAMES(nbl_plan_recompute, "none", "cheap", "layers")
