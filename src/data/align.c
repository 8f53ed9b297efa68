/* align.c - finds which bytes of a text each of its tokens stands for.
 *
 * nibble's tokenizers record no offsets. They are reconstructed by comparing the text with what the
 * tokens spell. A byte-level or byte-fallback token spells its bytes, "▁" spells a space, an added
 * token spells its content. While text and tokens agree, a token's bytes are exact.
 *
 * They disagree where the tokenizer has changed the text: Unicode normalization, a space put in
 * front, spaces stripped next to an added token. Then the nearest position is searched from which
 * AGREEMENT bytes of tokens agree with the text again; failing that, the next added token. The
 * tokens in between all get the bytes in between.
 *
 * Spaces that an added token takes with it (rstrip, lstrip) belong to that token, as in the offsets
 * of Hugging Face tokenizers. Cost: one pass over the text, plus a window of constant size per
 * disagreement. */
#include "text/chars.h"
#include "text/unicode/unicode.h"
#include "data/example.h"

enum {
    WINDOW = 256 /* bytes searched after a disagreement */,
    AHEAD = 16 /* tokens skipped at most in that search */,
    AGREEMENT = 12 /* bytes that must agree */,
    MAX_TRIES = 8 /* added tokens that find_anchor looks for */
};

typedef struct aligner {
    const nbl_tokenizer *tokenizer;
    bool byte_level;
    const int32_t *ids;
    int64_t count;
} aligner;

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Compares what token i spells with a text. Returns the number of bytes it spells. *matched: how
 * many of them, from the first, the text begins with. */
static size_t match_token(const aligner *s, int64_t i, const char *text, size_t size, size_t *matched)
{
    const nbl__added_token *added = nbl__added_get(&s->tokenizer->added, s->ids[i]);
    nbl_string token = nbl_tokenizer_token(s->tokenizer, s->ids[i]);
    size_t length = 0;
    bool equal = true;
    *matched = 0;
    for (size_t at = 0; at < token.size; length++) {
        char byte = token.text[at];
        uint32_t c;
        int n = nbl__utf8_length(token.text + at, token.text + token.size), value;
        if (added == NULL && n) {
            nbl__char_get(token.text + at, &c);
            if (s->byte_level && (value = nbl__char_byte(c)) >= 0) byte = (char)value;
            else if (!s->byte_level && c == 0x2581) byte = ' ';
            else if (!s->byte_level && at == 0 && token.size == 6 && memcmp(token.text, "<0x", 3) == 0 &&
                     hex(token.text[3]) >= 0 && hex(token.text[4]) >= 0 && token.text[5] == '>') {
                byte = (char)(hex(token.text[3]) * 16 + hex(token.text[4]));
                n = 6;
            } else n = 1;
        } else n = 1;
        at += (size_t)n;
        equal = equal && length < size && text[length] == byte;
        *matched += equal;
    }
    return length;
}

/* True if the text from `at` on is what the tokens from i on spell: for AGREEMENT bytes, up to
 * an added token, or to the end. */
static bool agrees(const aligner *s, int64_t i, const char *text, size_t size, size_t at)
{
    size_t begin = at;
    for (; i < s->count; i++) {
        size_t matched, length = match_token(s, i, text + at, size - at, &matched);
        if (matched < length) return false;
        at += length;
        if (at - begin >= AGREEMENT || (length && nbl__added_get(&s->tokenizer->added, s->ids[i])))
            return true;
    }
    return at == size;
}

/* *token, *position: the next added token that occurs in the text from `at` on. Without one: the
 * end of both. */
static void find_anchor(const aligner *s, int64_t i, const char *text, size_t size, size_t at, int64_t *token,
                        size_t *position)
{
    for (int tries = 0; i < s->count && tries < MAX_TRIES; i++) {
        const nbl__added_token *added = nbl__added_get(&s->tokenizer->added, s->ids[i]);
        size_t length = added ? added->content.size : 0;
        tries += added != NULL;
        for (size_t there = at; length && there + length <= size; there++)
            if (memcmp(text + there, added->content.text, length) == 0) {
                *token = i;
                *position = there;
                return;
            }
    }
    *token = s->count;
    *position = size;
}

/* *token, *position: the nearest token from i on and position from `at` on that agree. Pairs are
 * tried by the sum of tokens skipped and bytes skipped. Without one: see find_anchor. */
static void find_agreement(const aligner *s, int64_t i, const char *text, size_t size, size_t at,
                           int64_t *token, size_t *position)
{
    for (int64_t reach = 0; reach < WINDOW; reach++)
        for (int64_t skip = 0; skip <= reach && skip <= AHEAD && i + skip < s->count; skip++) {
            size_t there = at + (size_t)(reach - skip);
            if (there > size || !agrees(s, i + skip, text, size, there)) continue;
            *token = i + skip;
            *position = there;
            return;
        }
    find_anchor(s, i, text, size, at, token, position);
}

/* The end of token i including the spaces that it takes (rstrip); `at` is its end without them.
 * An added token that is searched in the normalized text takes the spaces of that text: it gets
 * ours only if the tokens that follow do not spell them. */
static size_t with_spaces(const aligner *s, int64_t i, const char *text, size_t size, size_t at)
{
    const nbl__added_token *added = nbl__added_get(&s->tokenizer->added, s->ids[i]);
    if (added == NULL || !added->right_strip) return at;
    if (added->normalized && s->tokenizer->normalizer_count && agrees(s, i + 1, text, size, at)) return at;
    return nbl__spaces_after(text, size, at);
}

void nbl__align_tokens(const nbl_tokenizer *tokenizer, const char *text, size_t size, const int32_t *ids,
                       int64_t count, size_t *begins, size_t *ends)
{
    aligner s = {tokenizer, false, ids, count};
    for (int i = 0; i < tokenizer->detokenizer_count; i++)
        s.byte_level |= tokenizer->detokenizers[i].kind == NBL_DETOKENIZE_BYTE_LEVEL;
    for (int i = 0; i < tokenizer->pre_tokenizer_count; i++)
        s.byte_level |= tokenizer->pre_tokenizers[i].kind == NBL_PRE_BYTE_LEVEL;
    size_t at = 0, matched, length; /* at: end of the bytes assigned so far */
    for (int64_t i = 0; i < count;) {
        length = match_token(&s, i, text + at, size - at, &matched);
        if (matched == length) {
            begins[i] = at;
            at = ends[i] = with_spaces(&s, i, text, size, at + length);
            i++;
            continue;
        }
        int64_t next;
        size_t position;
        find_agreement(&s, i, text, size, at, &next, &position);
        if (next == i) { /* bytes that no token spells: token i gets them */
            begins[i] = at;
            length = match_token(&s, i, text + position, size - position, &matched);
            at = ends[i] = with_spaces(&s, i, text, size, position + length);
            i++;
            continue;
        }
        for (; i < next; i++) begins[i] = at, ends[i] = position;
        at = position;
    }
}
