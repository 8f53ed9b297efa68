/* hash.h - a 64-bit hash of bytes, to detect damage and differences. Not cryptographic.
 *
 * Eight bytes at a time are xored in, multiplied and mixed, with constants of splitmix64. The
 * result depends on the machine's byte order. */
#ifndef NBL_HASH_H
#define NBL_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* `seed`: the hash of the bytes before these, or 0. */
static inline uint64_t nbl__hash(uint64_t seed, const void *data, size_t size)
{
    const uint64_t odd = 0x9E3779B97F4A7C15u;
    const unsigned char *at = data;
    uint64_t h = seed ^ (size * odd);
    for (; size > 0;) {
        uint64_t word = 0;
        size_t n = size < 8 ? size : 8;
        memcpy(&word, at, n);
        h = (h ^ word) * odd;
        h ^= h >> 29;
        at += n;
        size -= n;
    }
    h *= 0xBF58476D1CE4E5B9u;
    return h ^ h >> 32;
}

#endif
