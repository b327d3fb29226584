"""From the user's files to a task with vocabularies, a tokenised corpus, and a dev set."""

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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
from saccade.data.sources import examples, is_dev, unseen
from saccade.errors import DataError
from saccade.tasks.labels import LabelTask
from saccade.tasks.language import LanguageModel
from saccade.tasks.registry import load_task, task_class
from saccade.tasks.task import Columns, Pair, Task, chunks

CHUNK = 10_000  # examples tokenised at once


@dataclass(frozen=True)
class Prepared:
    task: Task
    train: Corpus
    dev: Corpus
    dev_pairs: Sequence[Pair]  # on the disk, and read as they are wanted
    left_out: int


def prepare(config: c.Config, folder: Path) -> Prepared:
    """Train the vocabularies, tokenise train and dev once, and leave all of it in the run."""
    train, dev = split(config)
    task = task_class(config).fit(config, lambda: ((row.source, row.target) for row in train()))
    if isinstance(task, LabelTask):
        refuse_unseen(task, dev)
    task.save(folder)
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)  # what an earlier attempt left
    left_out = 0

    def encoded(rows: Iterator[Example]) -> Iterator[Columns]:
        nonlocal left_out
        for some in chunks(rows, CHUNK):
            source, target, words = task.encode([(row.source, row.target) for row in some])
            sides = [side for side in (source, target) if side]
            good = [is_short(task, row) for row in zip(*sides, strict=True)]
            left_out += len(good) - sum(good)
            yield tuple(
                [row for row, ok in zip(side, good, strict=True) if ok] if side else []
                for side in (source, target, words)
            )  # type: ignore[misc]

    write_corpus(data, "train", encoded(train()))
    corpus = open_corpus(data, "train")
    if not len(corpus):
        raise DataError(
            f"{config.data.train[0]}: "
            f"every example is longer than data.max_len ({config.data.max_len})"
        )
    order = np.random.default_rng(config.seed).permutation(len(dev)).tolist()
    if isinstance(config.task, c.LanguageModel):
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
    return longest <= task.config.data.max_len or isinstance(task, LanguageModel)


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
        for some in chunks(split(task.config)[0](), CHUNK):
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
    """DataError, with file and line, where a label is none of the task's."""
    strange = list(unseen(set(task.labels.labels), rows))
    if strange:
        raise DataError("\n".join(map(str, strange[:5])))


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
    for some in chunks(rows, CHUNK):
        yield task.encode([(row.source, row.target) for row in some])


def split(config: c.Config) -> tuple[Callable[[], Iterator[Example]], list[Example]]:
    """The training examples, to be read as often as wanted, and the dev examples.

    Without a dev file a share is cut off: by source, so that no source is in both; of plain text
    the end.
    """
    data, kind = config.data, config.task.kind

    def rows() -> Iterator[Example]:
        return examples(data.train, data, kind)

    if data.dev:
        return rows, list(examples(data.dev, data, kind))
    total = sum(1 for _ in rows())
    if total < 2:
        what = "line" if kind == "language" else "example"
        raise DataError(
            f"{data.train[0]}: one {what} is too few to learn from and to measure on: "
            f"give a dev file, or more {what}s"
        )
    if kind == "language":
        return _cut_off_the_end(rows, total, data)
    share = min(data.dev_share, data.dev_max / total)
    while not (dev := [row for row in rows() if is_dev(row.source, share, config.seed)]):
        share *= 2  # so few examples that chance chose none
    if all(is_dev(row.source, share, config.seed) for row in rows()):
        raise DataError(f"{data.train[0]}: too few different sources to cut a dev set; give one")
    if kind == "classify" or kind == "tag":
        dev = _known(dev, (row for row in rows() if not is_dev(row.source, share, config.seed)))
    return lambda: (r for r in rows() if not is_dev(r.source, share, config.seed)), dev


def _cut_off_the_end(
    rows: Callable[[], Iterator[Example]], total: int, data: c.Data
) -> tuple[Callable[[], Iterator[Example]], list[Example]]:
    """Of plain text the last lines, at least one of them not blank."""
    last = max((i for i, row in enumerate(rows()) if row.source[0].strip()), default=0)
    share = max(round(total * (1 - data.dev_share)), total - data.dev_max)
    cut = min(last, share)
    if cut < 1:
        raise DataError(f"{data.train[0]}: too few lines to cut a dev set; give a dev file")
    return (
        lambda: (row for i, row in enumerate(rows()) if i < cut),
        [row for i, row in enumerate(rows()) if i >= cut],
    )


def _known(dev: list[Example], train: Iterator[Example]) -> list[Example]:
    """Of a dev set cut off by us, the examples whose labels training has.

    The cut is ours, not a mistake.
    """
    labels: set[str] = set()
    for row in train:
        labels.update([row.target] if isinstance(row.target, str) else row.target or ())
    return [
        row
        for row in dev
        if labels.issuperset([row.target] if isinstance(row.target, str) else row.target or ())
    ]
