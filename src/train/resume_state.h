/* resume_state.h - the two JSON files of a checkpoint; for resume.c. */
#ifndef NBL_RESUME_STATE_H
#define NBL_RESUME_STATE_H

#include "train/resume.h"

void nbl__trainer_state_print(nbl__text *out, const nbl__run_parts *parts);
/* The members of the object, without its braces. */
void nbl__run_state_print(nbl__text *out, const nbl__run_state *state);
nbl_status nbl__run_state_read(nbl_context *ctx, const char *where, const nbl__json *root,
                               nbl__run_state *state);
/* Ends the object: adds its last member, a checksum of all bytes before, and the brace. */
void nbl__state_seal(nbl__text *out);
/* Fails if a text does not end as nbl__state_seal would end it. */
nbl_status nbl__state_check_seal(nbl_context *ctx, const char *where, const char *text, size_t size);
/* 16 hexadecimal digits. */
bool nbl__hash_parse(const char *text, uint64_t *hash);

#endif
