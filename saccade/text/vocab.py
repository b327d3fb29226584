"""Ids: the special tokens of a vocabulary, and the labels of a label set."""

import difflib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from saccade.errors import CheckpointError, DataError

MAX_LABEL_CHARACTERS = 4096
SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>", "<sep>")  # of every vocabulary
MASK = "<mask>"  # of a vocabulary for masked language modelling


class Specials(NamedTuple):
    """The special ids of a vocabulary."""

    pad: int = 0
    unk: int = 1
    bos: int = 2
    eos: int = 3
    sep: int = 4
    mask: int | None = None  # replaces a masked token
    sentinels: tuple[int, ...] = ()  # each replaces a masked span, as in T5

    @property
    def ids(self) -> tuple[int, ...]:
        """All special ids."""
        masks = () if self.mask is None else (self.mask,)
        return (self.pad, self.unk, self.bos, self.eos, self.sep, *masks, *self.sentinels)

    @property
    def never_generated(self) -> tuple[int, ...]:
        """The special ids that a model never generates: all but the end and the sentinels."""
        return tuple(i for i in self.ids if i != self.eos and i not in self.sentinels)


class Inventory(NamedTuple):
    """How many ids a field has, and which of them are special."""

    size: int
    special: tuple[int, ...] = ()
    unk: int = 0
    ordered: bool = True  # whether the order of ids in a row matters
    spelled: bool = False  # whether each word is followed by its characters


class Vocab:
    """Labels numbered from 0, without specials: by falling frequency, then by name."""

    def __init__(self, labels: Iterable[str] | Mapping[str, int]) -> None:
        """From the labels of all examples, or from the count of each label."""
        self.counts = Counter(labels)
        if not self.counts:
            raise DataError("no labels: the training data holds no labelled example")
        if (longest := max(map(len, self.counts))) > MAX_LABEL_CHARACTERS:
            raise DataError(
                f"a label of {longest:,} characters, and the limit is {MAX_LABEL_CHARACTERS:,}: "
                "is the target the right column?"
            )
        self.labels = tuple(sorted(self.counts, key=lambda label: (-self.counts[label], label)))
        self._index = {label: i for i, label in enumerate(self.labels)}

    def __len__(self) -> int:
        """How many labels there are."""
        return len(self.labels)

    @property
    def inventory(self) -> Inventory:
        return Inventory(len(self))

    def index(self, label: str) -> int:
        """The number of a label."""
        if label not in self._index:
            near = difflib.get_close_matches(label, self.labels, n=3, cutoff=0.5)
            known = f"did you mean {' or '.join(map(repr, near))}?" if near else self._examples()
            raise DataError(f"unknown label {label!r}: {known}")
        return self._index[label]

    def _examples(self) -> str:
        more = f" and {len(self) - 10} more" if len(self) > 10 else ""
        return f"the labels are {', '.join(map(repr, self.labels[:10]))}{more}"

    def label(self, i: int) -> str:
        """The label of a number."""
        return self.labels[i]

    def save(self, path: str | Path) -> None:
        # the counts restore the order, and show how rare a label is
        text = json.dumps({label: self.counts[label] for label in self.labels}, ensure_ascii=False)
        Path(path).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The vocabulary that `save` wrote."""
        try:
            counts = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: not a readable label vocabulary: {error}") from None
        if (
            not isinstance(counts, dict)
            or not counts
            or {type(n) for n in counts.values()} != {int}
        ):
            raise CheckpointError(
                f"{path}: not a label vocabulary: expected labels with their counts"
            )
        try:
            return cls(counts)
        except DataError as error:
            raise CheckpointError(f"{path}: not a label vocabulary: {error}") from None
