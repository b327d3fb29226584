"""Which rows of a batch are whose: every example once an epoch, for any number of ranks."""

import numpy as np
import pytest

from saccade import config as c
from saccade.data.batches import Loader, epoch_of
from saccade.data.corpora import Column, Corpus
from saccade.distributed.mesh import MeshRanks, layout_of
from saccade.errors import ConfigError


class Rank(MeshRanks):
    """A rank of a layout, without the other processes."""

    def __init__(self, rank: int, parallel: c.Parallel, size: int):
        self.layout = layout_of(parallel, size)
        self.rank, self.size, self.row_part = rank, size, rank // self.layout.tensor


def corpus(examples: int) -> Corpus:
    """Examples whose first id is their number."""
    lengths = np.random.default_rng(1).integers(1, 9, examples)
    return Corpus((), Column.of([[i] * n for i, n in enumerate(lengths)]))


def seen(
    parallel: c.Parallel, size: int, some: Corpus, epoch: int, batches: range | None = None
) -> list[int]:
    """The examples that all ranks with rows of their own read in an epoch, sorted."""
    order = epoch_of(some, 20_000, 3, epoch)
    found: list[int] = []
    for i in batches or range(len(order)):
        for rank in range(0, size, layout_of(parallel, size).tensor):
            first, last = Rank(rank, parallel, size).row_range(len(order.plan[i]))
            found += order.plan[i][first:last].tolist()
    return sorted(found)


def test_a_thousand_ranks_read_every_example_once_an_epoch() -> None:
    some = corpus(50_000)
    assert seen(c.Parallel(), 1000, some, 0) == list(range(50_000))
    assert seen(c.Parallel(shard=8, tensor=4), 992, some, 1) == list(range(50_000))


def test_nothing_is_lost_when_the_world_shrinks_in_the_middle_of_an_epoch() -> None:
    """The order of batches is that of (seed, epoch): those who go on take the next one."""
    some = corpus(20_000)
    total = len(epoch_of(some, 20_000, 3, 2))
    assert total > 3
    before = seen(c.Parallel(), 1000, some, 2, range(2))
    after = seen(c.Parallel(), 613, some, 2, range(2, total))
    assert sorted(before + after) == list(range(20_000))


def test_a_rank_reads_its_own_rows_alone_and_as_wide_as_the_whole() -> None:
    some = corpus(500)
    whole = Loader(lambda n: epoch_of(some, 400, 3, n)).take(0, 0, 2)
    for rank in range(3):
        own = Rank(rank, c.Parallel(), 3)
        parts = Loader(lambda n: epoch_of(some, 400, 3, n), 0, own.row_range).take(0, 0, 2)
        for batch, part in zip(whole, parts, strict=True):
            first, last = own.row_range(batch.count)
            assert part.count == batch.count
            assert part.target.values.tolist() == batch.target.values[first:last].tolist()


def test_ranks_that_share_the_heads_read_the_same_rows() -> None:
    parallel = c.Parallel(data=2, shard=3, tensor=2)
    parts = [Rank(rank, parallel, 12).row_range(100) for rank in range(12)]
    assert parts[::2] == parts[1::2]
    assert parts[0][0] == 0
    assert parts[-1][1] == 100


@pytest.mark.parametrize(
    ("size", "parallel", "found"),
    [
        (8, {}, (8, 1, 1)),
        (8, {"shard": 0}, (1, 8, 1)),
        (8, {"shard": 0, "data": 2}, (2, 4, 1)),
        (8, {"tensor": 2, "shard": 2}, (2, 2, 2)),
        (1, {}, (1, 1, 1)),
    ],
)
def test_a_layout_is_filled_up_by_data(
    size: int, parallel: dict[str, int], found: tuple[int, int, int]
) -> None:
    assert layout_of(c.Parallel(**parallel), size) == found


@pytest.mark.parametrize(
    ("size", "parallel", "words"),
    [
        (6, {"shard": 4}, "needs a multiple of 4 processes, and there are 6"),
        (4, {"data": 2}, "needs 2 processes, and there are 4"),
        (1, {"tensor": 2}, "needs a multiple of 2 processes, and there is 1"),
        (2, {"sequence": True}, "sequence is for tensor > 1"),
        (2, {"offload": True}, "offload is for shard > 1"),
    ],
)
def test_a_layout_that_the_processes_do_not_make_is_refused(
    size: int, parallel: dict[str, int], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        layout_of(c.Parallel(**parallel), size)
