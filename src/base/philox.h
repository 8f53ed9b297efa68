/* philox.h - Philox-4x32-10, a counter-based random generator (Salmon et al. 2011).
 *
 * out[4] is a pure function of a 128-bit counter and a 64-bit key. Backward can therefore
 * recompute a dropout mask, in any order and with any number of threads. (CUDA's algorithms for a
 * large batch store the masks as bits instead: dropout_cuda.h.) Constants are those of the paper. */
#ifndef NBL_PHILOX_H
#define NBL_PHILOX_H

#include <stdint.h>

static inline void nbl__philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* A word as a float in [0, 1) with 24 random bits. */
static inline float nbl__uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

#endif
