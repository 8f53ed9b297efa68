"""Random text and random tokenizers for test_tokenizers.py: every part that the tokenizers library has and nibble supports, in any
combination, trained on the spot. All depends on one random.Random alone.
"""
import base64
import json
import struct
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

D, N, P, PP = decoders, normalizers, pre_tokenizers, processors
ASSIGNED = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
NEWER = [0x897, 0x1C89, 0x1C8A, 0xA7CB, 0xA7DA, 0xA7DC, 0x105C0, 0x10D50, 0x10D65, 0x11DE0, 0x11F00, 0x16D40, 0x16EA0, 0x1CC00, 0x1E4D0, 0x1FADF, 0x2EBF0, 0x31350, 0x323AF]
WORDS = ("the quick brown fox it's we're they've I'm you'll DON'T It'S don\u2019t can'\u017ft www.example.org/a?b=c x=y+z; def f(a, b): return a**2 <html></html> foo_bar camelCase "
         "HTTPServer 3.14159 -17 1,000,000 0x7fff naïve Straße İstanbul ΑΣ ǅ ﬁn Ⅷ 東京 日本語 한국어 किताब ไทย עברית العربية ½ x² \U0001F469\u200D\U0001F469\u200D\U0001F467 \U0001F1E9\U0001F1EA e\u0301 a\u0323\u0307 가 각 \u1112\u1161\u11ab").split(" ")
SPACES = [chr(c) for c in (9, 10, 11, 12, 13, 0x1C, 0x1F, 0x20, 0x85, 0xA0, 0x1680, 0x180E, 0x2003, 0x200B, 0x2028, 0x202F, 0x205F, 0x3000, 0xFEFF)]
PATTERNS = [r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+", r"\d{1,3}(?=(?:\d{3})*\b)", r"\b", r"\w+", r"[\w']+|[^\w\s]", r"[^\S\n]+",
            r"\s+$", r"^\s+", "[一-龥぀-ゟ゠-ヿ]+", r"\p{Han}|\p{Hiragana}+", r"[a-z&&[^aeiou]]+", r"[[:alpha:]]+|[[:punct:]]", r"\h+", r"(?m:a.)", "x*", r"(?<=\p{Lu})(?=\p{Ll})", r"[\p{P}\p{S}]", r"\p{^L}+", r"(.)\1+", r"a{2}+|b{,2}c", r"\R"]


def word(rng):
    k = rng.randrange(8)
    if k < 3: return rng.choice(WORDS)
    if k < 6: return "".join(rng.choices("eetaoinsrlhEA", k=rng.choice([1, 2, 3, 4, 6, 9, 20])))
    if k == 6:
        start = rng.randrange(len(ASSIGNED))
        return "".join(rng.choices(ASSIGNED[start:start + 30], k=rng.randint(1, 6)))
    return "".join(rng.choices("0123456789", k=rng.choice([1, 2, 3, 5, 9])))


def text(rng, marks=()):
    out = []
    for _ in range(rng.choice([0, 1, 1, 2, 3, 5, 9, 14])):
        k = rng.randrange(13)
        if k < 5: out.append(rng.choice(["", " ", " ", "  "]) + word(rng))
        elif k == 5: out.append("".join(rng.choices(SPACES, k=rng.randint(1, 4))))
        elif k == 6: out.append("".join(rng.choices("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", k=rng.randint(1, 5))))
        elif k == 7: out.append(rng.choice("aeiouAnÅ가क") + "".join(rng.choices([chr(c) for c in range(0x300, 0x346)], k=rng.randint(1, 3))))
        elif k == 8: out.append(" " * rng.choice([1, 2, 3, 4, 8, 17]))
        elif k == 9: out.append(chr(rng.choice(NEWER)) if rng.random() < .4 else rng.choice(ASSIGNED))
        elif k == 10: out.append(rng.choice(["\n", "\r\n", "\t", "\n\n", "\u2581", "\u2581\u2581", "\x00", "<0x41>", "\ufffd", "\U0010ffff"]))
        elif marks: out.append(rng.choice(["", " ", "  "]) + rng.choice(marks) + rng.choice(["", " ", "x", "\n"]))
    return "".join(out)


def corpus(rng):
    lexicon = [word(rng) for _ in range(400)]
    return [" ".join(rng.choices(lexicon, [1 / (i + 1) for i in range(len(lexicon))], k=rng.randint(2, 12))) + rng.choice(["", ".", "\n"]) for _ in range(300)]


# ---- parts ----

def charsmap(rng):
    """A small double-array trie as SentencePiece writes it, from texts to their replacements."""
    pairs = {k: v for k, v in [("ﬁ", "fi"), ("½", "1/2"), ("\u3000", " "), ("\u00a0", " "), ("Ａ", "A"), ("①", "1"), ("e\u0301", "é"), ("\t", " "), ("\u200b", ""), ("ｶﾞ", "ガ"), ("İ", "I"), ("x", "yz")] if rng.random() < .8}
    blob, keys = b"", {}
    for k, v in pairs.items(): keys[k.encode()] = len(blob); blob += v.encode() + b"\0"
    units, used = [0] * 4096, {0}

    def place(node, prefix):
        children = sorted({k[len(prefix)] for k in keys if k.startswith(prefix) and len(k) > len(prefix)})
        leaf = prefix in keys
        labels = ([0] if leaf else []) + children
        if not labels: return
        offset = next(o for o in range(1, 4000) if all(o ^ c not in used and o ^ c < 4096 for c in labels) and (node ^ o) < 1 << 21)
        base = node ^ offset
        units[node] |= (base << 10) | (256 if leaf else 0)
        for c in labels: used.add(offset ^ c)
        if leaf: units[offset] = keys[prefix] | 1 << 31
        for c in children: units[offset ^ c] |= c
        for c in children: place(offset ^ c, prefix + bytes([c]))
    place(0, b"")
    units[0] &= ~256
    trie = struct.pack("<4096I", *units)
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + blob).decode()


def normalizer(rng):
    made = [N.NFC, N.NFD, N.NFKC, N.NFKD, N.Lowercase, N.StripAccents, N.Nmt, lambda: N.Strip(rng.random() < .6, rng.random() < .6), lambda: N.Replace(Regex(rng.choice([" {2,}", r"\s+", "[aeiou]", r"\d"])), rng.choice([" ", "", "xy"])),
            lambda: N.Replace(rng.choice([" ", "the", "``", "."]), rng.choice(["\u2581", "", "a b"])), lambda: N.Prepend(rng.choice(["\u2581", " ", "ab"])), lambda: N.BertNormalizer(*(rng.random() < .5 for _ in range(2)), rng.choice([None, True, False]), rng.random() < .5), lambda: N.Precompiled(base64.b64decode(charsmap(rng)))]
    steps = [rng.choice(made)() for _ in range(rng.choice([0, 0, 1, 1, 2, 3]))]
    return None if not steps else steps[0] if len(steps) == 1 else N.Sequence(steps)


def behavior(rng):
    return rng.choice(["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"])


def splitter(rng):
    return rng.choice([lambda: P.Split(Regex(rng.choice(PATTERNS)), behavior(rng), rng.random() < .2), lambda: P.Split(rng.choice([" ", "e", "th", "."]), behavior(rng), rng.random() < .2), lambda: P.Digits(rng.random() < .5), lambda: P.Punctuation(behavior(rng)), P.Whitespace, P.WhitespaceSplit,
                       P.BertPreTokenizer, lambda: P.CharDelimiterSplit(rng.choice(" e")), lambda: P.Split(Regex(rng.choice(PATTERNS[:4])), "isolated"), lambda: P.Metaspace("\u2581", rng.choice(["always", "first", "never"]), rng.random() < .5)])()


def pre_tokenizer(rng, tail=()):
    steps = [splitter(rng) for _ in range(rng.choice([0, 1, 1, 2]))] + list(tail)
    return None if not steps else steps[0] if len(steps) == 1 else P.Sequence(steps)


def decoder(rng):
    made = [D.ByteLevel, D.ByteFallback, D.Fuse, lambda: D.Metaspace("\u2581", rng.choice(["always", "never", "first"])), lambda: D.Replace(rng.choice(["\u2581", "e", Regex(r"\s+")]), rng.choice([" ", "", "xx"])), lambda: D.Strip(rng.choice(" e\u2581"), rng.choice([0, 1, 2]), 0), lambda: D.WordPiece("##", rng.random() < .5), lambda: D.CTC("<s>", "e", rng.random() < .5), lambda: D.BPEDecoder("</w>")]
    steps = [rng.choice(made)() for _ in range(rng.choice([0, 1, 1, 2, 3, 4]))]
    return None if not steps else steps[0] if len(steps) == 1 else D.Sequence(steps)


def added(rng):
    stems = ["<x>", "<x><y>", "<y>", "ab", "abc", "b", "trail ", "Ünder", "ünder", "[X]", "한국", "\U0001F642", "\u2581z", "1", "e\u0301", "</", "a b", " lead", "\n\n", "THE", "é!", "½"]
    spaced = rng.random() < .5  # tokens that begin with a space, or rstrip: with both, tokenizers panics
    stems = [s for s in stems if spaced or not s[0].isspace()]
    return [AddedToken(s, **{f: rng.random() < .35 and not (spaced and f == "rstrip") for f in ("special", "lstrip", "rstrip", "single_word", "normalized")}) for s in rng.sample(stems, rng.choice([0, 2, 5, 9]))]


# ---- whole tokenizers ----

def byte_level(rng):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizer(rng, [P.ByteLevel(rng.random() < .4, use_regex=rng.random() < .5)])
    return t, trainers.BpeTrainer(vocab_size=rng.choice([300, 500, 900]), initial_alphabet=P.ByteLevel.alphabet(), show_progress=False, special_tokens=["<s>", "</s>"])


def characters(rng):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=rng.random() < .5, byte_fallback=rng.random() < .5))
    t.pre_tokenizer = pre_tokenizer(rng, rng.choice([[], [P.Metaspace("\u2581", rng.choice(["always", "first", "never"]), rng.random() < .6)], [P.WhitespaceSplit()]]))
    return t, trainers.BpeTrainer(vocab_size=rng.choice([400, 700]), limit_alphabet=60, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)])


def with_affix(rng, model):
    """The same model with a prefix on all but the first part of a word, or a suffix on the last."""
    prefix = rng.random() < .5
    mark = "##" if prefix else "</w>"
    other = (lambda s: mark + s) if prefix else (lambda s: s + mark)
    both = [k for k in model["vocab"] if not k.startswith("<")]
    names = [*model["vocab"], *(n for n in map(other, both) if n not in model["vocab"])]
    pairs = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    model["merges"] = [list(m) for a, b in pairs for m in ([(a, other(b)), (other(a), other(b))] if prefix else [(a, b), (a, other(b))])]
    model["vocab"] = {k: i for i, k in enumerate(names)}
    model["continuing_subword_prefix" if prefix else "end_of_word_suffix"] = mark


def unigram(rng):
    t = Tokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizer(rng, [P.Metaspace("\u2581", rng.choice(["always", "first", "never"]), rng.random() < .7)])
    return t, trainers.UnigramTrainer(vocab_size=rng.choice([1200, 1500]), unk_token="<unk>", special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)


def wordpiece(rng):
    t = Tokenizer(models.WordPiece(unk_token="<unk>", max_input_chars_per_word=rng.choice([5, 100])))
    t.pre_tokenizer = pre_tokenizer(rng, [rng.choice([P.BertPreTokenizer, P.Whitespace, P.WhitespaceSplit])()])
    return t, trainers.WordPieceTrainer(vocab_size=400, limit_alphabet=60, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)


def word_level(rng):
    t = Tokenizer(models.WordLevel(unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizer(rng, [rng.choice([P.BertPreTokenizer, P.Whitespace, P.WhitespaceSplit])()])
    return t, trainers.WordLevelTrainer(vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)


def post_processor(rng, t):
    pair = lambda s: (s, t.token_to_id(s))
    template = lambda: PP.TemplateProcessing(single=rng.choice(["<s> $A", "$A </s>", "<s> $A </s>", "$A", "<s> <s> $A $A"]), pair="$A $B", special_tokens=[pair("<s>"), pair("</s>")])
    return rng.choice([lambda: None, lambda: PP.ByteLevel(), template, lambda: PP.BertProcessing(pair("</s>"), pair("<s>")), lambda: PP.RobertaProcessing(pair("</s>"), pair("<s>")), lambda: PP.Sequence([PP.ByteLevel(), template()])])()


def tokenizer(rng):
    while True:
        try: return attempt(rng)
        except Exception: pass  # parts that do not train together


def attempt(rng):
    """A trained tokenizer with random parts, as JSON, and the contents of its added tokens."""
    t, trainer = rng.choice([byte_level, byte_level, characters, characters, unigram, wordpiece, word_level])(rng)
    wanted, t.pre_tokenizer = t.pre_tokenizer, P.ByteLevel(False) if isinstance(t.pre_tokenizer, P.ByteLevel) or "ByteLevel" in str(t.pre_tokenizer) else rng.choice([P.Metaspace, P.Whitespace])()
    t.train_from_iterator(corpus(rng), trainer)
    if wanted is not None: t.pre_tokenizer = wanted
    t.normalizer = normalizer(rng)
    document = json.loads(t.to_str())
    model = document["model"]
    if model["type"] == "BPE" and rng.random() < .3:
        model["merges"] = [m for m in model["merges"] if rng.random() > .1]
        model["ignore_merges"] = rng.random() < .7
    if model["type"] == "BPE" and rng.random() < .2: model["unk_token"] = None
    if model["type"] == "BPE" and rng.random() < .2: with_affix(rng, model)
    if model["type"] == "Unigram":
        model["byte_fallback"] = rng.random() < .5
        if model["byte_fallback"]: model["vocab"] += [[f"<0x{b:02X}>", 0.0] for b in range(256)]
        if rng.random() < .4: model["vocab"] = [[k, round(x * 4) / 4] for k, x in model["vocab"]]  # many ties
    if rng.random() < .12: document["truncation"] = {"direction": rng.choice(["Left", "Right"]), "max_length": rng.choice([0, 1, 2, 3, 7]), "strategy": rng.choice(["LongestFirst", "OnlyFirst"]), "stride": 0}
    if rng.random() < .12: document["padding"] = {"strategy": rng.choice(["BatchLongest", {"Fixed": 9}]), "direction": rng.choice(["Left", "Right"]), "pad_to_multiple_of": rng.choice([None, 4]), "pad_id": 1, "pad_type_id": 0, "pad_token": "<s>"}
    t = Tokenizer.from_str(json.dumps(document))
    marks, seen = [], set()
    for token in added(rng):  # of two that are the same after normalisation upstream finds either, by chance
        form = (token.normalized, t.normalizer.normalize_str(token.content) if token.normalized and t.normalizer else token.content)
        if form not in seen: marks.append(token)
        seen.add(form)
    t.add_tokens(marks)
    t.decoder = decoder(rng)
    t.post_processor = post_processor(rng, t)
    return t.to_str(), [m.content for m in marks] + ["<s>", "</s>"]
