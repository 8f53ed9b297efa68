/* cpu.c - detects instruction sets by CPUID and XGETBV. See cpu.h.
 *
 * CPUID says what the processor has, XCR0 which registers the operating system saves: 0x6 = SSE
 * and AVX, 0xe6 = also AVX-512, 0x60000 = AMX tiles. AMX also needs a permission of the Linux
 * kernel, requested once per detection; a refusal lowers the level to avx512bf16. */
#define _GNU_SOURCE
#include "base/cpu.h"

#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

static const char *const names[NBL_ISA_COUNT] = {"scalar", "avx2", "avx512", "avx512bf16", "amx"};

const char *nbl__isa_name(nbl_isa isa)
{
    return (unsigned)isa < NBL_ISA_COUNT ? names[isa] : "unknown";
}

#if defined(__x86_64__)

static uint64_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static int has(uint32_t word, int bit)
{
    return (int)(word >> bit & 1);
}

static int amx_permitted(void)
{
    enum { ARCH_REQ_XCOMP_PERM_ = 0x1023, XFEATURE_XTILEDATA_ = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM_, XFEATURE_XTILEDATA_) == 0;
}

nbl_isa nbl__isa_detect(void)
{
    uint32_t a, b, c, d, b7, c7, d7, a71, unused;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, 27)) return NBL_ISA_SCALAR; /* OSXSAVE */
    uint64_t xcr0 = read_xcr0();
    int fma = has(c, 12), f16c = has(c, 29), avx = has(c, 28);
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return NBL_ISA_SCALAR;
    if (!avx || !fma || !f16c || !has(b7, 5) || (xcr0 & 0x6) != 0x6) return NBL_ISA_SCALAR;

    int avx512 = has(b7, 16) && has(b7, 17) && has(b7, 30) && has(b7, 31) && has(c7, 1) && has(c7, 11);
    if (!avx512 || (xcr0 & 0xe6) != 0xe6) return NBL_ISA_AVX2;

    if (!__get_cpuid_count(7, 1, &a71, &unused, &unused, &unused) || !has(a71, 5)) return NBL_ISA_AVX512;

    int amx = has(d7, 24) && has(d7, 25) && has(d7, 22); /* tile, int8, bf16 */
    if (!amx || (xcr0 & 0x60000) != 0x60000 || !amx_permitted()) return NBL_ISA_AVX512BF16;
    return NBL_ISA_AMX;
}

#else

nbl_isa nbl__isa_detect(void)
{
    return NBL_ISA_SCALAR;
}

#endif

int nbl__isa_choose(const char *wanted, nbl_isa machine, nbl_isa *chosen)
{
    *chosen = machine;
    if (wanted == NULL || wanted[0] == '\0') return 1;
    for (int i = 0; i < NBL_ISA_COUNT; i++) {
        if (strcmp(wanted, names[i]) != 0) continue;
        if ((nbl_isa)i < machine) *chosen = (nbl_isa)i;
        return 1;
    }
    return 0;
}

size_t nbl__cache_bytes(void)
{
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (bytes <= 0) bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return bytes > 0 ? (size_t)bytes : 0;
}

int nbl__core_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}
