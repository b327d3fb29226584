"""word2vec's losses, beside their formulas written out pair by pair."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from saccade.nn import word2vec
from saccade.nn.word2vec import Blocks, cbow_loss, skipgram_loss
from saccade.training.optim import RowSGD

WORDS, DIM = 11, 6


def blocks(seed: int = 0, many: int = 3, w: int = 5, r: int = 2, noise: int = 4) -> Blocks:
    random = np.random.default_rng(seed)

    def drawn(high: int, *shape: int) -> torch.Tensor:
        return torch.from_numpy(random.integers(0, high, shape))

    near = drawn(r + 1, many, w), drawn(r + 1, many, w)
    return Blocks(drawn(WORDS, many, w + 2 * r), *near, drawn(WORDS, many, noise), negatives=3)


def tables(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return tuple(torch.randn(WORDS, DIM, dtype=torch.float64).requires_grad_() for _ in range(2))  # type: ignore[return-value]


def contexts(some: Blocks) -> list[tuple[int, list[int], list[int]]]:
    """Each word, its context and its negatives, as lists."""
    found = []
    for g in range(len(some.words)):
        for i in range(some.left.size(1)):
            at = some.reach + i
            first, last = at - int(some.left[g, i]), at + int(some.right[g, i])
            near = [int(some.words[g, j]) for j in range(first, last + 1) if j != at]
            found.append((int(some.words[g, at]), near, some.noise[g].tolist()))
    return found


# Each pair has 3 negatives, and the block 4 that stand for them.


def plain_skipgram(x: torch.Tensor, y: torch.Tensor, some: Blocks) -> torch.Tensor:
    total = torch.zeros((), dtype=x.dtype)
    for word, near, noise in contexts(some):
        for other in near:
            total = total - F.logsigmoid(x[word] @ y[other])
            total = total - 3 / 4 * sum(F.logsigmoid(-(x[word] @ y[n])) for n in noise)
    return total


def plain_cbow(x: torch.Tensor, y: torch.Tensor, some: Blocks) -> torch.Tensor:
    total = torch.zeros((), dtype=x.dtype)
    for word, near, noise in contexts(some):
        if near:
            mean = x[near].mean(0)
            total = total - F.logsigmoid(mean @ y[word])
            total = total - 3 / 4 * sum(F.logsigmoid(-(mean @ y[n])) for n in noise)
    return total


@pytest.mark.parametrize(
    ("fast", "plain"), [(skipgram_loss, plain_skipgram), (cbow_loss, plain_cbow)]
)
def test_loss_and_slopes_are_those_of_the_formula_pair_by_pair(fast, plain) -> None:  # type: ignore[no-untyped-def]
    some = blocks()
    x, y = tables()
    expected = plain(x, y, some)
    expected.backward()
    u, v = tables()
    (2.0 * fast(u, v, some, 1e-6)).backward()
    for mine, gold in ((u, x), (v, y)):
        assert mine.grad.is_sparse
        torch.testing.assert_close(mine.grad.to_dense(), 2.0 * gold.grad, rtol=1e-7, atol=1e-7)
    with torch.no_grad():
        assert float(fast(u, v, some, 0.1)) == pytest.approx(float(expected.detach()), rel=1e-9)


@pytest.mark.parametrize(
    ("fast", "plain"), [(skipgram_loss, plain_skipgram), (cbow_loss, plain_cbow)]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_step_is_many_steps_of_sgd_in_two_lanes(  # type: ignore[no-untyped-def]
    fast, plain, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word2vec, "BLOCKS_AT_ONCE", 2)
    some, rate, lost = blocks(many=10), 0.1, 0.0
    start = tables()
    moved = [table.detach().clone() for table in start]
    for lane in (slice(0, 5), slice(5, 10)):
        x, y = tables()
        for first in range(lane.start, lane.stop, 2):
            loss = plain(x, y, some.some(slice(first, min(first + 2, lane.stop))))
            slopes = torch.autograd.grad(loss, (x, y))
            x, y = (
                (t - rate * d).detach().requires_grad_()
                for t, d in zip((x, y), slopes, strict=True)
            )
            lost += float(loss.detach())
        for table, end, begin in zip(moved, (x, y), start, strict=True):
            table += (end - begin).detach()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = fast(*start, some, rate)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    found.backward()
    RowSGD([{"params": list(start)}], rate).step()
    for mine, gold in zip(start, moved, strict=True):
        torch.testing.assert_close(mine.detach(), gold, rtol=1e-9, atol=1e-9)
    assert float(found.detach()) == pytest.approx(lost, rel=1e-9)


def test_only_rows_that_were_read_have_a_gradient() -> None:
    some = blocks(many=1, w=2, r=1, noise=2)
    u, v = tables()
    skipgram_loss(u, v, some, 0.1).backward()
    read = {*some.words.flatten().tolist(), *some.noise.flatten().tolist()}
    assert len(read) < WORDS
    assert sorted(v.grad._indices()[0].tolist()) == sorted(read)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("others", "most"), [(0, word2vec.MIN_GRADIENTS), (5000, word2vec.MAX_GRADIENTS)]
)
def test_a_row_is_updated_by_fewer_gradients_the_smaller_the_vocabulary(
    others: int, most: float
) -> None:
    often = torch.tensor([[0] * 100 + [1] * 3 + [2] * 97])
    rare = torch.arange(3, 3 + others).view(1, -1)
    rows = word2vec._UpdatedRows(torch.zeros(3 + others, 2), torch.cat([often, rare], 1))
    rows.update(rows.index, torch.ones(1, 200 + others, 2))
    expected = torch.ones(3 + others, 2)
    expected[:3] = torch.tensor([[most], [3.0], [most]])
    torch.testing.assert_close(rows.values, expected)
    assert rows.rows.tolist() == list(range(3 + others))
