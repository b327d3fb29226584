"""Suspicious characters: invisible ones, look-alikes of others, and traces of wrong decoding.

The set of characters of a block of lines is checked first; only if it has suspicious ones, each
line is searched.
"""

import contextlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

_LATIN = "A-Za-zÀ-ÖØ-öø-ʯḀ-ỿ"
_OTHER = "Ͱ-ϿЀ-ԯ"  # Greek and Cyrillic
_WIDE = "Ａ-Ｚａ-ｚ"
_MATHS = "\U0001d400-\U0001d7ff"
_STYLED = f"{_WIDE}{_MATHS}"
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_CJK = re.compile("[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]")

# Homoglyphs: letters of other scripts and the Latin letters that they look like. Letters that are
# used in Latin words on purpose (the alpha of TNFα, the chi of IPA) are left out.
_TAKEN_FOR = dict(
    zip(
        "аеорсухіјѕһԁԛԝАВЕКМНОРСТУХІЈЅονιυρΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
        "aeopcyxijshdqwABEKMHOPCTYXIJSoviupABEZHIKMNOPTYX",
        strict=True,
    )
)
_IN_CYRILLIC = set("aceopxyiABCEHKMOPTXI")

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_MARKS = "\u200e\u200f\u061c"  # directional marks, which are legitimate in Arabic and Hebrew
_INVISIBLE = re.compile(
    f"[\u00ad\u034f\u115f\u1160\u180e\u200b\u202a-\u202e\u2060-\u2064\u2066-\u206f\u3164\ufeff"
    f"\uffa0\U000e0001-\U000e007f{_MARKS}]"
    # joiners are spelling in the scripts of India and Persia, and part of emoji
    "|(?<![\u0600-\u1cff\u2190-\uffff\U00010000-\U0010ffff])[\u200c\u200d]"
)
_SUBDIVISION = re.compile("\U0001f3f4[\U000e0020-\U000e007f]+")  # the flag of Wales
_REPLACED = re.compile("\ufffd")
_NO_BREAK = re.compile("[\u00a0\u2007\u202f]")
_AFTER = "\u0080-¿€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"  # how Windows shows the bytes 80 to BF
_MOJIBAKE = re.compile(f"(?<![A-ZÀ-Ý])(?:Ã[{_AFTER}]|Â[\u0080-¿]|â€[{_AFTER}])")
_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)+"')
_WORD = re.compile(r"[^\W\d_]+")
_MIXED = re.compile(f"[{_LATIN}][{_OTHER}]|[{_OTHER}][{_LATIN}]")
_FOREIGN = re.compile(f"[{_OTHER}]")
_NATIVE = re.compile(f"[{_LATIN}]")
_STYLE = re.compile(f"[{_STYLED}]")

Hit = tuple[int, str]  # offset in the text, and what it is


def _control(text: str) -> Hit | None:
    match = _CONTROL.search(text)
    if not match:
        return None
    windows = ""
    with contextlib.suppress(UnicodeError):
        if match[0] >= "\x80":
            windows = f" ({match[0].encode('latin-1').decode('cp1252')!r} in Windows-1252)"
    return match.start(), f"the control character {_name(match[0])}{windows}"


def _invisible(text: str) -> Hit | None:
    for match in _INVISIBLE.finditer(text):
        if match[0] in _MARKS and _RIGHT_TO_LEFT.search(text):
            continue
        if match[0] >= "\U000e0000" and _SUBDIVISION.search(text):
            continue
        return match.start(), f"the invisible character {_name(match[0])}"
    return None


def _replaced(text: str) -> Hit | None:
    match = _REPLACED.search(text)
    return match and (match.start(), "U+FFFD stands where bytes could not be decoded")


def _no_break(text: str) -> Hit | None:
    match = _NO_BREAK.search(text)
    return match and (match.start(), f"a {_name(match[0])} looks like a blank")


def _quoted(text: str) -> Hit | None:
    return (0, "in quotes, with quotes inside written twice") if _QUOTED.fullmatch(text) else None


def _mojibake(text: str) -> Hit | None:
    for match in _MOJIBAKE.finditer(text):
        shown = text[match.start() : match.start() + (3 if match[0][0] == "â" else 2)]
        try:
            original = b"".join(_byte(char) for char in shown)
            return match.start(), f"{shown!r} is {original.decode()!r} that was decoded wrongly"
        except UnicodeError:
            continue
    return None


def _byte(char: str) -> bytes:
    return char.encode("latin-1" if char <= "\xff" else "cp1252")


def _look_alike(text: str) -> Hit | None:
    if (style := _STYLE.search(text)) and not (style[0] <= "ｚ" and _CJK.search(text)):
        plain = unicodedata.normalize("NFKC", style[0])
        return style.start(), f"{_name(style[0])} looks like {plain!r}"
    mixed = _MIXED.search(text)
    foreign = _FOREIGN.findall(text)
    hidden = bool(foreign) and _NATIVE.search(text) and all(c in _TAKEN_FOR for c in foreign)
    if not mixed and not hidden:
        return None
    for word in _WORD.finditer(text):
        others = _FOREIGN.findall(word[0])
        latin = _NATIVE.findall(word[0])
        if others and all(char in _TAKEN_FOR for char in others) and (latin or hidden):
            at, like = word[0].index(others[0]), _TAKEN_FOR[others[0]]
        elif len(others) > len(latin) > 0 and _IN_CYRILLIC.issuperset(latin):
            at, like = word[0].index(latin[0]), "a letter of the other script"
        else:
            continue
        shown = f"'{like}'" if len(like) == 1 else like
        message = f"{_name(word[0][at])} looks like {shown} in {word[0]!r}"
        return word.start() + at, message
    return None


FINDERS: dict[str, Callable[[str], Hit | None]] = {
    "control": _control,
    "invisible": _invisible,
    "replaced": _replaced,
    "quoted": _quoted,
    "mojibake": _mojibake,
    "look-alike": _look_alike,
    "no-break": _no_break,
}
_TRIGGERS = {
    "control": _CONTROL,
    "invisible": re.compile(f"{_INVISIBLE.pattern}|[\u200c\u200d]"),
    "replaced": _REPLACED,
    "quoted": re.compile('"'),
    "mojibake": re.compile("[ÃÂâ]"),
    "look-alike": re.compile(f"[{_OTHER}{_STYLED}]"),
    "no-break": _NO_BREAK,
}


@dataclass(slots=True)
class Characters:
    """Searches blocks of texts; caches which characters are harmless."""

    known: dict[str, tuple[str, ...]] = field(default_factory=dict)
    harmless: set[str] = field(default_factory=set)

    def search(self, texts: Sequence[str]) -> Iterator[tuple[str, int, int, str]]:
        """Suspicious characters in these texts, as (code, index of the text, offset, message)."""
        present = set("\n".join(texts))
        codes: set[str] = set()
        for char in present - self.harmless:
            if char not in self.known:
                self.known[char] = tuple(
                    c for c, pattern in _TRIGGERS.items() if pattern.search(char)
                )
                if not self.known[char]:
                    self.harmless.add(char)
            codes.update(self.known[char])
        for code in (code for code in FINDERS if code in codes):
            find = FINDERS[code]
            for index, text in enumerate(texts):
                if hit := find(text):
                    yield code, index, *hit


def forms(texts: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """The texts with decomposed, or else composed, letters: (form, index of the text, offset)."""
    joined = "\n".join(texts)
    if joined.isascii():
        return
    composed = unicodedata.is_normalized("NFC", joined)
    for index, text in enumerate(texts):
        if text.isascii():
            continue
        if not composed and not unicodedata.is_normalized("NFC", text):
            normalised = unicodedata.normalize("NFC", text)
            changed = (i for i, (a, b) in enumerate(zip(text, normalised, strict=False)) if a != b)
            yield "decomposed", index, next(changed, 0)
        elif not unicodedata.is_normalized("NFD", text):
            yield "composed", index, 0


def visible(text: str, at: int = 0, width: int = 60) -> str:
    """About `width` characters of a text around `at`; invisible ones are escaped, as in \\u200b."""
    start = max(0, min(at - width // 2, len(text) - width))
    cut = text[start : start + width]
    shown = "".join(_shown(char) for char in cut)
    return f"{'…' * (start > 0)}{shown}{'…' * (start + width < len(text))}"


def _shown(char: str) -> str:
    if char == "\t" or char.isprintable():
        return char
    code = ord(char)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )


def _name(char: str) -> str:
    name = unicodedata.name(char, "")
    return f"U+{ord(char):04X}{' ' + name if name else ''}"
