/* file_guard.h - SIGBUS inside a mapped file becomes an error instead of the end of the process.
 *
 * A page of a mapped file that no longer exists (another process truncated the file) or cannot be read (a bad disk)
 * raises SIGBUS. The handler puts zeros in the place of the mapping's rest and remembers the address. Whoever works
 * with the mapping asks afterwards (nbl__files_check in file.h) and fails: what was computed from zeros is never used.
 *
 * A handler can only find its data in globals. They are used after nbl_guard_mapped_files alone, which a program calls
 * when it wants this; without it nothing here changes anything. */
#ifndef NBL_BUS_H
#define NBL_BUS_H

#include "base/base.h"

/* Guards a mapping; returns its slot, or -1: nobody asked for guards, or all slots are taken. */
int nbl__bus_guard(const void *data, uint64_t size);
void nbl__bus_release(int slot); /* -1 is allowed */
/* Has a page of the mapping been missing? Then *offset is where in the file. */
bool nbl__bus_was_hit(int slot, uint64_t *offset);
/* How many mappings were hit since the process began. */
int nbl__bus_hits(void);

#endif
