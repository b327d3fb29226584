"""Cross-entropy of a large output layer, without ever holding all its logits.

Rows are projected, normalised and differentiated in chunks of some megabytes; the gradients are
ready when the forward pass ends. A loss is a sum and a count: who calls divides by the global
count.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from saccade.nn.padded import Padded


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
    total = F.cross_entropy(logits, gold, reduction="sum", label_smoothing=smoothing)
    nll = total if smoothing == 0.0 else F.cross_entropy(logits, gold, reduction="sum")
    return Loss(total, nll.detach(), gold.numel())


CHUNK_LOGITS = 1 << 23  # at once, 32 MB: smaller chunks pay more for the gradient they add to


def projected_loss(
    hidden: Float[Tensor, "B T D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    targets: Padded,
    smoothing: float = 0.0,
) -> Loss:
    """The loss of an output layer over the real positions of `targets`."""
    loss, nll = projected_cross_entropy(
        targets.real(hidden), weight, bias, targets.real(targets.values), smoothing
    )
    return Loss(loss, nll, targets.count)


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
    loss = hidden.new_zeros((), dtype=torch.float32)
    nll = torch.zeros_like(loss)
    for rows in _chunks(hidden, weight):
        log_p = F.linear(hidden[rows], weight, bias).float().log_softmax(-1)
        chosen = -log_p.gather(1, targets[rows, None]).sum()
        nll += chosen
        loss += (1 - smoothing) * chosen - (smoothing * log_p.mean(-1).sum() if smoothing else 0.0)
    return loss, nll


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    step = max(64, CHUNK_LOGITS // weight.size(0))
    return [slice(i, i + step) for i in range(0, hidden.size(0), step)]


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        loss = hidden.new_zeros((), dtype=torch.float32)
        nll = torch.zeros_like(loss)
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight)
        d_bias = None if bias is None else torch.zeros_like(bias)
        for rows in _chunks(hidden, weight):
            some, chosen = hidden[rows], targets[rows, None]
            log_p = F.linear(some, weight, bias).float().log_softmax(-1)  # (n, V)
            nll_here = -log_p.gather(1, chosen).sum()
            nll += nll_here
            loss += (1 - smoothing) * nll_here
            if smoothing:
                loss -= smoothing * log_p.mean(-1).sum()
            slope = log_p.exp_()  # p - (1 - e) onehot - e/V, in place
            slope.scatter_add_(1, chosen, slope.new_full(chosen.shape, smoothing - 1.0))
            if smoothing:
                slope -= smoothing / weight.size(0)
            slope = slope.to(hidden.dtype)
            torch.mm(slope, weight.to(hidden.dtype), out=d_hidden[rows])
            d_weight.addmm_(slope.T.to(weight.dtype), some.to(weight.dtype))
            if d_bias is not None:
                d_bias += slope.sum(0)
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0]
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        bias = None if d_bias is None else d_bias * scale
        return d_hidden * scale, d_weight * scale, bias, None, None
