"""Passes over the files of one split, in blocks of rows, for the data doctor.

A few numbers are kept of each row: a million pairs take some fifty megabytes.
"""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from saccade import config as c
from saccade.check import profile
from saccade.check.characters import Characters, forms, visible
from saccade.check.findings import KEPT_PLACES, Group
from saccade.check.profile import Array, LetterClasses
from saccade.check.tally import GrowingArray, TallyBuilder
from saccade.data.lines import Defect, Example, FileError, cells_of, files_of, lines_of, place
from saccade.data.memory import Memory
from saccade.data.sources import read

BLOCK_ROWS, BLOCK_CHARACTERS = 4096, 1 << 20


def skipped_columns(task: c.Task, data: c.Data) -> set[int]:
    """The source columns that hold no text."""
    sources = task.sources(data.source)
    others = [source for source in sources if not isinstance(source.reader, c.Tokenizer)]
    return {column for source in others for column in source.columns}


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows, and their texts: a list for each source column, and one for a target of text."""

    start: int  # the index of the first row
    rows: list[Example]
    columns: list[list[str]]


class Scan:
    """The rows of train, or of dev: streamed in several passes."""

    def __init__(
        self,
        paths: Sequence[str] | Memory,
        data: c.Data,
        task: c.Task,
        letters: LetterClasses,
    ):
        self.paths, self.data, self.letters = paths, data, letters
        self.task_kind, self.target_type = task.kind, task.target_type
        self.skipped = skipped_columns(task, data)  # of the source, that hold no text
        self.only_labels = task.only_labels(data.source)
        self.tally = TallyBuilder().tally
        self.labels: Counter[str] = Counter()
        self.beside: dict[str, list[str]] = {}  # for each file those that are aligned with it
        with contextlib.suppress(FileError):  # `read` reports it as a defect
            parts = [] if isinstance(paths, Memory) else files_of(list(paths))
            self.beside = {name: part for part in parts for name in part}
        self.first: dict[str, tuple[str, str]] = {}  # where a label occurs first, and the text
        self.suspicious: dict[str, Group] = defaultdict(Group)  # by the code of `characters`
        self.forms: dict[tuple[int, str], Group] = defaultdict(Group)  # by column and form
        self.triples: list[Array] = []  # how often each occurs, by column
        self.scores: list[tuple[Array, Array, Array]] = []  # own, other, size; by column
        # by file, notes about a word: line of the sentence, word, and its place in a group
        self._words: dict[str, list[tuple[int, str, Group, int]]] = defaultdict(list)

    def rows(self) -> Iterator[Example | Defect]:
        return read(self.paths, self.data, self.task_kind)

    def where(self, row: Example, column: int) -> str:
        """The location of a column of a row: of aligned files, in its own."""
        picks = [*self.data.source, self.data.target]
        file = row.file
        if self.data.format == "lines" and file:
            file = self.beside[file][int(picks[column] or 1) - 1]
        return place(file, row.line)

    def count_rows(self) -> Iterator[Defect | Block]:
        """The first pass: yields defects as they are found, and each block once it is counted."""
        characters, tally_builder = Characters(), TallyBuilder()
        for block in self._blocks():
            if isinstance(block, Defect):
                yield block
                continue
            tally_builder.add(block.rows)
            self._count_labels(block.rows)
            for i, texts in enumerate(block.columns):
                for code, row, at, message in characters.search(texts):
                    self._note(self.suspicious[code], i, block, row, at, message)
                for form, row, at in forms(texts):
                    message = f"{form} letters, unlike most lines"
                    self._note(self.forms[i, form], i, block, row, at, message)
                triples, counts, _ = self.letters.triples(texts)
                if len(self.triples) == i:
                    self.triples.append(np.zeros(profile.LETTER_CLASSES**3, np.int64))
                self.triples[i] += profile.count(triples, counts)
            yield block
        self.tally = tally_builder.tally
        for file, words in self._words.items():
            _find_words(file, words)

    def score(self, train: "Scan") -> Iterator[Block]:
        """The second pass: scores texts by the profiles; yields each block once it is scored.

        Where the target is a text, the other side's profile is tried too.
        """
        tables = [profile.log_probs(counted, int(train is self)) for counted in train.triples]
        last = len(tables) - 1
        types = (np.float32, np.float32, np.int32)
        grown = [tuple(GrowingArray(t) for t in types) for _ in tables]
        for block in self._blocks():
            if isinstance(block, Defect):
                continue
            for i, texts in enumerate(block.columns):
                triples = self.letters.triples(texts)
                own_score = other_score = profile.total(tables[i], *triples)
                if self.target_type == "text" and i in (0, last):
                    other_score = profile.total(tables[last - i], *triples)
                sizes = profile.sizes(*triples[1:])
                for column, more in zip(grown[i], (own_score, other_score, sizes), strict=True):
                    column.extend(more)
            yield block
        self.scores = [(own.values, other.values, size.values) for own, other, size in grown]

    def fetch(self, wanted: Iterable[int]) -> dict[int, Example]:
        """These rows, by index; the file is read up to the last of them."""
        remaining = set(wanted)
        fetched: dict[int, Example] = {}
        examples = (
            (row for row in self.rows() if isinstance(row, Example)) if remaining else iter(())
        )
        for i, row in enumerate(examples):
            if i in remaining:
                fetched[i] = row
                if len(fetched) == len(remaining):
                    break
        return fetched

    def _blocks(self) -> Iterator[Block | Defect]:
        rows: list[Example] = []
        start = size = 0
        for row in self.rows():
            if isinstance(row, Defect):
                yield row
                continue
            rows.append(row)
            size += len(row.source[0]) + 8 * len(row.source) + len(row.target or "")
            if len(rows) == BLOCK_ROWS or size > BLOCK_CHARACTERS:
                yield Block(start, rows, self._columns(rows))
                start, rows, size = start + len(rows), [], 0
        if rows:
            yield Block(start, rows, self._columns(rows))

    def _columns(self, rows: list[Example]) -> list[list[str]]:
        if self.target_type == "labels" and self.skipped:
            return [[""] * len(rows)]
        if self.target_type == "labels":
            return [[" ".join(row.source) for row in rows]]
        texts = [list(column) for column in zip(*(row.source for row in rows), strict=True)]
        for column in self.skipped:
            texts[column] = [""] * len(rows)
        if self.target_type == "text":
            texts.append([str(row.target) for row in rows])
        return texts

    def _count_labels(self, rows: list[Example]) -> None:
        if self.target_type not in ("label", "labels"):
            return
        counts = Counter(chain.from_iterable(row.labels for row in rows))
        for label in [label for label in counts if label not in self.labels]:
            row = next(row for row in rows if label in row.labels)
            column = len(self.data.source)
            self.first[label] = self.where(row, column), visible(" ".join(row.source))
        self.labels.update(counts)

    def _note(
        self, group: Group, column: int, block: Block, number: int, at: int, message: str
    ) -> None:
        if len(group.places) == KEPT_PLACES:
            group.count += 1
            return
        text, row = block.columns[column][number], block.rows[number]
        if self.data.format in ("conllu", "columns"):
            word = text[:at].rpartition(" ")[2] + text[at:].partition(" ")[0]
            self._words[row.file].append((row.line, word, group, len(group.places)))
        group.add(self.where(row, column), message, visible(text, at))


def _find_words(file: str, words: list[tuple[int, str, Group, int]]) -> None:
    """In formats with a word per line, move each note about a word to the word's own line."""
    wanted = sorted(words, key=lambda note: note[0])
    with contextlib.suppress(FileError):
        for number, text in enumerate(lines_of(file), 1):
            if not wanted:
                return
            cells = cells_of(text) if isinstance(text, str) else []
            for note in [note for note in wanted if note[0] <= number and note[1] in cells]:
                _, _, group, index = note
                group.places[index] = replace(group.places[index], where=place(file, number))
                wanted.remove(note)
