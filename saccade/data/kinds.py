"""The field for each kind of reader: one `match` to fit it, and one to load it."""

from collections import Counter
from collections.abc import Sequence
from os.path import dirname
from pathlib import Path
from typing import NamedTuple, TypeAlias, assert_never

from saccade import config as c
from saccade.data.fields import SourceLabels, Text
from saccade.data.media import Cell, Fitting, MediaField
from saccade.data.numbers import NumbersField, NumbersFitting
from saccade.data.pictures import PictureField, PictureFitting
from saccade.data.sounds import SoundField, SoundFitting
from saccade.errors import CheckpointError
from saccade.text.tokenizers import Counts, Tokenizer


class Vocabularies(NamedTuple):
    """Tokenizers that a new task takes from another run, in place of training its own."""

    sources: tuple[Tokenizer | None, ...] = ()  # by the index of the source
    target: Tokenizer | None = None

    def of_source(self, number: int) -> Tokenizer | None:
        return self.sources[number] if number < len(self.sources) else None


class FixedVocabulary:
    """A tokenizer that is already trained: nothing is counted."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def add(self, text: str) -> None: ...


class LabelCounts:
    """The labels of a column, as they are read."""

    def __init__(self) -> None:
        self.labels: Counter[str] = Counter()

    def add(self, text: str) -> None:
        self.labels[text] += 1


Counting: TypeAlias = Counts | FixedVocabulary | LabelCounts | Fitting
Readable: TypeAlias = Text | SourceLabels | MediaField  # fields of a source


def counting(reader: c.Reader, data: c.Data, given: Tokenizer | None = None) -> Counting:
    """An empty accumulator of what a field of this kind is fitted to."""
    cache_bytes = data.cache_mb << 20
    match reader:
        case c.Tokenizer():
            return Counts(reader) if given is None else FixedVocabulary(given)
        case c.Label():
            return LabelCounts()
        case c.Numbers():
            return NumbersFitting(reader, cache_bytes)
        case c.Picture():
            return PictureFitting(reader, cache_bytes)
        case c.Sound():
            return SoundFitting(reader, cache_bytes)
        case _:
            assert_never(reader)


def fitted(counts: Counting, text: type[Text], data: c.Data) -> Readable:
    """The field for what was counted; `text` is the class for tokenizers."""
    match counts:
        case Counts():
            return text.fit(counts)
        case FixedVocabulary():
            return text(counts.tokenizer)
        case LabelCounts():
            return SourceLabels.fit(counts.labels)
        case Fitting():
            return _with_root(counts.field(), data)
        case _:
            assert_never(counts)


def load_field(reader: c.Reader, path: Path, text: type[Text], data: c.Data) -> Readable:
    """The field that a run has saved; CheckpointError if its reader differs."""
    field = _load(reader, path, text)
    if isinstance(field, MediaField):
        if field.reader != reader:
            raise CheckpointError(f"{path}: does not fit config.toml: its reader is another")
        return _with_root(field, data)
    return field


def _load(reader: c.Reader, path: Path, text: type[Text]) -> Readable:
    match reader:
        case c.Tokenizer():
            return text.load(path)
        case c.Label():
            return SourceLabels.load(path)
        case c.Numbers():
            return NumbersField.load(path)
        case c.Picture():
            return PictureField.load(path)
        case c.Sound():
            return SoundField.load(path)
        case _:
            assert_never(reader)


def _with_root(field: MediaField, data: c.Data) -> MediaField:
    field.root = data.root
    return field


def cell_of(texts: Sequence[str], file: str, where: str, root: str | None) -> Cell:
    """The cell of a column of media, as a field reads it."""
    return Cell(texts[0], dirname(file), root if file else None, where)
