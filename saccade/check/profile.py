"""Lines in the wrong language, by letter trigrams.

A profile is a trigram model of the letters of one side of a corpus; it knows no language by name. A
line is suspicious if the other side's profile gives it a higher probability than its own does, or
if its own gives it a far lower one than other lines.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

LETTER_CLASSES = 64  # of characters: 0 is unseen, 1 is everything but letters
OWN_CLASSES = 54  # ... the most frequent letters have one each, the others share the rest
LINE_CHARACTERS = 500  # at the beginning of a line, that are used
PRIOR_COUNT = 10.0  # pseudo-counts of the shorter context, in the smoothing


class LetterClasses:
    """Maps characters to classes, the same for all sides; filled as characters are met."""

    def __init__(self) -> None:
        self.table = np.zeros(0x110000, np.int32)
        self.next = 2
        self.met: set[str] = set()

    def triples(self, texts: Sequence[str]) -> tuple[Array, Array, Array]:
        """The triple at each position of all texts, whether it counts, and the offsets of texts.

        A triple counts if its middle and at least one end are letters.
        """
        cut = [text[:LINE_CHARACTERS] for text in texts]
        # the Unicode form is not a matter of language
        if not unicodedata.is_normalized("NFC", "".join(cut)):
            cut = [unicodedata.normalize("NFC", text) for text in cut]
        joined = "\n\n".join(cut) + "\n\n\n"  # two, so that no triple spans two lines
        if new := set(joined) - self.met:
            self._meet(Counter(char for char in joined if char in new))
        codes = self.table[np.frombuffer(joined.encode("utf-32-le", "replace"), np.uint32)]
        first, middle, last = codes[:-2], codes[1:-1], codes[2:]
        triples = (first << 12) | (middle << 6) | last
        counts = (middle != 1) & ((first != 1) | (last != 1))
        lengths = np.fromiter(map(len, cut), np.int64, len(cut)) + 2
        return triples, counts, np.concatenate([np.zeros(1, np.int64), lengths[:-1].cumsum()])

    def _meet(self, chars: Counter[str]) -> None:
        self.met.update(chars)
        for char, _ in sorted(chars.items(), key=lambda pair: (-pair[1], pair[0])):
            lower = char.lower()[0]
            if not (char.isalpha() or unicodedata.category(char)[0] == "M"):
                self.table[ord(char)] = 1
                continue
            if not self.table[ord(lower)]:
                own = self.next < OWN_CLASSES
                self.table[ord(lower)] = (
                    self.next if own else OWN_CLASSES + ord(lower) % (LETTER_CLASSES - OWN_CLASSES)
                )
                self.next += own
            self.table[ord(char)] = self.table[ord(lower)]


def count(triples: Array, counts: Array) -> Array:
    """How often each triple occurs."""
    return np.bincount(triples[counts], minlength=LETTER_CLASSES**3)


def log_probs(counted: Array, itself: int) -> Array:
    """log p(last letter | the two before), as a table; backs off to pairs, and to letters.

    `itself` is 1 for lines that were counted: each triple counts one less, to leave out the line's
    own occurrence (or its partner's, where names are the same).
    """
    three = counted.reshape(LETTER_CLASSES, LETTER_CLASSES, LETTER_CLASSES).astype(np.float64)
    two, one = three.sum(0), three.sum((0, 1))
    kinds = max(int(np.count_nonzero(one)), 2)
    p1 = (one + 0.5) / (one.sum() + 0.5 * kinds)
    p2 = _back_off(two, p1, itself)
    return np.log(_back_off(three, p2, itself)).astype(np.float32).ravel()


def _back_off(counted: Array, shorter: Array, itself: int) -> Array:
    others = np.maximum(counted - itself, 0.0)
    total = np.maximum(counted.sum(-1, keepdims=True) - itself, 0.0)
    mixed: Array = (others + PRIOR_COUNT * shorter) / (total + PRIOR_COUNT)
    return mixed


def total(table: Array, triples: Array, counts: Array, starts: Array) -> Array:
    """The log-probability of each text."""
    return np.add.reduceat(np.where(counts, table[triples], np.float32(0)), starts)


def sizes(counts: Array, starts: Array) -> Array:
    """The number of triples of each text that count."""
    return np.add.reduceat(counts.astype(np.int32), starts)


def apart(own: Array, other: Array, size: Array) -> bool:
    """Whether two sides are clearly different languages, unlike wrong and right spelling."""
    long = size >= 12
    return bool(long.sum() >= 50 and np.median((other - own)[long] / size[long]) < -0.6)


def fits_other(own: Array, other: Array, size: Array) -> Array:
    """A flag for each line: the other side's profile fits it clearly better than its own."""
    gain = other - own
    return _unless_many((gain > 0.6 * size) & (gain > 25))


def fits_none(own: Array, size: Array, usual: tuple[float, float]) -> Array:
    """A flag for each line: its own profile fits it far worse than most lines."""
    middle, spread = usual
    mean = own / np.maximum(size, 1)
    far = (mean - middle) * np.sqrt(size) < -9 * spread
    limit = -3.0 if middle < -1.2 else -4.0  # in a small vocabulary any new word is improbable
    return _unless_many((size >= 25) & (mean < middle - 1) & (mean < limit) & far)


def usual(own: Array, size: Array) -> tuple[float, float] | None:
    """The median of lines' mean log-probability, and its spread, scaled to a line of one triple."""
    long = size >= 20
    if long.sum() < 50:
        return None
    mean = own[long] / size[long]
    middle = float(np.median(mean))
    low, high = np.percentile((mean - middle) * np.sqrt(size[long]), [25, 75])
    return middle, max(float(high - low) / 1.35, 0.3)


def _unless_many(flags: Array) -> Array:
    """The flags, or none if there are so many that the side must be multilingual by design."""
    return flags if flags.sum() <= max(3, 0.1 * len(flags)) else np.zeros(len(flags), bool)
