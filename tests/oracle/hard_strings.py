"""Texts that tokenizers get wrong: many scripts, marks that combine, directions, white space of every kind, digits, code, bytes that
look alike, special tokens inside texts. `TEXTS` is the list; `pieced(random, n)` puts n new ones together from pieces of it."""

SENTENCES = """
The quick brown fox jumps over the lazy dog.
It's they're we've I'll you'd I'M CAN'T don’t l'été 'tis
Größe, Straße, ẞ, naïve, coöperate, façade, Ærøskøbing, Łódź, žluťoučký kůň, Iñtërnâtiônàlizætiøn
İstanbul ıspanak ŞĞÇ ǅ ǆ ﬁ ﬂ ﬀ Å Å Å ﬃ
Съешь же ещё этих мягких французских булок, да выпей чаю. Ґанок, їжак, ўсё.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ὦ ἄνδρες ᾿Αθηναῖοι ΐ ΰ ς
Բարեւ Ձեզ, ինչպե՞ս եք։ გამარჯობა, როგორ ხარ? ᲒᲐᲛᲐᲠᲯᲝᲑᲐ
שלום עולם! בְּרֵאשִׁית בָּרָא אֱלֹהִים "ציטוט" צה"ל
السلام عليكم، كيف حالك؟ بِسْمِ ٱللَّٰهِ ـــ ١٢٣٤٥٦ لا ﷺ ﻻ
سلام دنیا، می‌خواهم ۱۲۳ پاکستان زندہ باد ئۇيغۇرچە
नमस्ते दुनिया, क्षत्रिय, ज्ञान, श्री, हिन्दी में १२३४। मराठी र्‍य
বাংলা ভাষায় কথা, ৎ ড় ১২৩ ਪੰਜਾਬੀ ગુજરાતી ଓଡ଼ିଆ
தமிழ் மொழி கொ ௧௨௩ తెలుగు భాష క్ష ಕನ್ನಡ ಭಾಷೆ മലയാളം ക്ഷ ൻ ൽ සිංහල ශ්‍රී
ภาษาไทยไม่มีช่องว่าง กำ น้ำ เเ ๑๒๓ ພາສາລາວ ភាសាខ្មែរ ក្រុង မြန်မာဘာသာ ၁၂၃
བོད་སྐད་ ཨོཾ་མ་ཎི་པདྨེ་ཧཱུྃ། ᠮᠣᠩᠭᠣᠯ አማርኛ ፩፪፫ ትግርኛ ᏣᎳᎩ ꮳꮃꭹ ᐃᓄᒃᑎᑐᑦ ᚠᚢᚦᚨᚱᚲ
日本語のテキスト、カタカナとひらがな。漢字１２３ＡＢＣｱｲｳﾞが か゚ 々〆〇ヶー
简体中文和繁體中文：「引號」，《書名》……——、。！？ 〇一二三 𠀀𠮷𪜶 ㊗㍿㎏
한국어 텍스트 각 각 ㄱㅏㄱ ﾡ 힣 조선말
Tiếng Việt: Trường hợp đặc biệt, ầ ầ ầ ữ Ỳ
Hawaiʻi ʼn ŉ Yorùbá ẹ̀ ọ́ Ìgbò Ɓeli ɗan Hausa ƙ ǃXóõ ǂ
1 12 123 1234 12345 1,234,567.89 -0.5e-10 0x1F 1_000 ½ ⅓ ² ³ ₄ Ⅷ ⅻ ④ ⑽ ٣ ३ ３ 𝟛 𝟙𝟚 〇 ৪৫ ᠑
2024-01-31T23:59:59Z +49 (0)30 1234-5678 192.168.0.1 ::1 v1.2.3-rc.4 €1.234,56 $9.99 £5 ¥100 ₹10 5°C 90% ½″
def f(x: int) -> str:\\n    return f"{x!r:>{10}}"  # comment\\n\\tif x<=3 and y!=4: pass
#include <stdio.h>\\nint main(void) { return (1 << 3) | ~0 & 0xff ? a->b[0] : *p++; } // ok
<html lang='en'>&lt;b&gt;&amp;&#x27;</html> <!-- c --> {% if x %}{{ y }}{% endif %} ${HOME} `ls -la | grep "x" > /dev/null 2>&1`
SELECT * FROM "t" WHERE a='b''c'; \\\\server\\share C:\\\\Windows https://ex.am/ple?q=a%20b&c=d#e user@mail.example @name #tag
∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α∧¬β → γ∨δ ⇔ ∑∫∂∇√∞≠≤≥±×÷ 𝔄𝒷𝕮𝗱 ℵ₀ ∅ ℏ Å K
🙂😀👍🏽👩‍👩‍👧‍👦🏳️‍🌈🇩🇪🇯🇵🇺🇸1️⃣#️⃣❤️❤︎☺☺️⌚️🫠🧑🏿‍🚀🤷🏻‍♀️🇦🇦🇦 ™©® ♠♥ ♪♫ ✓✗ ➜ ⇧⌘ ░▒▓█ ┌─┐│└┘
a̐éö̲ Z̸̢̛a̴̧͘l̵̨̕g̶̡͝o̷͠ é é ố ộ ộ
ﺍﻟﻌﺮﺑﻴﺔ ﬡ שּׁ ｆｕｌｌ　ｗｉｄｔｈ ｶﾞ ㍻ Ⓐ ⒈ ﷽ ⅷ ㌀
"curly ‘quotes’ “double” „low‟ «guillemets» ‹single› …ellipsis — em – en ‐ hyphen ‑ nb − minus ⁃ · • ‧
a_b __init__ camelCase PascalCase SCREAMING_CASE kebab-case dot.case Ünï_cödé ---- ==== **** .... ,,,, !!!??? (((())))
<|im_start|>user\\nHi<|im_end|>\\n<|endoftext|><|im_start| <|im_end|><|im_end|> < |im_start|> <repo_name> <file_sep>x
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa abababababababab hahahahaha
antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis Donaudampfschifffahrtsgesellschaftskapitän
""".strip().split("\n")
SENTENCES = [s.replace("\\n", "\n").replace("\\t", "\t").replace("\\\\", "\\") for s in SENTENCES]

SPACES = ["", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", " \t \n ", "\n \n", "   x", "x   ", "x\n\n\n y", "\u00a0", "\u1680", "\u2003",
          "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\u200c\u200d", "\ufeff", "\u0085", "\x0b\x0c", "\x1c\x1d\x1e\x1f",
          "a\u00a0b", "a\u3000b", "\u180ea", " " * 40, "\n" * 17, "\t" * 9 + "x", "x \u200b y"]
ODD = ["\x00", "a\x00b", "\x01\x02\x7f", "\u0300", "\u0300a", "\u20dd", "\ufffd", "\ufffe\uffff", "\U0010ffff", "\ue000\U000f0000", "\u061c\u200e\u202e" "abc\u202c",
       "\u2066x\u2069", "\ufe0f", "\U000e0061\U000e007f", "\U0001f3fb", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0345\u0313\u0301", "\u0f71\u0f72\u0f74", "ͅα",
       "Ａ" * 33, "𐍈𐎀𒀀𓀀𝄞🀄", "ꟿꬰ", "\u0378 unassigned", "ⁿ¹²", "ªº", "ʰˠ", "〱〵", "\u30fb\uff65", "゛゜", "ٱ", "ـ", "़", "्", "്", "﹏﹍", "‿⁀"]

TEXTS = SENTENCES + SPACES + ODD + [a + b for a, b in zip(SENTENCES, SPACES)] + [o + s + o for o, s in zip(ODD, SPACES)]
TEXTS += [s.upper() for s in SENTENCES] + [s[::-1] for s in SENTENCES] + [s.replace(" ", "\u3000") for s in SENTENCES[:12]]


def pieced(random, n):
    """n texts of pieces of the above, cut at any character."""
    def piece():
        text = random.choice(TEXTS)
        i, j = sorted((random.randint(0, len(text)), random.randint(0, len(text))))
        return text[i:j]
    return ["".join(piece() + random.choice(["", "", " ", random.choice(SPACES)]) for _ in range(random.randint(1, 5))) for _ in range(n)]
