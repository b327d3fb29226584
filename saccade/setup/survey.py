"""Statistics of the training examples, on which defaults depend.

The same pass collects what the split of a dev set needs.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from saccade.check.tally import longest_usual
from saccade.data.lines import Example
from saccade.metrics.labels import well_formed

SAMPLED_EXAMPLES = 20_000  # with full statistics; the rest is only counted
MAX_WORDS_PER_TARGET = 200  # of a target, at most
MAX_WORDS = 20_000  # distinct words of targets
MAX_CELLS = 2000  # of a source column after the first
MAX_FIRST = 16  # the first ones, as they are
TAG_SEPARATORS = (";", "|", ",", "+")


@dataclass
class Survey:
    """Statistics of the training examples."""

    count: int = 0
    targets: int = 0  # of all examples, of which one may have several
    characters: int = 0  # of all sources
    last_full: int = 0  # the number, from 0, of the last example that is not blank
    seed: int | None = None  # of the hashes of sources
    hashed: int = 0  # examples whose source was hashed; of them:
    lowest_hash: int = 1 << 64
    highest_hash: int = -1

    first: list[Example] = field(default_factory=list)  # the first few
    sampled: int = 0  # examples with full statistics; of them:
    source_lengths: list[int] = field(default_factory=list)  # in characters
    target_lengths: list[int] = field(default_factory=list)
    single_sources: int = 0  # without a blank
    single_targets: int = 0
    source_alphabet: set[str] = field(default_factory=set)
    target_alphabet: set[str] = field(default_factory=set)
    target_tokens: int = 0
    target_words: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)  # of words
    broken_spans: int = 0  # sentences in which an I-x does not go on with a span of x
    first_cells: list[str] = field(default_factory=list)  # of the first source column
    side_cells: list[list[str]] = field(default_factory=list)  # of each source column but the first

    @property
    def one_word(self) -> bool:
        """Whether a source is usually one word, to be read by characters."""
        return self.single_sources > 0.7 * self.sampled and self.source_chars < 40

    @property
    def source_chars(self) -> float:
        """The median length of a source, robust to outliers."""
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
        """Whether targets are several words each, most of which recur in others."""
        return (
            self.target_tokens > 3 * len(self.target_words)
            and len(self.target_words) < MAX_WORDS
            and self.single_targets < 0.9 * self.sampled
        )

    @property
    def one_script(self) -> bool:
        """Whether both sides mostly have the same characters."""
        both = self.source_alphabet & self.target_alphabet
        return len(both) > 0.6 * min(len(self.source_alphabet), len(self.target_alphabet))


def by_source(row: Example) -> tuple[str, ...]:
    """The key by which examples are split."""
    return row.source


def survey(
    rows: Iterable[Example],
    seed: int | None = None,
    hashed: int = SAMPLED_EXAMPLES,
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
        if seen.count > SAMPLED_EXAMPLES:
            continue
        seen.sampled += 1
        if len(seen.first) < MAX_FIRST:
            seen.first.append(row)
        first = row.source[0]
        seen.source_lengths.append(sum(map(len, row.source)))
        seen.single_sources += " " not in first.strip()
        seen.source_alphabet.update(first)
        if seen.sampled <= MAX_CELLS:
            seen.first_cells.append(first)
        if len(row.source) > 1 and seen.sampled <= MAX_CELLS:
            seen.side_cells = seen.side_cells or [[] for _ in row.source[1:]]
            for cells, cell in zip(seen.side_cells, row.source[1:], strict=False):
                cells.append(cell)
        if isinstance(row.target, str):
            words = row.target.split()[:MAX_WORDS_PER_TARGET]
            seen.target_lengths.append(len(row.target))
            seen.single_targets += len(words) <= 1
            seen.target_alphabet.update(row.target)
            seen.target_tokens += len(words)
            if len(seen.target_words) < MAX_WORDS:
                seen.target_words.update(words)
        elif row.target is not None:
            if len(seen.labels) < MAX_WORDS:
                seen.labels.update(row.labels)
            seen.broken_spans += not well_formed(row.labels)
    return seen


def tag_separator(cells: Sequence[str]) -> str | None:
    """The separator of the tags in cells like V;IND;PST; "" where each cell is one tag.

    None where the cells are not tags, which recur and have no blanks.
    """
    for separator in TAG_SEPARATORS:
        if sum(separator in cell for cell in cells) > len(cells) // 2:
            tags = (tag for cell in cells for tag in cell.split(separator))
            return separator if _are_frequent(tags) else None
    return "" if _are_frequent(cells) else None


def _are_frequent(tags: Iterable[str]) -> bool:
    """Whether tags occur five times or more on average, and none has a blank inside."""
    counts = Counter(tags)
    return len(counts) <= counts.total() / 5 and not any(" " in tag.strip() for tag in counts)


def source_hash(source: tuple[str, ...], seed: int) -> int:
    """A number below 2**64 that is the same on every machine."""
    key = "\0".join((str(seed), *source)).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
