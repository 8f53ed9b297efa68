/* events.h - the curves of a run in TensorBoard's format: runs/events.out.tfevents.*
 *
 *   file      records one after the other (TFRecord)
 *   record    u64 length | u32 crc of length | event | u32 crc of event      little-endian, CRC-32C, masked
 *   event     protobuf: 1 wall time (double), 2 step (varint), 3 version (text) or
 *             5 summary {1 value {1 tag, 2 simple_value (float)}}
 *
 * One file per run. A resumed run replaces it with its restored history and continues there. */
#ifndef NBL_EVENTS_H
#define NBL_EVENTS_H

#include "report/records.h"

/* Appends the first record of a file, which holds the version. time: seconds since 1970. */
void nbl__events_begin(nbl__text *out, double time);
/* Appends the scalars of a record, one event each. */
void nbl__events_add(nbl__text *out, const nbl__record *record);

#endif
