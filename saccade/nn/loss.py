"""Cross-entropy of a large output layer, without materialising all its logits.

Rows are projected, normalised and differentiated in chunks of some megabytes; the gradients are
ready when the forward pass ends. A loss is a sum and a count: the caller divides by the global
count.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from saccade.nn.products import Linear, linear, times, transposed_times


@dataclass(frozen=True, slots=True)
class Loss:
    """Summed over real positions: `sum` has the gradient, `nll` is -log p alone."""

    sum: Tensor
    nll: Tensor
    count: int  # of the positions


def label_loss(
    logits: Float[Tensor, "N labels"], gold: Int[Tensor, "N"], smoothing: float = 0.0
) -> Loss:
    """The summed cross-entropy of rows of logits."""
    logits = logits.float()
    total = F.cross_entropy(logits, gold, reduction="sum", label_smoothing=smoothing)
    nll = total if smoothing == 0.0 else F.cross_entropy(logits, gold, reduction="sum")
    return Loss(total, nll.detach(), gold.numel())


def rdrop_loss(
    one: Float[Tensor, "N V"],
    other: Float[Tensor, "N V"],
    gold: Int[Tensor, "N"],
    smoothing: float,
    weight: float,
) -> Loss:
    """The mean loss of two passes, and the divergence of their outputs.

    (CE(p) + CE(q)) / 2 + weight (KL(p, q) + KL(q, p)) / 4
    Liang et al. 2021, arxiv.org/abs/2106.14448, whose loss is twice this.
    """
    first, second = label_loss(one, gold, smoothing), label_loss(other, gold, smoothing)
    log_p, log_q = one.float().log_softmax(-1), other.float().log_softmax(-1)
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum()
    total = (first.sum + second.sum) / 2 + weight * divergence / 4
    return Loss(total, (first.nll + second.nll) / 2, first.count)


CHUNK_LOGITS = 1 << 22  # 16 MB: with smaller chunks, adding to the gradient costs more


class Vocabulary(Linear):
    """The output layer of a vocabulary, with its loss     (V, D), (V)"""

    def loss(
        self, hidden: Float[Tensor, "N D"], targets: Int[Tensor, "N"], smoothing: float = 0.0
    ) -> Loss:
        """The loss of one token for each row."""
        sums = projected_cross_entropy(hidden, self.weight, self.bias, targets, smoothing)
        return Loss(*sums, targets.numel())


def projected_cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    targets: Int[Tensor, "N"],
    smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Sums over rows of the (smoothed) cross-entropy, and of -log p(target), which has no gradient.

    Smoothing spreads its share evenly over the vocabulary, as torch's `label_smoothing` does.
    """
    if torch.is_grad_enabled():
        inputs = hidden, weight, bias, targets, smoothing
        loss, nll = _Projected.apply(*inputs)  # type: ignore[no-untyped-call]
        return loss, nll
    return _sums(hidden, weight, bias, targets, smoothing)


def _sums(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """The same without gradients."""
    nll = hidden.new_zeros((), dtype=torch.float32)
    total = torch.zeros_like(nll)  # of the log-probabilities' means
    for rows in _chunks(hidden, weight):
        log_p = linear(hidden[rows], weight, bias).float().log_softmax(-1)
        nll -= log_p.gather(1, targets[rows, None]).sum()
        total += log_p.mean(-1).sum() if smoothing else 0.0
    return (1 - smoothing) * nll - smoothing * total, nll


def projected_log_probs(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    targets: Int[Tensor, "N"],
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
    """For each row the log-probability of its target, and the mean over all tokens.

    More logits than a chunk are recomputed for the gradient, and never all in memory.
    """
    chunks = _chunks(hidden, weight)
    if len(chunks) == 1:
        return _log_probs(hidden, weight, bias, targets)
    parts = [
        checkpoint(_log_probs, hidden[rows], weight, bias, targets[rows], use_reentrant=False)
        for rows in chunks
    ]
    gold, means = zip(*parts, strict=True)
    return torch.cat(gold), torch.cat(means)


def _log_probs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> tuple[Tensor, Tensor]:
    log_p = linear(hidden, weight, bias).float().log_softmax(-1)
    return log_p.gather(1, targets[:, None])[:, 0], log_p.mean(-1)


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    step = max(64, CHUNK_LOGITS // weight.size(0))
    return [slice(i, i + step) for i in range(0, hidden.size(0), step)]


class _Projected(torch.autograd.Function):
    """Loss and gradients of an output layer in one pass over its logits z.

    With p = softmax(z), a target t and smoothing e over V tokens, the loss of a row is
    (1 - e) (lse z - z_t) + e (lse z - mean z), and its gradient p - (1 - e) onehot(t) - e / V.
    The terms that all tokens share, mean z and e / V, are computed from sums of the weights and of
    the rows, and not added to the logits. The weights and their gradient are in single precision,
    whatever the network computes in.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        dtype, share = hidden.dtype, smoothing / weight.size(0)
        cast, cast_bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        nll = hidden.new_zeros((), dtype=torch.float32)
        total = torch.zeros_like(nll)  # of lse z
        d_hidden = torch.empty_like(hidden)
        _, of_weight, of_bias, *_ = ctx.needs_input_grad  # a frozen layer has no gradient
        d_weight = torch.zeros_like(weight) if of_weight else None
        d_bias = torch.zeros_like(bias) if bias is not None and of_bias else None
        for rows in _chunks(hidden, weight):
            x, gold = hidden[rows], targets[rows, None]
            z = linear(x, cast, cast_bias)  # (n, V)
            p = z.softmax(-1, dtype=torch.float32)
            lse = z.amax(-1).float() - p.amax(-1).log()  # by the likeliest, whose p is not 0
            nll += (lse - z.gather(1, gold).squeeze(1)).sum()
            total += lse.sum()
            d_z = p.scatter_add_(1, gold, p.new_full(gold.shape, smoothing - 1.0)).to(dtype)
            d_hidden[rows] = times(d_z, cast)
            if d_weight is not None:
                d_weight += transposed_times(d_z, x)
            if d_bias is not None:
                d_bias += d_z.sum(0, dtype=d_bias.dtype)
        loss = (1 - smoothing) * nll
        if smoothing:
            summed = hidden.sum(0, dtype=weight.dtype)  # (D,)
            mean = summed @ weight.mean(0)
            d_hidden -= (share * weight.sum(0)).to(dtype)
            if d_weight is not None:
                d_weight -= share * summed
            if bias is not None:
                mean = mean + hidden.size(0) * bias.mean()
            if d_bias is not None:
                d_bias -= share * hidden.size(0)
            loss = loss + smoothing * (total - mean)
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0]
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        weight, bias = (None if d is None else d * scale for d in (d_weight, d_bias))
        return d_hidden * scale.to(d_hidden.dtype), weight, bias, None, None
