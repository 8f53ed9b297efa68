/* normalizer.c - runs the steps of a normalizer; see normalizer.h.
 *
 * A step reads one text and writes another. Each step also carries `origin` along: the number of
 * leading bytes that stem from the input's first character. Upstream tracks the source of every
 * character. The ids need only this one number, because one pre-tokenizer (Metaspace with
 * prepend_scheme "first") asks whether a piece begins where the input begins. */
#include "text/tokenizer/normalizer.h"

#include "text/chars.h"
#include "text/unicode/unicode.h"

void nbl__normalizer_scratch_free(nbl__normalizer_scratch *s)
{
    nbl__bytes_free(s->ctx, &s->buffers[0]);
    nbl__bytes_free(s->ctx, &s->buffers[1]);
    nbl__free(s->ctx, s->characters, s->room * sizeof *s->characters);
}

/* The 188 bytes that are printable in Latin-1 stand for themselves. The 68 others are mapped in
 * order to U+0100 ... U+0143:
 *
 *     00-20 -> U+0100-U+0120    7f-a0 -> U+0121-U+0142    ad -> U+0143 */
uint32_t nbl__byte_char(unsigned char b)
{
    if ((b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad)) return b;
    if (b <= 0x20) return 0x100u + b;
    if (b == 0xad) return 0x143;
    return 0x121u + (b - 0x7fu);
}

int nbl__char_byte(uint32_t c)
{
    if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xff && c != 0xad)) return (int)c;
    if (c >= 0x100 && c <= 0x120) return (int)(c - 0x100);
    if (c >= 0x121 && c <= 0x142) return (int)(c - 0x121 + 0x7f);
    return c == 0x143 ? 0xad : -1;
}

/* ---- steps that look at one character at a time ---- */

/* BertNormalizer's ranges of CJK ideographs. */
static bool is_chinese(uint32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) || (c >= 0xf900 && c <= 0xfaff) ||
           (c >= 0x2f800 && c <= 0x2fa1f);
}

/* SentencePiece's "nmt" rules: returns c, or a space, or UINT32_MAX if c is to be dropped. */
static uint32_t nmt(uint32_t c)
{
    if ((c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f)
        return UINT32_MAX;
    if (c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 || (c >= 0x200b && c <= 0x200f) ||
        c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd)
        return ' ';
    return c;
}

/* Runs a step on one character. */
static nbl_status map_char(nbl__normalizer_kind kind, uint32_t c, bool first, nbl__sink *out)
{
    uint32_t lower[2];
    switch (kind) {
    case NBL_NORMALIZE_LOWERCASE: {
        int n = nbl__char_lowercase(c, lower);
        NBL_TRY(nbl__sink_put(out, lower[0], first));
        return n == 2 ? nbl__sink_put(out, lower[1], first) : NBL_OK;
    }
    case NBL_NORMALIZE_STRIP_ACCENTS:
        return nbl__char_in(&nbl__chars_accent, c) ? NBL_OK : nbl__sink_put(out, c, first);
    case NBL_NORMALIZE_STRIP_NONSPACING:
        return nbl__char_in(&nbl__chars_nonspacing, c) ? NBL_OK : nbl__sink_put(out, c, first);
    case NBL_NORMALIZE_CLEAN:
        if (nbl__char_in(&nbl__chars_control, c)) return NBL_OK;
        return nbl__sink_put(out, nbl__char_is_space(c) ? ' ' : c, first);
    case NBL_NORMALIZE_CHINESE:
        if (!is_chinese(c)) return nbl__sink_put(out, c, first);
        NBL_TRY(nbl__sink_put(out, ' ', first));
        NBL_TRY(nbl__sink_put(out, c, first));
        return nbl__sink_put(out, ' ', first);
    case NBL_NORMALIZE_NMT: c = nmt(c); return c == UINT32_MAX ? NBL_OK : nbl__sink_put(out, c, first);
    default: return nbl__sink_put(out, c, first);
    }
}

/* Runs a step on all characters of a text. */
static nbl_status map_all(nbl__normalizer_kind kind, const nbl__normal *in, nbl__sink *out)
{
    for (size_t at = 0; at < in->size;) {
        uint32_t c;
        size_t n = (size_t)nbl__char_get(in->text + at, &c);
        NBL_TRY(map_char(kind, c, at < in->origin, out));
        at += n;
    }
    return NBL_OK;
}

/* ---- steps that look at the whole text ---- */

/* Appends in[begin, end) unchanged. If a part of it stems from the first character, the output's
 * origin ends with that part. */
static nbl_status copy(const nbl__normal *in, size_t begin, size_t end, nbl__sink *out)
{
    NBL_TRY(nbl__bytes_add(out->ctx, out->bytes, in->text + begin, end - begin));
    if (begin < in->origin) {
        size_t over = end > in->origin ? end - in->origin : 0; /* bytes of other characters */
        out->origin = out->bytes->size - over;
    }
    return NBL_OK;
}

/* Removes white space at the ends. */
static nbl_status strip(const nbl__normalizer *step, const nbl__normal *in, nbl__sink *out)
{
    size_t begin = step->left ? nbl__spaces_after(in->text, in->size, 0) : 0, end = in->size;
    if (step->right) end = begin + nbl__spaces_before(in->text + begin, end - begin);
    return copy(in, begin, end, out);
}

/* Each replacement can multiply the length of the text, so a hostile file could exhaust memory. The
 * limit is 64 MiB + 16 times the input. */
static nbl_status check_growth(const nbl__normal *in, const nbl__sink *out)
{
    NBL_CHECK(out->ctx, out->bytes->size <= ((size_t)1 << 26) + 16 * in->size, NBL_ERROR_UNSUPPORTED,
              "tokenizer.json: normalizer: a text of %zu bytes grows beyond %zu", in->size, out->bytes->size);
    return NBL_OK;
}

/* Replaces the matches of a pattern. */
static nbl_status replace(const nbl__normalizer *step, nbl__normalizer_scratch *s, const nbl__normal *in,
                          nbl__sink *out)
{
    if (in->size == 0) return NBL_OK;
    nbl__search search;
    size_t begin, end, last = 0;
    bool found;
    NBL_TRY(nbl__search_begin(&search, s->matcher, step->regex, in->text, in->size));
    for (;;) {
        NBL_TRY(nbl__search_next(&search, &found, &begin, &end));
        if (!found) break;
        NBL_TRY(copy(in, last, begin, out));
        NBL_TRY(nbl__bytes_add(out->ctx, out->bytes, step->content.text, step->content.size));
        /* The new text counts as the first character if the match ends within the first
         * character. */
        if ((end ? end - 1 : 0) < in->origin && step->content.size) out->origin = out->bytes->size;
        NBL_TRY(check_growth(in, out));
        last = end;
    }
    return copy(in, last, in->size, out);
}

/* Puts a text in front. An empty text stays empty. */
static nbl_status prepend(const nbl__normalizer *step, const nbl__normal *in, nbl__sink *out)
{
    if (in->size == 0) return NBL_OK;
    NBL_TRY(nbl__bytes_add(out->ctx, out->bytes, step->content.text, step->content.size));
    if (in->origin) out->origin = out->bytes->size;
    return copy(in, 0, in->size, out);
}

/* Every byte becomes the character that stands for it. */
static nbl_status byte_level(const nbl__normal *in, nbl__sink *out)
{
    for (size_t i = 0; i < in->size; i++)
        NBL_TRY(nbl__sink_put(out, nbl__byte_char((unsigned char)in->text[i]), i < in->origin));
    return NBL_OK;
}

static nbl_status run_step(const nbl__normalizer *step, nbl__normalizer_scratch *s, const nbl__normal *in,
                           nbl__sink *out)
{
    switch (step->kind) {
    case NBL_NORMALIZE_NFC:
    case NBL_NORMALIZE_NFD:
    case NBL_NORMALIZE_NFKC:
    case NBL_NORMALIZE_NFKD: return nbl__normalize_form(s, step->kind, in, out);
    case NBL_NORMALIZE_STRIP: return strip(step, in, out);
    case NBL_NORMALIZE_REPLACE: return replace(step, s, in, out);
    case NBL_NORMALIZE_PREPEND: return prepend(step, in, out);
    case NBL_NORMALIZE_PRECOMPILED: return nbl__normalize_precompiled(step, in, out);
    case NBL_NORMALIZE_BYTE_LEVEL: return byte_level(in, out);
    default: return map_all(step->kind, in, out);
    }
}

/* The steps write into two buffers in turn. The result is in one of them, or is the input itself if
 * there is no step. */
nbl_status nbl__normalize(const nbl__normalizer *steps, int count, nbl__normalizer_scratch *s,
                          nbl__normal *text)
{
    nbl__normal whole = *text;
    for (int i = 0; i < count; i++) {
        nbl__bytes *to = &s->buffers[i % 2];
        to->size = 0;
        nbl__sink out = {s->ctx, to, 0};
        NBL_TRY(nbl__bytes_reserve(s->ctx, to, text->size + 1));
        NBL_TRY(run_step(&steps[i], s, text, &out));
        *text = (nbl__normal){to->data, to->size, out.origin};
        NBL_TRY(check_growth(&whole, &out));
    }
    return NBL_OK;
}
