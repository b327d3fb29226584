"""Tensor parallelism: sharded heads, feed-forward layers and vocabulary of a Transformer.

Shoeybi et al. 2019, arxiv.org/abs/1909.08053; norms and residuals by position, Korthikanti et al.
2022, arxiv.org/abs/2205.05198. A plan for torch's `parallelize_module`: each style below shards
the weights of a module in place. The weights are DTensors, so that checkpoints know their full
shapes; products use the local shard.
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
    """Shard a network in place."""
    for stack in [module for module in network.modules() if isinstance(module, Stack)]:
        positions = SequenceParallel(stack, mesh) if sequence else None
        for block in stack.blocks:
            parallelize_module(block, mesh, plan_of(block, positions))
        if positions is not None:
            parallelize_module(stack.norm, mesh, ShardedNorm(positions))
            stack.norm.register_forward_hook(lambda _, __, y, p=positions: p.gather(y))
    for table in {id(m.weight): m for m in network.modules() if isinstance(m, Vocabulary)}.values():
        shard_vocabulary(network, table, mesh)


def plan_of(block: nn.Module, positions: "SequenceParallel | None") -> dict[str, ParallelStyle]:
    """The style of each part of a block."""
    plan: dict[str, ParallelStyle] = {}
    for name, module in block.named_children():
        if isinstance(module, SelfAttention | CrossAttention | FeedForward):
            plan[name] = ParallelInput(positions)
            for inner, _ in module.named_children():
                plan[f"{name}.{inner}"] = Rows(positions) if inner in ("out", "down") else Columns()
            if isinstance(module, FeedForward) and module.activation in GATED:
                plan[f"{name}.up"] = GatedColumns()
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm) and positions is not None:
            plan[name] = ShardedNorm(positions)
    return plan


def check_tensor(config: c.Config, width: int) -> None:
    """ConfigError if a network cannot be sharded into so many parts."""
    parts = {"encoder": config.encoder, "decoder": config.decoder}
    transformers = {name: part for name, part in parts.items() if isinstance(part, c.Transformer)}
    if not transformers:
        raise ConfigError(
            "parallel: tensor is for Transformers: set it to 1, and use data or shard"
        )
    for name, part in transformers.items():
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


# --- between replicated and sharded activations ---------------------------------------------------


def replicated(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """The same tensor in all ranks, as input of a sharded layer: its gradient is all-reduced."""
    full = DTensor.from_local(x, mesh, REPLICATED, run_check=False)
    return full.to_local(grad_placements=SUMMED)


def summed(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """The sum over all ranks: an all-reduce whose gradient is replicated."""
    partial_sums = DTensor.from_local(x, mesh, SUMMED, run_check=False)
    return partial_sums.redistribute(placements=REPLICATED).to_local()


class SequenceParallel:
    """Between the sublayers each rank has some positions of all rows, and inside them all.

    `length` is that of the sequences in the current forward pass.
    """

    def __init__(self, stack: Stack, mesh: DeviceMesh):
        self.mesh, self.length = mesh, 0
        start_all = stack.start

        def start(*arguments: Any) -> Tensor:
            return self.split(start_all(*arguments))

        stack.start = start  # type: ignore[method-assign, assignment]

    def _sharded(self, x: Tensor) -> DTensor:
        shape = torch.Size((x.size(0), self.length, *x.shape[2:]))
        strides = torch.empty(shape, device="meta").stride()
        options: Any = {"run_check": False, "shape": shape, "stride": strides}
        return DTensor.from_local(x.contiguous(), self.mesh, BY_POSITION, **options)

    def split(self, x: Tensor) -> Tensor:
        """This rank's positions."""
        self.length = x.size(1)
        full = DTensor.from_local(x, self.mesh, REPLICATED, run_check=False)
        return full.redistribute(placements=BY_POSITION).to_local()

    def gather(self, x: Tensor) -> Tensor:
        """All positions, as input of a replicated layer: an all-gather."""
        return self._sharded(x).redistribute(placements=REPLICATED).to_local()

    def replicated(self, x: Tensor) -> Tensor:
        """All positions, as input of a sharded layer: an all-gather; its gradient is scattered."""
        full = self._sharded(x).redistribute(placements=REPLICATED)
        return full.to_local(grad_placements=SUMMED)

    def summed(self, x: Tensor) -> Tensor:
        """This rank's positions of the sum over all ranks: a reduce-scatter."""
        partial_sums = DTensor.from_local(x, self.mesh, SUMMED, run_check=False)
        return partial_sums.redistribute(placements=BY_POSITION).to_local()


# --- styles ---------------------------------------------------------------------------------------


def shard(module: nn.Module, name: str, mesh: DeviceMesh, dim: int) -> None:
    """Shard a parameter along `dim`; before, all ranks have the same one."""
    full = getattr(module, name)
    if full is not None:
        part = distribute_tensor(full.detach(), mesh, [Shard(dim)], src_data_rank=None)
        setattr(module, name, nn.Parameter(part, requires_grad=full.requires_grad))


def replace_forward(module: nn.Module, forward: Callable[[Tensor], Tensor]) -> None:
    """Replace a module's forward pass; its hooks and its name stay."""
    module.forward = forward


class ParallelInput(ParallelStyle):
    """Attention or a feed-forward network, whose inputs are read by sharded layers."""

    def __init__(self, positions: SequenceParallel | None):
        super().__init__()
        self.positions = positions

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        memory_input = partial(replicated, mesh=device_mesh)
        own_input = memory_input if self.positions is None else self.positions.replicated

        def hook(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            x, *others = arguments
            if isinstance(module, CrossAttention) and isinstance(others[0], Tensor):
                others[0] = memory_input(others[0])  # a memory has all its positions
            return (own_input(x), *others)

        module.register_forward_pre_hook(hook)
        return module


class Columns(ParallelStyle):
    """A linear layer whose outputs are sharded, by head or by feed-forward unit."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Linear)
        for name in ("weight", "bias"):
            shard(module, name, device_mesh, 0)

        def forward(x: Tensor) -> Tensor:
            return linear(x, local(module.weight), _local(module.bias))

        replace_forward(module, forward)
        return module


class GatedColumns(ParallelStyle):
    """The same for a gated layer, whose outputs are gates and values: each rank has some of both.

    They are not contiguous rows, so each rank keeps all weights and computes with some.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Linear)
        size, rank = device_mesh.size(), device_mesh.get_local_rank()
        own_rows = torch.arange(module.out_features).view(2, size, -1)[:, rank].flatten()

        def forward(x: Tensor) -> Tensor:
            rows = own_rows.to(x.device)
            bias = None if module.bias is None else replicated(module.bias, device_mesh)[rows]
            return linear(x, replicated(module.weight, device_mesh)[rows], bias)

        replace_forward(module, forward)
        return module


class Rows(ParallelStyle):
    """A linear layer whose inputs are sharded; the outputs are summed."""

    def __init__(self, positions: SequenceParallel | None):
        super().__init__()
        self.positions = positions

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Linear)
        shard(module, "weight", device_mesh, 1)
        positions = self.positions

        def forward(x: Tensor) -> Tensor:
            part, bias = linear(x, local(module.weight)), getattr(module, "bias", None)
            y = summed(part, device_mesh) if positions is None else positions.summed(part)
            if bias is None:
                return y
            return y + (bias if positions is None else replicated(bias, device_mesh))

        replace_forward(module, forward)
        return module


class ShardedNorm(ParallelStyle):
    """A norm of this rank's positions: its weights' gradients are all-reduced."""

    def __init__(self, positions: SequenceParallel):
        super().__init__()
        self.positions = positions

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, nn.LayerNorm | nn.RMSNorm):
            return module  # with post-norm a stack has none at its end

        norm: Any = module

        def forward(x: Tensor) -> Tensor:
            weight, size = replicated(norm.weight, device_mesh), list(norm.normalized_shape)
            if isinstance(norm, nn.RMSNorm):
                return F.rms_norm(x, size, weight, norm.eps)
            return F.layer_norm(x, size, weight, replicated(norm.bias, device_mesh), norm.eps)

        replace_forward(module, forward)
        return module


# --- the vocabulary -------------------------------------------------------------------------------


def shard_vocabulary(network: nn.Module, output: Vocabulary, mesh: DeviceMesh) -> None:
    """Shard an output layer, and the embeddings tied to it, by token."""
    full, size = output.weight, output.out_features
    for name in ("weight", "bias"):
        shard(output, name, mesh, 0)
    step = -(-size // mesh.size())
    first = min(step * mesh.get_local_rank(), size)
    for module in network.modules():
        if module is output or getattr(module, "weight", None) is not full:
            continue
        module.weight = output.weight
        if isinstance(module, Embedding):
            _shard_embedding(module, mesh, first)
        elif isinstance(module, Vocabulary):
            _shard_output(module, mesh, first, size)
    _shard_output(output, mesh, first, size)


def _shard_embedding(table: Embedding, mesh: DeviceMesh, first: int) -> None:
    def forward(tokens: Tensor) -> Tensor:
        weight = local(table.weight)
        rows = tokens - first
        is_local = (rows >= 0) & (rows < weight.size(0))
        if weight.size(0) == 0:
            part = weight.new_zeros(*tokens.shape, weight.size(1)) + weight.sum()
        else:
            part = F.embedding(rows.where(is_local, 0), weight) * is_local.unsqueeze(-1)
        vectors = computed(summed(part, mesh))
        return vectors if table.scale == 1.0 else vectors * table.scale

    replace_forward(table, forward)


def _shard_output(output: Vocabulary, mesh: DeviceMesh, first: int, size: int) -> None:
    def forward(x: Tensor) -> Tensor:
        logits = linear(replicated(x, mesh), local(output.weight), _local(output.bias))
        shape = torch.Size((*logits.shape[:-1], size))
        strides = torch.empty(shape, device="meta").stride()
        parts = DTensor.from_local(
            logits, mesh, [Shard(logits.dim() - 1)], run_check=False, shape=shape, stride=strides
        )
        return parts.redistribute(placements=REPLICATED).to_local()

    def loss(hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Loss:
        weight, bias = local(output.weight), _local(output.bias)
        total, nll = _ShardedLoss.apply(  # type: ignore[no-untyped-call]
            hidden, weight, bias, targets, smoothing, mesh, first, size
        )
        return Loss(total, nll, targets.numel())

    replace_forward(output, forward)
    output.loss = loss  # type: ignore[method-assign]


def _local(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else local(bias)


class _ShardedLoss(torch.autograd.Function):
    """The cross-entropy of `nn.loss` where each rank has the logits of some tokens.

    All-reduced are a row's largest logit, the sum of exponentials, the logit of its target and the
    sum of all logits; and at the end the gradient of the hidden vectors.
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
        dtype, group = hidden.dtype, mesh.get_group()
        cast, cast_bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        nll = hidden.new_zeros((), dtype=torch.float32)
        loss = torch.zeros_like(nll)
        d_hidden = torch.zeros_like(hidden)
        d_weight = torch.zeros_like(weight)
        d_bias = None if bias is None else torch.zeros_like(bias)
        step = max(64, CHUNK_LOGITS // max(1, weight.size(0)))
        step = min(step, max(64, CHUNK_LOGITS // -(-size // mesh.size())))  # the same in all ranks
        for start in range(0, hidden.size(0), step):
            rows = slice(start, start + step)
            x, gold = hidden[rows], targets[rows] - first
            is_local = (gold >= 0) & (gold < weight.size(0))
            z = linear(x, cast, cast_bias).float()  # (n, this rank's tokens)
            top = z.amax(-1) if z.size(1) else z.new_full((len(x),), -torch.inf)
            dist.all_reduce(top, dist.ReduceOp.MAX, group)
            of_gold = z.new_zeros(len(x))
            of_gold[is_local] = z[is_local, gold[is_local]]
            sums = torch.stack([(z - top[:, None]).exp().sum(-1), of_gold, z.sum(-1)])
            dist.all_reduce(sums, group=group)
            lse = top + sums[0].log()
            nll += (lse - sums[1]).sum()
            loss += ((1 - smoothing) * (lse - sums[1]) + smoothing * (lse - sums[2] / size)).sum()
            d_z = (z - lse[:, None]).exp_()
            d_z[is_local, gold[is_local]] -= 1.0 - smoothing
            d_z = (d_z - smoothing / size).to(dtype)
            d_hidden[rows] = times(d_z, cast)
            d_weight += transposed_times(d_z, x)
            if d_bias is not None:
                d_bias += d_z.sum(0, dtype=d_bias.dtype)
        dist.all_reduce(d_hidden, group=group)
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0]
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        d_bias = None if d_bias is None else d_bias * scale
        return d_hidden * scale, d_weight * scale, d_bias, None, None, None, None, None
