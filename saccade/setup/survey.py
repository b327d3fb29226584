"""A look at every training example, the first of them closely: what defaults depend on.

The same pass gathers what has to be known before a dev set can be cut off.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from saccade.check.tally import longest_usual
from saccade.data.lines import Example

CLOSE_EXAMPLES = 20_000  # examples looked at closely; the rest is only counted
COUNTED_WORDS = 200  # of a target, at most
KEPT_WORDS = 20_000  # different words of targets that are remembered
KEPT_CELLS = 2000  # of a source column after the first
KEPT_EXAMPLES = 16  # the first ones, as they are
TAG_SEPARATORS = (";", "|", ",", "+")


@dataclass
class Survey:
    """What the training examples look like."""

    count: int = 0
    targets: int = 0  # of all examples, of which one may have several
    characters: int = 0  # of all sources
    last_full: int = 0  # the number, from 0, of the last example that is not blank
    seed: int | None = None  # of the hashes of sources
    hashed: int = 0  # examples whose source was hashed; of them:
    lowest_hash: int = 1 << 64
    highest_hash: int = -1

    first: list[Example] = field(default_factory=list)  # the first few
    sampled: int = 0  # examples that were looked at closely; of them:
    source_lengths: list[int] = field(default_factory=list)  # in characters
    target_lengths: list[int] = field(default_factory=list)
    single_sources: int = 0  # without a blank
    single_targets: int = 0
    source_alphabet: set[str] = field(default_factory=set)
    target_alphabet: set[str] = field(default_factory=set)
    target_tokens: int = 0
    target_words: set[str] = field(default_factory=set)
    first_cells: list[str] = field(default_factory=list)  # of the first source column
    side_cells: list[list[str]] = field(default_factory=list)  # of each source column but the first

    @property
    def one_word(self) -> bool:
        """Whether a source is usually one word, so that its letters are what matters."""
        return self.single_sources > 0.7 * self.sampled and self.source_chars < 40

    @property
    def source_chars(self) -> float:
        """The median length of a source: one line that is far too long changes nothing."""
        return median(self.source_lengths) if self.source_lengths else 0.0

    @property
    def target_chars(self) -> float:
        """The median length of a target."""
        return median(self.target_lengths) if self.target_lengths else 0.0

    @property
    def longest_target(self) -> int:
        """The length of the longest target that is no outlier."""
        lengths = np.array(self.target_lengths)
        usual = lengths[lengths <= longest_usual(lengths)]
        return int(usual.max()) if len(usual) else 0

    @property
    def symbols(self) -> bool:
        """Whether targets are blank-separated symbols from a small set: phones, actions, labels."""
        few = len(self.target_words) < min(1000, 0.05 * self.target_tokens)
        return few and self.single_targets < 0.9 * self.sampled

    @property
    def recurring_words(self) -> bool:
        """Whether targets are several words each, most of which come again in others."""
        return (
            self.target_tokens > 3 * len(self.target_words)
            and len(self.target_words) < KEPT_WORDS
            and self.single_targets < 0.9 * self.sampled
        )

    @property
    def one_script(self) -> bool:
        """Whether both sides are written with much the same characters."""
        both = self.source_alphabet & self.target_alphabet
        return len(both) > 0.6 * min(len(self.source_alphabet), len(self.target_alphabet))


def by_source(row: Example) -> tuple[str, ...]:
    """What decides on which side of a cut an example is."""
    return row.source


def survey(
    rows: Iterable[Example],
    seed: int | None = None,
    hashed: int = CLOSE_EXAMPLES,
    key: Callable[[Example], tuple[str, ...]] = by_source,
) -> Survey:
    """The survey of these examples; with a seed, the sources of the first are hashed too."""
    seen = Survey(seed=seed)
    for row in rows:
        if row.source[0].strip():
            seen.last_full = seen.count
        if seed is not None and seen.hashed < hashed:
            seen.hashed += 1
            number = source_hash(key(row), seed)
            seen.lowest_hash = min(seen.lowest_hash, number)
            seen.highest_hash = max(seen.highest_hash, number)
        seen.count += 1
        seen.targets += len(row.references)
        seen.characters += sum(map(len, row.source)) + 1
        if seen.count > CLOSE_EXAMPLES:
            continue
        seen.sampled += 1
        if len(seen.first) < KEPT_EXAMPLES:
            seen.first.append(row)
        first = row.source[0]
        seen.source_lengths.append(sum(map(len, row.source)))
        seen.single_sources += " " not in first.strip()
        seen.source_alphabet.update(first)
        if seen.sampled <= KEPT_CELLS:
            seen.first_cells.append(first)
        if len(row.source) > 1 and seen.sampled <= KEPT_CELLS:
            seen.side_cells = seen.side_cells or [[] for _ in row.source[1:]]
            for cells, cell in zip(seen.side_cells, row.source[1:], strict=False):
                cells.append(cell)
        if isinstance(row.target, str):
            words = row.target.split()[:COUNTED_WORDS]
            seen.target_lengths.append(len(row.target))
            seen.single_targets += len(words) <= 1
            seen.target_alphabet.update(row.target)
            seen.target_tokens += len(words)
            if len(seen.target_words) < KEPT_WORDS:
                seen.target_words.update(words)
    return seen


def tag_separator(cells: Sequence[str]) -> str | None:
    """What stands between the tags in cells like V;IND;PST; "" where each cell is one tag.

    None where the cells are no tags: these come again and again, and have no blanks.
    """
    for separator in TAG_SEPARATORS:
        if sum(separator in cell for cell in cells) > len(cells) // 2:
            tags = (tag for cell in cells for tag in cell.split(separator))
            return separator if _recur(tags) else None
    return "" if _recur(cells) else None


def _recur(tags: Iterable[str]) -> bool:
    """Whether tags come five times or more on average, and none has a blank inside."""
    counts = Counter(tags)
    return len(counts) <= counts.total() / 5 and not any(" " in tag.strip() for tag in counts)


def source_hash(source: tuple[str, ...], seed: int) -> int:
    """A number below 2**64 that is the same on every machine."""
    key = "\0".join((str(seed), *source)).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
