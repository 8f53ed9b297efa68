/* detokenizer.c - the steps of a detokenizer; see detokenizer.h.
 *
 *     tokens "ĠHello" "," "Ġworld"  ──ByteLevel──▶  " Hello, world"
 *     tokens "▁Hi" "<0xE2>" "<0x82>" "<0xAC>"  ──Replace, ByteFallback, Fuse, Strip──▶  "Hi€"
 *
 * A step reads the tokens of text[now] and writes those of text[!now]; then `now` changes. Most
 * steps look at one token at a time (run_token); ByteLevel, ByteFallback and Fuse look at all.
 *
 * Invariant: the texts between two steps are valid UTF-8. Two steps produce raw bytes, ByteLevel
 * and ByteFallback. Both replace invalid sequences by U+FFFD before they end. */
#include "text/tokenizer/detokenizer.h"

#include "text/chars.h"

void nbl__detokenize_scratch_free(nbl__detokenize_scratch *s)
{
    for (int i = 0; i < 2; i++) {
        nbl__bytes_free(s->ctx, &s->text[i]);
        nbl__pieces_free(s->ctx, &s->tokens[i]);
    }
}

/* ---- writing a token ---- */

/* The text that the current step writes. */
static nbl__bytes *out(nbl__detokenize_scratch *s)
{
    return &s->text[!s->now];
}

/* Appends to the token that is being written. */
static nbl_status put(nbl__detokenize_scratch *s, const char *text, size_t size)
{
    return nbl__bytes_add(s->ctx, out(s), text, size);
}

/* Ends a token: its text is all that was written from offset `begin` on. */
static nbl_status end_token(nbl__detokenize_scratch *s, size_t begin)
{
    return nbl__pieces_add(s->ctx, &s->tokens[!s->now], (nbl__piece){begin, out(s)->size - begin, 0, -1});
}

/* Returns the length of the invalid sequence at s: the longest prefix that a valid character could
 * have, at least 1. This is the "maximal subpart" rule of Unicode, which Rust's from_utf8_lossy
 * follows. It decides how many U+FFFD a broken text gets. */
static size_t broken_length(const unsigned char *s, size_t size)
{
    unsigned char low = 0x80, high = 0xbf;
    size_t max;
    if (s[0] >= 0xc2 && s[0] <= 0xdf) max = 2;
    else if (s[0] >= 0xe0 && s[0] <= 0xef) {
        max = 3;
        if (s[0] == 0xe0) low = 0xa0;
        if (s[0] == 0xed) high = 0x9f;
    } else if (s[0] >= 0xf0 && s[0] <= 0xf4) {
        max = 4;
        if (s[0] == 0xf0) low = 0x90;
        if (s[0] == 0xf4) high = 0x8f;
    } else return 1;
    size_t n = 1;
    while (n < max && n < size && s[n] >= low && s[n] <= high) {
        n++;
        low = 0x80;
        high = 0xbf;
    }
    return n;
}

/* Writes bytes as UTF-8, with one U+FFFD for each invalid sequence. */
static nbl_status put_lossy(nbl__detokenize_scratch *s, const char *text, size_t size)
{
    for (size_t at = 0; at < size;) {
        size_t good = nbl__utf8_check(text + at, size - at);
        NBL_TRY(put(s, text + at, good));
        at += good;
        if (at >= size) break;
        NBL_TRY(put(s, "\xef\xbf\xbd", 3));
        at += broken_length((const unsigned char *)text + at, size - at);
    }
    return NBL_OK;
}

/* ---- steps over all tokens at once ---- */

/* ByteLevel: each character stands for one byte (nbl__char_byte). A token with a character that
 * stands for no byte is copied as it is. All tokens become one token, because a character of the
 * text may be spread over several tokens. */
static nbl_status byte_level(nbl__detokenize_scratch *s)
{
    nbl__bytes *from = &s->text[s->now];
    size_t all = 0; /* bytes are written in place: a byte is never longer than its character */
    for (size_t i = 0; i < s->tokens[s->now].count; i++) {
        const nbl__piece *token = &s->tokens[s->now].items[i];
        const char *text = from->data + token->begin;
        bool bytes = true;
        uint32_t c;
        for (size_t at = 0; bytes && at < token->size;) {
            at += (size_t)nbl__char_get(text + at, &c);
            bytes = nbl__char_byte(c) >= 0;
        }
        if (!bytes) {
            memmove(from->data + all, text, token->size);
            all += token->size;
            continue;
        }
        for (size_t at = 0; at < token->size;) {
            at += (size_t)nbl__char_get(text + at, &c);
            from->data[all++] = (char)nbl__char_byte(c);
        }
    }
    NBL_TRY(put_lossy(s, from->data, all));
    return end_token(s, 0);
}

/* Returns the value of a byte token such as <0x41>, or -1. Upstream parses the digits with Rust's
 * from_str_radix, which allows a leading '+': <0x+4> is 4. */
static int byte_value(const char *text, size_t size)
{
    if (size != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int value = 0, digits = 0;
    for (int i = 3; i < 5; i++) {
        char c = text[i];
        if (i == 3 && c == '+') continue;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
        digits++;
    }
    return digits ? value : -1;
}

/* ByteFallback: a run of byte tokens becomes one token if the bytes are valid UTF-8. Otherwise each
 * byte token becomes one U+FFFD. Other tokens are copied. */
static nbl_status byte_fallback(nbl__detokenize_scratch *s)
{
    const nbl__pieces *tokens = &s->tokens[s->now];
    for (size_t i = 0; i < tokens->count;) {
        size_t begin = out(s)->size, end = i;
        int value;
        for (; end < tokens->count; end++) {
            const nbl__piece *token = &tokens->items[end];
            value = byte_value(s->text[s->now].data + token->begin, token->size);
            if (value < 0) break;
            char byte = (char)value;
            NBL_TRY(put(s, &byte, 1));
        }
        size_t run = end - i;
        if (run && nbl__utf8_check(out(s)->data + begin, run) == run) {
            NBL_TRY(end_token(s, begin));
        } else if (run) {
            out(s)->size = begin;
            for (size_t k = 0; k < run; k++) {
                begin = out(s)->size;
                NBL_TRY(put(s, "\xef\xbf\xbd", 3));
                NBL_TRY(end_token(s, begin));
            }
        }
        if (end < tokens->count) {
            const nbl__piece *token = &tokens->items[end++];
            begin = out(s)->size;
            NBL_TRY(put(s, s->text[s->now].data + token->begin, token->size));
            NBL_TRY(end_token(s, begin));
        }
        i = end;
    }
    return NBL_OK;
}

/* ---- steps that look at one token ---- */

/* Metaspace: the replacement character becomes a space. In the first token it is removed, because
 * the pre-tokenizer put it there, except with prepend_scheme "never". */
static nbl_status metaspace(const nbl__detokenizer_step *step, nbl__detokenize_scratch *s, size_t index,
                            const char *text, size_t size)
{
    for (size_t at = 0; at < size;) {
        uint32_t c;
        size_t n = (size_t)nbl__char_get(text + at, &c);
        if (c != step->character) NBL_TRY(put(s, text + at, n));
        else if (index > 0 || step->never_prepended) NBL_TRY(put(s, " ", 1));
        at += n;
    }
    return NBL_OK;
}

/* Replace: the matches of a pattern become `content`. */
static nbl_status replace_matches(const nbl__detokenizer_step *step, nbl__detokenize_scratch *s,
                                  const char *text, size_t size)
{
    nbl__search search;
    size_t begin, end, last = 0;
    bool found;
    if (size == 0) return NBL_OK;
    NBL_TRY(nbl__search_begin(&search, s->matcher, step->regex, text, size));
    for (;;) {
        NBL_TRY(nbl__search_next(&search, &found, &begin, &end));
        if (!found) break;
        NBL_TRY(put(s, text + last, begin - last));
        NBL_TRY(put(s, step->content.text, step->content.size));
        last = end;
    }
    return put(s, text + last, size - last);
}

/* Strip: removes up to `start` and `stop` of one character at the ends. */
static nbl_status strip(const nbl__detokenizer_step *step, nbl__detokenize_scratch *s, const char *text,
                        size_t size)
{
    size_t begin = 0, end = size;
    uint32_t c;
    for (int64_t i = 0; i < step->start && begin < end; i++) {
        int n = nbl__char_get(text + begin, &c);
        if (c != step->character) break;
        begin += (size_t)n;
    }
    for (int64_t i = 0; i < step->stop && end > begin; i++) {
        const char *last = nbl__char_back(text, text + end);
        nbl__char_get(last, &c);
        if (c != step->character) break;
        end = (size_t)(last - text);
    }
    return put(s, text + begin, end - begin);
}

/* ---- replacing plain texts ---- */

/* Replaces `old` by `new` in text[from..size), as Rust's str::replace does. An empty `old` matches
 * before each character and at the end. */

static nbl_status replace_plain(nbl_context *ctx, nbl__bytes *text, size_t from, const char *old,
                                size_t old_size, const char *new, size_t new_size)
{
    nbl__bytes fresh = {0};
    size_t at = from;
    nbl_status status = NBL_OK;
    while (status == NBL_OK && at < text->size) {
        if (text->size - at >= old_size && memcmp(text->data + at, old, old_size) == 0) {
            status = nbl__bytes_add(ctx, &fresh, new, new_size);
            at += old_size;
            if (old_size > 0) continue;
        }
        size_t n = (size_t)nbl__char_length(text->data + at);
        if (status == NBL_OK) status = nbl__bytes_add(ctx, &fresh, text->data + at, n);
        at += n;
    }
    if (status == NBL_OK && old_size == 0) status = nbl__bytes_add(ctx, &fresh, new, new_size);
    if (status == NBL_OK) {
        text->size = from;
        status = nbl__bytes_add(ctx, text, fresh.data, fresh.size);
    }
    nbl__bytes_free(ctx, &fresh);
    return status;
}

/* Removes the spaces that word-level tokenization puts before punctuation and English contractions.
 * The pairs and their order are upstream's. */
static nbl_status clean_up(nbl__detokenize_scratch *s, size_t from)
{
    static const char *const pairs[][2] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        NBL_TRY(replace_plain(s->ctx, out(s), from, pairs[i][0], strlen(pairs[i][0]), pairs[i][1],
                              strlen(pairs[i][1])));
    return NBL_OK;
}

/* WordPiece: a token that begins with the prefix ("##") continues the word before it, any other
 * token gets a space in front. The first token gets neither change. */
static nbl_status wordpiece(const nbl__detokenizer_step *step, nbl__detokenize_scratch *s, size_t index,
                            const char *text, size_t size)
{
    size_t from = out(s)->size;
    bool continues = size >= step->prefix.size && memcmp(text, step->prefix.text, step->prefix.size) == 0;
    if (index > 0 && continues) {
        text += step->prefix.size;
        size -= step->prefix.size;
    } else if (index > 0) {
        NBL_TRY(put(s, " ", 1));
    }
    NBL_TRY(put(s, text, size));
    return step->cleanup ? clean_up(s, from) : NBL_OK;
}

/* CTC: removes the pad token; with cleanup the word delimiter becomes a space. run_token drops
 * repetitions and tokens that become empty. */
static nbl_status ctc(const nbl__detokenizer_step *step, nbl__detokenize_scratch *s, const char *text,
                      size_t size)
{
    size_t from = out(s)->size;
    NBL_TRY(put(s, text, size));
    NBL_TRY(replace_plain(s->ctx, out(s), from, step->prefix.text, step->prefix.size, "", 0));
    if (!step->cleanup) return NBL_OK;
    NBL_TRY(clean_up(s, from));
    return replace_plain(s->ctx, out(s), from, step->delimiter.text, step->delimiter.size, " ", 1);
}

/* BPEDecoder: the end-of-word suffix becomes a space, and nothing in the last token. */
static nbl_status bpe(const nbl__detokenizer_step *step, nbl__detokenize_scratch *s, bool last,
                      const char *text, size_t size)
{
    size_t from = out(s)->size;
    NBL_TRY(put(s, text, size));
    return replace_plain(s->ctx, out(s), from, step->prefix.text, step->prefix.size, " ", !last);
}

/* Runs a step that looks at one token at a time on token `index`. */
static nbl_status run_token(const nbl__detokenizer_step *step, nbl__detokenize_scratch *s, size_t index)
{
    const nbl__pieces *tokens = &s->tokens[s->now];
    const nbl__piece *token = &tokens->items[index];
    const char *text = s->text[s->now].data + token->begin;
    size_t begin = out(s)->size;
    switch (step->kind) {
    case NBL_DETOKENIZE_METASPACE: NBL_TRY(metaspace(step, s, index, text, token->size)); break;
    case NBL_DETOKENIZE_REPLACE: NBL_TRY(replace_matches(step, s, text, token->size)); break;
    case NBL_DETOKENIZE_STRIP: NBL_TRY(strip(step, s, text, token->size)); break;
    case NBL_DETOKENIZE_WORDPIECE: NBL_TRY(wordpiece(step, s, index, text, token->size)); break;
    case NBL_DETOKENIZE_BPE: NBL_TRY(bpe(step, s, index + 1 == tokens->count, text, token->size)); break;
    case NBL_DETOKENIZE_CTC:
        if (index > 0 && token[-1].size == token->size &&
            memcmp(s->text[s->now].data + token[-1].begin, text, token->size) == 0)
            return NBL_OK; /* CTC drops repeated tokens */
        NBL_TRY(ctc(step, s, text, token->size));
        if (out(s)->size == begin) return NBL_OK;
        break;
    default: NBL_TRY(put(s, text, token->size)); break;
    }
    return end_token(s, begin);
}

nbl_status nbl__detokenize_steps(const nbl__detokenizer_step *steps, int count, nbl__detokenize_scratch *s)
{
    for (int i = 0; i < count; i++) {
        out(s)->size = 0;
        s->tokens[!s->now].count = 0;
        if (steps[i].kind == NBL_DETOKENIZE_BYTE_LEVEL) NBL_TRY(byte_level(s));
        else if (steps[i].kind == NBL_DETOKENIZE_BYTE_FALLBACK) NBL_TRY(byte_fallback(s));
        else if (steps[i].kind == NBL_DETOKENIZE_FUSE) {
            for (size_t k = 0; k < s->tokens[s->now].count; k++) {
                const nbl__piece *token = &s->tokens[s->now].items[k];
                NBL_TRY(put(s, s->text[s->now].data + token->begin, token->size));
            }
            NBL_TRY(end_token(s, 0));
        } else {
            for (size_t k = 0; k < s->tokens[s->now].count; k++) NBL_TRY(run_token(&steps[i], s, k));
        }
        s->now = !s->now;
    }
    return NBL_OK;
}
