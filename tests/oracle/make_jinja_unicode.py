#!/usr/bin/env python3
"""Writes src/text/template/library/jinja_unicode_tables.inc: where Python's character properties differ from what utf8proc's general
categories and one-to-one case mappings say (see src/text/template/library/jinja_unicode.c). Standard library and libutf8proc only.

    make_jinja_unicode.py > src/text/template/library/jinja_unicode_tables.inc
"""
import ctypes, sys, unicodedata

lib = ctypes.CDLL("libutf8proc.so.2")
lib.utf8proc_category_string.restype = ctypes.c_char_p
ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
THEIRS = {c: lib.utf8proc_category_string(c).decode() for c in ALL}


def category(c):
    """As jinja_unicode.c sees it: utf8proc's, except for characters that Python's tables do not know yet."""
    return unicodedata.category(chr(c)) if THEIRS[c] != unicodedata.category(chr(c)) else THEIRS[c]


def ranges(codes):
    out = []
    for c in sorted(codes):
        if out and out[-1][1] == c - 1: out[-1][1] = c
        else: out.append([c, c])
    return out


def table(name, comment, codes):
    print(f"\n/* {comment} */\nstatic const range {name}[] = {{")
    cells = [f"{{0x{a:x}, 0x{b:x}}}," for a, b in ranges(codes)]
    line = "   "
    for cell in cells:
        if len(line) + len(cell) > 108: print(line); line = "   "
        line += " " + cell
    print(line + "\n};")


def mapping(name, comment, rows):
    print(f"\n/* {comment} */\nstatic const special {name}[] = {{")
    line = "   "
    for c, to in rows:
        cell = f"{{0x{c:x}, {{{', '.join(f'0x{ord(x):x}' for x in to)}}}}},"
        if len(line) + len(cell) > 108: print(line); line = "   "
        line += " " + cell
    print(line + "\n};")


def ends_final(text):
    return text.lower().endswith("ς")


print(f"/* jinja_unicode_tables.inc - made by tests/oracle/make_jinja_unicode.py from Python's Unicode {unicodedata.unidata_version} tables;")
print(" * included by jinja_unicode.c, which says how the tables are used. */")
print("/* clang-format off */")
odd = {c for c in ALL if THEIRS[c] != unicodedata.category(chr(c))}
unknown = {c for c in odd if unicodedata.category(chr(c)) == "Cn"}
assert odd == unknown, [hex(c) for c in odd - unknown]
table("unassigned", "assigned after Python's tables were made", unknown)
table("other_lower", "lower case, though not of category Ll", {c for c in ALL if chr(c).islower() != (category(c) == "Ll")})
table("other_upper", "upper case, though not of category Lu", {c for c in ALL if chr(c).isupper() != (category(c) == "Lu")})
table("digits", "digits that are not decimal", {c for c in ALL if chr(c).isdigit() and not chr(c).isdecimal()})
assert all(chr(c).isdecimal() == (category(c) == "Nd") for c in ALL)
table("other_numeric", "numeric, though not of category N*, or the reverse", {c for c in ALL if chr(c).isnumeric() != (category(c)[0] == "N")})
assert all(chr(c).isalpha() == (category(c)[0] == "L") for c in ALL)
assert all(chr(c).isprintable() == (c == 32 or category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs")) for c in ALL)
ignorable = {c for c in ALL if ends_final("Α" + chr(c) + "Σ") and not ends_final(chr(c) + "Σ")}
table("other_ignorable", "ignored by the rule of the final sigma, though not of category Mn, Me, Cf, Lm or Sk, or the reverse", {c for c in ALL if (c in ignorable) != (category(c) in ("Mn", "Me", "Cf", "Lm", "Sk"))})
cased = lambda c: chr(c).islower() or chr(c).isupper() or category(c) == "Lt"
assert all(ends_final(chr(c) + "Σ") == (cased(c) and c not in ignorable) for c in ALL)
start = {c for c in ALL if chr(c).isidentifier()}
table("other_start", "begins a name, though not of category L*, Nl or '_', or the reverse", {c for c in ALL if (c in start) != (category(c)[0] == "L" or category(c) == "Nl" or c == 95)})
more = {c for c in ALL if ("a" + chr(c)).isidentifier()}
table("other_continue", "goes on in a name, though not of category L*, Nl, Mn, Mc, Nd or Pc, or the reverse", {c for c in ALL if (c in more) != (category(c)[0] == "L" or category(c) in ("Nl", "Mn", "Mc", "Nd", "Pc"))})
for name, function in (("upper", str.upper), ("lower", str.lower), ("title", lambda s: s.title()), ("fold", str.casefold)):
    theirs = {"upper": lib.utf8proc_toupper, "lower": lib.utf8proc_tolower, "title": lib.utf8proc_totitle, "fold": lib.utf8proc_tolower}[name]
    rows = [(c, function(chr(c))) for c in ALL if function(chr(c)) != chr(theirs(c) if c not in unknown else c)]
    mapping(f"special_{name}", f"characters whose {name} case is not utf8proc's one character", rows)
