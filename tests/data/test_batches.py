"""Corpora on disk and the batches made of them."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saccade.data.batches import (
    LONGEST,
    Corpus,
    Examples,
    Sequences,
    Stream,
    by_length,
    collate,
    epoch_of,
    open_corpus,
    save_examples,
    write_corpus,
)
from saccade.data.lines import Example
from saccade.errors import CheckpointError, DataError

ROWS = st.lists(st.lists(st.integers(5, 99), min_size=1, max_size=12), min_size=1, max_size=60)


def corpus(rows: list[list[int]], target: list[list[int]] | None = None) -> Corpus:
    return Corpus(Sequences.of(rows), Sequences.of(target or [row[::-1] for row in rows]))


@given(rows=ROWS, budget=st.integers(1, 80), seed=st.integers(0, 9), epoch=st.integers(0, 3))
def test_every_example_is_in_exactly_one_batch_within_the_budget(
    rows: list[list[int]], budget: int, seed: int, epoch: int
) -> None:
    data = corpus(rows)
    batches = epoch_of(data, budget, seed, epoch)
    seen = sorted(int(i) for some in batches.plan for i in some)
    assert seen == list(range(len(rows)))
    for batch in batches:
        assert batch.source is not None
        cost = batch.source.values.numel() + batch.target.values.numel()
        assert cost <= budget or batch.source.values.size(0) == 1


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
def test_a_batch_is_its_rows_padded_with_zeros(rows: list[list[int]]) -> None:
    batch = collate(corpus(rows), np.arange(len(rows)))
    assert batch.source is not None
    for b, row in enumerate(rows):
        length = int(batch.source.lengths[b])
        assert batch.source.values[b, :length].tolist() == row
        assert not batch.source.values[b, length:].any()


@given(rows=ROWS)
def test_like_lengths_stand_together(rows: list[list[int]]) -> None:
    data = corpus(rows)
    plan = by_length(data, 30, np.arange(len(rows)))
    lengths = [data.source.lengths[some] for some in plan]  # type: ignore[union-attr]
    for one, other in pairwise(lengths):
        assert one.max() <= other.min()


def test_a_corpus_on_disk_is_the_corpus(tmp_path: Path) -> None:
    first = ([[5, 6], [7]], [[8], [9, 10]], [[0, 0], [0]])
    second = ([[11]], [[12]], [[0]])
    write_corpus(tmp_path, "train", iter([first, second]))
    found = open_corpus(tmp_path, "train")
    assert found.source is not None
    assert found.words is not None
    assert [found.source[i] for i in range(3)] == [[5, 6], [7], [11]]
    assert [found.target[i] for i in range(3)] == [[8], [9, 10], [12]]
    assert isinstance(found.source.ids, np.memmap)


def test_a_corpus_cut_short_is_noticed(tmp_path: Path) -> None:
    write_corpus(tmp_path, "train", iter([([[5, 6]], [[7, 8]], [])]))
    ids = tmp_path / "train.target.ids"
    ids.write_bytes(ids.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="says otherwise"):
        open_corpus(tmp_path, "train")


@given(length=st.integers(2, 200), streams=st.integers(1, 7), context=st.integers(1, 30))
def test_a_carried_stream_predicts_every_token_once_in_order(
    length: int, streams: int, context: int
) -> None:
    ids = np.arange(5, 5 + length)
    stream = Stream(ids, streams, context, carried=True)
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
    for batch in Stream(ids, streams, context, carried=False, seed=1, epoch=2):
        for b, n in enumerate(batch.target.lengths.tolist()):
            said += batch.target.values[b, 1:n].tolist()
    assert len(said) == len(set(said))
    assert len(said) >= length - 1 - context


def test_dev_examples_come_back_from_the_disk_as_they_were(tmp_path: Path) -> None:
    rows = [
        Example(("ä\u2028", "b\\n"), "c"), Example(("x",), None), Example(("a", "b"), ("N", "V")),
        Example(("",), ""),
    ]  # fmt: skip
    save_examples(tmp_path / "dev.jsonl", rows)
    found, pairs = Examples(tmp_path / "dev.jsonl"), [(row.source, row.target) for row in rows]
    (tmp_path / "dev.jsonl").unlink()  # a run may lose its data while it trains
    assert list(found) == pairs
    assert (len(found), found[-1], found[1:3], found[:99]) == (4, pairs[-1], pairs[1:3], pairs)
    with pytest.raises(IndexError):
        found[4]


def test_a_dev_example_has_a_largest_size(tmp_path: Path) -> None:
    file = tmp_path / "dev.jsonl"
    save_examples(file, [Example(("x" * (LONGEST - 20),), None)])
    assert len(Examples(file)[0][0][0]) == LONGEST - 20
    with pytest.raises(DataError, match=r"book.txt:7: a dev example of more than 4 MB"):
        save_examples(file, [Example(("x" * LONGEST,), None, "book.txt", 7)])
    file.write_text('[["' + "x" * LONGEST + '"], null]\n')
    with pytest.raises(CheckpointError, match="more than 4 MB"):
        Examples(file)
