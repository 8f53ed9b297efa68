/* resume_state.h - text of the two JSON files of a checkpoint. For resume.c only. */
#ifndef NBL_RESUME_STATE_H
#define NBL_RESUME_STATE_H

#include "train/resume.h"

/* The whole text of trainer_state.json. */
void nbl__trainer_state_print(nbl__text *out, const nbl__run_parts *parts);
/* The members of nibble_state.json that hold the state, without braces and without a comma at
 * the end. */
void nbl__run_state_print(nbl__text *out, const nbl__run_state *state);
/* Reads these members. Missing, malformed or contradictory values are NBL_ERROR_FORMAT. `where`
 * is the file's name in messages. */
nbl_status nbl__run_state_read(nbl_context *ctx, const char *where, const nbl__json *root,
                               nbl__run_state *state);
/* Ends the object: adds the member "checksum", over all bytes of `out` so far, and the closing
 * brace. */
void nbl__state_seal(nbl__text *out);
/* Fails if the text does not end as nbl__state_seal would end it. */
nbl_status nbl__state_check_seal(nbl_context *ctx, const char *where, const char *text, size_t size);
/* Reads exactly 16 lower-case hexadecimal digits; false: the text is anything else. */
bool nbl__hash_parse(const char *text, uint64_t *hash);

#endif
