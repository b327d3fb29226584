"""word2vec: a word's vector is good if it tells the words around it from words drawn at random.

Mikolov et al. 2013, arxiv.org/abs/1310.4546. Text comes in blocks of `w` words side by side, each
with `r` more words on either side. The words of a block share K negatives, so that all there is to
compare are products of small matrices, and a row of a table is read and written once for a block
and not once for each pair (Ji et al. 2016, arxiv.org/abs/1604.04661). Each pair weighs its K
negatives as `negatives` of them, which is what it would have drawn for itself.

A step is many small ones: a few blocks move the rows that the next few read, as the sum of very
many slopes that are all taken at the same place would overshoot for frequent words. Two lanes of
blocks go on side by side, each of which sees the other's moves only after the step.

G blocks, w words of a block, C = r + w + r words that a block sees, K negatives, V words, D width.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

BLOCKS_AT_ONCE = 40  # whose slopes are taken at the same place
# A row moves by at most so many of its slopes in a part. In a small vocabulary all rows have very
# many and move at once: with more than the least there, they diverge.
LEAST_SLOPES, MOST_SLOPES = 8.0, 32.0
ROWS_PER_SLOPE = 32  # that a lane reads
LANES = 2  # of a step, whatever the number of cores, which so changes nothing


class Blocks(NamedTuple):
    """Blocks of text, and which words are near enough to each."""

    words: Int[Tensor, "G C"]
    left: Int[Tensor, "G w"]  # so many words before a word are its context
    right: Int[Tensor, "G w"]  # and so many after it
    noise: Int[Tensor, "G K"]  # words drawn at random
    negatives: int  # that each pair would have drawn

    @property
    def reach(self) -> int:
        """How far a block sees to either side, r."""
        return (self.words.size(1) - self.left.size(1)) // 2

    @property
    def own(self) -> Int[Tensor, "G w"]:
        """The words of each block itself."""
        return self.words[:, self.reach : self.reach + self.left.size(1)]

    @property
    def share(self) -> float:
        """What one of the shared negatives weighs."""
        return self.negatives / self.noise.size(1)

    def parts(self) -> Iterator[tuple[slice, "Blocks"]]:
        """Some blocks at a time, and where they stand."""
        for start in range(0, len(self.words), BLOCKS_AT_ONCE):
            rows = slice(start, start + BLOCKS_AT_ONCE)
            yield rows, self.some(rows)

    def lanes(self) -> Iterator[tuple[slice, "Blocks"]]:
        """The same in few parts, which are about as large."""
        length = max(1, -(-len(self.words) // LANES))
        for start in range(0, len(self.words), length):
            rows = slice(start, start + length)
            yield rows, self.some(rows)

    def some(self, rows: slice) -> "Blocks":
        near = self.left[rows], self.right[rows]
        return Blocks(self.words[rows], *near, self.noise[rows], self.negatives)

    def near(self, dtype: torch.dtype) -> Float[Tensor, "G w C"]:
        """1 where a word of what a block sees is context of one of its own words."""
        w, C = self.left.size(1), self.words.size(1)
        place = torch.arange(C, device=self.words.device)
        away = place - self.reach - place[:w, None]  # (w, C)
        inside = (away >= -self.left.unsqueeze(-1)) & (away <= self.right.unsqueeze(-1))
        return (inside & (away != 0)).to(dtype)


def skipgram_loss(
    inputs: Float[Tensor, "V D"], outputs: Float[Tensor, "V D"], blocks: Blocks, rate: float
) -> Float[Tensor, ""]:
    """Summed over pairs of a word and one of its context, -log p that they are told from noise.

    -log s(x.y) - sum over negatives n of log s(-x.n), where s is the logistic function. The slopes
    are what SGD at this rate has moved the rows by, part after part, divided by the rate.
    """
    read, said = blocks.own, torch.cat([blocks.words, blocks.noise], 1)
    return _loss(_skipgram, inputs, read, outputs, said, blocks, rate)


def cbow_loss(
    inputs: Float[Tensor, "V D"], outputs: Float[Tensor, "V D"], blocks: Blocks, rate: float
) -> Float[Tensor, ""]:
    """The same, summed over words that have a context: its mean in place of the vector x.

    The gradient is that of the mean, as in İrsoy et al. 2021, arxiv.org/abs/2012.15332; the first
    implementations gave each word of the context the whole of it.
    """
    read, said = blocks.words, torch.cat([blocks.own, blocks.noise], 1)
    return _loss(_cbow, inputs, read, outputs, said, blocks, rate)


# the vectors that some blocks read and say, and the factor of slopes -> loss and slopes, if any
Work = Callable[[Tensor, Tensor, "Blocks", float | None], tuple[Tensor, Tensor, Tensor]]


def _loss(
    work: Work,
    inputs: Tensor,
    read: Tensor,
    outputs: Tensor,
    said: Tensor,
    blocks: Blocks,
    rate: float,
) -> Tensor:
    if torch.is_grad_enabled():
        given = work, inputs, read, outputs, said, blocks, rate
        return _WithSlopes.apply(*given)  # type: ignore[no-untyped-call, no-any-return]
    total = inputs.new_zeros(())
    for rows, some in blocks.parts():
        total += work(_rows(inputs, read[rows]), _rows(outputs, said[rows]), some, None)[0]
    return total


def _rows(table: Tensor, index: Tensor) -> Tensor:
    return table.index_select(0, index.flatten()).view(*index.shape, -1)


class _Moved:
    """The rows of a table that a lane reads: it moves a copy of them."""

    def __init__(self, table: Tensor, index: Tensor):
        V, flat = len(table), index.flatten()
        met = torch.zeros(V, dtype=torch.bool, device=table.device)
        self.table, self.rows = table, met.index_fill_(0, flat, True).nonzero().flatten()
        place = torch.empty(V, dtype=torch.int64, device=table.device)
        place[self.rows] = torch.arange(len(self.rows), device=table.device)
        self.index = place[flat].view(index.shape)
        self.values = table.index_select(0, self.rows)

    def move(self, index: Tensor, by: Tensor) -> None:
        """A row with more slopes than the limit moves by the limit times their mean."""
        index, by = index.flatten(), by.flatten(0, -2)
        limit = min(max(len(self.rows) / ROWS_PER_SLOPE, LEAST_SLOPES), MOST_SLOPES)
        times = torch.bincount(index, minlength=len(self.rows)).to(by.dtype)
        by *= (limit / times).clamp_(max=1.0)[index, None]
        self.values.scatter_add_(0, index[:, None].expand_as(by), by)

    def slopes(self, rate: float) -> Tensor:
        return self.table.index_select(0, self.rows).sub_(self.values).div_(rate)


class _WithSlopes(torch.autograd.Function):
    """A loss whose gradients are those of some rows of each table: no (V, D) is ever made."""

    @staticmethod
    def forward(
        ctx: Any,
        work: Work,
        inputs: Tensor,
        read: Tensor,
        outputs: Tensor,
        said: Tensor,
        blocks: Blocks,
        rate: float,
    ) -> Tensor:
        def lane(rows: slice, some: Blocks) -> tuple[Tensor, ...]:
            x, y = _Moved(inputs, read[rows]), _Moved(outputs, said[rows])
            total = inputs.new_zeros(())
            for part, few in some.parts():
                at_x, at_y = x.index[part], y.index[part]
                given = _rows(x.values, at_x), _rows(y.values, at_y)
                loss, d_x, d_y = work(*given, few, -rate)
                x.move(at_x, d_x)
                y.move(at_y, d_y)
                total += loss
            return total, x.rows, x.slopes(rate), y.rows, y.slopes(rate)

        threads = torch.get_num_threads()
        if threads > 1 and inputs.device.type == "cpu":
            torch.set_num_threads(1)
            try:
                found = list(_helpers().map(lane, *zip(*blocks.lanes(), strict=True)))
            finally:
                torch.set_num_threads(threads)
        else:
            found = [lane(*one) for one in blocks.lanes()]
        losses, *others = zip(*found, strict=True)
        ctx.save_for_backward(*map(torch.cat, others))
        ctx.shapes = inputs.shape, outputs.shape
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        scale, found, some = float(gradients[0]), ctx.saved_tensors, []
        for (rows, slopes), shape in zip((found[:2], found[2:]), ctx.shapes, strict=True):
            values = slopes if scale == 1.0 else slopes * scale
            # both lanes may have a row; a sparse tensor is their sum
            index = rows[None]
            some.append(torch.sparse_coo_tensor(index, values, shape, check_invariants=False))
        return None, some[0], None, some[1], None, None, None


@cache
def _helpers() -> ThreadPoolExecutor:
    """A thread for each lane, whose operations are not divided any further."""
    return ThreadPoolExecutor(LANES, "lane", torch.set_num_threads, (1,))


os.register_at_fork(after_in_child=_helpers.cache_clear)  # a child has none of its threads


def _skipgram(
    x: Tensor, y: Tensor, blocks: Blocks, factor: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    near = blocks.near(x.dtype)
    C, K = blocks.words.size(1), blocks.noise.size(1)
    many = near.sum(-1, keepdim=True) * blocks.share
    weights = torch.cat([near, many.expand(-1, -1, K)], -1)  # (G, w, C + K)
    z = x @ y.mT
    loss = (F.softplus(z) * weights).sum() - (z[..., :C] * near).sum()
    if factor is None:
        return loss, x, y
    slope = torch.sigmoid_(z).mul_(weights)
    slope[..., :C] -= near
    slope *= factor
    return loss, slope @ y, slope.mT @ x


def _cbow(
    x: Tensor, y: Tensor, blocks: Blocks, factor: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    near = blocks.near(x.dtype)
    w = near.size(1)
    many = near.sum(-1, keepdim=True)
    mean, some = near / many.clamp(min=1.0), (many > 0).to(x.dtype)
    x, right, wrong = mean @ x, y[:, :w], y[:, w:]  # (G, w, D), (G, w, D), (G, K, D)
    z, z_wrong = (x * right).sum(-1, keepdim=True), x @ wrong.mT
    loss = (F.softplus(-z) * some).sum() + (F.softplus(z_wrong) * some).sum() * blocks.share
    if factor is None:
        return loss, x, y
    slope = torch.sigmoid_(z).sub_(1.0).mul_(some * factor)
    slopes = torch.sigmoid_(z_wrong).mul_(some * (blocks.share * factor))  # (G, w, K)
    d_x = mean.mT @ torch.baddbmm(slope * right, slopes, wrong)
    return loss, d_x, torch.cat([slope * x, slopes.mT @ x], 1)
