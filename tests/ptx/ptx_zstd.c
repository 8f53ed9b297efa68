/* ptx_zstd.c - unpacks a zstd frame (RFC 8878). See ptx_zstd.h.
 *
 * The intermediate code in nvcc's objects is packed so. Nothing here is fast, and no dictionaries are known. Damage ends
 * in `false`: every read and every write is checked. */
#include "ptx_zstd.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FSE_BITS = 9, MAX_HUFFMAN_BITS = 11, MAX_LITERALS = 128 << 10 };

/* A finite state entropy table: a state gives a symbol, and the next state is `base` plus some bits. */
typedef struct fse_table {
    int bits; /* -1: there is none yet */
    struct {
        uint16_t base;
        uint8_t symbol, bits;
    } states[1 << MAX_FSE_BITS];
} fse_table;

typedef struct huffman_table {
    int bits; /* 0: there is none yet */
    uint8_t symbols[1 << MAX_HUFFMAN_BITS], lengths[1 << MAX_HUFFMAN_BITS];
} huffman_table;

/* Bits from the last one of a stream to its first; `at` is how many are left, and negative once too many were read. */
typedef struct bits_back {
    const uint8_t *from;
    long at;
} bits_back;

typedef struct unpacker {
    uint8_t *to;
    size_t written, to_bytes;
    fse_table lengths, offsets, matches;
    huffman_table huffman;
    uint32_t recent[3];
    uint8_t literals[MAX_LITERALS];
    size_t literal_count;
} unpacker;

/* ---- bits ---- */

static bool begin_back(bits_back *b, const uint8_t *from, size_t bytes)
{
    if (bytes == 0 || from[bytes - 1] == 0) return false;
    *b = (bits_back){from, (long)bytes * 8 - 1};
    for (uint8_t last = from[bytes - 1]; !(last & 0x80); last = (uint8_t)(last << 1)) b->at--;
    return true;
}

/* The next bits; before the beginning of the stream there are zeros. */
static uint32_t peek_back(const bits_back *b, int count)
{
    uint32_t value = 0;
    for (long i = b->at - 1; i >= b->at - count; i--)
        value = value << 1 | (i >= 0 ? (uint32_t)b->from[i / 8] >> i % 8 & 1 : 0);
    return value;
}

static uint32_t read_back(bits_back *b, int count)
{
    uint32_t value = peek_back(b, count);
    b->at -= count;
    return value;
}

/* `count` bits at bit `at`, low ones first; zeros behind the end. */
static uint32_t bits_at(const uint8_t *from, size_t bytes, size_t at, int count)
{
    uint32_t value = 0;
    for (int i = 0; i < count; i++, at++)
        if (at / 8 < bytes) value |= ((uint32_t)from[at / 8] >> at % 8 & 1) << i;
    return value;
}

/* ---- tables ---- */

static int log2_of(uint32_t value)
{
    int log = -1;
    for (; value; value >>= 1) log++;
    return log;
}

static bool make_fse(fse_table *t, const int16_t *counts, int symbols, int bits)
{
    uint32_t size = 1u << bits, high = size, at = 0;
    uint16_t next[256];
    t->bits = bits;
    for (int s = 0; s < symbols; s++) {
        next[s] = counts[s] == -1 ? 1 : (uint16_t)counts[s];
        if (counts[s] == -1) t->states[--high].symbol = (uint8_t)s;
    }
    for (int s = 0; s < symbols; s++)
        for (int i = 0; i < counts[s]; i++) {
            t->states[at].symbol = (uint8_t)s;
            do at = (at + (size >> 1) + (size >> 3) + 3) & (size - 1);
            while (at >= high);
        }
    if (at != 0) return false;
    for (uint32_t i = 0; i < size; i++) {
        uint16_t x = next[t->states[i].symbol]++;
        if (x == 0) return false;
        t->states[i].bits = (uint8_t)(bits - log2_of(x));
        t->states[i].base = (uint16_t)(((uint32_t)x << t->states[i].bits) - size);
    }
    return true;
}

/* The counts of a table's symbols as they are packed; returns the bytes read, 0 where they are damaged. */
static size_t read_fse(fse_table *t, const uint8_t *from, size_t bytes, int max_bits, int max_symbols)
{
    int16_t counts[256] = {0};
    int bits = (int)bits_at(from, bytes, 0, 4) + 5, symbols = 0;
    int32_t left = (1 << bits) + 1;
    size_t at = 4;
    if (bits > max_bits) return 0;
    while (left > 1 && symbols < max_symbols) {
        int width = log2_of((uint32_t)left) + 1;
        int32_t value = (int32_t)bits_at(from, bytes, at, width), small = (1 << (width - 1)) - 1,
                threshold = (1 << width) - 1 - left;
        if ((value & small) < threshold) {
            at += (size_t)width - 1;
            value &= small;
        } else {
            at += (size_t)width;
            if (value > small) value -= threshold;
        }
        counts[symbols++] = (int16_t)(value - 1);
        left -= value == 0 ? 1 : value - 1;
        for (uint32_t zeros = value == 1 ? 3 : 0; zeros == 3;) {
            zeros = bits_at(from, bytes, at, 2);
            at += 2;
            symbols += (int)zeros;
            if (symbols > max_symbols) return 0;
        }
    }
    if (left != 1 || (at + 7) / 8 > bytes || !make_fse(t, counts, symbols, bits)) return 0;
    return (at + 7) / 8;
}

/* Weights are packed with two states in turn; the stream ends where a state cannot be renewed. */
static int read_weights(uint8_t weights[256], const uint8_t *from, size_t bytes)
{
    fse_table *t = malloc(sizeof *t);
    bits_back b;
    int count = 0;
    size_t head = t ? read_fse(t, from, bytes, 6, 12) : 0;
    if (head && begin_back(&b, from + head, bytes - head)) {
        uint32_t state[2] = {0};
        state[0] = read_back(&b, t->bits);
        state[1] = read_back(&b, t->bits);
        for (int i = 0; count < 254 && b.at >= 0; i ^= 1) {
            weights[count++] = t->states[state[i]].symbol;
            int wanted = t->states[state[i]].bits;
            if (b.at < wanted) {
                weights[count++] = t->states[state[i ^ 1]].symbol;
                break;
            }
            state[i] = t->states[state[i]].base + read_back(&b, wanted);
        }
    }
    free(t);
    return count;
}

static size_t read_huffman(huffman_table *t, const uint8_t *from, size_t bytes)
{
    uint8_t weights[256] = {0};
    int count;
    size_t used;
    if (bytes == 0) return 0;
    if (from[0] < 128) {
        used = 1 + (size_t)from[0];
        if (used > bytes) return 0;
        count = read_weights(weights, from + 1, from[0]);
    } else {
        count = from[0] - 127;
        used = 1 + ((size_t)count + 1) / 2;
        if (used > bytes) return 0;
        for (int i = 0; i < count; i++) weights[i] = i % 2 ? from[1 + i / 2] & 15 : from[1 + i / 2] >> 4;
    }
    uint32_t sum = 0, at = 0;
    for (int i = 0; i < count; i++) {
        if (weights[i] > MAX_HUFFMAN_BITS) return 0;
        sum += weights[i] ? 1u << (weights[i] - 1) : 0;
    }
    t->bits = log2_of(sum) + 1;
    if (count == 0 || sum == 0 || t->bits > MAX_HUFFMAN_BITS) return 0;
    uint32_t rest = (1u << t->bits) - sum;
    if ((rest & (rest - 1)) != 0) return 0;
    weights[count++] = (uint8_t)(log2_of(rest) + 1);
    for (int weight = 1; weight <= t->bits; weight++)
        for (int i = 0; i < count; i++)
            for (uint32_t k = 0; weights[i] == weight && k < 1u << (weight - 1); k++, at++) {
                t->symbols[at] = (uint8_t)i;
                t->lengths[at] = (uint8_t)(t->bits + 1 - weight);
            }
    return at == 1u << t->bits ? used : 0;
}

/* ---- literals ---- */

static bool read_stream(unpacker *u, const uint8_t *from, size_t bytes, size_t at, size_t count)
{
    const huffman_table *t = &u->huffman;
    bits_back b;
    if (!begin_back(&b, from, bytes)) return false;
    for (size_t i = 0; i < count; i++) {
        uint32_t code = peek_back(&b, t->bits);
        u->literals[at + i] = t->symbols[code];
        b.at -= t->lengths[code];
    }
    return b.at == 0;
}

static bool read_streams(unpacker *u, const uint8_t *from, size_t bytes, int streams)
{
    if (streams == 1) return read_stream(u, from, bytes, 0, u->literal_count);
    if (bytes < 6) return false;
    size_t each = (u->literal_count + 3) / 4, left = bytes - 6, at = 0;
    const uint8_t *p = from + 6;
    for (int i = 0; i < 4; i++) {
        size_t size = i < 3 ? bits_at(from, bytes, (size_t)i * 16, 16) : left;
        size_t count = i < 3 ? each : u->literal_count - 3 * each;
        if (size > left || 3 * each > u->literal_count || !read_stream(u, p, size, at, count)) return false;
        p += size;
        left -= size;
        at += count;
    }
    return true;
}

/* Returns the bytes of the section, 0 where it is damaged. */
static size_t read_literals(unpacker *u, const uint8_t *from, size_t bytes)
{
    static const int plain_bits[] = {5, 12, 5, 20}, packed_bits[] = {10, 10, 14, 18};
    int kind = from[0] & 3, form = from[0] >> 2 & 3, streams = form ? 4 : 1;
    size_t head, packed;
    if (kind < 2) {
        head = form == 1 ? 2 : form == 3 ? 3 : 1;
        u->literal_count = bits_at(from, bytes, form % 2 ? 4 : 3, plain_bits[form]);
        packed = kind ? 1 : u->literal_count;
    } else {
        head = form < 2 ? 3 : form == 2 ? 4 : 5;
        u->literal_count = bits_at(from, bytes, 4, packed_bits[form]);
        packed = bits_at(from, bytes, 4 + (size_t)packed_bits[form], packed_bits[form]);
    }
    if (u->literal_count > MAX_LITERALS || head > bytes || packed > bytes - head) return 0;
    from += head;
    if (kind == 0) memcpy(u->literals, from, packed);
    else if (kind == 1) memset(u->literals, from[0], u->literal_count);
    if (kind < 2) return head + packed;
    size_t tree = kind == 2 ? read_huffman(&u->huffman, from, packed) : 0;
    if ((kind == 2 && tree == 0) || u->huffman.bits == 0) return 0;
    return read_streams(u, from + tree, packed - tree, streams) ? head + packed : 0;
}

/* ---- sequences ---- */

static const uint32_t length_base[] = {0,  1,  2,   3,   4,   5,    6,    7,    8,    9,     10,    11,
                                       12, 13, 14,  15,  16,  18,   20,   22,   24,   28,    32,    40,
                                       48, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
static const uint8_t length_bits[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  1,  1,
                                      1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const uint8_t match_bits[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  0,  0, 0,
                                     0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  0,  1,  1,  1, 1,
                                     2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const int16_t default_lengths[] = {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1,  1,  2,  2,
                                          2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
static const int16_t default_offsets[] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 1,  1,  1,  1,  1, 1,
                                          1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1};
static const int16_t default_matches[] = {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1,  1,  1,  1,  1,  1,  1, 1,
                                          1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
                                          1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1};

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

static uint32_t match_base(uint32_t code)
{
    uint32_t base = 3;
    for (uint32_t i = 0; i < code; i++) base += 1u << match_bits[i];
    return base;
}

/* Reads a table, or takes the one of the standard or the one before it. */
static bool choose_table(fse_table *t, int mode, const uint8_t **from, const uint8_t *end, int max_bits,
                         int max_symbols, const int16_t *standard, int standard_count, int standard_bits)
{
    size_t used = 0;
    switch (mode) {
    case 0: return make_fse(t, standard, standard_count, standard_bits);
    case 1:
        if (*from == end || **from >= max_symbols) return false;
        t->bits = 0;
        t->states[0].symbol = *(*from)++;
        t->states[0].bits = 0;
        t->states[0].base = 0;
        return true;
    case 2:
        used = read_fse(t, *from, (size_t)(end - *from), max_bits, max_symbols);
        *from += used;
        return used != 0;
    default: return t->bits >= 0;
    }
}

static uint32_t true_offset(unpacker *u, uint32_t value, uint32_t length)
{
    uint32_t index = value + (length == 0) - 1, offset;
    if (value > 3) {
        index = 2;
        offset = value - 3;
    } else if (index == 0) {
        return u->recent[0];
    } else {
        offset = index < 3 ? u->recent[index] : u->recent[0] - 1;
    }
    if (index > 1) u->recent[2] = u->recent[1];
    u->recent[1] = u->recent[0];
    return u->recent[0] = offset;
}

static bool put(unpacker *u, const uint8_t *from, size_t bytes)
{
    if (bytes > u->to_bytes - u->written) return false;
    memcpy(u->to + u->written, from, bytes);
    u->written += bytes;
    return true;
}

static bool put_match(unpacker *u, size_t offset, size_t bytes)
{
    if (offset == 0 || offset > u->written || bytes > u->to_bytes - u->written) return false;
    for (size_t i = 0; i < bytes; i++, u->written++) u->to[u->written] = u->to[u->written - offset];
    return true;
}

static bool run_sequences(unpacker *u, bits_back *b, size_t count)
{
    uint32_t length_state = read_back(b, u->lengths.bits), offset_state = read_back(b, u->offsets.bits),
             match_state = read_back(b, u->matches.bits);
    size_t taken = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t length_code = u->lengths.states[length_state].symbol,
                 offset_code = u->offsets.states[offset_state].symbol,
                 match_code = u->matches.states[match_state].symbol;
        if (offset_code > 31) return false;
        uint32_t offset = (1u << offset_code) + read_back(b, (int)offset_code),
                 match = match_base(match_code) + read_back(b, match_bits[match_code]),
                 length = length_base[length_code] + read_back(b, length_bits[length_code]);
        if (i + 1 < count) {
            length_state = u->lengths.states[length_state].base +
                           read_back(b, u->lengths.states[length_state].bits);
            match_state = u->matches.states[match_state].base +
                          read_back(b, u->matches.states[match_state].bits);
            offset_state = u->offsets.states[offset_state].base +
                           read_back(b, u->offsets.states[offset_state].bits);
        }
        if (b->at < 0 || length > u->literal_count - taken || !put(u, u->literals + taken, length))
            return false;
        taken += length;
        if (!put_match(u, true_offset(u, offset, length), match)) return false;
    }
    return b->at == 0 && put(u, u->literals + taken, u->literal_count - taken);
}

static bool read_block(unpacker *u, const uint8_t *from, size_t bytes)
{
    const uint8_t *end = from + bytes;
    size_t used = bytes ? read_literals(u, from, bytes) : 0, count;
    if (used == 0 || used == bytes) return false;
    from += used;
    count = *from++;
    if (count == 0) return from == end && put(u, u->literals, u->literal_count);
    if (count >= 128 && end - from < 2) return false;
    if (count == 255) {
        count = (size_t)from[0] + ((size_t)from[1] << 8) + 0x7f00;
        from += 2;
    } else if (count >= 128) {
        count = ((count - 128) << 8) + *from++;
    }
    if (from == end) return false;
    int modes = *from++;
    bits_back b;
    return choose_table(&u->lengths, modes >> 6, &from, end, 9, 36, default_lengths, COUNT(default_lengths),
                        6) &&
           choose_table(&u->offsets, modes >> 4 & 3, &from, end, 8, 32, default_offsets,
                        COUNT(default_offsets), 5) &&
           choose_table(&u->matches, modes >> 2 & 3, &from, end, 9, 53, default_matches,
                        COUNT(default_matches), 6) &&
           begin_back(&b, from, (size_t)(end - from)) && run_sequences(u, &b, count);
}

static bool read_blocks(unpacker *u, const uint8_t *from, size_t bytes)
{
    for (bool last = false; !last;) {
        if (bytes < 3) return false;
        uint32_t head = bits_at(from, bytes, 0, 24);
        size_t size = head >> 3, here = (head >> 1 & 3) == 1 ? 1 : size;
        last = head & 1;
        from += 3;
        bytes -= 3;
        if (here > bytes) return false;
        switch (head >> 1 & 3) {
        case 0:
            if (!put(u, from, size)) return false;
            break;
        case 1:
            for (size_t i = 0; i < size; i++)
                if (!put(u, from, 1)) return false;
            break;
        case 2:
            if (!read_block(u, from, size)) return false;
            break;
        default: return false;
        }
        from += here;
        bytes -= here;
    }
    return u->written == u->to_bytes;
}

bool ptx_unzstd(uint8_t *to, size_t to_bytes, const uint8_t *from, size_t from_bytes)
{
    static const uint8_t magic[] = {0x28, 0xb5, 0x2f, 0xfd}, size_bytes[] = {0, 2, 4, 8};
    if (from_bytes < 6 || memcmp(from, magic, sizeof magic) != 0 || (from[4] & 3) != 0) return false;
    bool whole = from[4] >> 5 & 1;
    size_t size = size_bytes[from[4] >> 6], head = 5 + (whole ? size + (size == 0) : 1 + size);
    unpacker *u = calloc(1, sizeof *u);
    if (u == NULL || head > from_bytes) {
        free(u);
        return false;
    }
    u->to = to;
    u->to_bytes = to_bytes;
    u->lengths.bits = u->offsets.bits = u->matches.bits = -1;
    u->recent[0] = 1, u->recent[1] = 4, u->recent[2] = 8;
    bool done = read_blocks(u, from + head, from_bytes - head);
    free(u);
    return done;
}
