"""From the user's files to a task with vocabularies, a tokenised corpus, and a dev set."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from saccade import config as c
from saccade.data.batches import (
    Corpus,
    Sequences,
    load_examples,
    open_corpus,
    save_examples,
    write_corpus,
)
from saccade.data.lines import Example
from saccade.data.sources import examples, is_dev, unseen
from saccade.errors import DataError
from saccade.tasks.classify import Classify
from saccade.tasks.labels import LabelTask
from saccade.tasks.language import LanguageModel
from saccade.tasks.tag import Tag
from saccade.tasks.task import Columns, Pair, Task, chunks
from saccade.tasks.translate import Translate

CHUNK = 10_000  # examples tokenised at once


@dataclass(frozen=True)
class Prepared:
    task: Task
    train: Corpus
    dev: Corpus
    dev_pairs: list[Pair]
    left_out: int


def task_class(config: c.Config) -> type[Task]:
    match config.task:
        case c.LanguageModel():
            return LanguageModel
        case c.Classify():
            return Classify
        case c.Tag():
            return Tag
        case c.Translate():
            return Translate


def load_task(config: c.Config, folder: Path) -> Task:
    """The task of a run, with its vocabularies."""
    return task_class(config).load(config, folder)


def prepare(config: c.Config, folder: Path) -> Prepared:
    """Train the vocabularies, tokenise train and dev once, and leave all of it in the run."""
    train, dev = split(config)
    task = task_class(config).fit(config, lambda: ((row.source, row.target) for row in train()))
    if isinstance(task, LabelTask):
        refuse_unseen(task, dev)
    task.save(folder)
    data = folder / "data"
    left_out = 0

    def encoded(rows: Iterator[Example]) -> Iterator[Columns]:
        nonlocal left_out
        for some in chunks(rows, CHUNK):
            source, target, words = task.encode([(row.source, row.target) for row in some])
            sides = [side for side in (source, target) if side]
            fits = [max(map(len, row)) <= config.data.max_len for row in zip(*sides, strict=True)]
            if isinstance(config.task, c.LanguageModel):
                fits = [True] * len(fits)  # a line of a stream has no length of its own
            left_out += len(fits) - sum(fits)
            yield tuple(
                [row for row, ok in zip(side, fits, strict=True) if ok] if side else []
                for side in (source, target, words)
            )  # type: ignore[misc]

    write_corpus(data, "train", encoded(train()))
    skipped = left_out
    order = np.random.default_rng(config.seed).permutation(len(dev)).tolist()
    if isinstance(config.task, c.LanguageModel):
        order = list(range(len(dev)))
    pairs = [dev[i] for i in order]
    if not pairs:
        raise DataError(f"{config.data.train[0]}: nothing is left to measure on; give a dev file")
    write_corpus(data, "dev", chunked(task, pairs))
    save_examples(data / "dev.jsonl", pairs)
    corpus = open_corpus(data, "train")
    if not len(corpus):
        raise DataError(
            f"{config.data.train[0]}: "
            f"every example is longer than data.max_len ({config.data.max_len})"
        )
    return Prepared(
        task, corpus, open_corpus(data, "dev"), load_examples(data / "dev.jsonl"), skipped
    )


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
        load_examples(data / "dev.jsonl"),
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
        raise DataError(f"{data.train[0]}: one example is too few to learn from and to measure on")
    if kind == "model":
        cut = min(total - 1, max(1, round(total * (1 - data.dev_share))))
        return (
            lambda: (row for i, row in enumerate(rows()) if i < cut),
            [row for i, row in enumerate(rows()) if i >= cut],
        )
    share = min(data.dev_share, data.dev_max / total)
    while not (dev := [row for row in rows() if is_dev(row.source, share, config.seed)]):
        share *= 2  # so few examples that chance chose none
    if all(is_dev(row.source, share, config.seed) for row in rows()):
        raise DataError(f"{data.train[0]}: too few different sources to cut a dev set; give one")
    if kind == "classify" or kind == "tag":
        dev = _known(dev, (row for row in rows() if not is_dev(row.source, share, config.seed)))
    return lambda: (r for r in rows() if not is_dev(r.source, share, config.seed)), dev


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
