/* partial.h - the temporary that an output is written in: TARGET.partial-XXXXXX beside the target, a file or a folder.
 *
 * The temporary is locked (flock) as long as its descriptor is open. A killed process loses its locks, so a temporary
 * whose lock can be taken has no writer any more: the next command that writes the same target removes it. On a disk
 * without locks nothing is ever removed. */
#ifndef NBL_PARTIAL_H
#define NBL_PARTIAL_H

#include "base/arena.h"

/* Makes a new temporary under a name that nothing has, with the rights that the umask gives, and locks it. The name
 * lives in the arena. */
nbl_status nbl__partial_make(nbl__arena *arena, const char *target, bool folder, char **name, int *fd);
/* Removes the temporaries of `target` that no process writes any more. What cannot be removed stays: it is harmless.
 * Only a lack of memory fails. */
nbl_status nbl__partial_clean(nbl_context *ctx, const char *target);
/* Removes the files of a folder and those of the folders in it. The folder itself stays. */
void nbl__partial_empty(int folder);

#endif
