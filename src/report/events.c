/* events.c - writes TFRecords with protobuf events. See events.h for the format.
 *
 * Pure text building: bytes are appended to an nbl__text, and nothing is written to disk here. A
 * failed allocation stays in the text's status. Cost: about 60 bytes and two CRCs per scalar,
 * five scalars per training record. */
#include "report/events.h"

#include <assert.h>

/* CRC-32C (Castagnoli), bit by bit. A table would not pay: a run writes a few hundred bytes per
 * step. */
static uint32_t crc32c(const uint8_t *data, size_t size)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

/* TFRecord's masking: rotate right by 15 bits and add a constant. It keeps a CRC that is part of
 * the data from disturbing the CRC over it. */
static uint32_t masked(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

/* ---- protobuf: only what events need ---- */

/* A protobuf message under construction. The longest one, an event with a summary, has at most 100
 * bytes; put_bytes asserts the room. */
typedef struct message {
    uint8_t bytes[160];
    size_t size;
} message;

static void put_bytes(message *m, const void *data, size_t size)
{
    assert(m->size + size <= sizeof m->bytes);
    memcpy(m->bytes + m->size, data, size);
    m->size += size;
}

/* Appends a varint: 7 bits per byte, low bits first. Bit 7 says that another byte follows. */
static void put_varint(message *m, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) put_bytes(m, &(uint8_t){(uint8_t)(value | 0x80)}, 1);
    put_bytes(m, &(uint8_t){(uint8_t)value}, 1);
}

/* Wire types. A field begins with the varint number·8 + type. */
enum { VARINT = 0, EIGHT_BYTES = 1, DELIMITED = 2, FOUR_BYTES = 5 };
static void put_field(message *m, int number, int type)
{
    put_varint(m, (uint64_t)(number << 3 | type));
}

/* Appends a field of bytes (text or submessage): its key, the size as a varint, the bytes. */
static void put_delimited(message *m, int number, const void *data, size_t size)
{
    put_field(m, number, DELIMITED);
    put_varint(m, size);
    put_bytes(m, data, size);
}

/* ---- events ---- */

/* Appends a message as one TFRecord. The length is written as the machine has it: little-endian. */
static void add_record(nbl__text *out, const message *m)
{
    uint64_t length = m->size;
    uint32_t of_length = masked(crc32c((const uint8_t *)&length, sizeof length)),
             of_data = masked(crc32c(m->bytes, m->size));
    nbl__text_add(out, (const char *)&length, sizeof length);
    nbl__text_add(out, (const char *)&of_length, sizeof of_length);
    nbl__text_add(out, (const char *)m->bytes, m->size);
    nbl__text_add(out, (const char *)&of_data, sizeof of_data);
}

/* An event with nothing but its time. */
static message event_at(double time)
{
    message event = {.size = 0};
    put_field(&event, 1, EIGHT_BYTES);
    put_bytes(&event, &time, sizeof time);
    return event;
}

void nbl__events_begin(nbl__text *out, double time)
{
    static const char version[] = "brain.Event:2";
    message event = event_at(time);
    put_delimited(&event, 3, version, sizeof version - 1);
    add_record(out, &event);
}

/* Appends one event with one scalar. */
static void add_scalar(nbl__text *out, const nbl__record *r, const char *tag, double number)
{
    message event = event_at(r->time), summary = {.size = 0}, value = {.size = 0};
    float single = (float)number;
    put_field(&event, 2, VARINT);
    /* event { time, step, summary { value { tag, simple_value } } }, built from the inside out */
    put_varint(&event, (uint64_t)r->step);
    put_delimited(&value, 1, tag, strlen(tag));
    put_field(&value, 2, FOUR_BYTES);
    put_bytes(&value, &single, sizeof single);
    put_delimited(&summary, 1, value.bytes, value.size);
    put_delimited(&event, 5, summary.bytes, summary.size);
    add_record(out, &event);
}

void nbl__events_add(nbl__text *out, const nbl__record *r)
{
    if (r->evaluation) {
        add_scalar(out, r, "eval/loss", r->loss);
        return;
    }
    add_scalar(out, r, "train/loss", r->loss);
    add_scalar(out, r, "train/grad_norm", r->grad_norm);
    add_scalar(out, r, "train/learning_rate", r->learning_rate);
    add_scalar(out, r, "train/tokens_per_second", r->tokens_per_second);
    add_scalar(out, r, "train/epoch", r->epoch);
    if (r->expert_load > 0) add_scalar(out, r, "train/expert_load", r->expert_load);
}
