"""word2vec: a word's vector is good if it tells the words around it from words drawn at random.

Mikolov et al. 2013, arxiv.org/abs/1310.4546. Text comes in blocks of `w` words side by side, each
with `r` more words on either side. The words of a block share K negatives, so that all there is to
compare are products of small matrices, and a row of a table is read and written once for a block
and not once for each pair (Ji et al. 2016, arxiv.org/abs/1604.04661). Each pair weighs its K
negatives as `negatives` of them, which is what it would have drawn for itself.

G blocks, w words of a block, C = r + w + r words that a block sees, K negatives, V words, D width.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

BLOCKS_AT_ONCE = 64  # so that what they are compared with stays in a core's cache


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
            near = self.left[rows], self.right[rows]
            yield rows, Blocks(self.words[rows], *near, self.noise[rows], self.negatives)

    def near(self, dtype: torch.dtype) -> Float[Tensor, "G w C"]:
        """1 where a word of what a block sees is context of one of its own words."""
        w, C = self.left.size(1), self.words.size(1)
        place = torch.arange(C, device=self.words.device)
        away = place - self.reach - place[:w, None]  # (w, C)
        inside = (away >= -self.left.unsqueeze(-1)) & (away <= self.right.unsqueeze(-1))
        return (inside & (away != 0)).to(dtype)


def skipgram_loss(
    inputs: Float[Tensor, "V D"], outputs: Float[Tensor, "V D"], blocks: Blocks
) -> Float[Tensor, ""]:
    """Summed over pairs of a word and one of its context, -log p that they are told from noise.

    -log s(x.y) - sum over negatives n of log s(-x.n), where s is the logistic function.
    """
    read, said = blocks.own, torch.cat([blocks.words, blocks.noise], 1)
    return _loss(_skipgram, inputs, read, outputs, said, blocks)


def cbow_loss(
    inputs: Float[Tensor, "V D"], outputs: Float[Tensor, "V D"], blocks: Blocks
) -> Float[Tensor, ""]:
    """The same, summed over words that have a context: its mean in place of the vector x.

    The gradient is that of the mean, as in İrsoy et al. 2021, arxiv.org/abs/2012.15332; the first
    implementations gave each word of the context the whole of it.
    """
    read, said = blocks.words, torch.cat([blocks.own, blocks.noise], 1)
    return _loss(_cbow, inputs, read, outputs, said, blocks)


# the vectors that some blocks read and say, and where to write their slopes, if anywhere -> loss
Work = Callable[[Tensor, Tensor, "Blocks", Tensor | None, Tensor | None], Tensor]


def _loss(
    work: Work, inputs: Tensor, read: Tensor, outputs: Tensor, said: Tensor, blocks: Blocks
) -> Tensor:
    if torch.is_grad_enabled():
        given = work, inputs, read, outputs, said, blocks
        return _WithSlopes.apply(*given)  # type: ignore[no-untyped-call, no-any-return]
    total = inputs.new_zeros(())
    for rows, some in blocks.parts():
        total += work(_rows(inputs, read[rows]), _rows(outputs, said[rows]), some, None, None)
    return total


def _rows(table: Tensor, index: Tensor) -> Tensor:
    return table.index_select(0, index.flatten()).view(*index.shape, -1)


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
    ) -> Tensor:
        d_inputs = inputs.new_empty(*read.shape, inputs.size(1))
        d_outputs = outputs.new_empty(*said.shape, outputs.size(1))
        total = inputs.new_zeros(())
        for rows, some in blocks.parts():
            x, y = _rows(inputs, read[rows]), _rows(outputs, said[rows])
            total += work(x, y, some, d_inputs[rows], d_outputs[rows])
        ctx.save_for_backward(read, d_inputs, said, d_outputs)
        ctx.shapes = inputs.shape, outputs.shape
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        scale, found, some = float(gradients[0]), ctx.saved_tensors, []
        for (rows, slopes), shape in zip((found[:2], found[2:]), ctx.shapes, strict=True):
            flat = slopes.flatten(0, 1) if scale == 1.0 else slopes.flatten(0, 1) * scale
            # a row may come several times; a sparse tensor is their sum
            index = rows.reshape(1, -1)
            some.append(torch.sparse_coo_tensor(index, flat, shape, check_invariants=False))
        return None, some[0], None, some[1], None, None


def _skipgram(
    x: Tensor, y: Tensor, blocks: Blocks, d_x: Tensor | None, d_y: Tensor | None
) -> Tensor:
    near = blocks.near(x.dtype)
    C, K = blocks.words.size(1), blocks.noise.size(1)
    many = near.sum(-1, keepdim=True) * blocks.share
    weights = torch.cat([near, many.expand(-1, -1, K)], -1)  # (G, w, C + K)
    z = x @ y.mT
    loss = (F.softplus(z) * weights).sum() - (z[..., :C] * near).sum()
    if d_x is not None and d_y is not None:
        slope = torch.sigmoid_(z).mul_(weights)
        slope[..., :C] -= near
        torch.bmm(slope, y, out=d_x)
        torch.bmm(slope.mT, x, out=d_y)
    return loss


def _cbow(x: Tensor, y: Tensor, blocks: Blocks, d_x: Tensor | None, d_y: Tensor | None) -> Tensor:
    near = blocks.near(x.dtype)
    w = near.size(1)
    many = near.sum(-1, keepdim=True)
    mean, some = near / many.clamp(min=1.0), (many > 0).to(x.dtype)
    x, right, wrong = mean @ x, y[:, :w], y[:, w:]  # (G, w, D), (G, w, D), (G, K, D)
    z, z_wrong = (x * right).sum(-1, keepdim=True), x @ wrong.mT
    loss = (F.softplus(-z) * some).sum() + (F.softplus(z_wrong) * some).sum() * blocks.share
    if d_x is not None and d_y is not None:
        slope = torch.sigmoid_(z).sub_(1.0).mul_(some)
        slopes = torch.sigmoid_(z_wrong).mul_(some * blocks.share)  # (G, w, K)
        torch.bmm(mean.mT, torch.baddbmm(slope * right, slopes, wrong), out=d_x)
        torch.mul(slope, x, out=d_y[:, :w])
        d_y[:, w:] = slopes.mT @ x
    return loss
