"""Fields: how a column of examples is encoded as rows of ids or vectors.

A field is fitted to the training data, saved into the run and loaded from there; `encode` gives
the `Column` that batches are made of. A new task is mostly a new field.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from saccade.data.corpora import AnyColumn, Column, open_column
from saccade.data.lines import UNSCORED, labels_of
from saccade.errors import DataError
from saccade.nn.padded import UNSCORED_ID
from saccade.text.tokenizers import Counts, Tokenizer
from saccade.text.vocab import Inventory, Vocab

Cell = Any  # of an example: its source (a tuple of texts or words), or a target


class Field(ABC):
    """One column of a task."""

    @property
    @abstractmethod
    def inventory(self) -> Inventory:
        """The ids of its rows: their number is the size of an embedding table or output layer."""

    @property
    def size(self) -> int:
        return self.inventory.size

    @property
    @abstractmethod
    def pad(self) -> int:
        """The id that pads shorter rows."""

    @abstractmethod
    def encode(self, cells: Sequence[Cell]) -> AnyColumn:
        """Cells as rows of ids, or of vectors."""

    def open(self, folder: Path, name: str) -> AnyColumn:
        """The column of this name in the data of a run."""
        return open_column(folder, name, self.pad)

    @abstractmethod
    def save(self, path: Path) -> None: ...

    @classmethod
    @abstractmethod
    def load(cls, path: Path) -> Self: ...


class Text(Field):
    """Text as ids: several columns are concatenated, with special tokens between and around."""

    begins = False  # whether rows begin with a start token, which a decoder needs

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    @classmethod
    def fit(cls, counts: Counts) -> Self:
        return cls(Tokenizer.from_counts(counts))

    @property
    def inventory(self) -> Inventory:
        return self.tokenizer.inventory

    @property
    def pad(self) -> int:
        return self.tokenizer.specials.pad

    def encode(self, cells: Sequence[Cell]) -> Column:
        return Column.of(self.rows(cells), pad=self.pad)

    def rows(self, cells: Sequence[tuple[str, ...]]) -> list[list[int]]:
        """The ids of each cell."""
        tokenizer, frame = self.tokenizer, self.tokenizer.frame
        before, after = frame.before, frame.after
        if self.begins:
            before, after = frame.start, (tokenizer.specials.eos,)
        width = max((len(cell) for cell in cells), default=1)
        columns = [
            tokenizer.encode([cell[i] if i < len(cell) else "" for cell in cells])
            for i in range(width)
        ]
        if not tokenizer.config.ordered:  # a set: one canonical order
            columns = [[sorted(ids) for ids in column] for column in columns]
        rows = [[*before, *ids] for ids in columns[0]]
        for column in columns[1:]:
            for row, ids in zip(rows, column, strict=True):
                row.extend(frame.between)
                row.extend(ids)
        for row in rows:
            row.extend(after)
        return rows

    def save(self, path: Path) -> None:
        self.tokenizer.save(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(Tokenizer.load(path))


class TargetText(Text):
    """Text that a decoder writes: between a start and an end token."""

    begins = True

    def encode(self, cells: Sequence[Cell]) -> Column:
        return super().encode([(str(cell),) for cell in cells])


class Lines(Text):
    """Plain text that a language model reads as one stream: each line ends with <eos>."""

    def encode(self, cells: Sequence[Cell]) -> Column:
        return super().encode([cell[:1] for cell in cells])

    def rows(self, cells: Sequence[tuple[str, ...]]) -> list[list[int]]:
        eos = self.tokenizer.specials.eos
        return [[*ids, eos] for ids in self.tokenizer.encode([cell[0] for cell in cells])]


class Words(Text):
    """Words, each cut into pieces; rows keep the index of each piece's word."""

    def encode(self, cells: Sequence[Cell]) -> Column:
        encoded = self.tokenizer.encode_words(cells)
        if self.tokenizer.config.kind == "imported":  # its network expects its special tokens
            before, _, after, *_ = self.tokenizer.frame
            encoded = [
                ([*before, *ids, *after], [-1] * len(before) + words + [-1] * len(after))
                for ids, words in encoded
            ]
        return Column.of([ids for ids, _ in encoded], [words for _, words in encoded], self.pad)


class Labels(Field):
    """A label, or one for each word."""

    def __init__(self, labels: Vocab):
        self.labels = labels

    @classmethod
    def fit(cls, counts: Counter[str]) -> Self:
        return cls(Vocab(counts))

    @property
    def inventory(self) -> Inventory:
        return self.labels.inventory

    @property
    def pad(self) -> int:
        return 0

    def encode(self, cells: Sequence[Cell]) -> Column:
        return Column.of([[self.index(label) for label in labels_of(cell)] for cell in cells])

    def index(self, label: str) -> int:
        """The id of a label, or UNSCORED_ID."""
        return UNSCORED_ID if label == UNSCORED else self.labels.index(label)

    def save(self, path: Path) -> None:
        self.labels.save(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(Vocab.load(path))


class SourceLabels(Labels):
    """A label as a source: one position. Its ids are all special: word dropout spares them."""

    @property
    def inventory(self) -> Inventory:
        return Inventory(len(self.labels), tuple(range(len(self.labels))))

    def encode(self, cells: Sequence[Cell]) -> Column:
        return super().encode([cell[0] for cell in cells])

    def rows(self, cells: Sequence[tuple[str, ...]]) -> list[list[int]]:
        """The id of each cell, in a list."""
        return [[self.labels.index(cell[0])] for cell in cells]

    def problem(self, cell: tuple[str, ...]) -> str:
        """Why a cell cannot be encoded; empty if it can."""
        try:
            self.labels.index(cell[0])
        except DataError as error:
            return str(error)
        return ""
