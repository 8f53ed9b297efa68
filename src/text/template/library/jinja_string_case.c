/* jinja_string_case.c - str.upper, lower, title and similar, and the tests str.is…().
 *
 * One character may become up to three: 'ß'.upper() is 'SS'. Lower case depends on the context in
 * one case only: the sigma at the end of a word. */
#include "text/template/runtime/jinja_runtime.h"
#include "text/template/library/jinja_unicode.h"

/* True if the capital sigma at `at` ends a word. Its lower case is then U+03C2, not U+03C3. */
static bool final_sigma(const tpl_string *s, size_t at)
{
    const char *c = s->bytes + at, *end = s->bytes + s->size;
    int size;
    uint32_t code = 0;
    bool seen = false;
    /* look back for the nearest character that is not ignored: it must have case */
    for (const char *b = c; b > s->bytes && !seen;) {
        do b--;
        while (((unsigned char)*b & 0xc0) == 0x80);
        code = tpl_char(b, &size);
        seen = !nbl__tpl_is_case_ignorable(code);
    }
    if (!seen || !nbl__tpl_is_cased(code)) return false;
    /* look forward in the same way: it must not have case */
    tpl_char(c, &size);
    for (c += size; c < end; c += size) {
        code = tpl_char(c, &size);
        if (!nbl__tpl_is_case_ignorable(code)) return !nbl__tpl_is_cased(code);
    }
    return true;
}

/* The lower case of a character at offset `at`. */
static int lower(const tpl_string *s, size_t at, uint32_t code, uint32_t to[3])
{
    if (code == 0x3a3) return to[0] = final_sigma(s, at) ? 0x3c2 : 0x3c3, 1;
    return nbl__tpl_to_lower(code, to);
}

/* Maps every character, in the context of those before it: `after_cased` is true inside a word,
 * which is what str.title needs. */
nbl_status nbl__tpl_change_case(tpl_vm *vm, tpl_case how, tpl_value v, tpl_value *result)
{
    const tpl_string *s = v.string;
    tpl_text text = {0};
    bool after_cased = false;
    int size;
    NBL_TRY(tpl_read_characters(vm, s->size));
    for (size_t at = 0; at < s->size; at += (size_t)size) {
        uint32_t code = tpl_char(s->bytes + at, &size), to[3];
        int n = 1;
        switch (how) {
        case CASE_UPPER: n = nbl__tpl_to_upper(code, to); break;
        case CASE_LOWER: n = lower(s, at, code, to); break;
        case CASE_FOLD: n = nbl__tpl_to_fold(code, to); break;
        case CASE_CAPITALIZE: n = at == 0 ? nbl__tpl_to_title(code, to) : lower(s, at, code, to); break;
        case CASE_TITLE:
            n = after_cased ? lower(s, at, code, to) : nbl__tpl_to_title(code, to);
            after_cased = nbl__tpl_is_cased(code);
            break;
        /* Python swaps by the property, so a character without case stays */
        case CASE_SWAP:
            if (nbl__tpl_is_upper(code)) n = lower(s, at, code, to);
            else if (nbl__tpl_is_lower(code)) n = nbl__tpl_to_upper(code, to);
            else to[0] = code;
            break;
        }
        for (int i = 0; i < n; i++) NBL_TRY(nbl__tpl_add_char(vm, &text, to[i]));
    }
    NBL_TRY(nbl__tpl_take(vm, &text, result));
    result->markup = v.markup;
    return NBL_OK;
}

/* ---- tests ---- */

/* True if all characters have a property. `empty` is the answer for "". */
static nbl_status ask_all(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_char_fn ask, bool empty,
                          tpl_value *result)
{
    NBL_TRY(nbl__tpl_bind(vm, "this method", args, "", 0, NULL));
    bool all = self.string->size > 0 || empty;
    int size;
    for (size_t at = 0; at < self.string->size && all; at += (size_t)size)
        all = ask(tpl_char(self.string->bytes + at, &size));
    *result = tpl_bool(all);
    return tpl_read_characters(vm, self.string->size);
}

#define ASK(name, property, empty)                                                                           \
    static nbl_status name(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)              \
    {                                                                                                        \
        return ask_all(vm, self, args, property, empty, result);                                             \
    }

/* The property of str.isascii(): one byte in UTF-8. */
static bool is_ascii(uint32_t code)
{
    return code < 0x80;
}

/* The answers for an empty text are Python's: false, but for isprintable and isascii. */
ASK(is_alpha, nbl__tpl_is_alpha, false)
ASK(is_alnum, nbl__tpl_is_alnum, false)
ASK(is_digit, nbl__tpl_is_digit, false)
ASK(is_decimal, nbl__tpl_is_decimal, false)
ASK(is_numeric, nbl__tpl_is_numeric, false)
ASK(is_space, nbl__tpl_is_space, false)
ASK(is_printable, nbl__tpl_is_printable, true)
ASK(is_ascii_text, is_ascii, true)

/* True if the string has at least one cased character, and none of the other case. */
static nbl_status ask_case(tpl_vm *vm, tpl_value self, const tpl_args *args, bool upper, tpl_value *result)
{
    bool cased = false;
    int size;
    NBL_TRY(nbl__tpl_bind(vm, upper ? "isupper" : "islower", args, "", 0, NULL));
    NBL_TRY(tpl_read_characters(vm, self.string->size));
    for (size_t at = 0; at < self.string->size; at += (size_t)size) {
        uint32_t code = tpl_char(self.string->bytes + at, &size);
        bool other = upper ? nbl__tpl_is_lower(code) : nbl__tpl_is_upper(code);
        if (other || nbl__tpl_is_title(code)) return *result = tpl_bool(false), NBL_OK;
        cased |= upper ? nbl__tpl_is_upper(code) : nbl__tpl_is_lower(code);
    }
    return *result = tpl_bool(cased), NBL_OK;
}

/* str.isupper() and str.islower(). */
static nbl_status is_upper(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return ask_case(vm, self, args, true, result);
}

static nbl_status is_lower(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return ask_case(vm, self, args, false, result);
}

/* True if each run of cased characters begins with a capital and goes on with small letters. */
static nbl_status is_title(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    bool cased = false, after = false;
    int size;
    NBL_TRY(nbl__tpl_bind(vm, "istitle", args, "", 0, NULL));
    NBL_TRY(tpl_read_characters(vm, self.string->size));
    for (size_t at = 0; at < self.string->size; at += (size_t)size) {
        uint32_t code = tpl_char(self.string->bytes + at, &size);
        bool upper = nbl__tpl_is_upper(code) || nbl__tpl_is_title(code), is_low = nbl__tpl_is_lower(code);
        if ((upper && after) || (is_low && !after)) return *result = tpl_bool(false), NBL_OK;
        after = upper || is_low;
        cased |= after;
    }
    return *result = tpl_bool(cased), NBL_OK;
}

/* str.isidentifier(): the first character may not be a digit. Keywords count as identifiers, as in
 * Python. */
static nbl_status is_identifier(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    bool all = self.string->size > 0;
    int size;
    NBL_TRY(nbl__tpl_bind(vm, "isidentifier", args, "", 0, NULL));
    NBL_TRY(tpl_read_characters(vm, self.string->size));
    for (size_t at = 0; at < self.string->size && all; at += (size_t)size) {
        uint32_t code = tpl_char(self.string->bytes + at, &size);
        all = at == 0 ? nbl__tpl_is_name_start(code) : nbl__tpl_is_name_continue(code);
    }
    return *result = tpl_bool(all), NBL_OK;
}

#define CHANGE(name, how)                                                                                    \
    static nbl_status name(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)              \
    {                                                                                                        \
        NBL_TRY(nbl__tpl_bind(vm, #name, args, "", 0, NULL));                                                \
        return nbl__tpl_change_case(vm, how, self, result);                                                  \
    }

CHANGE(upper_text, CASE_UPPER)
CHANGE(lower_text, CASE_LOWER)
CHANGE(title_text, CASE_TITLE)
CHANGE(capitalize_text, CASE_CAPITALIZE)
CHANGE(swapcase_text, CASE_SWAP)
CHANGE(casefold_text, CASE_FOLD)

const tpl_method nbl__tpl_string_tests[] = {
    {"upper", upper_text},
    {"lower", lower_text},
    {"title", title_text},
    {"swapcase", swapcase_text},
    {"casefold", casefold_text},
    {"capitalize", capitalize_text},
    {"isalpha", is_alpha},
    {"isalnum", is_alnum},
    {"isdigit", is_digit},
    {"isdecimal", is_decimal},
    {"isnumeric", is_numeric},
    {"isspace", is_space},
    {"isupper", is_upper},
    {"islower", is_lower},
    {"istitle", is_title},
    {"isascii", is_ascii_text},
    {"isprintable", is_printable},
    {"isidentifier", is_identifier},
    {NULL, NULL},
};
