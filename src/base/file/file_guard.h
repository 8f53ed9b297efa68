/* file_guard.h - turns SIGBUS in a mapped file into an error instead of the end of the process.
 *
 * Reading a page of a mapped file raises SIGBUS if the page no longer exists (the file was
 * truncated) or cannot be read (disk error). The handler replaces the rest of the mapping by
 * zeros and records the address. The code that used the mapping calls nbl__files_check (file.h)
 * afterwards and fails, so no result of zeros is used.
 *
 * A signal handler finds its data only in globals. These globals are used only after the program
 * has called nbl_guard_mapped_files; without that call SIGBUS behaves as usual. */
#ifndef NBL_FILE_GUARD_H
#define NBL_FILE_GUARD_H

#include "base/base.h"

/* Guards a mapping. Returns its slot, or -1 if guarding is off or all slots are taken. */
int nbl__guard_open(const void *data, uint64_t size);
void nbl__guard_close(int slot); /* -1 is allowed */
/* True if a page of the mapping was missing. *offset becomes its byte offset in the file. */
bool nbl__guard_was_hit(int slot, uint64_t *offset);
/* Number of mappings with a missing page since the process began. */
int nbl__guard_hits(void);

#endif
