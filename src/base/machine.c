/* machine.c - describes the machine to users, and measures its available memory. See cpu.h. */
#include "base/base.h"
#include "base/cpu.h"
#include "base/processor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool nbl_isa_level_get(const nbl_context *ctx, int64_t index, nbl_isa_level *result)
{
    nbl_isa_level level;
    static const char *const enables[NBL_ISA_COUNT] = {
        [NBL_ISA_SCALAR] = "every operator in every format, in portable C",
        [NBL_ISA_AVX2] = "8 lanes of f32; decoding 4-bit and f16 weights in registers",
        [NBL_ISA_AVX512] = "16 lanes of f32; 4-bit tables in one register, int8 products",
        [NBL_ISA_AVX512BF16] = "products of bf16 where they are faster than f32",
        [NBL_ISA_AMX] = "tiles of bf16 and int8: matrix products and attention",
    };
    if (index < 0 || result == NULL || NBL_RESULT_BEGIN(NULL, nbl_isa_level, result) != NBL_OK) return false;
#if defined(__aarch64__)
    nbl__arm_feature feature;
    if (index > NBL_ISA_SCALAR) {
        if (!nbl__arm_feature_get((size_t)index - 1, &feature)) return false;
        level = (nbl_isa_level){.name = feature.name, .enables = feature.enables, .found = feature.found};
        NBL_RESULT_PUT(nbl_isa_level, result, &level);
        return true;
    }
#endif
    if (index >= NBL_ISA_COUNT) return false;
    level = (nbl_isa_level){.name = nbl__isa_name((nbl_isa)index),
                            .enables = enables[index],
                            .found = index <= (int64_t)nbl__isa_detect(),
                            .used = index <= (int64_t)nbl__isa(ctx)};
    NBL_RESULT_PUT(nbl_isa_level, result, &level);
    return true;
}

int nbl_cores(void)
{
    return nbl__core_count();
}

/* ---- memory ---- */

/* Reads the number that follows `key` at the start of a line. False if there is none ("max"). */
static bool number_in(const char *path, const char *key, uint64_t *number)
{
    char line[256];
    FILE *file = fopen(path, "re");
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        size_t length = strlen(key);
        found = strncmp(line, key, length) == 0 && sscanf(line + length, "%" SCNu64, number) == 1;
    }
    if (file) fclose(file);
    return found;
}

/* Bytes that a control group (cgroup v2) still allows: memory.max - memory.current, where
 * inactive file pages count as free. UINT64_MAX: no limit; at least 1. */
static uint64_t group_available(const char *group)
{
    char path[512];
    uint64_t limit, used = 0, files = 0;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group);
    if (!number_in(path, "", &limit)) return UINT64_MAX;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", group);
    number_in(path, "", &used);
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.stat", group);
    number_in(path, "inactive_file ", &files);
    used -= files < used ? files : used;
    return limit > used ? limit - used : 1;
}

uint64_t nbl__memory_available(void)
{
    uint64_t kib, min;
    if (!number_in("/proc/meminfo", "MemAvailable:", &kib)) return 0;
    min = kib * 1024;
    char line[384], *group = NULL;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && group == NULL && fgets(line, sizeof line, file))
        if (strncmp(line, "0::/", 4) == 0) group = line + 3;
    if (file) fclose(file);
    if (group) group[strcspn(group, "\n")] = '\0';
    for (bool more = group != NULL; more;) { /* the group and each of its parents */
        char *slash = strrchr(group, '/');
        uint64_t here = group_available(group);
        if (here < min) min = here;
        more = slash != NULL;
        if (slash) *slash = '\0';
    }
    return min;
}
