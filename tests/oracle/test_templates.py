"""Chat templates against jinja2 under transformers' settings: small programs over the whole language, random programs, random
calls of methods and filters, every character's properties, and whatever templates are at hand.

    ORACLE_SEED=123 NIBBLE=build/nibble build/oracle/bin/python tests/oracle/test_templates.py [ROUNDS] [FOLDER OF TEMPLATES]

A program counts as good when nibble gives the same text and spans, or refuses where jinja2 raises. What nibble does not support
it may refuse only with NBL_ERROR_UNSUPPORTED's words, and only in the programs marked so.
"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import jinja2
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.utils.chat_template_utils import render_jinja_template

warnings.simplefilter("ignore", SyntaxWarning)  # of what jinja2 compiles
ROUNDS = 8  # of 400 random programs: a number and no time, so that a seed gives the same run on every machine
SHOWN = 12
ADDRESS = re.compile(r" at 0x[0-9a-f]{12}\b")  # where an object lies is told by its text, and nothing to compare
KNOWN = re.compile("beyond 64 bits|complex numbers")  # what random programs stumble on, and nibble refuses by name
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
VALUES = {
    "n": 7, "m": -3, "f": 2.5, "g": -0.125, "s": "Héllo wörld", "r": " a,b;  c\td\n", "t": True, "z": None, "e": [], "k": {},
    "l": [3, 1, 2, 10], "w": ["b", "A", "c", "a", "ß"], "x": [[1, "a"], [2, "b"]], "d": {"b": 1, "a": {"x": [1, 2]}, "C": None},
    "u": [{"name": "bob", "age": 30, "ok": True, "tags": ["p", "q"]}, {"name": "Al", "age": 4, "ok": False}, {"name": "çelik", "age": 30}],
    "j": {"k": "é\"'\\/<>&\u2028\n\t\x01😀", "v": [1, 2.0, 1e16, 1e-7, True, None, [], {}, "x"]}, "h": "<b>&'\"</b>", "big": 2 ** 70,
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho", "reasoning": "hm"}],
}

PROGRAMS = r"""
{{ 1 if false }}|{{ (1 if false) is defined }}|{{ 1 if true else 2 if false else 3 }}
{{ [1, 2, 3][1:] + [4] }} {{ (1, 2) + (3,) }} {{ 'ab' * 2 }} {{ 2 * [1] }} {{ -1 * [1] }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 // -2 }} {{ 7 % -3 }} {{ -7 % 3 }} {{ 7.5 // -2 }} {{ -7.5 % 2 }} {{ 1e300 * 1e10 }} {{ 0.0 / 5 }} {{ -0.0 }}
{{ 2 ** 10 }} {{ 2 ** -2 }} {{ 2.0 ** 3 }} {{ (-2) ** 3 }} {{ 0 ** 0 }} {{ 4 ** 0.5 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ 2 ** 62 }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 == true }} {{ 'a' < 'b' < 'c' }} {{ [1, 2] < [1, 3] }} {{ (1,) < (1, 2) }} {{ [] < [0] }}
{{ 1 in [1] }} {{ '1' in '123' }} {{ 'a' in d }} {{ 1 in (1, 2) }} {{ 2 in range(3) }} {{ 2.0 in range(3) }} {{ 'x' in d.a }} {{ not 1 in [2] }} {{ 1 not in [2] }}
{{ none is none }} {{ none == none }} {{ true and none }} {{ false or 'x' }} {{ 1 and 0 or 2 }} {{ not '' }} {{ not [] and not {} }}
{{ 9007199254740993 }} {{ 9007199254740993 == 9007199254740992.0 }} {{ 9007199254740993 > 9007199254740992.0 }} {{ 9223372036854775807 }} {{ -9223372036854775807 - 1 }}
{{ 1e15 }} {{ 1e16 }} {{ 123456789012345680.0 }} {{ 1e-4 }} {{ 1e-5 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }} {{ 0.1 + 0.2 }} {{ 2/3 }} {{ 1e22 }} {{ 9.5367431640625e-07 }} {{ 5.684341886080802e-14 }}
{{ true + 1 }} {{ true * 'x' }} {{ -true }} {{ +true }} {{ true // 2 }} {{ true == 1 }} {{ true is sameas 1 }} {{ 3 is sameas 3 }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1] ~ {} ~ (1,) }} {{ 'a' ~ nope ~ 'b' }}
{{ '%s' % 1 }} {{ '%s %s' % (1, 2) }} {{ '%5.2f|%-6d|%+d|%x|%X|%o|%e|%g|%%' % (3.14159, 42, 7, 255, 255, 8, 12345.678, 0.0001) }} {{ '%05d' % -42 }} {{ '%s' % none }} {{ '%r' % 'a' }}
{{ '%(a)s-%(b)d' % {'a': 1, 'b': 2} }} {{ '%.3s|%5s|%-5s|' % ('abcdef', 'ab', 'ab') }} {{ '%c%c' % ('x', 65) }} {{ '%s' % nope }} {{ '%.0f %.0f' % (0.5, 1.5) }} {{ '%g %g %g' % (1e5, 1e6, 1e-5) }} {{ '% d' % 3 }} {{ '%#x' % 255 }} {{ '%i' % 3.9 }} {{ '%5d|%-5d|' % (3, 3) }} {{ '%.3d' % 5 }}
{{ '%d' % 'a' }}
{{ '%s %s' % 1 }}
{{ '%s' % (1, 2) }}
{{ 'abc' % 1 }}
{{ 'abc' % [] }} {{ 'abc' % {} }} {{ 'abc' % () }}
{{ '{} {}'.format(1, 'a') }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{x} {y!r}'.format(x=1, y='z') }} {{ '{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd') }} {{ '{:05}|{:<05}|{:>05}|{:x<05}|{:<05}|{:05.1}'.format('a', 'b', 'c', 'd', 7, 'efg') }} {{ '{:05d} {:+d} {:,} {:x} {:#x} {:b} {:o}'.format(42, 7, 1234567, 255, 255, 5, 8) }}
{{ '{:.2f} {:8.3f}| {:e} {:g} {:%} {:.1%}'.format(3.14159, 2.5, 12345.678, 0.0001, 0.25, 0.123) }} {{ '{a[x]} {b.name}'.format(a={'x': 1}, b=u[0]) }} {{ '{:{}}|'.format('a', 4) }} {{ '{{}} {}'.format(1) }} {{ '{!s:>4}'.format(1) }} {{ '{0[0]}{0[1]}'.format(l) }} {{ '{:_}'.format(1000000) }} {{ '{:10}|{:10}|'.format(1, 'a') }} {{ '{}'.format(none) }} {{ '{}'.format([1]) }} {{ '{:s}'.format('q') }} {{ '{:d}'.format(true) }} {{ '{}'.format(1.0) }} {{ '{:.3}'.format('abcdef') }} {{ '{:=+6d}'.format(5) }}
{{ '{} {1}'.format(1, 2) }}
{{ '{'.format(1) }}
{{ '}'.format(1) }}
{{ '{0}'.format() }}
{{ '{a}'.format() }}
{{ '{:d}'.format('x') }}
{{ '{a}'.format_map({'a': 3}) }} {{ '{a.__class__}'.format_map({'a': 3}) }}
{{ 'a b c'.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a  b'.split(' ') }} {{ ''.split() }} {{ ''.split(',') }} {{ ' a b '.rsplit(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a,b'.split(sep=',') }} {{ 'a b'.split(maxsplit=0) }} {{ ' x y  z '.rsplit() }} {{ '  x y '.split(none, 0) }}|
{{ 'abc'.split('') }}
{{ 'aXbXc'.partition('X') }} {{ 'aXbXc'.rpartition('X') }} {{ 'abc'.partition('X') }} {{ 'abc'.rpartition('X') }} {{ 'aXb'.partition('X'|safe) }} {{ 'aXb'.rpartition('X'|forceescape) }} {{ 'ab'.partition('X'|safe) }} {{ ('aXb'|safe).partition('X') }} {{ 'a\nb\r\nc\x0bd\u2028e'.splitlines() }} {{ 'a\nb\n'.splitlines(true) }} {{ '\n'.splitlines() }} {{ ''.splitlines() }}
{{ [{1: 2}|reverse, {1: 2}.keys()|reverse, {1: 2}.values()|reverse, {1: 2}.items()|reverse, [1]|reverse, (1,)|reverse, range(3)|reverse] }}
{{ none[10::2] }}|{{ none[1:]|length }}|{{ (not none)[3::1]|wordcount }}|{% if (none[1:])|wordcount %}a{% else %}b{% endif %}|{{ 'abc'['x':] }}|{{ {1: 2}[1:] }}|{{ [none[1:], 2] }}|{{ 5[1:] is defined }}{{ 5[1:] is undefined }}|{{ (1.5|round)[:] }}|{{ 'abc'[1:]|upper }}
{{ (false and q) and (x|nosuch) }}|{{ ((({'q': 1}|length) is not defined) and (s.lower() >= h)) and (h|nosuch) }}|{{ ('a'|forceescape).replace('a', {1: '<'}) }}|{{ ('a'|forceescape).replace('a', 5) }}
{% set y = none[1:] %}{{ y }}
{% if none[1:] %}a{% endif %}
{{ 'abc'[::0] }}
{{ (true and q) and (x|nosuch) }}
{{ (1 if true else q) or (x|nosuch) }}|{{ ((1 if (none is not false) else (''.find('b', 1))) is in [1, 2, 3]) or (e == [])|nosuch }}|{{ ((5[1:] and q) or 7) or x|nosuch }}|{{ 1 > 2 > (x|nosuch) }}|{{ [1 if true else q, 2]|length or x|nosuch }}|{{ 'a' ~ (1 or x|nosuch) }}
{{ (none[1:])|list }}|{{ ((none[1:])|list)|length }}|{{ ('a' if none[1:] else 'b')|upper }}|{{ ['x', 'y'][none[1:]|length] }}|{{ 'abc'[none[1:]|length:] }}
{{ 'abc'[(1 if true else q):] }}|{{ {'a': 1 if true else q}.a }}|{{ (1 if false) is defined }}|{{ ((1 if false) or 2) }}|{{ ('a'|reverse|list|length) == 1 or x|nosuch }}
{% autoescape true %}{{ '<' ~ ('>'|safe) }}{{ '<' if true else q }}{{ ('<'|e) or x }}{% endautoescape %}{% autoescape t %}{{ ['<', '>'|safe]|join('&') }}{{ '<' ~ ('>'|safe) }}{% autoescape false %}{{ '<' ~ ('>'|safe) }}{% endautoescape %}{% endautoescape %}{% autoescape true and 1 %}{{ '<' ~ r ~ ('>'|safe) }}{% if ('<' ~ ('>'|safe)) %}{{ ['<' ~ ('>'|safe), '&'] }}{% endif %}{% endautoescape %}{{ '<' ~ ('>'|safe) }}
{{ (1 if false else q) or (x|nosuch) }}
{% autoescape t %}{{ ('<' ~ ('>'|safe))|length or x|nosuch }}{% endautoescape %}
{% autoescape true %}{{ ('<' ~ ('>'|safe))|length or x|nosuch }}{{ ('<' ~ ('>'|safe))|length }}{% macro m(v='<' ~ ('>'|safe)) %}{{ v }}{% endmacro %}{{ m() }}{% endautoescape %}
{{ 2 > 1 > (x|nosuch) }}
{{ true or {[]: 1} }}
{{ n or (true or {[]: 1}) }}
{{ (q, {[]: 1}) and 1 }}
{{ x|nosuch or true }}
{{ (5[1:] and q) and x|nosuch }}
{{ none[1:] or q }}
{{ [none[1:]]|map('length')|list }}
{{ ((1 if false) or 2) or x|nosuch }}
{% autoescape true %}{% endautoescape %}{{ ['<', '>'|safe]|join }}
{% autoescape t %}{{ ('a'|upper) or x|nosuch }}{% endautoescape %}
{{ [none[1:]]|first }}|{{ [[1]]|map('first')|list }}
{{ (5 if none[1:] else q) }}
{{ (none[1:]) + 1 }}
{{ none[w:] }}
{{ 'abc'.center(8, '*') }} {{ 'abcd'.center(7) }}| {{ 'a'.rjust(3, '0') }} {{ '-5'.zfill(4) }} {{ '+5'.zfill(4) }} {{ 'é'.ljust(3, 'ü') }} {{ 'a\tb'.expandtabs(4) }} {{ 'ab\tc'.expandtabs() }}
{{ 'banana'.find('na') }} {{ 'banana'.rfind('na') }} {{ 'banana'.find('na', 3) }} {{ 'banana'.find('na', -2) }} {{ 'banana'.count('a') }} {{ 'banana'.count('a', 2, 4) }} {{ 'aaa'.count('aa') }} {{ 'abc'.count('') }} {{ 'abc'.find('', 3) }} {{ 'abc'.find('', 4) }} {{ 'é😀x'.find('x') }} {{ 'é😀x'.rindex('😀') }}
{{ 'abc'.startswith('') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('c', 0, 2) }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.startswith([]) }}
{{ 'abc'.startswith(1) }}
{{ 'aaa'.replace('a', 'b', 2) }} {{ 'aaa'.replace('a', 'b', -1) }} {{ 'aaa'.replace('', '-') }} {{ 'aaa'.replace('', '-', 2) }} {{ ''.replace('', 'x') }} {{ 'é'.replace('', '.') }} {{ 'abab'.replace('ab', '') }}
{{ 'ß'.upper() }} {{ 'ŉ'.upper() }} {{ 'ǆ'.title() }} {{ 'ΑΣ ΣΑΣ.'.lower() }} {{ 'İ'.lower()|length }} {{ 'ﬁ'.upper() }} {{ "it's o'neil".title() }} {{ 'ß'.capitalize() }} {{ 'ǆx'.capitalize() }} {{ 'ſ'.casefold() }} {{ 'Straße'.swapcase() }} {{ 'İI'.casefold() }}
{{ '²'.isdigit() }} {{ '²'.isdecimal() }} {{ '½'.isnumeric() }} {{ '一'.isnumeric() }} {{ 'ª'.islower() }} {{ 'Ⅷ'.isupper() }} {{ 'ǅ'.istitle() }} {{ 'a b'.isprintable() }} {{ '\x00'.isprintable() }} {{ 'é'.isascii() }} {{ ''.isascii() }} {{ ''.isalpha() }} {{ 'Ab Cd'.istitle() }} {{ 'AB'.istitle() }} {{ 'a1'.isidentifier() }} {{ '1a'.isidentifier() }} {{ '１２'|int }} {{ '٣'|int }}
{{ ' x '.strip() }}|{{ 'xyx'.strip('x') }}|{{ 'abc'.strip('') }}|{{ ' \u3000a\u00a0 '.strip() }}|{{ 'éaé'.strip('é') }}|{{ ' a '.strip(none) }}|
{{ 'prefix'.removeprefix('pre') }} {{ 'prefix'.removeprefix('x') }} {{ 'a.txt'.removesuffix('.txt') }} {{ ','.join(['a', 'b']) }} {{ ','.join('abc') }} {{ ','.join({'a': 1, 'b': 2}) }} {{ ''.join(()) }}
{{ ','.join([1]) }}
{{ ','.join(5) }}
{{ s[0] }}{{ s[-1] }}{{ s[2:5] }}{{ s[::-1] }}{{ s[::2] }}{{ s[10:0:-3] }}|{{ s[20] }}|{{ s[none:none:none] }}{{ s[:99] }}{{ s[-99:3] }}{{ s[true] }}{{ 'é😀ü'[1] }}{{ 'é😀ü'[::-1] }}
{{ l[0] }}{{ l[-1] }}{{ l[1:3] }}{{ l[::-1] }}{{ l[::2] }}{{ l[99:] }}{{ l[:-99] }}{{ l[3:0:-1] }}{{ (1, 2, 3)[::-1] }}{{ range(10)[2:5]|list }}{{ range(10)[::-3]|list }}{{ range(5)[-1] }}{{ l[1.0] is defined }}
{{ l['x'] is defined }}{{ l.x is defined }}{{ l.0 }}{{ l[5] is defined }}{{ d['a']['x'].0 }}{{ d.a.x[1] }}{{ d[1] is defined }}{{ d[[]] is defined }}{{ z.x is defined }}{{ n.x is defined }}{{ n[0] is defined }}
{{ d[1:2] }}
{{ n[1:2] }}
{{ [1, 'a', "it's", 'q"q', 'b\\n', none, true, 1.5, (1,), (), {}, {'a': [1]}, 'é', '\u200b', '\x7f', '\ue000', '😀'] }}
{{ {'a': 1, 'b': [2], 3: 4, none: 5, true: 6, 1.5: 7, (1, 2): 8} }} {{ {1: 'a', true: 'b', 1.0: 'c'} }} {{ {'a': 1, 'a': 2} }} {{ {1: 2}[1.0] }} {{ {1: 2}[true] }} {{ {(1, 2): 3}[(1, 2)] }} {{ {}|length }}
{{ {[]: 1} }}
{% if false %}{{ {[1]: 1} }}{{ [{[1]: 2}] }}{% endif %}ok
{% if false %}{{ {[1]: 1}|length }}{% endif %}
{% if false %}{% set q = 1 + {[1]: 1} %}{% endif %}
{% if false %}{{ {[n]: 1} }}{{ {'a': n, [1]: 2} }}{% endif %}ok
{{ {{}: 1} }}
{{ d.items() }} {{ d.keys() }} {{ d.values() }} {{ d.items()|list }} {{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 3) }} {{ d.copy() == d }} {{ d.keys()|list }} {{ 'a' in d.keys() }} {{ 1 in d.values() }} {{ ('b', 1) in d.items() }} {{ d.items()|length }} {{ dict.fromkeys(['a', 'b'], 0) }} {{ {}.fromkeys('ab') }}
{{ d.keys()[0] is defined }} {{ d.pop is defined }} {{ d.pop }}| {{ l.append }}| {{ l.sort is defined }}
{{ d.pop('b') }}
{{ d.setdefault('b', 1) }}
{{ l.sort() }}
{{ l.extend([1]) }}
{{ l.index(1) }} {{ l.count(3) }} {{ l.copy() }} {{ (1, 2, 1).count(1) }} {{ (1, 2).index(2) }} {{ l.index(1, 1) }}
{{ l.index(99) }}
{{ 5 .bit_length() }} {{ n.bit_length() }} {{ n.real }} {{ n.imag }} {{ n.numerator }} {{ f.is_integer() }} {{ f.real }} {{ true.real }} {{ n.conjugate() }}
{{ range(5) }} {{ range(1, 5) }} {{ range(0, 9, 2) }} {{ range(5)|list }} {{ range(5, 0, -2)|list }} {{ range(0)|list }} {{ range(3)|length }} {{ range(3) == range(0, 3) }} {{ range(3).start }}{{ range(3).stop }}{{ range(3).step }} {{ range(5).index(3) }} {{ range(5).count(3) }}
{{ range(1, 2, 0) }}
{{ range('a') }}
{{ range(1.5) }}
{{ range(100001) }}
{{ range(100000)|length }}
{{ nope }}|{{ nope is defined }}|{{ nope == none }}|{{ nope == nope2 }}|{{ nope != 1 }}|{{ nope|default('x') }}|{{ nope|length }}|{{ nope|list }}|{{ [nope] }}|{{ nope and 1 }}|{{ nope is iterable }}|{{ nope is callable }}|{{ nope is sequence }}|{{ {'a': nope} }}|{{ nope ~ '' }}|{{ nope in [nope] }}
{{ nope + 1 }}
{{ 1 + nope }}
{{ nope.a }}
{{ nope.a.b }}
{{ nope[0] }}
{{ nope() }}
{{ nope < 1 }}
{{ -nope }}
{{ nope|int }}
{{ nope|abs }}
{{ nope|round }}
{{ nope|float }}
{{ nope in 'abc' }}
{{ 'a' in nope }}
{{ nope * 2 }}
{{ nope.__class__ }}|{{ nope.__foo__ is defined }}
{{ d.nope.x }}
{{ ''.__class__ }}|{{ ''['__class__'] }}|{{ d.__len__ }}|{{ d['__x__'] }}|{{ l.__iter__ is defined }}|{{ s._private is defined }}
{{ ''.__class__.__mro__ }}
{{ ''.__class__() }}
{{ s.upper }}{{ 1 }}{{ 0/0 }}
{{ s.upper() }}{{ s['upper']() }}{{ s.upper is callable }}{{ (s|attr('upper'))() }}
{{ l|first }}{{ l|last }}{{ e|first is defined }}{{ e|last is defined }}{{ 'abc'|first }}{{ 'abc'|last }}{{ d|first }}{{ d|last }}{{ range(3)|last }}{{ (l|map('string'))|first }}{{ d.values()|first }}{{ {}|first }}|
{{ (l|map('string'))|last }}
{{ n|first }}
{{ l|length }}{{ s|length }}{{ d|count }}{{ range(4)|length }}{{ ()|length }}
{{ n|length }}
{{ (l|map('string'))|length }}
{{ l|sort }}{{ l|sort(reverse=true) }}{{ w|sort }}{{ w|sort(case_sensitive=true) }}{{ w|sort(true, true) }}{{ u|sort(attribute='age')|map(attribute='name')|list }}{{ u|sort(attribute='age,name')|map(attribute='name')|list }}{{ x|sort(attribute=1, reverse=true) }}{{ d|sort }}{{ 'hello'|sort }}{{ [[2], [1]]|sort }}{{ [1, 0.5, true]|sort }}
{{ [1, 'a']|sort }}
{{ [none, 1]|sort }}
{{ u|sort(attribute='ok') }}
{{ l|min }}{{ l|max }}{{ w|min }}{{ w|max }}{{ u|max(attribute='age') }}{{ u|min(attribute='name') }}{{ e|min is defined }}{{ ['b', 'A']|min(case_sensitive=true) }}{{ 'hello'|max }}
{{ l|sum }}{{ l|sum(start=10) }}{{ u|sum(attribute='age') }}{{ [0.1, 0.2, 0.3]|sum }}{{ e|sum }}{{ [[1], [2]]|sum(start=[]) }}{{ [true, true]|sum }}
{{ ['a']|sum }}
{{ l|join }}{{ l|join('-') }}{{ u|join(',', attribute='name') }}{{ 'abc'|join('.') }}{{ d|join(',') }}{{ e|join(',') }}{{ [1, none, true, nope]|join('|') }}{{ l|join(1) }}{{ [[1, 2], [3]]|join(',', attribute=0) }}
{{ n|join }}
{{ l|map('string')|list }}{{ w|map('upper')|join }}{{ u|map(attribute='name')|list }}{{ u|map(attribute='ok', default='?')|list }}{{ u|map(attribute='tags.0', default='-')|list }}{{ x|map('first')|list }}{{ x|map(attribute=1)|list }}{{ l|map('default', 1)|list }}{{ ['a,b']|map('replace', ',', ';')|list }}{{ e|map('nofilter')|list }}{{ l|map('abs') is defined }}{{ w|map('indent', 2, first=true)|list }}
{{ l|map|list }}
{{ l|map('nofilter')|list }}
{{ l|map(attribute='a', x=1)|list }}
{{ l|map(1)|list }}
{{ l|select('odd')|list }}{{ l|select('gt', 2)|list }}{{ l|select('>', 2)|list }}{{ l|reject('even')|list }}{{ l|select|list }}{{ [0, '', none, 1]|select|list }}{{ [0, 1]|reject|list }}{{ l|select('in', [1, 2])|list }}{{ l|select('divisibleby', 2)|list }}{{ u|selectattr('ok')|map(attribute='name')|list }}{{ u|selectattr('age', 'gt', 10)|list|length }}{{ u|rejectattr('ok')|list|length }}{{ u|selectattr('tags', 'defined')|list|length }}{{ u|selectattr('name', 'equalto', 'bob')|list }}{{ u|selectattr('tags.0', 'eq', 'p')|list|length }}{{ l|select('nope') is defined }}
{{ l|select('notest')|list }}
{{ u|selectattr|list }}
{{ [1, 2, 1, '1', 1.0, true]|unique|list }}{{ ['a', 'A', 'b']|unique|list }}{{ ['a', 'A']|unique(case_sensitive=true)|list }}{{ u|unique(attribute='age')|map(attribute='name')|list }}{{ 'hello'|unique|join }}
{{ [[1]]|unique|list }}
{{ l|reverse|list }}{{ 'abc'|reverse }}{{ d|reverse|list }}{{ range(3)|reverse|list }}{{ (l|map('abs'))|reverse }}{{ d.items()|reverse|list }}{{ nope|reverse|list }}
{{ n|reverse }}
{{ l|batch(2)|list }}{{ l|batch(3, 'x')|list }}{{ l|slice(3)|list }}{{ l|slice(3, 'x')|list }}{{ e|batch(2)|list }}{{ range(7)|slice(3)|list }}{{ range(7)|batch(4, 0)|list }}{{ l|batch(0)|list }}{{ l|batch(0, 'x')|list }}{{ l|batch(-1)|list }}{{ []|batch(0)|list }}
{% for g in u|groupby('age') %}{{ g.grouper }}:{{ g.list|length }}:{{ g[0] }};{% endfor %}{% for a, b in u|groupby('name') %}{{ a }}{{ b|length }}{% endfor %}{{ x|groupby(1) }}{{ u|groupby('ok', default=false)|length }}{{ ['a', 'A', 'b']|groupby(0) }}
{{ d|dictsort }}{{ d|dictsort(true) }}{{ d|dictsort(reverse=true) }}{{ {'a': 2, 'b': 1}|dictsort(by='value') }}{{ {'a': 2, 'b': 1}|dictsort(false, 'value', true) }}
{{ d|dictsort(by='x') }}
{{ {1: 2, 'a': 3}|dictsort }}
{{ l|dictsort }}
{{ d|items|list }}{{ nope|items|list }}{{ {}|items|list }}{% for k, v in d|items %}{{ k }}{% endfor %}
{{ l|items|list }}
{{ l|list }}{{ 'abc'|list }}{{ d|list }}{{ (1, 2)|list }}
{{ n|list }}
{{ 3.7|int }}{{ -3.7|int }}{{ '12'|int }}{{ ' 12 '|int }}{{ '1_000'|int }}{{ 'x'|int }}{{ 'x'|int(9) }}{{ '0x1f'|int(base=16) }}{{ '1f'|int(0, 16) }}{{ '0b11'|int(base=0) }}{{ '3.9'|int }}{{ '1e3'|int }}{{ true|int }}{{ z|int }}{{ e|int(4) }}{{ '-5'|int }}{{ '+5'|int }}{{ ''|int }}{{ 'inf'|int }}{{ 'nan'|int }}{{ '0777'|int }}{{ '07'|int(base=0) }}{{ 1e30|int }}{{ '99999999999999999999999'|int }}
{{ '2.5'|float }}{{ ' 1e3 '|float }}{{ 'x'|float }}{{ 'x'|float(1.5) }}{{ 3|float }}{{ z|float }}{{ 'inf'|float }}{{ '-Infinity'|float }}{{ 'nan'|float }}{{ '1_0.5'|float }}{{ '.5'|float }}{{ '5.'|float }}{{ '0x1'|float }}{{ 'infinit'|float }}{{ true|float }}
{{ 2.5|round }}{{ 3.5|round }}{{ 2.675|round(2) }}{{ 1234.5|round(-2) }}{{ 1250|round(-2) }}{{ 1350|round(-2) }}{{ 42|round }}{{ 2.1|round(0, 'ceil') }}{{ 2.9|round(method='floor') }}{{ 2.345|round(1, 'floor') }}{{ -2.5|round }}{{ 42|round(2) }}{{ 0.5|round|int }}{{ 1e20|round(2) }}{{ 5.015|round(2) }}{{ 42.55|round(1, 'floor') }}{{ 25|round(-1) }}{{ 35|round(-1) }}{{ 0.1|round(3, 'ceil') }}{{ 7|round(1, 'ceil') }}
{{ 2.5|round(1, 'x') }}
{{ 'a'|round }}
{{ -3|abs }}{{ (-3)|abs }}{{ (-2.5)|abs }}{{ true|abs }}
{{ 'a'|abs }}
{{ ' a '|trim }}|{{ 'xax'|trim('x') }}|{{ 5|trim }}|{{ none|trim }}|{{ '\n a\t'|trim }}|
{{ 'hello world'|title }}{{ "it's a-b (c) [d] {e} <f>"|title }}{{ 'ßa'|title }}{{ 'HELLO'|capitalize }}{{ none|upper }}{{ 1.5|lower }}{{ 'ǆ x'|title }}
{{ 'a b'|replace(' ', '') }}{{ 'aaa'|replace('a', 'b', 2) }}{{ 5|replace(5, 6) }}{{ 'aaa'|replace('a', 'b', count=none) }}{{ 'a'|replace('a', 1) }}
{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent(2, false, true) }}|{{ 'a\nb\n'|indent }}|{{ ''|indent(2, true) }}|{{ 'a\nb'|indent('--') }}|{{ 'a\rb\u2028c'|indent(1) }}|{{ 'a\nb'|indent(0) }}|{{ 'a\nb'|indent(width=3, blank=true) }}|
{{ 5|indent }}
{{ 'abc'|center(9) }}|{{ 'abc'|center }}|
{{ '%s-%s'|format(1, 'a') }}{{ '%(a)s'|format(a=3) }}{{ 'x'|format }}
{{ 'foo bar baz qux'|truncate(9) }}{{ 'foo bar baz qux'|truncate(9, true) }}{{ 'foo bar baz qux'|truncate(11) }}{{ 'foo bar baz qux'|truncate(11, false, '...', 0) }}{{ 'foobar'|truncate(3, end='') }}{{ 'foo bar baz qux quux'|truncate(10, leeway=0, end='…') }}
{{ 'foo'|truncate(2) }}
{{ 'a b, c-d é_f'|wordcount }}{{ 'foo bar'|urlencode }}{{ 'é/?&'|urlencode }}{{ {'a b': 'c/d', 'e': 1}|urlencode }}{{ [('a', 'ü')]|urlencode }}{{ 5|urlencode }}
{{ 0|filesizeformat }}{{ 1|filesizeformat }}{{ 999|filesizeformat }}{{ 1000|filesizeformat }}{{ 1024|filesizeformat(true) }}{{ 123456789|filesizeformat }}{{ 1e30|filesizeformat }}{{ '2000'|filesizeformat }}{{ 1.5|filesizeformat }}
{{ h|escape }}{{ h|e|e }}{{ h|safe }}{{ h|safe|escape }}{{ h|escape|safe }}{{ h|forceescape }}{{ h|e|forceescape }}{{ 5|e }}{{ none|e }}{{ h|e is escaped }}{{ h is escaped }}{{ [h|e] }}
{{ '<a>'|safe + '<b>' }}{{ '<b>' + '<a>'|safe }}{{ ('<a>'|safe) * 2 }}{{ ('<a>'|safe ~ '<b>') is escaped }}{{ ('%s'|safe) % '<' }}{{ ('{}'|safe).format('<') }}{{ ('<a>'|safe).upper() is escaped }}{{ ('-'|safe).join(['<', '>'|safe]) }}{{ ('<a>'|safe)[0] is escaped }}{{ ('<'|safe|string) is escaped }}{{ ('<a> b'|safe).split() }}{{ ('a'|safe)|replace('a', '<') }}{{ ('a'|safe).replace('a', '<') }}{{ '<x>'|safe == '<x>' }}
{{ {'a': 1, 'b': none, 'c': '<'}|xmlattr }}{{ {'a': 1}|xmlattr(false) }}{{ {}|xmlattr }}
{{ {'a b': 1}|xmlattr }}
{{ '<p>a  <b>b</b></p> c'|striptags }}{{ '<!-- x -->a<br>b'|striptags }}
{{ j|tojson }}{{ j|tojson(indent=2) }}{{ j|tojson(true) }}{{ j|tojson(ensure_ascii=true, sort_keys=true) }}{{ [1, [2, {}], {'a': ()}]|tojson(indent=1) }}{{ {'b': 1, 'a': 2}|tojson(sort_keys=true, separators=(',', ':')) }}{{ j|tojson(indent='\t') }}{{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }}{{ 1e999|tojson }}{{ big|tojson }}{{ big }}{{ '\x7f\x80é'|tojson(ensure_ascii=true) }}{{ [1,2]|tojson(indent=0) }}{{ [1,2]|tojson(indent=-1) }}{{ h|safe|tojson }}{{ (1, 2)|tojson }}{{ [[1]]|tojson(none, 2) }}
{{ nope|tojson }}
{{ range(3)|tojson }}
{{ d.items()|tojson }}
{{ {(1, 2): 3}|tojson }}
{{ {1: 1, 'a': 2}|tojson(sort_keys=true) }}
{{ namespace()|tojson }}
{{ l|tojson(2, 3, 4, 5, 6) }}
{{ l|tojson(x=1) }}
{{ 1 is odd }}{{ 2 is even }}{{ 9 is divisibleby 3 }}{{ 9 is divisibleby(2) }}{{ 1.5 is odd }}{{ 'a' is lower }}{{ 'A' is upper }}{{ 5 is lower }}{{ 1 is number }}{{ true is number }}{{ true is integer }}{{ 1.0 is float }}{{ none is none }}{{ 'a' is string }}{{ ('a'|safe) is string }}{{ d is mapping }}{{ d.items() is mapping }}{{ l is sequence }}{{ d.keys() is sequence }}{{ (l|map('abs')) is sequence }}{{ (l|map('abs')) is iterable }}{{ range is callable }}{{ namespace() is mapping }}{{ 1 is eq 1 }}{{ 1 is == 1 if false else 0 }}
{{ 1 is not eq 2 }}{{ 1 is ne 2 }}{{ 2 is gt 1 }}{{ 2 is ge 2 }}{{ 1 is lessthan 2 }}{{ 1 is le 1 }}{{ 1 is greaterthan 0 }}{{ 'a' is in 'abc' }}{{ 1 is in [1] }}{{ 'upper' is filter }}{{ 'x' is filter }}{{ 'eq' is test }}{{ 'pprint' is filter }}{{ undefinedvar is undefined }}{{ true is true }}{{ 1 is true }}{{ false is false }}{{ 0 is false }}{{ true is boolean }}{{ 1 is boolean }}{{ 1 is sameas true }}
{{ 1 is nosuch }}
{{ 1 is odd is even }}
{{ 'a' is odd }}
{{ 5 is divisibleby 0 }}
{{ 1 is odd(1) }}
{% if true %}{{ 1 is nosuch }}{% endif %}
{% if false %}{{ 1 is nosuch }}{{ 2|nosuch }}{% endif %}ok
{% for i in [] %}{{ 1|nosuch }}{% endfor %}
{{ (1|nosuch) if false else 2 }}
{{ true or 1|nosuch }}{{ 1 > 2 and (1|nosuch) }}{{ ('a'|upper == 'A') or 1 is nosuch }}{{ [] and n|nosuch }}{{ {'a': 1}.a or n|nosuch }}
{{ n or 1|nosuch }}
{{ false or 1|nosuch }}
{{ [1]|first or 1|nosuch }}
{{ range(1) or 1|nosuch }}
{{ [1]|map('abs') or 1|nosuch }}
{{ (1 + 'a') or 1|nosuch }}
{% if false %}{% for i in [] %}{{ 1|nosuch }}{% endfor %}{% endif %}
{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}
{% for i in l|map('abs') %}{{ loop.last }}{{ loop.nextitem }}{{ loop.length }}{{ loop.revindex }};{% endfor %}
{% for i in l|map('abs') %}{{ loop.length }}{{ loop.index }};{% endfor %}
{% for i in l if i > 1 %}{{ loop.index }}{{ loop.last }}{{ loop.nextitem }}{{ loop.length }};{% else %}none{% endfor %}
{% for i in l if i > 100 %}x{% else %}none{% endfor %}{% for i in [] %}{% else %}e{% endfor %}
{% for i in l %}{% continue %}{% else %}else{% endfor %}|{% for i in l %}{% break %}{% else %}else{% endfor %}|{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% else %}else{% endfor %}
{% for a, b in x %}{{ a }}{{ b }}{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for (a, b) in x %}{{ b }}{% endfor %}{% for a, in [[1]] %}{{ a }}{% endfor %}
{% for a, b in [[1]] %}{% endfor %}
{% for a, b in [[1, 2, 3]] %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for a, b in ['xy', 'zw'] %}{{ b }}{{ a }}{% endfor %}{% for a, b in x if a > 1 %}{{ loop.previtem }}{{ (a, b) }}{{ loop.index }}{% endfor %}
{% for i in l recursive %}{{ i }}{% endfor %}{% for i in [[1, [2]], [3]] recursive %}<{% if i is iterable %}{{ loop(i) }}{% else %}{{ i }}{% endif %}{{ loop.depth }}{{ loop.index }}>{% endfor %}
{% for i in [1] %}{{ loop([1]) }}{% endfor %}
{% for i in l %}{{ loop.cycle('a', 'b', 'c') }}{{ loop.changed(i // 2) }}{{ loop }}{% endfor %}
{% for i in l %}{{ loop.cycle() }}{% endfor %}
{% for i in l %}{% for k in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}
{% for i in l %}{% set o = loop %}{% for k in [1, 2] %}{{ o.index }}{{ loop.index }}{% endfor %};{% endfor %}
{% for i in 5 %}{% endfor %}
{% for i in none %}{% endfor %}
{% for i in nope %}x{% else %}y{% endfor %}{% for c in 'añ' %}[{{ c }}]{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}
{% for i in 1, 2, 3 %}{{ i }}{% endfor %}{% for i in (1, 2) if i %}{{ i }}{% endfor %}{% for i in l if i else [] %}{{ i }}{% endfor %}
{% for loop in l %}{% endfor %}
{% for i in l %}{% set loop = 1 %}{% endfor %}
{% set loop = 5 %}{{ loop }}{% for i in [1] %}{{ loop.index }}{% endfor %}
{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{{ loop.index }}{% endfor %}
{% set it = l|map('string') %}{{ it|list }}{{ it|list }}{% for i in it %}x{% else %}empty{% endfor %}
{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = i * 10 %}{{ x }}{% endfor %}{{ x }}
{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}{% if z %}{% set y = 3 %}{% endif %}[{{ y }}]{{ y is defined }}
{% if t %}{% set q = 1 %}{% else %}{% set q = 2 %}{% endif %}{{ q }}{% for i in [1] %}{% if t %}{% set q = 9 %}{% endif %}{{ q }}{% endfor %}{{ q }}
{% for i in [1, 2] %}{{ y is defined }}{% set y = i %}{{ y }}{% endfor %}{{ y is defined }}
{% for i in [1, 2] %}{% if i == 2 %}{% set n = 5 %}{% endif %}{{ n }}{% endfor %}{{ n }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (a, b) = [3, 4] %}{{ a }}{{ b }}{% set a = b = 3 %}
{% set c = 1, %}{{ c }}{% set e2 = () %}{{ e2 }}{% set a, (b, c) = 1, (2, 3) %}{{ a }}{{ b }}{{ c }}
{% set ns = namespace(a=1) %}{% set ns.b = 2 %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}{{ ns }}{{ ns['a'] }}{{ namespace({'x': 1}, y=2).y }}{{ namespace([('q', 1)]).q }}
{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}{% set ns.t %}x{% endset %}{{ ns.t }}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}
{% set ns = {} %}{% set ns.a = 1 %}
{% set nope.a = 1 %}
{% set ns = namespace() %}{% set ns._a = 1 %}
{% set ns = namespace(_a=1) %}
{% set x %}a{{ n }}b{% endset %}{{ x }}{{ x|length }}{% set y | upper | replace('A', 'q') %}abc{% endset %}{{ y }}{% set z2 %}{% set inner = 5 %}{{ inner }}{% endset %}{{ z2 }}{{ inner is defined }}
{% for i in [1, 2, 3] %}{% set q %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% endset %}{{ q }}{% endfor %}
{% set x = 5 %}{% set y | replace('a', x) %}aba{% endset %}{{ y }}
{% set y | replace('a', unknownname) %}aba{% endset %}{{ y }}
{% with %}{% set a = 1 %}{{ a }}{% endwith %}{{ a is defined }}{% with a = 1, b = 2 %}{{ a + b }}{% with a = b %}{{ a }}{% endwith %}{{ a }}{% endwith %}{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}
{% filter upper %}a{{ n }}{% set q = 1 %}b{% endfilter %}{{ q is defined }}{% filter replace('a', 'b') | upper %}aXa{% endfilter %}{% filter indent(2, true) %}x¶y{% endfilter %}
{% filter length %}abc{% endfilter %}
{% macro m(a, b=2, *c) %}{% endmacro %}
{% macro m(a, b=a ~ 'x', c=n) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=5) }}{{ m(a=3) }}{{ m() }}{{ m(b=1) }}{{ m(*[1, 2]) }}{{ m(**{'a': 7}) }}{{ m(*[1], **{'c': 2}) }}
{% macro m(a) %}{{ a is defined }}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m() }}{{ m(1, 2, 3, x=4) }}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.catch_varargs }}{{ m.caller }}{{ m }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
{% macro m(a=1, b) %}{% endmacro %}
{% macro m(true) %}{% endmacro %}
{% macro m(x) %}[{{ caller(x) }}{{ caller is defined }}]{% endmacro %}{% call(y) m(5) %}{{ y }}{{ n }}{% endcall %}{% macro q() %}{{ caller is defined }}{% endmacro %}{{ q() }}
{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}
{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}
{% macro m(caller=none) %}{{ caller }}{% endmacro %}{{ m() }}{% call m() %}y{% endcall %}
{% macro m(caller) %}{{ caller() }}{% endmacro %}
{% macro m() %}{{ caller('a', b='c') }}{% endmacro %}{% call(x, b, c='d') m() %}{{ x }}{{ b }}{{ c }}{% endcall %}
{% call 5 %}{% endcall %}
{% call s.upper() %}{% endcall %}
{% call nope() %}{% endcall %}
{% macro outer() %}{% macro inner() %}{{ n }}{{ q }}{% endmacro %}{% set q = 3 %}{{ inner() }}{% endmacro %}{{ outer() }}{{ inner is defined }}
{% set x = 1 %}{% macro m() %}{{ x }}{% set x = 5 %}{{ x }}{% endmacro %}{{ m() }}{% set x = 2 %}{{ m() }}{{ x }}
{% macro f(k) %}{% if k > 1 %}{{ k * f(k - 1)|int }}{% else %}1{% endif %}{% endmacro %}{{ f(6) }}
{% for i in [1, 2] %}{% macro m() %}{{ i }}{{ loop.index }}{% endmacro %}{{ m() }}{% endfor %}
{% set ns = namespace() %}{% for i in [1, 2] %}{% macro m() %}[{{ i }}]{% endmacro %}{% set ns.m = m %}{% endfor %}{{ ns.m is defined }}
{% macro m() %}{% for i in l %}{{ i }}{% if loop.last %}!{% endif %}{% endfor %}{% endmacro %}{{ m()|upper }}{{ m()|length }}{% set v = m() ~ 'x' %}{{ v }}
{% macro m(l) %}{{ l }}{% endmacro %}{{ m('q') }}{{ l }}{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}
{{ later() }}{% macro later() %}{% endmacro %}
{% macro m() %}{{ kwargs.x }}{{ kwargs['y'] }}{{ varargs[0] }}{{ varargs|length }}{% endmacro %}{{ m(1, 2, x=3, y=4) }}
{% macro m(varargs) %}{{ varargs }}{% endmacro %}{{ m(1) }}{% macro k(kwargs=1) %}{{ kwargs }}{% endmacro %}{{ k() }}
{% block a %}x{{ n }}{% set q = 1 %}{% endblock %}{{ q is defined }}{% set v = 5 %}{% block b %}{{ v }}{{ super is defined }}{% endblock b %}{{ self.b() }}
{% block a %}{% endblock %}{% block a %}{% endblock %}
{% for i in [1] %}{% block a %}{{ i }}{% endblock %}{% endfor %}
{% autoescape true %}{{ h }}{{ h|safe }}{{ h|e }}{% set q %}<{{ h }}{% endset %}{{ q }}{{ '<' ~ h|safe }}{% macro m(x) %}<{{ x }}{% endmacro %}{{ m('<') }}{{ ['<', '>'|safe]|join('&') }}{{ 'a<'|upper }}{{ 'a'|replace('a', '<') }}{% endautoescape %}{{ h }}
{% autoescape false %}{{ h }}{% endautoescape %}{% autoescape t %}{{ h }}{% endautoescape %}
{% print 1, 2, 'a' %}{% print n %}
{% raw %}{{ x }}{% if %}{# c #}{% endraw %}|{% raw -%}  a {%- endraw %}|{%- raw %} b {% endraw -%} |¶  {% raw %}¶ x¶  {% endraw %}¶y¶a{# c #}b{#- c -#}  d  {#+ e +#}¶f¶  {# c #}¶ x¶  {%- if t -%}  a  {%- endif -%}  b¶	 {% if t %}	¶  a
 {% endif %}¶¶b¶  {%+ if t +%}¶a{% endif %}
{{- 1 -}}  {{- 2 }}  {{ 3 -}}¶ x {{ 4 }}¶x{% if t %}¶¶y{% endif %}¶¶
{{ "a" 'b' "c" }}{{ 'it''s' }}{{ "\x41\u00e9\U0001f600\101\n\t\\\'\"\a\q\¶x" }}{{ 'a¶b' }}
{{ '\é' }}{{ '\😀' }}
{{ '\x4' }}
{{ '\u12' }}
{{ 1_000 }}{{ 0x_ff }}{{ 0b1_0 }}{{ 0o17 }}{{ 0XFF }}{{ 1e3 }}{{ 1E-2 }}{{ 1_0.5_0 }}{{ 00 }}{{ 1.5e+3 }}{{ 99999999999999999999 }}
{{ 007 }}
{{ 1__0 }}
{{ 1. }}
{{ .5 }}
{{ 1.e5 }}
{{ a.1.2 }}{{ x.0.1 }}{{ x.1[0] }}{{ l.0.real }}
{{ True }}{{ False }}{{ None }}{{ true }}{{ none }}{{ not True }}{{ TRUE is defined }}
{{ (1) }}{{ (1,) }}{{ () }}{{ (1, 2,) }}{{ [] }}{{ [1,] }}{{ {} }}{{ {'a': 1,} }}{{ ((1)) }}{{ (1, (2, 3)) }}
{{ 1, 2 }}{{ 'a', }}
{{ {'a': {'b': {'c': 1}}}.a.b.c }}{{ [[1, 2], [3]][0][1] }}{{ {'a': 1}['a'] }}{{{'a':1}.a}}{{ {'x': '}}'} }}
{{ -n }}{{ - n }}{{ --n }}{{ +-n }}{{ not not n }}{{ -n|abs }}{{ -(n|abs) }}{{ -n.real }}{{ 2 - -2 }}{{ 2--2 }}{{ -l[0] }}{{ -2 ** 2 }}{{ -'a'|length }}
{{ n is defined and n > 3 }}{{ n if n is defined else 0 }}{{ not n is defined }}{{ n is defined == true }}{{ 1 + 1 is odd }}{{ (1 + 1) is odd }}{{ 'a' if n is even else 'b' }}{{ n is not even }}{{ 2 is in [1, 2] and true }}{{ 1 < 2 and 2 < 3 }}{{ 1 + 2 ~ 3 * 4 }}{{ 1 ~ 2 + 3 ~ 4 }}{{ 'a' in 'abc' == true }}
{{ s|upper|lower|title }}{{ s|default('x')|upper ~ 'y' }}{{ (s ~ 'x')|upper }}{{ s ~ 'x'|upper }}{{ [1, 2]|first + 1 }}{{ 1 + [1, 2]|first * 2 }}{{ l|length > 3 }}{{ 'a'|upper == 'A' }}{{ s.split()|first|length }}{{ (s|upper).lower() }}{{ s|upper()|lower() }}
{{ s |¶upper }}{{¶1 +¶2 }}{% if¶t¶%}x{% endif %}
{{ dict(a=1) }}{{ dict({'a': 1}, b=2) }}{{ dict([('a', 1)]) }}{{ dict(['ab']) }}{{ dict() }}{{ dict(**{'x': 1}) }}
{{ dict([1]) }}
{{ dict(['abc']) }}
{{ dict(nope) }}
{{ dict(1, 2) }}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}{% set jn = joiner('|') %}{{ jn() }}a{{ jn() }}b{{ jn() }}{% set j2 = joiner() %}{{ j2() }}{{ j2() }}
{{ cycler() }}
{{ lipsum is defined }}{{ range is defined }}{{ dict is defined }}{{ joiner is callable }}{{ self is defined }}{{ self }}{{ super is defined }}{{ loop is defined }}{{ caller is defined }}{{ varargs is defined }}
{{ raise_exception('a' ~ n) }}
{{ raise_exception() }}
{{ raise_exception(5) }}
{{ raise_exception('two¶lines') }}
{{ strftime_now('%Y')|length }}{{ strftime_now('%d %b')|length > 3 }}{{ strftime_now('%%') }}{{ strftime_now('') }}
{{ strftime_now(5) }}
{{ messages[0].role }}{{ messages[-1]['content'] }}{{ messages|length }}{{ messages[1].reasoning_content }}{{ messages[1].thinking }}{{ messages[0].thinking is defined }}{{ messages[1].keys()|list }}{{ tools is none }}{{ documents }}{{ add_generation_prompt }}{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}
{{ messages[5] is defined }}{{ messages[5].role }}
{{ s() }}
{{ 5() }}
{{ l.append(1) }}
{{ none.x }}|{{ none.x.y }}
{{ 1/0 }}
{{ 1//0 }}
{{ 1%0 }}
{{ 1.0/0 }}
{{ 0 ** -1 }}
{{ 'a' - 'b' }}
{{ [] - [] }}
{{ {} + {} }}
{{ none + none }}
{{ 'a' * 'b' }}
{{ 'a' * 1.5 }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ [1] < (1,) }}
{{ {} < {} }}
{{ 1 in 5 }}
{{ 1 in 'abc' }}
{{ [] in {} }}
{{ f(a=1, a=2) }}
{{ dict(a=1, **{'a': 2}) }}
{{ s.upper(1) }}
{{ s.split(x=1) }}
{{ s.replace('a') }}
{{ l|join(1, 2, 3) }}
{{ s|upper(1) }}
{{ s.split(*[' ']) }}{{ s.split(*' ') }}{{ range(*[1, 3])|list }}{{ dict(*[[['a', 1]]]) }}
{{ s.split(**{'sep': ' '}) }}{{ s.split(**nope) }}
{{ f(**5) }}
{{ range(*5) }}
{% if x %}{% elif %}{% endif %}
{% if %}{% endif %}
{% for i in %}{% endfor %}
{% for in l %}{% endfor %}
{% set = 1 %}
{% set x = %}
{% set x.y.z = 1 %}
{% set x[0] = 1 %}
{% set 'a' = 1 %}
{% set x + 1 = 2 %}
{% set true = 1 %}
{% macro 1() %}{% endmacro %}
{% macro m %}{% endmacro %}
{% endif %}
{% else %}
{% unknown %}
{% if t %}{% endfor %}
{% if t %}
{% for i in l %}{% if t %}{% endfor %}
{% break %}
{% if t %}{% continue %}{% endif %}
{% for i in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}
{% for i in l %}{% else %}{% break %}{% endfor %}
{% for i in [1, 2] %}{% for k in [] %}{% else %}{% break %}{% endfor %}{{ i }}{% endfor %}
{{ a b }}
{{ a. }}
{{ a.'b' }}
{{ a[ }}
{{ a[] is defined }}
{{ [1 2] }}
{{ {1} }}
{{ {1: } }}
{{ (1 }}
{{ ) }}
{{ a | }}
{{ a | 1 }}
{{ a is }}
{{ a is 1 }}
{{ not }}
{{ 1 + }}
{{ * 1 }}
{{ 1 if }}
{{ 1 if true else }}
{{ a ? b : c }}
{{ a && b }}
{{ a = b }}
{{ a ! b }}
{{ $x }}
{{ 'abc }}
{{ f(a b) }}
{{ f(,) }}
{{ f(a,) is defined }}
{{ f(**a, b) }}
{{ f(*a, b) }}
{{ f(a=1, b) }}
{{ }}
{{
{%
{% %}
{#
{# abc
{% raw %}
{% raw %}abc
{% endraw %}
{{ 1 }
{{ 1 %}
{% if t }}{% endif %}
}} %} #} { % {
{% if t: %}a{% endif %}{% for i in [1]: %}{{ i }}{% endfor %}{% if (t) %}b{% endif %}
{%if t%}a{%endif%}{%-if t-%} b {%-endif-%}{{n}}{{-n-}}
{% generation %}a{% set g = 1 %}{{ n }}{% endgeneration %}{{ g is defined }}x{% generation %}{% endgeneration %}
{% macro m() %}{% generation %}é{% endgeneration %}{% endmacro %}ab{{ m() }}c{{ m() }}{% set q %}{% generation %}zz{% endgeneration %}{% endset %}{{ q }}{% generation %}o{% generation %}i{% endgeneration %}{% endgeneration %}
{% for i in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}
{% for i in l %}{% generation %}{{ i }}{{ loop.index }}{% endgeneration %},{% endfor %}
{% generation x %}{% endgeneration %}
{{ 'ａ'.upper() }}{{ '𐐨'.upper() }}{{ 'Ա'.lower() }}{{ 'ʼn'.title() }}{{ 'ﬃx'.title() }}{{ 'ΐ'.upper() }}{{ 'ᾳ'.upper() }}{{ 'ᾳ'.title() }}
{% set été = 5 %}{{ été }}{{ d.été is defined }}{% macro ñ(ü) %}{{ ü }}{% endmacro %}{{ ñ(1) }}
{{ ² }}
{{ a²b }}
{% for k, v in {'a': 1}.items() %}{{ k }}{% endfor %}{% for i in range(3)|list|reverse %}{{ i }}{% endfor %}{% for i in [3, 1]|sort %}{{ i }}{% endfor %}
{{ [1, 2, 3]|map('string')|join(', ') }}{{ ['a', 'b']|join('\n') }}{{ 'x\ny'.splitlines()|map('trim')|join('|') }}
{{ (range(3)|list, 'a') }}{{ [range(2)] }}{{ [d.keys()] }}{{ {'a': range(1)} }}
{{ 'abc'|attr('upper') is defined }}{{ d|attr('items') is callable }}{{ d|attr('b') is defined }}{{ d|attr('__class__') }}|{{ none|attr('x') is defined }}
{{ 1|default(2) }}{{ none|default(2) }}{{ none|default(2, true) }}{{ ''|d('x', boolean=true) }}{{ nope|d }}|{{ nope|default(default_value='q') }}{{ false|default('y', true) }}{{ d.q|default(d.b) }}
{{ x[1][1] }}{{ x.1.1 }}{{ x[0, 1] is defined }}{{ {(0, 1): 'q'}[0, 1] }}
{{ ('a', 'b')[0] }}{{ ('a', 'b')|first }}{{ 'b' in ('a', 'b') }}{{ ('a', 'b') == ['a', 'b'] }}{{ ('a',) * 2 }}{{ [('a', 1)]|tojson }}
{{ loop.index is defined }}
{{ [[]] * 2 }}{{ [] == () }}{{ {} == [] }}{{ 1 != 1.0 }}{{ 'a' != 'b' }}{{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }}{{ [1, [2]] == [1, [2.0]] }}{{ 0 == false }}{{ '' == false }}{{ none == false }}
""".strip("\n").split("\n")

MAY_REFUSE = [r"{{ '\ud83d'|length }}", r"{{ l|pprint }}", r"{{ 'a b c'|wordwrap(3) }}", r"{{ 'www.a.b'|urlize }}", r"{{ 2 ** 100 }}", r"{{ big + 1 }}", r"{{ s.encode() }}", r"{{ (-8) ** 0.5 }}", r"{{ '&amp;'|striptags }}", r"{{ '\N{BULLET}' }}", r"{{ '{:08,}'.format(1234) }}", r"{{ 'x'.translate({120: 'y'}) }}", r"{{ '{:.3}'.format(1.5) }}", r"{{ '%a' % 'é' }}", r"{{ big > 1 }}", r"{{ 9223372036854775807 + 1 }}"]


def programs():
    """One per line; a line end inside one is written as a pilcrow."""
    return [line.replace("\u00b6", "\n") for line in PROGRAMS]


def judge(template, line):
    """What transformers renders, or that and why it raises."""
    marked = "generation" in template
    try:
        out = render_jinja_template(conversations=[line.get("messages", [])], tools=line.get("tools"), chat_template=template,
                                    return_assistant_tokens_mask=marked, add_generation_prompt=line.get("generation_prompt", False),
                                    **(TOKENS | line.get("set", {})))
        return {"text": out[0][0], "trained": [list(span) for span in out[1][0]] if marked else []}
    except jinja2.TemplateSyntaxError as e: return {"error": str(e), "line": e.lineno}
    except jinja2.TemplateError as e: return {"error": str(e.message or ""), "own": type(e) is jinja2.TemplateError}
    except Exception as e: return {"error": f"{type(e).__name__}: {e}"}


class Judge:
    def __init__(self, folder):
        self.folder, self.passed, self.faults, self.refused = Path(folder), 0, [], 0
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        tokenizer.save(str(self.folder / "tokenizer.json"))
        (self.folder / "tokenizer_config.json").write_text(json.dumps(TOKENS))

    def render(self, lines):
        batch = self.folder / "batch.jsonl"
        batch.write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = subprocess.run([os.environ["NIBBLE"], "template", self.folder, "--batch", batch, "--json"], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-300:]}"
        return json.loads(done.stdout)["results"]

    def compare(self, lines, lenient=False):
        for line, got in zip(lines, self.render(lines)):
            want, fault = judge(line["template"], line), None
            if "error" in want:
                if "text" in got: fault = f"renders {got['text']!r}, jinja2 raises {want['error']!r}"
                elif want.get("own") and want["error"].strip() not in got["error"]: fault = f"says {got['error']!r}, not {want['error']!r}"
                elif "line" in want and f"template:{want['line']}:" not in got["error"]: fault = f"says {got['error']!r}, jinja2 line {want['line']}"
            elif "error" in got:
                if lenient or KNOWN.search(got["error"]): self.refused += 1
                else: fault = f"refuses: {got['error']}"
            elif ADDRESS.sub(" at 0x7f0000000000", want["text"]) != got["text"]: fault = f"expected {want['text']!r}, got {got['text']!r}"
            elif want["trained"] != got["trained"]: fault = f"spans {got['trained']}, expected {want['trained']}"
            if fault: self.faults.append(f"{line['template']!r}: {fault}")
            else: self.passed += 1

    def compare_programs(self, templates, **options):
        self.compare([{"template": t, "messages": VALUES["messages"], "set": {k: v for k, v in VALUES.items() if k != "messages"}} for t in templates], **options)


class Random:
    """Programs at random. Most are well typed; the rest show that errors agree, too."""

    def __init__(self, rng):
        self.rng, self.depth = rng, 0

    def of(self, *options):
        option = self.rng.choice(options)
        return option() if callable(option) else option

    def expr(self, kind):
        if self.rng.random() < .01: kind = self.of("int", "str", "list", "dict", "none", "bool", "float")
        self.depth += 1
        try: return self.leaf(kind) if self.depth > 4 or self.rng.random() < .3 else f"({self.node(kind)})"
        finally: self.depth -= 1

    def text(self):
        r = self.rng
        return repr("".join(r.choices(["a", "b", "A", " ", ",", "é", "ß", "😀", "x", "-", "\n", "\t", "'", '"', "0", "12", "Σ", "<", "%", "{}", "%s", "aa", "\u00a0"], k=r.randrange(6))))

    def number(self):
        return str(self.rng.choice([0, 1, 2, 3, -1, -2, 5, 10, 99]))

    def leaf(self, kind):
        return {"int": lambda: self.of("n", "m", "l[0]", self.number, "u[0].age"), "float": lambda: self.of("f", "g", "1e16", "0.1", "-2.5", lambda: repr(round(self.rng.uniform(-99, 99), 3))), "bool": lambda: self.of("t", "true", "false"), "none": lambda: "none",
                "str": lambda: self.of("s", "r", "h", "w[1]", "u[2].name", self.text, self.text), "list": lambda: self.of("l", "w", "e", "x", "[1, 2]", "range(4)|list"), "dict": lambda: self.of("d", "j", "k", "u[0]", "{'q': 1}")}[kind]()

    def any(self):
        return self.expr(self.of("int", "float", "bool", "str", "list", "dict", "none"))

    def position(self):
        return self.of("", self.number)

    def node(self, kind):
        E, O, N = self.expr, self.of, self.number
        if kind == "int":
            return O(lambda: f"{E('int')} {O('+', '-', '*', '//', '%')} {E('int')}", lambda: f"{E(O('str', 'list', 'dict'))}|length", lambda: f"{E('str')}.{O('find', 'rfind', 'count')}({E('str')}{O('', lambda: ', ' + N(), lambda: ', ' + N() + ', ' + N())})", lambda: f"{E('str')}|int({N()})", lambda: f"{E('float')}|{O('int', 'round|int')}", lambda: f"{E('int')}|{O('abs', 'round', 'int')}", lambda: f"-{E('int')}", lambda: f"{E('int')} if {E('bool')} else {E('int')}", lambda: f"({E('list')}|select('number')|list + [1])|{O('min', 'max', 'sum', 'first', 'last')}", lambda: f"{E('str')}|wordcount", lambda: f"{E('int')}.bit_length()")
        if kind == "float":
            return O(lambda: f"{E('float')} {O('+', '-', '*', '/', '//', '%')} {E(O('int', 'float'))}", lambda: f"{E('int')} / {E('int')}", lambda: f"{E('float')}|round({N()}{O('', ', ' + repr('floor'), ', ' + repr('ceil'))})", lambda: f"{E('str')}|float", lambda: f"{E('int')}|float", lambda: f"{E('int')} ** {O('-1', '0.5', '2')}")
        if kind == "bool":
            return O(lambda: f"{self.any()} {O('==', '!=')} {self.any()}", lambda: f"{E('int')} {O('<', '<=', '>', '>=')} {E('float')}", lambda: f"{E('str')} {O('<', '>=')} {E('str')}", lambda: f"{E('list')} == {E('list')}", lambda: f"not {self.any()}", lambda: f"{self.any()} is {O('', 'not ')}{O('string', 'number', 'mapping', 'sequence', 'iterable', 'none', 'defined', 'boolean', 'integer', 'float', 'true', 'false', 'callable', 'escaped')}", lambda: f"{E('str')} in {E('str')}", lambda: f"{self.any()} in {E('list')}", lambda: f"{E('str')} in {E('dict')}", lambda: f"{E('str')}.{O('isalpha', 'isdigit', 'isalnum', 'isspace', 'isupper', 'islower', 'istitle', 'isascii', 'isprintable', 'isidentifier', 'isnumeric', 'isdecimal')}()", lambda: f"{E('str')}.{O('startswith', 'endswith')}({E('str')}{O('', lambda: ', ' + N())})", lambda: f"{E('bool')} {O('and', 'or')} {E('bool')}{O(*[''] * 30, '|nosuch')}", lambda: f"{E('int')} is {O('odd', 'even', 'divisibleby 3', 'gt 2', 'in [1, 2, 3]')}")
        if kind == "str":
            return O(lambda: f"{E('str')} {O('+', '~')} {E('str')}", lambda: f"{self.any()} ~ {self.any()}", lambda: f"{self.any()}|{O('string', 'upper', 'lower', 'title', 'capitalize', 'trim', 'e', 'tojson')}", lambda: f"{E('str')}.{O('upper', 'lower', 'title', 'capitalize', 'swapcase', 'casefold', 'strip', 'lstrip', 'rstrip', 'expandtabs')}()", lambda: f"{E('str')}.{O('strip', 'lstrip', 'rstrip', 'removeprefix', 'removesuffix')}({E('str')})", lambda: f"{E('str')}[{self.position()}:{self.position()}{O('', lambda: ':' + O('1', '2', '-1', '-2'))}]", lambda: f"{E('str')}.replace({E('str')}, {E('str')}{O('', lambda: ', ' + N())})", lambda: f"{E('str')}|replace({self.any()}, {self.any()})", lambda: f"{E('list')}|join({E('str')})", lambda: f"{E('str')}.{O('ljust', 'rjust', 'center')}({N()}{O('', ', ' + repr('*'))})", lambda: f"{E('str')}.zfill({N()})", lambda: f"{E('str')} * {N()}", lambda: f"{E(O('list', 'dict'))}|tojson(indent={O('none', '0', '1', '2', repr('.'))}{O('', ', sort_keys=true', ', ensure_ascii=true', ', separators=(' + repr(',') + ', ' + repr(':') + ')')})", lambda: f"{E('str')}|indent({N()}{O('', ', true', ', false, true')})", lambda: f"'%{O('s', 'r', '5s', '-5s', '.2s')}|' % ({self.any()},)", lambda: f"'%{O('d', '05d', '+d', '-6d', 'x', '6.2f', '.3f', 'e', 'g', '.3g', 'i', '8.1e')}|' % {E(O('int', 'float'))}", lambda: f"'{{:{O('', '>8', '<8', '^9', '*^9', '3')}}}|'.format({E('str')})", lambda: f"'{{:{O('', 'd', '05d', '+', ',', 'x', '>8', '<8', '^8', '8', '_', '#x', 'b')}}}|'.format({E('int')})", lambda: f"'{{:{O('', '.2f', '8.3f', '+.1f', 'e', 'g', '%', ',.2f', '>10', '010.2f')}}}|'.format({E('float')})", lambda: f"{E('str')}|truncate({O('3', '5', '8')}{O('', ', true', ', false, ' + repr('..'), ', leeway=0')})", lambda: f"{E('str')}|{O('safe', 'e', 'urlencode', 'reverse', 'string', 'forceescape')}", lambda: f"{E('str')} if {E('bool')} else {E('str')}", lambda: f"{E('dict')}.get({E('str')}, {E('str')})")
        if kind == "list":
            return O(lambda: f"[{', '.join(self.any() for _ in range(self.rng.randrange(4)))}]", lambda: f"{E('list')} + {E('list')}", lambda: f"{E('list')}[{self.position()}:{self.position()}{O('', lambda: ':' + O('1', '2', '-1', '-2'))}]", lambda: f"{E('str')}.{O('split', 'rsplit')}({O('', lambda: E('str') + O('', ', 1', ', 2'), 'none, 1')})", lambda: f"{E('str')}.splitlines({O('', 'true')})", lambda: f"{E('str')}.{O('partition', 'rpartition')}({E('str')})|list", lambda: f"{E('list')}|{O('list', 'reverse|list', 'unique|list', 'sort', 'sort(reverse=true)', 'batch(2)|list', 'slice(2)|list', 'select|list', 'reject|list')}", lambda: f"{E('list')}|map({repr(O('string', 'upper', 'length', 'tojson', 'first', 'int', 'default', 'title'))})|list", lambda: f"{E('list')}|{O('select', 'reject')}({repr(O('string', 'number', 'odd', 'none', 'defined', 'iterable'))})|list", lambda: f"{E('str')}|list", lambda: f"{E('dict')}{O('|list', '.items()|list', '.keys()|list', '.values()|list', '|dictsort', '|dictsort(true, ' + repr('value') + ')')}", lambda: f"range({N()}, {N()}{O('', ', 2', ', -1')})|list", lambda: f"u|{O('map', 'selectattr', 'rejectattr', 'groupby', 'sort')}({O('', 'attribute=')}{repr(O('name', 'age', 'ok', 'tags', 'tags.0'))})|list")
        return O(lambda: f"{{{E('str')}: {self.any()}, {O('1', 'none', repr('z'), '2.5')}: {self.any()}}}", lambda: f"dict({E('dict')}, z={self.any()})", lambda: f"dict(a={self.any()})", lambda: f"{E('dict')} if {E('bool')} else {E('dict')}")

    def body(self, level=0, loop=False):
        out, E, O = [], self.expr, self.of
        for _ in range(self.rng.randint(1, 3)):
            a, b, end = O("{%", "{%", "{%-", "{%+"), O("%}", "%}", "-%}", "+%}"), O("\n", " ", "", "\n  ", "\n\n")
            name = O("x", "y", "q", "n")
            inner = lambda lp=loop: self.body(level + 1, lp)
            out.append(O(lambda: f"{O('{{', '{{-')} {self.any()} {O('}}', '-}}')}{end}", lambda: f"{{{{ {name} }}}}{end}", lambda: O(" text\n", "  ", "\n\n", "a b", "\t{# c #}\n", "{#- c -#} ", "\r\n"), lambda: f"{a} set {O(name, 'ns.v', 'x, y')} = {self.any()} {b}{end}",
                         *([] if level > 2 else [lambda: f"{a} if {self.any()} {b}{end}{inner()}{a} elif {E('bool')} {b}{inner()}{a} else {b}{inner()}{a} endif {b}{end}", lambda: f"{a} for {name} in {E(O('list', 'str', 'dict'))} {O('', f'if {name} ')}{b}{end}{{{{ {O('loop.index', 'loop.last', 'loop.first', 'loop.length', 'loop.nextitem', 'loop.previtem', 'loop.revindex', 'loop.changed(x)', name)} }}}}{inner(True)}{O('', f'{a} else {b}none')}{a} endfor {b}{end}", lambda: f"{a} set {name} {O('', '| upper ')}{b}{inner()}{a} endset {b}{end}", lambda: f"{a} with {name} = {self.any()} {b}{inner()}{a} endwith {b}", lambda: f"{a} filter {O('upper', 'trim', 'indent(2)')} {b}{inner()}{a} endfilter {b}", lambda: f"{{{{ mac({self.any()}{O('', lambda: ', q=' + self.any(), lambda: ', ' + self.any())}) }}}}{end}", lambda: f"{a} call(c) cal({self.any()}) {b}{{{{ c }}}}{inner(False)}{a} endcall {b}", lambda: f"{a} macro mac(p, q={self.any()}) {b}{inner(False)}{{{{ p }}}}{{{{ q }}}}{a} endmacro {b}", lambda: f"{a} generation {b}{inner(False)}{a} endgeneration {b}{end}", lambda: f"{a} if {E('bool')} {b}{O('{% break %}', '{% continue %}') if loop else ''}{a} endif {b}"])))
        return "".join(out)

    def program(self):
        return "{% set x = 3 %}{% set ns = namespace(v=0) %}{% macro mac(p, q='d') %}<{{ p }}{{ q }}{{ x }}>{% endmacro %}{% macro cal(v) %}[{{ caller(v) }}]{% endmacro %}\n" + self.body() + "{{ x }}{{ ns.v }}{{ y }}{{ q }}"


CONVERSATIONS = [
    [{"role": "user", "content": "hi"}], [{"role": "system", "content": "S"}, {"role": "user", "content": "q\n"}, {"role": "assistant", "content": " a "}, {"role": "user", "content": ""}],
    [{"role": "user", "content": [{"type": "text", "text": "é"}]}, {"role": "assistant", "content": "x", "reasoning_content": "hm"}],
    [{"role": "user", "content": "w"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": ["é", None, 1.5]}}}]}, {"role": "tool", "name": "f", "tool_call_id": "call00001", "content": "{\"r\": 1}"}, {"role": "assistant", "content": "done"}],
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "Does \"it\" – d'accord?", "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "A", "default": 0.5}, "b": {"type": "array", "items": {"type": "string"}}}, "required": ["a"]}}}]


def characters(judge, everything):
    """Every character: case, properties, repr, and whether it is white space."""
    program = ("{% for c in v %}{{ c.upper() }}{{ c.lower() }}{{ c.title() }}{{ c.capitalize() }}{{ c.swapcase() }}{{ c.casefold() }}{{ c.isalpha() }}{{ c.isdigit() }}{{ c.isdecimal() }}{{ c.isnumeric() }}{{ c.isspace() }}{{ c.isupper() }}{{ c.islower() }}"
               "{{ c.istitle() }}{{ c.isprintable() }}{{ c.isidentifier() }}{{ ('a' ~ c).isidentifier() }}{{ ('Α' ~ c ~ 'Σ').lower() }}{{ ('a' ~ c ~ 'b').title() }}{{ [c] }}{{ c|wordcount }}{% endfor %}")
    portion = 1 if everything else 6
    codes = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000 and (c < 0x33000 or c % 997 == 0 or c in (0xE0001, 0xE0100, 0xFFFFF, 0x10FFFF))]
    lines = [{"template": program, "set": {"v": "".join(map(chr, codes[i:i + 3000]))}} for i in range(0, len(codes), 3000)][::portion]
    judge.compare(lines)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    templates = sorted(Path(sys.argv[2]).glob("*.jinja")) if len(sys.argv) > 2 else []
    seed = int(os.environ.get("ORACLE_SEED") or time.time())
    print(f"seed {seed}")
    generator = Random(random.Random(seed))
    with tempfile.TemporaryDirectory() as folder:
        j = Judge(folder)
        j.compare_programs(programs())
        j.compare_programs(MAY_REFUSE, lenient=True)
        fixed = j.passed
        characters(j, rounds > ROUNDS)
        print(f"{fixed} programs of the list, {j.refused} of them refused; characters: {j.passed - fixed} portions")
        for file in templates:
            source = file.read_text(encoding="utf-8")
            j.compare([{"template": source, "messages": m, "generation_prompt": g, **({"tools": TOOLS} if tools else {})} for m in CONVERSATIONS for g in (False, True) for tools in (False, True)])
        drawn = 0
        while drawn < 400 * rounds and len(j.faults) < 200:
            j.compare_programs(["{{ " + generator.any() + " }}" for _ in range(250)] + [generator.program() for _ in range(150)])
            drawn += 400
        print(f"{drawn} random programs, {len(templates)} templates; {j.refused} refusals in all")
    for fault in sorted(j.faults, key=len)[:SHOWN]: print(fault[:1500])
    print(f"{j.passed} passed, {len(j.faults)} failed")
    return len(j.faults) > 0


if __name__ == "__main__":
    sys.exit(main())
