/* base64.h - base64 with padding (RFC 4648), as tokenizer files have it. */
#ifndef NBL_BASE64_H
#define NBL_BASE64_H

#include "base/json/json.h"

/* Decodes base64 into `out` and returns the number of bytes, or -1 for invalid base64. `out` has
 * room for size / 4 * 3 bytes. */
int64_t nbl__base64_read(const char *text, size_t size, unsigned char *out);
/* Appends bytes as base64. */
void nbl__base64_add(nbl__text *out, const void *bytes, size_t size);

#endif
