/* sentencepiece.c - reads SentencePiece's protobuf; see sentencepiece.h.
 *
 * A message is a list of fields. A field is a tag (number and wire type) and a value:
 *
 *     wire type 0    varint: 7 bits per byte, low ones first, the highest bit set but in the last byte
 *     wire type 1, 5    8 or 4 bytes
 *     wire type 2    a length as varint, and as many bytes: text or a message
 *
 * Wire types 3 and 4 (groups) are older than this format and are refused. */
#include "text/files/sentencepiece.h"

#include "text/chars.h"

typedef struct cursor {
    const unsigned char *at, *end;
} cursor;

typedef struct field {
    uint64_t number;
    int wire;
    uint64_t value;   /* wire type 0, 1 or 5 */
    nbl__slice bytes; /* wire type 2 */
} field;

static bool read_varint(cursor *c, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 70 && c->at < c->end; shift += 7) {
        unsigned char byte = *c->at++;
        if (shift < 64) *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

static bool read_fixed(cursor *c, int size, uint64_t *value)
{
    *value = 0;
    if (c->end - c->at < size) return false;
    for (int i = 0; i < size; i++) *value |= (uint64_t)c->at[i] << (8 * i);
    c->at += size;
    return true;
}

/* Reads the next field of a message that is not at its end. Returns false for a malformed one. */
static bool read_field(cursor *c, field *f)
{
    uint64_t tag, length;
    if (!read_varint(c, &tag) || tag >> 3 == 0 || tag >> 32) return false;
    *f = (field){.number = tag >> 3, .wire = (int)(tag & 7)};
    switch (f->wire) {
    case 0: return read_varint(c, &f->value);
    case 1: return read_fixed(c, 8, &f->value);
    case 2:
        if (!read_varint(c, &length) || length > (uint64_t)(c->end - c->at)) return false;
        f->bytes = (nbl__slice){(const char *)c->at, (size_t)length};
        c->at += length;
        return true;
    case 5: return read_fixed(c, 4, &f->value);
    default: return false;
    }
}

static cursor cursor_of(nbl__slice bytes)
{
    const unsigned char *begin = (const unsigned char *)bytes.text;
    return (cursor){begin, begin + bytes.size};
}

/* protobuf's int32 is a varint of 64 bits; its low half counts. */
static int64_t int32_of(uint64_t value)
{
    return (int32_t)(uint32_t)value;
}

static bool read_piece(nbl__slice bytes, nbl__spm_piece *piece)
{
    cursor c = cursor_of(bytes);
    field f;
    *piece = (nbl__spm_piece){.text = {"", 0}, .type = NBL_SPM_NORMAL};
    while (c.at < c.end) {
        if (!read_field(&c, &f)) return false;
        if (f.number == 1 && f.wire == 2) piece->text = f.bytes;
        if (f.number == 2 && f.wire == 5) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&piece->score, &bits, sizeof bits);
        }
        if (f.number == 3 && f.wire == 0) piece->type = int32_of(f.value);
    }
    return nbl__utf8_check(piece->text.text, piece->text.size) == piece->text.size;
}

static bool read_trainer(nbl__slice bytes, nbl__spm *spm)
{
    cursor c = cursor_of(bytes);
    field f;
    while (c.at < c.end) {
        if (!read_field(&c, &f)) return false;
        if (f.wire == 0) {
            if (f.number == 3) spm->model_type = int32_of(f.value);
            if (f.number == 35) spm->byte_fallback = f.value != 0;
            if (f.number == 40) spm->unk_id = int32_of(f.value);
            if (f.number == 41) spm->bos_id = int32_of(f.value);
            if (f.number == 42) spm->eos_id = int32_of(f.value);
        } else if (f.wire == 2 && f.number >= 45 && f.number <= 47) {
            if (nbl__utf8_check(f.bytes.text, f.bytes.size) != f.bytes.size) return false;
            *(f.number == 45 ? &spm->unk : f.number == 46 ? &spm->bos : &spm->eos) = f.bytes;
        }
    }
    return true;
}

static bool read_normalizer(nbl__slice bytes, nbl__spm *spm)
{
    cursor c = cursor_of(bytes);
    field f;
    while (c.at < c.end) {
        if (!read_field(&c, &f)) return false;
        if (f.number == 2 && f.wire == 2) spm->charsmap = f.bytes;
    }
    return true;
}

nbl_status nbl__spm_read(nbl__arena *arena, const char *where, const char *bytes, size_t size, nbl__spm *spm)
{
    cursor c = cursor_of((nbl__slice){bytes, size}), again = c;
    field f;
    *spm = (nbl__spm){.model_type = 1, .bos_id = 1, .eos_id = 2};
    spm->unk = (nbl__slice){"<unk>", 5};
    spm->bos = (nbl__slice){"<s>", 3};
    spm->eos = (nbl__slice){"</s>", 4};
    int64_t count = 0;
    bool good = true;
    while (good && c.at < c.end) {
        good = read_field(&c, &f);
        count += good && f.number == 1 && f.wire == 2;
    }
    NBL_CHECK(arena->ctx, good && count > 0, NBL_ERROR_FORMAT,
              "%s: neither a SentencePiece model nor lines of base64 and a rank", where);
    spm->pieces = nbl__arena_alloc(arena, (size_t)count * sizeof *spm->pieces);
    if (spm->pieces == NULL) return NBL_ERROR_MEMORY;
    while (good && again.at < again.end) {
        (void)read_field(&again, &f); /* as above */
        if (f.wire != 2) continue;
        if (f.number == 1) {
            NBL_CHECK(arena->ctx, read_piece(f.bytes, &spm->pieces[spm->count]), NBL_ERROR_FORMAT,
                      "%s: piece %" PRId64 " of the SentencePiece model is broken", where, spm->count);
            spm->count++;
        } else if (f.number == 2) {
            good = read_trainer(f.bytes, spm);
        } else if (f.number == 3) {
            good = read_normalizer(f.bytes, spm);
        }
    }
    NBL_CHECK(arena->ctx, good, NBL_ERROR_FORMAT, "%s: the SentencePiece model's settings are broken", where);
    return NBL_OK;
}
