"""From the user's files to a task with vocabularies, a tokenised corpus, and a dev set."""

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from saccade import config as c
from saccade.data.corpora import Array, Corpus, Examples, save_examples, write_corpus
from saccade.data.lines import Example
from saccade.data.sources import examples, is_dev, unseen
from saccade.errors import DataError
from saccade.tasks.classify import Classify
from saccade.tasks.labels import LabelTask
from saccade.tasks.language import LanguageModel
from saccade.tasks.tag import Tag
from saccade.tasks.task import Task, chunks
from saccade.tasks.translate import Translate

CHUNK_EXAMPLES = 10_000  # tokenised at once


@dataclass(frozen=True)
class Prepared:
    task: Task
    train: Corpus
    dev: Corpus
    dev_examples: Sequence[Example]  # on the disk, and read as they are wanted
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
    """Fit the fields, tokenise train and dev once, and leave all of it in the run."""
    train, dev = split(config)
    task = task_class(config).fit(config, train)
    if isinstance(task, LabelTask):
        refuse_unseen(task, dev)
    task.save(folder)
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)  # what an earlier attempt left
    left_out = 0

    def short_ones() -> Iterator[Corpus]:
        nonlocal left_out
        for some in chunks(train(), CHUNK_EXAMPLES):
            corpus = task.encode(some)
            rows = np.flatnonzero(is_short(task, corpus))
            left_out += len(corpus) - len(rows)
            yield corpus.take(rows)

    write_corpus(data, "train", short_ones())
    corpus = task.open_corpus(data, "train")
    if not len(corpus):
        raise DataError(
            f"{config.data.train[0]}: "
            f"every example is longer than data.max_len ({config.data.max_len})"
        )
    order = np.random.default_rng(config.seed).permutation(len(dev)).tolist()
    if isinstance(config.task, c.LanguageModel):
        order = list(range(len(dev)))
    measured = [row for i in order if is_short(task, task.encode([row := dev[i]])).all()]
    if not measured:
        raise DataError(f"{config.data.train[0]}: nothing is left to measure on; give a dev file")
    write_corpus(data, "dev", (task.encode(some) for some in chunks(measured, CHUNK_EXAMPLES)))
    save_examples(data / "dev.jsonl", measured)
    return reopened(task, folder, left_out)


def is_short(task: Task, corpus: Corpus) -> Array:
    """Which examples are within data.max_len; a line of a stream has no length of its own."""
    if isinstance(task, LanguageModel):
        return np.ones(len(corpus), bool)
    lengths = np.stack([column.lengths for column in corpus.columns])
    return np.asarray(lengths.max(0) <= task.config.data.max_len)


def whereabouts(task: Task, numbers: Collection[int]) -> dict[int, str]:
    """The file and line of training examples, by their number in the corpus.

    The files are read again; nothing is found if they are gone.
    """
    found: dict[int, str] = {}
    number = 0
    with suppress(DataError, OSError):
        for some in chunks(split(task.config)[0](), CHUNK_EXAMPLES):
            rows = [row for row in some for _ in row.references or (None,)]
            for row, short in zip(rows, is_short(task, task.encode(some)), strict=True):
                if short:
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
    return reopened(load_task(config, folder), folder, 0)


def reopened(task: Task, folder: Path, left_out: int) -> Prepared:
    data = folder / "data"
    train, dev = (task.open_corpus(data, name) for name in ("train", "dev"))
    return Prepared(task, train, dev, Examples(data / "dev.jsonl"), left_out)


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
