"""word2vec: skip-gram and CBOW with negative sampling.

Mikolov et al. 2013, arxiv.org/abs/1310.4546. Text comes in blocks of `w` adjacent words, each with
`r` more words on either side. The words of a block share K negatives, so that the scores are
products of small matrices, and a row of a table is read and written once per block instead of once
per pair (Ji et al. 2016, arxiv.org/abs/1604.04661). The K negatives of a pair are weighted to count
as `negatives`, the number that it would have drawn by itself.

A step is many small SGD steps: a few blocks update the rows that the next few read, as a single
update by the sum of all gradients would overshoot for frequent words. Two lanes of blocks are
computed in parallel, each of which sees the other's updates only after the step.

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

BLOCKS_AT_ONCE = 40  # in a small step
# A row is updated by the sum of its gradients in a small step, but by no more than so many times
# their mean. Of a small vocabulary every row has very many at once: their sums would diverge.
MIN_GRADIENTS, MAX_GRADIENTS = 8.0, 32.0
ROWS_PER_GRADIENT = 32  # that a lane reads
LANES = 2  # of a step, whatever the number of cores, so that results do not depend on it


class Blocks(NamedTuple):
    """Blocks of text, with the context of each word, and negatives."""

    words: Int[Tensor, "G C"]
    left: Int[Tensor, "G w"]  # the number of context words before each word
    right: Int[Tensor, "G w"]  # ... and after it
    noise: Int[Tensor, "G K"]  # the negatives
    negatives: int  # as which they count for each pair

    @property
    def reach(self) -> int:
        """The words on either side of a block, r."""
        return (self.words.size(1) - self.left.size(1)) // 2

    @property
    def own(self) -> Int[Tensor, "G w"]:
        """The words of each block itself."""
        return self.words[:, self.reach : self.reach + self.left.size(1)]

    @property
    def share(self) -> float:
        """The weight of a shared negative."""
        return self.negatives / self.noise.size(1)

    def parts(self) -> Iterator[tuple[slice, "Blocks"]]:
        """Small steps: a few blocks, and where they are."""
        for start in range(0, len(self.words), BLOCKS_AT_ONCE):
            rows = slice(start, start + BLOCKS_AT_ONCE)
            yield rows, self.some(rows)

    def lanes(self) -> Iterator[tuple[slice, "Blocks"]]:
        """A few large parts of about equal sizes."""
        length = max(1, -(-len(self.words) // LANES))
        for start in range(0, len(self.words), length):
            rows = slice(start, start + length)
            yield rows, self.some(rows)

    def some(self, rows: slice) -> "Blocks":
        near = self.left[rows], self.right[rows]
        return Blocks(self.words[rows], *near, self.noise[rows], self.negatives)

    def near(self, dtype: torch.dtype) -> Float[Tensor, "G w C"]:
        """1 where a word that a block sees is in the context of one of its own words."""
        w, C = self.left.size(1), self.words.size(1)
        index = torch.arange(C, device=self.words.device)
        offset = index - self.reach - index[:w, None]  # (w, C)
        inside = (offset >= -self.left.unsqueeze(-1)) & (offset <= self.right.unsqueeze(-1))
        return (inside & (offset != 0)).to(dtype)


def skipgram_loss(
    inputs: Float[Tensor, "V D"], outputs: Float[Tensor, "V D"], blocks: Blocks, rate: float
) -> Float[Tensor, ""]:
    """The negative-sampling loss, summed over pairs of a word and one of its context.

    -log s(x.y) - sum over negatives n of log s(-x.n), where s is the logistic function. The
    gradient is the sum of the updates by SGD at this rate, divided by the rate.
    """
    x_ids, y_ids = blocks.own, torch.cat([blocks.words, blocks.noise], 1)
    return _loss(_skipgram, inputs, x_ids, outputs, y_ids, blocks, rate)


def cbow_loss(
    inputs: Float[Tensor, "V D"], outputs: Float[Tensor, "V D"], blocks: Blocks, rate: float
) -> Float[Tensor, ""]:
    """The same, summed over words with a context, whose mean is x.

    The gradient is that of the mean, as in İrsoy et al. 2021, arxiv.org/abs/2012.15332; the first
    implementations gave each word of the context the full gradient.
    """
    x_ids, y_ids = blocks.words, torch.cat([blocks.own, blocks.noise], 1)
    return _loss(_cbow, inputs, x_ids, outputs, y_ids, blocks, rate)


# (x, y, blocks, factor) -> the loss, and the gradients of x and y times the factor, if there is one
Objective = Callable[[Tensor, Tensor, "Blocks", float | None], tuple[Tensor, Tensor, Tensor]]


def _loss(
    objective: Objective,
    inputs: Tensor,
    x_ids: Tensor,
    outputs: Tensor,
    y_ids: Tensor,
    blocks: Blocks,
    rate: float,
) -> Tensor:
    if torch.is_grad_enabled():
        arguments = objective, inputs, x_ids, outputs, y_ids, blocks, rate
        return _SmallSteps.apply(*arguments)  # type: ignore[no-untyped-call, no-any-return]
    total = inputs.new_zeros(())
    for rows, part in blocks.parts():
        total += objective(_rows(inputs, x_ids[rows]), _rows(outputs, y_ids[rows]), part, None)[0]
    return total


def _rows(table: Tensor, index: Tensor) -> Tensor:
    return table.index_select(0, index.flatten()).view(*index.shape, -1)


class _UpdatedRows:
    """A copy of the rows of a table that a lane reads, which it updates."""

    def __init__(self, table: Tensor, index: Tensor):
        V, flat = len(table), index.flatten()
        used = torch.zeros(V, dtype=torch.bool, device=table.device)
        self.table, self.rows = table, used.index_fill_(0, flat, True).nonzero().flatten()
        row_of = torch.empty(V, dtype=torch.int64, device=table.device)
        row_of[self.rows] = torch.arange(len(self.rows), device=table.device)
        self.index = row_of[flat].view(index.shape)
        self.values = table.index_select(0, self.rows)

    def update(self, index: Tensor, by: Tensor) -> None:
        """Add updates to rows: for each their sum, but at most the limit times the mean."""
        index, by = index.flatten(), by.flatten(0, -2)
        limit = min(max(len(self.rows) / ROWS_PER_GRADIENT, MIN_GRADIENTS), MAX_GRADIENTS)
        times = torch.bincount(index, minlength=len(self.rows)).to(by.dtype)
        by *= (limit / times).clamp_(max=1.0)[index, None]
        self.values.scatter_add_(0, index[:, None].expand_as(by), by)

    def gradients(self, rate: float) -> Tensor:
        return self.table.index_select(0, self.rows).sub_(self.values).div_(rate)


class _SmallSteps(torch.autograd.Function):
    """A loss with sparse gradients of the tables."""

    @staticmethod
    def forward(
        ctx: Any,
        objective: Objective,
        inputs: Tensor,
        x_ids: Tensor,
        outputs: Tensor,
        y_ids: Tensor,
        blocks: Blocks,
        rate: float,
    ) -> Tensor:
        def lane(rows: slice, of_lane: Blocks) -> tuple[Tensor, ...]:
            x, y = _UpdatedRows(inputs, x_ids[rows]), _UpdatedRows(outputs, y_ids[rows])
            total = inputs.new_zeros(())
            for part, of_part in of_lane.parts():
                at_x, at_y = x.index[part], y.index[part]
                vectors = _rows(x.values, at_x), _rows(y.values, at_y)
                loss, d_x, d_y = objective(*vectors, of_part, -rate)
                x.update(at_x, d_x)
                y.update(at_y, d_y)
                total += loss
            return total, x.rows, x.gradients(rate), y.rows, y.gradients(rate)

        threads = torch.get_num_threads()
        if threads > 1 and inputs.device.type == "cpu":
            torch.set_num_threads(1)
            try:
                results = list(_lane_threads().map(lane, *zip(*blocks.lanes(), strict=True)))
            finally:
                torch.set_num_threads(threads)
        else:
            results = [lane(*part) for part in blocks.lanes()]
        losses, *gradients = zip(*results, strict=True)
        ctx.save_for_backward(*map(torch.cat, gradients))
        ctx.shapes = inputs.shape, outputs.shape
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        scale, saved, sparse = float(gradients[0]), ctx.saved_tensors, []
        for (rows, of_rows), shape in zip((saved[:2], saved[2:]), ctx.shapes, strict=True):
            values = of_rows if scale == 1.0 else of_rows * scale
            # a row may be in both lanes; a sparse tensor is their sum
            index = rows[None]
            sparse.append(torch.sparse_coo_tensor(index, values, shape, check_invariants=False))
        return None, sparse[0], None, sparse[1], None, None, None


@cache
def _lane_threads() -> ThreadPoolExecutor:
    """A thread for each lane, with single-threaded operations."""
    return ThreadPoolExecutor(LANES, "lane", torch.set_num_threads, (1,))


os.register_at_fork(after_in_child=_lane_threads.cache_clear)  # a child has no threads


def _skipgram(
    x: Tensor, y: Tensor, blocks: Blocks, factor: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    near = blocks.near(x.dtype)
    C, K = blocks.words.size(1), blocks.noise.size(1)
    of_noise = near.sum(-1, keepdim=True) * blocks.share
    weights = torch.cat([near, of_noise.expand(-1, -1, K)], -1)  # (G, w, C + K)
    z = x @ y.mT
    loss = (F.softplus(z) * weights).sum() - (z[..., :C] * near).sum()
    if factor is None:
        return loss, x, y
    d_z = torch.sigmoid_(z).mul_(weights)
    d_z[..., :C] -= near
    d_z *= factor
    return loss, d_z @ y, d_z.mT @ x


def _cbow(
    x: Tensor, y: Tensor, blocks: Blocks, factor: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    near = blocks.near(x.dtype)
    w = near.size(1)
    count = near.sum(-1, keepdim=True)
    mean, has_context = near / count.clamp(min=1.0), (count > 0).to(x.dtype)
    x, gold, noise = mean @ x, y[:, :w], y[:, w:]  # (G, w, D), (G, w, D), (G, K, D)
    z, z_noise = (x * gold).sum(-1, keepdim=True), x @ noise.mT
    loss = (F.softplus(-z) * has_context).sum()
    loss += (F.softplus(z_noise) * has_context).sum() * blocks.share
    if factor is None:
        return loss, x, y
    d_z = torch.sigmoid_(z).sub_(1.0).mul_(has_context * factor)
    d_noise = torch.sigmoid_(z_noise).mul_(has_context * (blocks.share * factor))  # (G, w, K)
    d_x = mean.mT @ torch.baddbmm(d_z * gold, d_noise, noise)
    return loss, d_x, torch.cat([d_z * x, d_noise.mT @ x], 1)
