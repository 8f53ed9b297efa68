/* events.h - the curves of a run as TensorBoard reads them: runs/events.out.tfevents.*
 *
 *   record    u64 length | u32 checksum of it | the event | u32 checksum of that     (TFRecord, CRC-32C, masked)
 *   event     protobuf: 1 wall time (double), 2 step (varint), 3 version (text) or 5 summary {1 value {1 tag,
 *             2 simple_value (float)}}
 *
 * One file per run: a run that is resumed writes its history anew and goes on in the same file. */
#ifndef NBL_EVENTS_H
#define NBL_EVENTS_H

#include "report/records.h"

/* Appends the head of a file. */
void nbl__events_begin(nbl__text *out, double time);
/* Appends the scalars of a record, one event each. */
void nbl__events_add(nbl__text *out, const nbl__record *record);

#endif
