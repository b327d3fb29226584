"""Strings that a page must show as they are: markup, scripts, templates, unseen characters."""

import random
import unicodedata

MARKUP = [
    "<b>bold</b>", "<img/src=x/onerror=window.hacked=1>", "<svg/onload=window.hacked=1>",
    "<script>window.hacked=1</script>", "</textarea><script>window.hacked=1</script>",
    "<iframe/src=javascript:window.hacked=1>", "<a/href=javascript:alert(1)>x</a>", "&lt;b&gt;",
    "&amp;&nbsp;&#x3c;", "<!--", "-->", "]]>", "<![CDATA[x]]>", "\"><x/onclick=1>", "'onclick='x'",
    "{{7*7}}", "${7*7}", "#{7*7}", "<%=7*7%>", "{%x%}", "[[x]]", "__proto__", "constructor",
    "toString", "javascript:window.hacked=1", "data:text/html,<script>1</script>", "%3Cb%3E",
    "\\u003cb\\u003e", "\\", "\\n", "'", '"', "`", "</w>", "low</w>", "▁low", "Ġlow", "##low",
    "<eos>", "<mask>", "<unk>", "<0>", "NaN", "null", "undefined", "-0", "1e999", "#run=x&in=y",
    "../../etc/passwd", "DROP/**/TABLE", "a\x00b", "a\x07b", "a\x1b[31mb", "\x7f", "\x9b",
]  # fmt: skip
UNSEEN = [
    0xAD, 0x61C, 0x115F, 0x180E, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x202A, 0x202B, 0x202C,
    0x202D, 0x202E, 0x2060, 0x2061, 0x2064, 0x2066, 0x2067, 0x2068, 0x2069, 0x206F, 0x3164, 0xFE00,
    0xFEFF, 0xFFA0, 0xFFF9, 0xFFFB, 0xE0001, 0xE0041, 0xE007F, 0xE0100, 0x1D173,
]  # fmt: skip
OTHERS = [
    "שלום", "مرحبا", "हिन्दी", "ไทย", "漢字", "한국어", "e\u0301",
    "Z\u0351\u036b\u0343algo" + "\u0301" * 40, "👩\u200d👩\u200d👧", "🏳️\u200d🌈", "👍🏽", "𝔘𝔫𝔦",
    "\U0010fffe", "\ue000", "x" * 300, "ﷺ", "ß", "İ", "ǆ",
]  # fmt: skip


def hostile(count: int) -> list[str]:
    """So many different words without blanks: those of a sentence to be tagged."""
    draws = random.Random(5)
    found = dict.fromkeys([*MARKUP, *OTHERS])
    found |= dict.fromkeys(f"a{chr(code)}b" for code in UNSEEN)
    pieces = [*MARKUP, *OTHERS, *map(chr, UNSEEN)]
    while len(found) < count:
        found["".join(draws.choices(pieces, k=draws.randint(2, 4)))] = None
    return [word for word in found if len(word.split()) == 1][:count]


def is_unseen(char: str) -> bool:
    """Whether a character must not stand in the page as it is."""
    control = unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return control or ord(char) in UNSEEN
