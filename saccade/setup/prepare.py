"""From the user's files to a task with vocabularies, a tokenised corpus, and a dev set."""

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from saccade import config as c
from saccade.data.corpora import Array, Corpus, Examples, save_examples, write_corpus
from saccade.data.kinds import Vocabularies
from saccade.data.lines import Example, data_files
from saccade.data.media import Cell, MediaField
from saccade.data.parallel import cores, in_processes
from saccade.data.seasons import train_and_dev
from saccade.data.sources import REPORTED_DEFECTS, unseen
from saccade.errors import DataError
from saccade.setup.split import Split
from saccade.setup.survey import Survey
from saccade.tasks.forecast import Forecast
from saccade.tasks.labels import LabelTask
from saccade.tasks.registry import load_task, task_class
from saccade.tasks.task import NO_VOCABULARIES, Task, chunks

CHUNK_EXAMPLES = 10_000  # tokenised at once
CHUNKS_BEFORE_FORK = 4  # that this process does before it forks others for the rest


@dataclass(frozen=True)
class Prepared:
    task: Task
    train: Corpus
    dev: Corpus
    dev_examples: Sequence[Example]  # on the disk, and read lazily
    left_out: int


def prepare(
    config: c.Config,
    folder: Path,
    seen: Survey | None = None,
    given: Vocabularies = NO_VOCABULARIES,
) -> Prepared:
    """Train the vocabularies, tokenise train and dev once, and write all of it into the run.

    `seen` is the survey of the training examples, if there is one: they are not surveyed again.
    Vocabularies that are `given` are not trained.
    """
    if isinstance(config.task, c.Forecast):
        return prepare_series(config, folder)
    parts = Split(config, seen)
    task = task_class(config).fit(config, parts.train, given)
    dev = parts.dev
    if isinstance(task, LabelTask):
        refuse_unseen(task, dev)
    task.save(folder)
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)  # of an earlier attempt
    left_out = 0

    def encode_short(chunk: list[Example]) -> tuple[Corpus, int]:
        corpus = task.encode(chunk)
        rows = np.flatnonzero(is_short(task, corpus))
        return corpus.take(rows), len(corpus) - len(rows)

    def tokenised() -> Iterator[Corpus]:
        nonlocal left_out
        processes = 1 if task.reads_media else cores()
        supply = chunks(parts.train(), CHUNK_EXAMPLES)
        for corpus, dropped in in_processes(encode_short, supply, processes, CHUNKS_BEFORE_FORK):
            left_out += dropped
            yield corpus

    write_corpus(data, "train", tokenised())
    corpus = task.open_corpus(data, "train")
    if not len(corpus):
        raise DataError(
            f"{config.data.train[0]}: "
            f"every example is longer than data.max_len ({config.data.max_len})"
        )
    order = np.random.default_rng(config.seed).permutation(len(dev)).tolist()
    if config.task.target_type == "none":  # the lines of a text keep their order
        order = list(range(len(dev)))
    dev_rows = [row for i in order if is_short(task, task.encode([row := dev[i]])).all()]
    if not dev_rows:
        raise DataError(f"{config.data.train[0]}: nothing is left to measure on; give a dev file")
    write_corpus(data, "dev", (task.encode(chunk) for chunk in chunks(dev_rows, CHUNK_EXAMPLES)))
    save_examples(data / "dev.jsonl", distinct_paths(task, dev_rows))
    return open_prepared(task, folder, left_out)


def prepare_series(config: c.Config, folder: Path) -> Prepared:
    """The same for a table of series, whose windows are made lazily."""
    assert isinstance(config.task, c.Forecast)
    train, dev, first = train_and_dev(config.task, config.data)
    task = Forecast.fit_table(config, train)
    task.save(folder)
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    windows = task.series.windows(train, task.series.span.lookback)
    write_corpus(data, "train", [task.corpus(windows)])
    dev_rows = task.series.windows(dev, first or task.series.span.lookback)
    order = np.random.default_rng(config.seed).permutation(len(dev_rows))
    write_corpus(data, "dev", [task.corpus(dev_rows.take(order))])
    if not len(windows) or not len(dev_rows):
        file, what = (dev.file, "measure on") if len(windows) else (train.file, "learn from")
        raise DataError(f"{file}: no window to {what}: too few rows, or too many gaps")
    return open_prepared(task, folder, 0)


def distinct_paths(task: Task, rows: Sequence[Example]) -> Sequence[Example]:
    """The rows, with whole paths of media where files of several folders name them."""
    media = [i for i in task.fallible if isinstance(task.sources[i], MediaField)]
    columns = [task.columns[i][0] for i in media]
    if not columns or len({os.path.dirname(row.file) for row in rows}) < 2:
        return rows

    def whole(row: Example) -> Example:
        source = list(row.source)
        for i in columns:
            cell = Cell(source[i], os.path.dirname(row.file))
            source[i] = source[i] if cell.inline else os.path.abspath(cell.path)
        return replace(row, source=tuple(source))

    return [whole(row) for row in rows]


def is_short(task: Task, corpus: Corpus) -> Array:
    """Which examples are within data.max_len; a line of a stream has no length of its own."""
    if task.config.task.target_type == "none":
        return np.ones(len(corpus), bool)
    lengths = [column.lengths for column in corpus.columns]
    if task.config.task.early:  # the sources are one sequence
        lengths = [np.sum(lengths[:-1], 0), lengths[-1]]
    return np.asarray(np.max(lengths, 0) <= task.config.data.max_len)


def locate_examples(task: Task, numbers: Collection[int]) -> dict[int, str]:
    """The file and line of training examples, by their number in the corpus.

    The files are read again; without them the result is empty.
    """
    locations: dict[int, str] = {}
    number = 0
    if isinstance(task, Forecast):  # a window is many lines
        return locations
    if not all(map(os.path.isfile, data_files(task.config.data.train))):  # a pipe is not read twice
        return locations
    with suppress(DataError, OSError):
        for chunk in chunks(Split(task.config).train(), CHUNK_EXAMPLES):
            rows = [row for row in chunk for _ in row.references or (None,)]
            for row, short in zip(rows, is_short(task, task.encode(chunk)), strict=True):
                if short:
                    if number in numbers:
                        locations[number] = row.where
                    number += 1
            if len(locations) == len(numbers):
                break
    return locations


def refuse_unseen(task: LabelTask, rows: Sequence[Example]) -> None:
    """DataError, with file and line, where a label is not among the task's."""
    defects = list(unseen(set(task.labels.labels), rows))
    if defects:
        raise DataError("\n".join(map(str, defects[:REPORTED_DEFECTS])))


def reopen(config: c.Config, folder: Path) -> Prepared:
    """The prepared data of a run."""
    return open_prepared(load_task(config, folder), folder, 0)


def open_prepared(task: Task, folder: Path, left_out: int) -> Prepared:
    data = folder / "data"
    train, dev = (task.open_corpus(data, name) for name in ("train", "dev"))
    if isinstance(task, Forecast):
        return Prepared(task, train, dev, task.examples(dev), left_out)
    rows = Examples(data / "dev.jsonl")
    if task.reads_media:
        task.remember(dev, rows)
    return Prepared(task, train, dev, rows, left_out)
