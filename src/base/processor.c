/* processor.c - reads the processor's name from /proc/cpuinfo, and aarch64 features from the
 * auxiliary vector. See processor.h. */
#include "base/processor.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

/* ---- its name ---- */

typedef struct core {
    unsigned implementer, part;
} core;

/* aarch64: implementer and part are fields of the register MIDR_EL1, which Linux prints in
 * /proc/cpuinfo. */
static const struct {
    unsigned implementer;
    const char *name;
} implementers[] = {
    {0x41, "Arm"},       {0x42, "Broadcom"},  {0x43, "Cavium"},   {0x46, "Fujitsu"},
    {0x48, "HiSilicon"}, {0x4e, "NVIDIA"},    {0x51, "Qualcomm"}, {0x53, "Samsung"},
    {0x61, "Apple"},     {0x6d, "Microsoft"}, {0xc0, "Ampere"},
};
static const struct {
    core core;
    const char *name;
} cores[] = {
    {{0x41, 0xd03}, "Cortex-A53"},     {{0x41, 0xd04}, "Cortex-A35"},    {{0x41, 0xd05}, "Cortex-A55"},
    {{0x41, 0xd07}, "Cortex-A57"},     {{0x41, 0xd08}, "Cortex-A72"},    {{0x41, 0xd09}, "Cortex-A73"},
    {{0x41, 0xd0a}, "Cortex-A75"},     {{0x41, 0xd0b}, "Cortex-A76"},    {{0x41, 0xd0c}, "Neoverse-N1"},
    {{0x41, 0xd0d}, "Cortex-A77"},     {{0x41, 0xd40}, "Neoverse-V1"},   {{0x41, 0xd41}, "Cortex-A78"},
    {{0x41, 0xd44}, "Cortex-X1"},      {{0x41, 0xd46}, "Cortex-A510"},   {{0x41, 0xd47}, "Cortex-A710"},
    {{0x41, 0xd48}, "Cortex-X2"},      {{0x41, 0xd49}, "Neoverse-N2"},   {{0x41, 0xd4d}, "Cortex-A715"},
    {{0x41, 0xd4e}, "Cortex-X3"},      {{0x41, 0xd4f}, "Neoverse-V2"},   {{0x41, 0xd80}, "Cortex-A520"},
    {{0x41, 0xd81}, "Cortex-A720"},    {{0x41, 0xd82}, "Cortex-X4"},     {{0x41, 0xd84}, "Neoverse-V3"},
    {{0x41, 0xd85}, "Cortex-X925"},    {{0x41, 0xd87}, "Cortex-A725"},   {{0x41, 0xd8e}, "Neoverse-N3"},
    {{0x43, 0x0af}, "ThunderX2"},      {{0x46, 0x001}, "A64FX"},         {{0x48, 0xd01}, "Kunpeng 920"},
    {{0x4e, 0x004}, "Carmel"},         {{0x51, 0x001}, "Oryon"},         {{0x61, 0x022}, "M1 efficiency"},
    {{0x61, 0x023}, "M1 performance"}, {{0x61, 0x032}, "M2 efficiency"}, {{0x61, 0x033}, "M2 performance"},
    {{0x6d, 0xd49}, "Cobalt 100"},     {{0xc0, 0xac3}, "AmpereOne"},     {{0xc0, 0xac4}, "AmpereOne A"},
};

/* "Arm Neoverse-N1"; unknown numbers are printed. */
static void name_core(core it, char *name, size_t size)
{
    char who[24], what[24];
    snprintf(who, sizeof who, "implementer 0x%02x", it.implementer);
    snprintf(what, sizeof what, "part 0x%03x", it.part);
    const char *maker = who, *model = what;
    for (size_t i = 0; i < sizeof implementers / sizeof *implementers; i++)
        if (implementers[i].implementer == it.implementer) maker = implementers[i].name;
    for (size_t i = 0; i < sizeof cores / sizeof *cores; i++)
        if (cores[i].core.implementer == it.implementer && cores[i].core.part == it.part)
            model = cores[i].name;
    snprintf(name, size, "%s %s", maker, model);
}

/* The value of a line "key : value", trimmed in place; NULL if the line has another key. */
static char *value_of(char *line, const char *key)
{
    char *colon = strchr(line, ':');
    size_t length = strlen(key);
    if (strncmp(line, key, length) != 0 || colon == NULL) return NULL;
    if (line + length + strspn(line + length, " \t") != colon) return NULL;
    colon += 1 + strspn(colon + 1, " \t");
    size_t end = strcspn(colon, "\n");
    while (end && isspace((unsigned char)colon[end - 1])) end--;
    colon[end] = '\0';
    return colon;
}

bool nbl__processor_in(const char *path, char *name, size_t size)
{
    /* At most this many kinds of core are named (big and little cores differ). */
    enum { KINDS = 4 };
    core seen[KINDS], now = {0, 0};
    size_t kinds = 0, used = 0;
    char line[512], *value;
    name[0] = '\0';
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        /* x86-64: the first model name is that of all cores. */
        if ((value = value_of(line, "model name")) && *value) {
            snprintf(name, size, "%s", value);
            break;
        }
        if ((value = value_of(line, "CPU implementer"))) now.implementer = (unsigned)strtoul(value, NULL, 0);
        if ((value = value_of(line, "CPU part")) == NULL) continue;
        now.part = (unsigned)strtoul(value, NULL, 0);
        /* aarch64: implementer and part of one core have been read; name it if it is a new kind. */
        bool known = false;
        for (size_t i = 0; i < kinds; i++)
            known = known || (seen[i].implementer == now.implementer && seen[i].part == now.part);
        if (known || kinds == KINDS || used >= size) continue;
        seen[kinds++] = now;
        char one[64];
        name_core(now, one, sizeof one);
        used += (size_t)snprintf(name + used, size - used, "%s%s", kinds > 1 ? ", " : "", one);
    }
    if (file) fclose(file);
    return name[0] != '\0';
}

bool nbl_processor_name(char *name, size_t size)
{
    return size > 0 && name && nbl__processor_in("/proc/cpuinfo", name, size);
}

/* ---- features of aarch64 ---- */

#if defined(__aarch64__)

#define WITHOUT "; no kernel uses it yet"

bool nbl__arm_feature_get(size_t index, nbl__arm_feature *feature)
{
    static const struct {
        const char *name, *enables;
        unsigned long type, bit; /* of the auxiliary vector */
    } all[] = {
        {"neon", "vectors of 128 bits" WITHOUT, AT_HWCAP, HWCAP_ASIMD},
        {"fp16", "arithmetic in f16" WITHOUT, AT_HWCAP, HWCAP_ASIMDHP},
        {"dotprod", "dot products of int8" WITHOUT, AT_HWCAP, HWCAP_ASIMDDP},
        {"bf16", "products of bf16" WITHOUT, AT_HWCAP2, HWCAP2_BF16},
        {"i8mm", "matrix products of int8" WITHOUT, AT_HWCAP2, HWCAP2_I8MM},
        {"sve", "vectors of up to 2048 bits" WITHOUT, AT_HWCAP, HWCAP_SVE},
        {"sve2", "more operations on them" WITHOUT, AT_HWCAP2, HWCAP2_SVE2},
    };
    if (index >= sizeof all / sizeof *all) return false;
    *feature = (nbl__arm_feature){.name = all[index].name,
                                  .enables = all[index].enables,
                                  .found = (getauxval(all[index].type) & all[index].bit) != 0};
    return true;
}

#endif
