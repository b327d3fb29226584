"""From the user's files to a task with vocabularies, a tokenised corpus, and a dev set."""

import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from saccade import config as c
from saccade.data.batches import (
    Corpus,
    Examples,
    Sequences,
    open_corpus,
    save_examples,
    write_corpus,
)
from saccade.data.lines import Example
from saccade.data.sources import REPORTED_DEFECTS, unseen
from saccade.errors import DataError
from saccade.setup.split import Split
from saccade.setup.survey import Survey
from saccade.tasks.labels import LabelTask
from saccade.tasks.registry import load_task, task_class
from saccade.tasks.task import Columns, Pair, Task, chunks

CHUNK_EXAMPLES = 10_000  # tokenised at once


@dataclass(frozen=True)
class Prepared:
    task: Task
    train: Corpus
    dev: Corpus
    dev_pairs: Sequence[Pair]  # on the disk, and read as they are wanted
    left_out: int


def prepare(config: c.Config, folder: Path, seen: Survey | None = None) -> Prepared:
    """Train the vocabularies, tokenise train and dev once, and leave all of it in the run.

    `seen` is the survey of the training examples, if there is one: they are not surveyed again.
    """
    parts = Split(config, seen)
    task = task_class(config).fit(config, lambda: ((r.source, r.target) for r in parts.train()))
    dev = parts.dev
    if isinstance(task, LabelTask):
        refuse_unseen(task, dev)
    task.save(folder)
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)  # what an earlier attempt left
    left_out = 0

    def encoded(rows: Iterator[Example]) -> Iterator[Columns]:
        nonlocal left_out
        for some in chunks(rows, CHUNK_EXAMPLES):
            source, target, words = task.encode([(row.source, row.target) for row in some])
            sides = [side for side in (source, target) if side]
            good = [is_short(task, row) for row in zip(*sides, strict=True)]
            left_out += len(good) - sum(good)
            yield tuple(
                [row for row, ok in zip(side, good, strict=True) if ok] if side else []
                for side in (source, target, words)
            )  # type: ignore[misc]

    write_corpus(data, "train", encoded(parts.train()))
    corpus = open_corpus(data, "train")
    if not len(corpus):
        raise DataError(
            f"{config.data.train[0]}: "
            f"every example is longer than data.max_len ({config.data.max_len})"
        )
    order = np.random.default_rng(config.seed).permutation(len(dev)).tolist()
    if config.task.target_type == "none":  # the lines of a text belong together
        order = list(range(len(dev)))
    pairs = [row for i in order if fits(task, row := dev[i])]
    if not pairs:
        raise DataError(f"{config.data.train[0]}: nothing is left to measure on; give a dev file")
    write_corpus(data, "dev", chunked(task, pairs))
    save_examples(data / "dev.jsonl", pairs)
    return Prepared(task, corpus, open_corpus(data, "dev"), Examples(data / "dev.jsonl"), left_out)


def is_short(task: Task, sides: Iterable[Sequence[int]]) -> bool:
    """Whether an example is within data.max_len; a line of a stream has no length of its own."""
    longest = max(map(len, sides))
    return longest <= task.config.data.max_len or task.config.task.target_type == "none"


def fits(task: Task, row: Example) -> bool:
    """The same, of an example that is not tokenised yet."""
    source, target, _ = task.encode([(row.source, row.target)])
    return is_short(task, [*source, *target])


def whereabouts(task: Task, numbers: Collection[int]) -> dict[int, str]:
    """The file and line of training examples, by their number in the corpus.

    The files are read again; nothing is found if they are gone.
    """
    found: dict[int, str] = {}
    number = 0
    with suppress(DataError, OSError):
        for some in chunks(Split(task.config).train(), CHUNK_EXAMPLES):
            source, target, _ = task.encode([(row.source, row.target) for row in some])
            sides = zip(*(side for side in (source, target) if side), strict=True)
            for row, ids in zip(some, sides, strict=True):
                if is_short(task, ids):
                    if number in numbers:
                        found[number] = row.where
                    number += 1
            if len(found) == len(numbers):
                break
    return found


def refuse_unseen(task: LabelTask, rows: Sequence[Example]) -> None:
    """DataError, with file and line, where a label is not among the task's."""
    defects = list(unseen(set(task.labels.labels), rows))
    if defects:
        raise DataError("\n".join(map(str, defects[:REPORTED_DEFECTS])))


def reopen(config: c.Config, folder: Path) -> Prepared:
    """What `prepare` left in a run."""
    data = folder / "data"
    return Prepared(
        load_task(config, folder),
        open_corpus(data, "train"),
        open_corpus(data, "dev"),
        Examples(data / "dev.jsonl"),
        0,
    )


def in_memory(task: Task, rows: list[Example]) -> Corpus:
    """Examples as a corpus that is nowhere on disk."""
    source, target, words = task.encode([(row.source, row.target) for row in rows])
    found = Sequences.of(target)
    return Corpus(
        Sequences.of(source) if source else None, found, Sequences.of(words) if words else None
    )


def chunked(task: Task, rows: list[Example]) -> Iterator[Columns]:
    """Examples, tokenised a chunk at a time."""
    for some in chunks(rows, CHUNK_EXAMPLES):
        yield task.encode([(row.source, row.target) for row in some])
