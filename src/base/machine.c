/* machine.c - what a context found on the machine, for people to read. */
#include "base/base.h"
#include "base/cpu.h"

int nbl_isa_level_get(const nbl_context *ctx, int64_t index, nbl_isa_level *level)
{
    static const char *const enables[NBL_ISA_COUNT] = {
        [NBL_ISA_SCALAR] = "every operator in every format, in portable C",
        [NBL_ISA_AVX2] = "8 lanes of f32; decoding 4-bit and f16 weights in registers",
        [NBL_ISA_AVX512] = "16 lanes of f32; 4-bit tables in one register, int8 products",
        [NBL_ISA_AVX512BF16] = "products of bf16 where they are faster than f32",
        [NBL_ISA_AMX] = "tiles of bf16 and int8: matrix products and attention",
    };
    if (index < 0 || index >= NBL_ISA_COUNT || level == NULL) return 0;
    *level = (nbl_isa_level){.name = nbl__isa_name((nbl_isa)index),
                             .enables = enables[index],
                             .found = index <= (int64_t)nbl__isa_detect(),
                             .used = index <= (int64_t)nbl__isa(ctx)};
    return 1;
}

int nbl_cores(void)
{
    return nbl__core_count();
}
