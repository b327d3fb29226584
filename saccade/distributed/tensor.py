"""Tensor parallelism: the heads, feed-forward layers and vocabulary of a Transformer, in parts.

Shoeybi et al. 2019, arxiv.org/abs/1909.08053; norms and residuals by position, Korthikanti et al.
2022, arxiv.org/abs/2205.05198. A plan for torch's `parallelize_module`: each style below takes a
module as it is and gives it a part of its weights. The weights are DTensors, so that everybody
knows their whole; products see the part that is here.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from saccade import config as c
from saccade.distributed.ranks import local
from saccade.errors import ConfigError
from saccade.nn.attention import CrossAttention, SelfAttention
from saccade.nn.loss import CHUNK_LOGITS, Loss, Vocabulary
from saccade.nn.precision import computed
from saccade.nn.products import linear, times, transposed_times
from saccade.nn.stems import Embedding
from saccade.nn.transformer import GATED, FeedForward, Stack

REPLICATED, SUMMED, BY_POSITION = [Replicate()], [Partial()], [Shard(1)]


def apply_tensor(network: nn.Module, mesh: DeviceMesh, sequence: bool) -> None:
    """Give this process its part of a network, in place."""
    for stack in [module for module in network.modules() if isinstance(module, Stack)]:
        positions = Positions(stack, mesh) if sequence else None
        for block in stack.blocks:
            parallelize_module(block, mesh, plan_of(block, positions))
        if positions is not None:
            parallelize_module(stack.norm, mesh, PartNorm(positions))
            stack.norm.register_forward_hook(lambda _, __, y, p=positions: p.join(y))
    for table in {id(m.weight): m for m in network.modules() if isinstance(m, Vocabulary)}.values():
        share_vocabulary(network, table, mesh)


def plan_of(block: nn.Module, positions: "Positions | None") -> dict[str, ParallelStyle]:
    """The style of each part of a block."""
    plan: dict[str, ParallelStyle] = {}
    for name, module in block.named_children():
        if isinstance(module, SelfAttention | CrossAttention | FeedForward):
            plan[name] = Enter(positions)
            for inner, _ in module.named_children():
                plan[f"{name}.{inner}"] = Rows(positions) if inner in ("out", "down") else Columns()
            if isinstance(module, FeedForward) and module.activation in GATED:
                plan[f"{name}.up"] = GatedColumns()
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm) and positions is not None:
            plan[name] = PartNorm(positions)
    return plan


def check_tensor(config: c.Config, width: int) -> None:
    """ConfigError where a network cannot be divided among so many."""
    parts = {"encoder": config.encoder, "decoder": config.decoder}
    found = {name: part for name, part in parts.items() if isinstance(part, c.Transformer)}
    if not found:
        raise ConfigError(
            "parallel: tensor is for Transformers: set it to 1, and use data or shard"
        )
    for name, part in found.items():
        sizes = {"num_heads": part.num_heads, "ff_dim": part.ff_dim}
        if part.num_kv_heads:
            sizes["num_kv_heads"] = part.num_kv_heads
        for key, size in sizes.items():
            if size % width:
                raise ConfigError(
                    f"parallel: tensor ({width}) does not divide {name}.{key} ({size}): choose a "
                    "tensor that does"
                )
        if part.positions == "relative":
            raise ConfigError(
                f"parallel: tensor: {name}.positions 'relative' is not divided: use 1"
            )
        if config.parallel.sequence and (part.dropout or part.attention_dropout):
            raise ConfigError(
                f"parallel: sequence needs {name}.dropout = 0: positions are in parts"
            )
    if config.decoder is not None and config.decoder.copies:
        raise ConfigError("parallel: tensor must be 1 with decoder.copy: all need the vocabulary")
    if isinstance(config.start, c.LowRank):
        raise ConfigError("parallel: tensor: start.kind 'lora' is not divided: set tensor to 1")


# --- between the whole and the parts --------------------------------------------------------------


def enter(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """What all have, for a computation in parts: its gradient is the sum of theirs."""
    whole = DTensor.from_local(x, mesh, REPLICATED, run_check=False)
    return whole.to_local(grad_placements=SUMMED)


def summed(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """The sum of what each has, for all."""
    parts = DTensor.from_local(x, mesh, SUMMED, run_check=False)
    return parts.redistribute(placements=REPLICATED).to_local()


class Positions:
    """Between blocks every process has some positions of all rows, and all of them inside.

    Their number is that of the forward pass at hand.
    """

    def __init__(self, stack: Stack, mesh: DeviceMesh):
        self.mesh, self.number = mesh, 0
        begin = stack.start

        def start(*arguments: Any) -> Tensor:
            return self.split(begin(*arguments))

        stack.start = start  # type: ignore[method-assign, assignment]

    def _spread(self, x: Tensor) -> DTensor:
        shape = torch.Size((x.size(0), self.number, *x.shape[2:]))
        strides = torch.empty(shape, device="meta").stride()
        options: Any = {"run_check": False, "shape": shape, "stride": strides}
        return DTensor.from_local(x.contiguous(), self.mesh, BY_POSITION, **options)

    def split(self, x: Tensor) -> Tensor:
        self.number = x.size(1)
        whole = DTensor.from_local(x, self.mesh, REPLICATED, run_check=False)
        return whole.redistribute(placements=BY_POSITION).to_local()

    def join(self, x: Tensor) -> Tensor:
        """All positions, for what all do alike."""
        return self._spread(x).redistribute(placements=REPLICATED).to_local()

    def enter(self, x: Tensor) -> Tensor:
        """All positions, for a computation in parts."""
        whole = self._spread(x).redistribute(placements=REPLICATED)
        return whole.to_local(grad_placements=SUMMED)

    def summed(self, x: Tensor) -> Tensor:
        """The positions that are here, of the sum of what each has."""
        parts = DTensor.from_local(x, self.mesh, SUMMED, run_check=False)
        return parts.redistribute(placements=BY_POSITION).to_local()


# --- styles ---------------------------------------------------------------------------------------


def shard(module: nn.Module, name: str, mesh: DeviceMesh, dim: int) -> None:
    """Keep of a parameter the part that is this process's; all have the same one before."""
    whole = getattr(module, name)
    if whole is not None:
        part = distribute_tensor(whole.detach(), mesh, [Shard(dim)], src_data_rank=None)
        setattr(module, name, nn.Parameter(part, requires_grad=whole.requires_grad))


def replace_forward(module: nn.Module, forward: Callable[[Tensor], Tensor]) -> None:
    """Let a module compute otherwise; its hooks and its name stay."""
    module.forward = forward


class Enter(ParallelStyle):
    """Attention or a feed-forward network: what it reads is about to be computed on in parts."""

    def __init__(self, positions: Positions | None):
        super().__init__()
        self.positions = positions

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        begin = partial(enter, mesh=device_mesh)
        first = begin if self.positions is None else self.positions.enter

        def hook(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            x, *others = arguments
            if isinstance(module, CrossAttention) and isinstance(others[0], Tensor):
                others[0] = begin(others[0])  # a memory has all its positions
            return (first(x), *others)

        module.register_forward_pre_hook(hook)
        return module


class Columns(ParallelStyle):
    """A linear layer of which each has some outputs: those of its heads."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Linear)
        for name in ("weight", "bias"):
            shard(module, name, device_mesh, 0)

        def forward(x: Tensor) -> Tensor:
            return linear(x, local(module.weight), _local(module.bias))

        replace_forward(module, forward)
        return module


class GatedColumns(ParallelStyle):
    """The same where outputs are gates, then what they let through: each has some of both.

    They are not one block of rows, so that everybody keeps all weights and computes with some.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Linear)
        width, own = device_mesh.size(), device_mesh.get_local_rank()
        some = torch.arange(module.out_features).view(2, width, -1)[:, own].flatten()

        def forward(x: Tensor) -> Tensor:
            rows = some.to(x.device)
            bias = None if module.bias is None else enter(module.bias, device_mesh)[rows]
            return linear(x, enter(module.weight, device_mesh)[rows], bias)

        replace_forward(module, forward)
        return module


class Rows(ParallelStyle):
    """A linear layer of which each has some inputs; the outputs are summed."""

    def __init__(self, positions: Positions | None):
        super().__init__()
        self.positions = positions

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Linear)
        shard(module, "weight", device_mesh, 1)
        by_position = self.positions

        def forward(x: Tensor) -> Tensor:
            part, bias = linear(x, local(module.weight)), getattr(module, "bias", None)
            y = summed(part, device_mesh) if by_position is None else by_position.summed(part)
            if bias is None:
                return y
            return y + (bias if by_position is None else enter(bias, device_mesh))

        replace_forward(module, forward)
        return module


class PartNorm(ParallelStyle):
    """A norm of the positions that are here: its weights' gradients are summed over all."""

    def __init__(self, positions: Positions):
        super().__init__()
        self.positions = positions

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, nn.LayerNorm | nn.RMSNorm):
            return module  # with post-norm a stack has none at its end

        norm: Any = module

        def forward(x: Tensor) -> Tensor:
            weight, size = enter(norm.weight, device_mesh), list(norm.normalized_shape)
            if isinstance(norm, nn.RMSNorm):
                return F.rms_norm(x, size, weight, norm.eps)
            return F.layer_norm(x, size, weight, enter(norm.bias, device_mesh), norm.eps)

        replace_forward(module, forward)
        return module


# --- the vocabulary -------------------------------------------------------------------------------


def share_vocabulary(network: nn.Module, output: Vocabulary, mesh: DeviceMesh) -> None:
    """Give each process some tokens of an output layer, and of the tables it is tied to."""
    whole, size = output.weight, output.out_features
    for name in ("weight", "bias"):
        shard(output, name, mesh, 0)
    step = -(-size // mesh.size())
    first = min(step * mesh.get_local_rank(), size)
    for module in network.modules():
        if module is output or getattr(module, "weight", None) is not whole:
            continue
        module.weight = output.weight
        if isinstance(module, Embedding):
            _share_table(module, mesh, first)
        elif isinstance(module, Vocabulary):
            _share_output(module, mesh, first, size)
    _share_output(output, mesh, first, size)


def _share_table(table: Embedding, mesh: DeviceMesh, first: int) -> None:
    def forward(tokens: Tensor) -> Tensor:
        weight = local(table.weight)
        at = tokens - first
        there = (at >= 0) & (at < weight.size(0))
        if weight.size(0) == 0:
            found = weight.new_zeros(*tokens.shape, weight.size(1)) + weight.sum()
        else:
            found = F.embedding(at.where(there, 0), weight) * there.unsqueeze(-1)
        vectors = computed(summed(found, mesh))
        return vectors if table.scale == 1.0 else vectors * table.scale

    replace_forward(table, forward)


def _share_output(output: Vocabulary, mesh: DeviceMesh, first: int, size: int) -> None:
    def forward(x: Tensor) -> Tensor:
        logits = linear(enter(x, mesh), local(output.weight), _local(output.bias))
        shape = torch.Size((*logits.shape[:-1], size))
        strides = torch.empty(shape, device="meta").stride()
        parts = DTensor.from_local(
            logits, mesh, [Shard(logits.dim() - 1)], run_check=False, shape=shape, stride=strides
        )
        return parts.redistribute(placements=REPLICATED).to_local()

    def loss(hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Loss:
        weight, bias = local(output.weight), _local(output.bias)
        found = _Shared.apply(hidden, weight, bias, targets, smoothing, mesh, first, size)  # type: ignore[no-untyped-call]
        total, nll = found
        return Loss(total, nll, targets.numel())

    replace_forward(output, forward)
    output.loss = loss  # type: ignore[method-assign]


def _local(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else local(bias)


class _Shared(torch.autograd.Function):
    """The cross-entropy of `nn.loss`, of which each process has the logits of some tokens.

    Of a row there go round its largest logit, the sum of exponentials, the logit of its target and
    the sum of all; and at the end the gradient of what was read.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        mesh: DeviceMesh,
        first: int,
        size: int,
    ) -> tuple[Tensor, Tensor]:
        kind, group = hidden.dtype, mesh.get_group()
        used, used_bias = weight.to(kind), None if bias is None else bias.to(kind)
        nll = hidden.new_zeros((), dtype=torch.float32)
        loss = torch.zeros_like(nll)
        d_hidden = torch.zeros_like(hidden)
        d_weight = torch.zeros_like(weight)
        d_bias = None if bias is None else torch.zeros_like(bias)
        step = max(64, CHUNK_LOGITS // max(1, weight.size(0)))
        step = min(step, max(64, CHUNK_LOGITS // -(-size // mesh.size())))  # the same for all
        for start in range(0, hidden.size(0), step):
            rows = slice(start, start + step)
            some, at = hidden[rows], targets[rows] - first
            here = (at >= 0) & (at < weight.size(0))
            z = linear(some, used, used_bias).float()  # (n, tokens that are here)
            top = z.amax(-1) if z.size(1) else z.new_full((len(some),), -torch.inf)
            dist.all_reduce(top, dist.ReduceOp.MAX, group)
            said = z.new_zeros(len(some))
            said[here] = z[here, at[here]]
            sums = torch.stack([(z - top[:, None]).exp().sum(-1), said, z.sum(-1)])
            dist.all_reduce(sums, group=group)
            lse = top + sums[0].log()
            nll += (lse - sums[1]).sum()
            loss += ((1 - smoothing) * (lse - sums[1]) + smoothing * (lse - sums[2] / size)).sum()
            slope = (z - lse[:, None]).exp_()
            slope[here, at[here]] -= 1.0 - smoothing
            slope = (slope - smoothing / size).to(kind)
            d_hidden[rows] = times(slope, used)
            d_weight += transposed_times(slope, some)
            if d_bias is not None:
                d_bias += slope.sum(0, dtype=d_bias.dtype)
        dist.all_reduce(d_hidden, group=group)
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0]
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        own = None if d_bias is None else d_bias * scale
        return d_hidden * scale, d_weight * scale, own, None, None, None, None, None
