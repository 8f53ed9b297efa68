"""Asks the tokenizers library what it holds of every character and writes src/text/unicode/unicode_tables.c.

    build/oracle/bin/python tests/oracle/make_unicode_tables.py >src/text/unicode/unicode_tables.c     (some minutes)

Python's own unicodedata only helps to find what is newer than itself.
"""
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
NEW = [c for c in CHARACTERS if unicodedata.category(c) == "Cn"]


def ranges(characters):
    found = []
    for c in sorted(map(ord, characters)):
        if found and c == found[-1][1] + 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def table(name, characters):
    rows = [f"{{0x{a:x}, 0x{b:x}}}" for a, b in ranges(characters)]
    print(f"static const nbl__char_range {name}_ranges[] = {{")
    for i in range(0, len(rows), 5):
        print("    " + ", ".join(rows[i:i + 5]) + ",")
    print(f"}};\nconst nbl__char_set nbl__chars_{name} = {{{name}_ranges, {len(rows)}}};\n")


def matched(pattern, characters):
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    return {c for c in characters if not split.pre_tokenize_str(c)}


def standins():
    """Of each new character's category, a character as long that every library knows, also by script and as a letter."""
    new, rows = matched(r"\P{Cn}", NEW), []
    han, letters = matched(r"\p{Han}", new), matched("[[:alpha:]]", new)
    old = [c for c in CHARACTERS[0x900:] if not 0x2E80 <= ord(c) < 0x3400]
    old_letters = matched("[[:alpha:]]", old)
    for category in sorted({unicodedata.category(c) for c in CHARACTERS} - {"Cn", "Cs"}):
        members = matched(rf"\p{{{category}}}", new)
        for is_han in (False, True):
            for is_letter in (False, True):
                for first, last in ranges(c for c in members if (c in han) == is_han and (c in letters) == is_letter):
                    size = len(chr(first).encode())
                    known = next(c for c in old if unicodedata.category(c) == category and len(c.encode()) == size and
                                 unicodedata.name(c, "").startswith("CJK UNIFIED") == is_han and (c in old_letters) == is_letter)
                    rows.append((first, last, ord(known)))
    return sorted(rows)


def undecomposed():
    """Characters that decompose or combine in Unicode but not upstream."""
    found = set()
    for form in ("NFD", "NFKD"):
        own = getattr(normalizers, form)()
        found |= {c for c in CHARACTERS if own.normalize_str(c) != unicodedata.normalize(form, c)}
    own = normalizers.NFD()
    for c in CHARACTERS:
        for text in ("a" + c + "\u0334", "a\u0345" + c):
            if own.normalize_str(text) != unicodedata.normalize("NFD", text):
                found.add(c)
    return found | set(NEW)


def lowers():
    own, rows = normalizers.Lowercase(), []
    for c in CHARACTERS:
        lower = own.normalize_str(c)
        if len(lower) == 1 and lower != c.lower():
            step = ord(lower) - ord(c)
            if rows and rows[-1][1] == ord(c) - 1 and rows[-1][2] - rows[-1][0] == step:
                rows[-1][1] = ord(c)
            else:
                rows.append([ord(c), ord(c), ord(lower)])
    return rows


P, N = pre_tokenizers, normalizers
clean = N.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
strip = N.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
accents, digits, punctuation, words = N.StripAccents(), P.Digits(True), P.Punctuation("removed"), P.Whitespace()
BEYOND = CHARACTERS[0x80:]

print("/* unicode_tables.c - properties of characters as the tokenizers library has them; made by\n"
      " * tests/oracle/make_unicode_tables.py, see unicode.h. */\n#include \"text/unicode.h\"\n")
print("/* clang-format off */\n")
table("punctuation", [c for c in BEYOND if not punctuation.pre_tokenize_str(c)])
table("numeric", [c for c in BEYOND if len(digits.pre_tokenize_str("a" + c)) == 2])
table("word", [c for c in BEYOND if len(words.pre_tokenize_str("a" + c)) == 1 and len(words.pre_tokenize_str("." + c)) == 2])
table("control", [c for c in CHARACTERS if clean.normalize_str("a" + c) == "a"])
table("accent", [c for c in CHARACTERS if accents.normalize_str(c) == ""])
table("nonspacing", [c for c in CHARACTERS if strip.normalize_str("a" + c) == "a"])
table("undecomposed", undecomposed())
rows = [f"{{0x{a:x}, 0x{b:x}, 0x{c:x}}}" for a, b, c in standins()]
print("const nbl__char_standin nbl__char_standins[] = {")
for i in range(0, len(rows), 4):
    print("    " + ", ".join(rows[i:i + 4]) + ",")
print(f"}};\nconst int nbl__char_standin_count = {len(rows)};\n")
rows = [f"{{0x{a:x}, 0x{b:x}, 0x{c:x}}}" for a, b, c in lowers()]
print("const nbl__char_lower nbl__char_lowers[] = {")
for i in range(0, len(rows), 4):
    print("    " + ", ".join(rows[i:i + 4]) + ",")
print(f"}};\nconst int nbl__char_lower_count = {len(rows)};\n")
print("/* clang-format on */")
