"""Corpora on disk and the batches made of them."""

import os
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saccade.data.batches import Batch, Stream, by_length, collate, epoch_of
from saccade.data.corpora import (
    MAX_EXAMPLE_BYTES,
    Column,
    Corpus,
    Examples,
    open_column,
    open_corpus,
    save_examples,
    write_corpus,
)
from saccade.data.lines import Example
from saccade.errors import CheckpointError, DataError
from saccade.nn.dropout import RowSlice
from saccade.nn.padded import Padded

OPEN = partial(open_column, pad=0)
ROWS = st.lists(st.lists(st.integers(5, 99), min_size=1, max_size=12), min_size=1, max_size=60)


def corpus(rows: list[list[int]], target: list[list[int]] | None = None) -> Corpus:
    return Corpus((Column.of(rows),), Column.of(target or [row[::-1] for row in rows]))


@given(rows=ROWS, budget=st.integers(1, 80), seed=st.integers(0, 9), epoch=st.integers(0, 3))
def test_every_example_is_in_exactly_one_batch_within_the_budget(
    rows: list[list[int]], budget: int, seed: int, epoch: int
) -> None:
    data = corpus(rows)
    batches = epoch_of(data, budget, seed, epoch)
    seen = sorted(int(i) for some in batches.plan for i in some)
    assert seen == list(range(len(rows)))
    for batch in batches:
        cost = batch.sources[0].values.numel() + batch.target.values.numel()
        assert cost == batch.count * batch.width
        assert cost <= budget or batch.count == 1


@given(rows=ROWS, seed=st.integers(0, 9))
def test_the_order_is_a_function_of_seed_and_epoch(rows: list[list[int]], seed: int) -> None:
    data = corpus(rows)
    one, two = epoch_of(data, 40, seed, 1), epoch_of(data, 40, seed, 1)
    assert [p.tolist() for p in one.plan] == [p.tolist() for p in two.plan]


def test_epochs_differ() -> None:
    data = corpus([[i] * (1 + i % 5) for i in range(5, 99)])
    plans = [[p.tolist() for p in epoch_of(data, 40, 1, e).plan] for e in range(2)]
    assert plans[0] != plans[1]


@given(rows=ROWS)
def test_a_batch_is_its_rows_padded(rows: list[list[int]]) -> None:
    words = [list(range(len(row))) for row in rows]
    data = Corpus((Column.of(rows, words, pad=3),), Column.of(rows))
    batch = collate(data, np.arange(len(rows)))
    (source,) = batch.sources
    assert source.words is not None
    for b, row in enumerate(rows):
        length = int(source.lengths[b])
        assert source.values[b, :length].tolist() == row
        assert (source.values[b, length:] == 3).all()
        assert source.words[b, :length].tolist() == words[b]
        assert (source.words[b, length:] == -1).all()


@given(rows=ROWS, data=st.data())
def test_some_rows_of_a_column_are_those_rows(rows: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1)))
    column = Column.of(rows, rows).take(np.array(chosen, np.int64))
    assert [column[i] for i in range(len(column))] == [rows[i] for i in chosen]
    assert column.words is not None
    assert column.words.tolist() == column.ids.tolist()


@given(rows=ROWS)
def test_like_lengths_stand_together(rows: list[list[int]]) -> None:
    data = corpus(rows)
    plan = by_length(data, 30, np.arange(len(rows)))
    lengths = [data.sources[0].lengths[some] for some in plan]
    for one, other in pairwise(lengths):
        assert one.max() <= other.min()


@pytest.mark.parametrize("sources", [0, 1, 2, 3])
def test_a_corpus_on_disk_is_the_corpus(tmp_path: Path, sources: int) -> None:
    def some(*rows: list[int]) -> Corpus:
        first = Column.of(rows, [[0] * len(row) for row in rows])
        others = [Column.of([[i, *row] for row in rows]) for i in range(1, sources)]
        return Corpus((first, *others)[:sources], Column.of([row[::-1] for row in rows]))

    write_corpus(tmp_path, "train", iter([some([5, 6], [7]), some([11])]))
    found, whole = open_corpus(tmp_path, "train", [OPEN] * (sources + 1)), some([5, 6], [7], [11])
    assert len(found.sources) == sources
    for one, other in zip(found.columns, whole.columns, strict=True):
        assert [one[i] for i in range(3)] == [other[i] for i in range(3)]
        assert isinstance(one.ids, np.memmap)
        assert (one.words is None) == (other.words is None)
    assert found.lengths.tolist() == whole.lengths.tolist()


def test_a_corpus_cut_short_is_noticed(tmp_path: Path) -> None:
    for name in ("train.target.ids", "train.source.words"):
        data = Corpus((Column.of([[5, 6]], [[0, 1]]),), Column.of([[7, 8]]))
        write_corpus(tmp_path, "train", iter([data]))
        file = tmp_path / name
        file.write_bytes(file.read_bytes()[:-4])
        with pytest.raises(CheckpointError, match="says otherwise"):
            open_corpus(tmp_path, "train", [OPEN, OPEN])


def test_a_corpus_that_cannot_be_written_leaves_no_file_open(tmp_path: Path) -> None:
    def broken() -> Iterator[Corpus]:
        yield corpus([[5]])
        raise DataError("a bad line")

    def open_files() -> int:
        return sum(tmp_path.name in str(Path(f"/proc/self/fd/{fd}").resolve())
                   for fd in os.listdir("/proc/self/fd"))  # fmt: skip

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("the system does not tell which files are open")
    with pytest.raises(DataError, match="a bad line") as error:  # whose frames are held on to
        write_corpus(tmp_path, "train", broken())
    assert open_files() == 0
    del error


@given(length=st.integers(2, 200), streams=st.integers(1, 7), context=st.integers(1, 30))
def test_a_carried_stream_predicts_every_token_once_in_order(
    length: int, streams: int, context: int
) -> None:
    ids = np.arange(5, 5 + length)
    stream = Stream(ids, np.zeros(1), streams, context, carried=True)
    rows: list[list[int]] = [[] for _ in range(streams)]
    for batch in stream:
        for b, n in enumerate(batch.target.lengths.tolist()):
            row = batch.target.values[b, :n].tolist()
            if rows[b] and len(row) > 1:
                assert row[0] == rows[b][-1]  # it goes on where it stopped
            rows[b] += row[1:]
    said = [token for row in rows for token in row]
    assert said == ids[1:].tolist()


@given(length=st.integers(2, 200), streams=st.integers(1, 7), context=st.integers(1, 30))
def test_windows_cover_the_text(length: int, streams: int, context: int) -> None:
    ids = np.arange(5, 5 + length)
    said: list[int] = []
    for batch in Stream(ids, np.zeros(1), streams, context, carried=False, seed=1, epoch=2):
        for b, n in enumerate(batch.target.lengths.tolist()):
            said += batch.target.values[b, 1:n].tolist()
    assert len(said) == len(set(said))
    assert len(said) >= length - 1 - context


def test_dev_examples_come_back_from_the_disk_as_they_were(tmp_path: Path) -> None:
    rows = [
        Example(("ä\u2028", "b\\n"), "c"), Example(("x",), None), Example(("a", "b"), ("N", "V")),
        Example(("",), ""), Example(("a",), "b", others=("c", "d")),
    ]  # fmt: skip
    save_examples(tmp_path / "dev.jsonl", rows)
    found = Examples(tmp_path / "dev.jsonl")
    (tmp_path / "dev.jsonl").unlink()  # a run may lose its data while it trains
    assert list(found) == rows
    assert (len(found), found[-1], found[1:3], found[:99]) == (5, rows[-1], rows[1:3], rows)
    with pytest.raises(IndexError):
        found[5]


def test_a_dev_example_has_a_largest_size(tmp_path: Path) -> None:
    file = tmp_path / "dev.jsonl"
    save_examples(file, [Example(("x" * (MAX_EXAMPLE_BYTES - 20),), None)])
    assert len(Examples(file)[0].source[0]) == MAX_EXAMPLE_BYTES - 20
    with pytest.raises(DataError, match=r"book.txt:7: a dev example of more than 4 MB"):
        save_examples(file, [Example(("x" * MAX_EXAMPLE_BYTES,), None, "book.txt", 7)])
    file.write_text('[["' + "x" * MAX_EXAMPLE_BYTES + '"], null]\n')
    with pytest.raises(CheckpointError, match="more than 4 MB"):
        Examples(file)


def test_a_part_of_a_batch_is_a_part_on_any_device() -> None:
    target = Padded(torch.zeros(2, 3, dtype=torch.int64), torch.tensor([3, 2]))
    part = Batch((target,), target, RowSlice(0, 2, 8, 5)).to(torch.device("meta"))
    assert (part.count, part.words) == (8, 5)
