"""Optimisers, schedules, clipping, and the moving average of weights."""

from collections.abc import Iterable, Sequence
from math import cos, pi, sqrt
from typing import Any

import torch
from torch import Tensor

from saccade import config as c
from saccade.distributed.ranks import Ranks, local
from saccade.training.tune import Group


def build_optimizer(trainable: Sequence[Group], train: c.Train) -> torch.optim.Optimizer:
    """The optimiser, with weight decay on matrices only; `scale` multiplies the rate."""
    groups = []
    for parameters, scale, _ in trainable:
        matrices = [p for p in parameters if p.dim() > 1]
        others = [p for p in parameters if p.dim() <= 1]
        groups += [
            {"params": matrices, "weight_decay": train.weight_decay, "scale": scale},
            {"params": others, "weight_decay": 0.0, "scale": scale},
        ]
    first, *others = [p for group in trainable for p in group.parameters]
    # fused and foreach kernels need all tensors to be sharded over one mesh, or none
    uniform = all(getattr(p, "device_mesh", 0) == getattr(first, "device_mesh", 0) for p in others)
    fused, foreach = uniform and first.device.type in ("cpu", "cuda"), None if uniform else False
    match train.optimizer:
        case "adamw":
            kernels: dict[str, Any] = {"fused": fused, "foreach": foreach}
            return torch.optim.AdamW(groups, lr=train.rate, betas=train.betas, eps=1e-9, **kernels)
        case "sgd":
            sharded = hasattr(first, "device_mesh")  # torch's fused SGD has no DTensors
            kernels = {"fused": fused and not sharded, "foreach": foreach}
            return torch.optim.SGD(groups, lr=train.rate, momentum=train.momentum, **kernels)
        case "sparse":
            return RowSGD(groups, train.rate)


def rate_at(train: c.Train, step: int, progress: float, plateau: float) -> float:
    """The learning rate of step 1, 2, ...; `progress` towards the end fits it to any limit.

    The warm-up never takes more than a tenth of the run. `plateau` is a factor, halved by
    evaluations without improvement.
    """
    warm = min(1.0, max(step / max(train.warmup, 1), progress / 0.1))
    match train.schedule:
        case "constant":
            return train.rate * warm
        case "noam":  # inverse square root; the peak is `rate`, at the end of the warm-up
            return train.rate * min(warm, sqrt(max(train.warmup, 1) / step))
        case "cosine":
            return train.rate * min(warm, 0.01 + 0.99 * 0.5 * (1 + cos(pi * min(progress, 1.0))))
        case "linear":
            return train.rate * min(warm, 1.0 - min(progress, 1.0))
        case "plateau":
            return train.rate * warm * plateau


def scale_gradients(
    parameters: Iterable[Tensor], count: float, clip: float, ranks: Ranks | None = None
) -> Tensor:
    """Divide summed gradients by `count`, clip them to a norm; return the norm before clipping.

    Sparse ones stay sums, as each pair of words is a step of its own in word2vec; their norm is
    that of the rows before duplicates are summed.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if any(gradient.is_sparse for gradient in gradients):
        return torch.nn.utils.get_total_norm([gradient._values() for gradient in gradients])
    if ranks is not None and ranks.lockstep:  # they may be sharded
        norm = ranks.gradient_norm(gradients) / count
        gradients = [local(gradient) for gradient in gradients]
    else:
        norm = torch.nn.utils.get_total_norm(gradients) / count
    factor = torch.clamp(clip / (norm + 1e-6), max=1.0) if clip else torch.ones_like(norm)
    torch._foreach_mul_(gradients, factor / count)
    return norm


class RowSGD(torch.optim.Optimizer):
    """SGD for sparse gradients, which are sums."""

    def __init__(self, groups: list[dict[str, Any]], rate: float):
        super().__init__(groups, {"lr": rate})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None:
                    table.add_(table.grad, alpha=-group["lr"])


class MovingAverage:
    """An exponential moving average of the weights: smoother than the last step's."""

    def __init__(self, parameters: list[Tensor], decay: float):
        self.decay = decay
        self.parameters = parameters
        self.sharded = any(hasattr(p, "to_local") for p in parameters)
        self.weights = [part.clone() for part in self.local_parameters()]

    def local_parameters(self) -> list[Tensor]:
        """The parameters, or this rank's shards of them."""
        if not self.sharded:
            return [p.detach() for p in self.parameters]
        return [local(p.detach()) for p in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))  # the first steps are forgotten soon
        torch._foreach_lerp_(self.weights, self.local_parameters(), 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the average and the weights; its own inverse."""
        for average, weight in zip(self.weights, self.local_parameters(), strict=True):
            previous = weight.clone()
            weight.copy_(average)
            average.copy_(previous)
