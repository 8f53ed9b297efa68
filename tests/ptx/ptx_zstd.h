/* ptx_zstd.h - unpacks what nvcc packed. Internal to tests/ptx. */
#ifndef NIBBLE_PTX_ZSTD_H
#define NIBBLE_PTX_ZSTD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Unpacks one zstd frame (RFC 8878) of exactly `to_bytes`. false: it is damaged. */
bool ptx_unzstd(uint8_t *to, size_t to_bytes, const uint8_t *from, size_t from_bytes);

#endif
