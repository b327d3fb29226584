"""The layout of ranks: which rows of a batch, and which shard of the weights, each of them has.

In a layout (data, shard, tensor) rank ((d * shard) + s) * tensor + t has the coordinates (d, s, t):
a tensor-parallel group has neighbouring ranks, and so is on one machine. Rows are divided among
data x shard, so the rows of a rank are a function of (seed, epoch, batch, layout).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from saccade import config as c
from saccade.distributed.ranks import Ranks, local
from saccade.distributed.world import World
from saccade.errors import ConfigError

NAMES = ("data", "shard", "tensor")


class Layout(NamedTuple):
    data: int
    shard: int
    tensor: int

    @property
    def rows(self) -> int:
        """The number of parts that the rows of a batch are divided into."""
        return self.data * self.shard

    @property
    def replicated(self) -> bool:
        """Whether every rank has all weights."""
        return self.shard == self.tensor == 1

    def __str__(self) -> str:
        return " x ".join(f"{name} {n}" for name, n in zip(NAMES, self, strict=True))


def layout_of(parallel: c.Parallel, size: int) -> Layout:
    """The layout of a configuration; ConfigError if it is not one of `size` processes."""
    data, shard, tensor = parallel.data, parallel.shard, parallel.tensor
    given = max(data, 1) * max(shard, 1) * tensor
    rest = size // given  # for the dimension that is 0: as large as possible
    if not data and shard:
        data = rest
    elif not shard:
        data, shard = max(data, 1), rest
    if data * shard * tensor != size or not rest:
        configured = " x ".join(
            f"{name} {'any' if n == 0 else n}"
            for name, n in zip(NAMES, (parallel.data, parallel.shard, parallel.tensor), strict=True)
        )
        flexible = not parallel.data or not parallel.shard
        needed = f"a multiple of {given}" if flexible else str(given)
        raise ConfigError(
            f"parallel: {configured} needs {needed} processes, and there "
            f"{'is' if size == 1 else 'are'} {size}: start as many (torchrun --nproc-per-node N -m "
            "saccade ...), or change the table [parallel]"
        )
    if parallel.sequence and tensor == 1:
        raise ConfigError("parallel: sequence is for tensor > 1: set it to false, or raise tensor")
    if parallel.offload and shard == 1:
        raise ConfigError("parallel: offload is for shard > 1: set it to false, or raise shard")
    return Layout(data, shard, tensor)


class MeshRanks(Ranks):
    """This rank in a layout of processes that a launcher has started."""

    launched = True

    def __init__(self, world: World, layout: Layout, device: torch.device):
        self.world, self.layout = world, layout
        self.rank, self.size = world.rank, world.size
        self.row_part = self.rank // layout.tensor  # which of `layout.rows` is this rank's
        self.mesh: DeviceMesh = init_device_mesh(device.type, layout, mesh_dim_names=NAMES)
        self.replicas: Any = self._replicas()  # the group whose gradients are reduced here
        for group in (*(self.mesh.get_group(name) for name in NAMES), self.replicas):
            if group is not None and group is not dist.group.WORLD:
                _set_timeout(group, world.timeout)

    def _replicas(self) -> Any:
        """The group of ranks with the same shard of the weights, and other rows."""
        own = None
        for t in range(self.layout.tensor):
            group = dist.new_group(list(range(t, self.size, self.layout.tensor)))
            own = group if self.rank % self.layout.tensor == t else own
        return own

    def __str__(self) -> str:
        return str(self.layout)

    @property
    def lockstep(self) -> bool:  # type: ignore[override]
        return not self.layout.replicated

    @property
    def evaluates(self) -> bool:
        return True

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        return self.world.stopping

    def row_range(self, rows: int) -> tuple[int, int]:
        first, last = (-(-rows * i // self.layout.rows) for i in (self.row_part, self.row_part + 1))
        return first, last

    def command(self, *command: Any) -> None:
        if self.rank == 0:
            self.world.command(*command)

    def all_gather(self, value: Any) -> list[Any]:
        return self.world.all_gather(value)

    def all_reduce(self, gradients: Sequence[Tensor | None], value: Any) -> list[Any]:
        """Sum gradients over replicas; returns the values of one rank for each part of the rows.

        FSDP reduces sharded gradients itself, in the backward pass.
        """
        if self.layout.shard == 1 and self.layout.data > 1:
            with self.world.guarded():
                self._reduce_replicas(gradients)
        return self.all_gather(value)[:: self.layout.tensor]

    def _reduce_replicas(self, gradients: Sequence[Tensor | None]) -> None:
        tensors = []
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            if not parameter.requires_grad:
                continue
            if gradient is None:  # another rank may have one
                parameter.grad = gradient = torch.zeros_like(parameter)
            tensors.append(local(gradient))
        flat = torch.cat([t.reshape(-1) for t in tensors])
        dist.all_reduce(flat, group=self.replicas)
        parts = torch.split(flat, [t.numel() for t in tensors])
        sums = [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]
        torch._foreach_copy_(tensors, sums)

    def set_gradient_sync(self, network: nn.Module, last: bool) -> None:
        if isinstance(network, FSDPModule):
            network.set_requires_gradient_sync(last)

    @contextmanager
    def all_threads(self) -> Iterator[None]:
        yield  # the other ranks evaluate, too

    def gradient_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        if self.layout.replicated:
            return torch.nn.utils.get_total_norm(gradients)
        total = torch.zeros((), dtype=torch.float64, device=local(gradients[0]).device)
        for gradient in gradients:
            shards = 1  # how many the gradient is divided into; other ranks have copies
            if isinstance(gradient, DTensor):
                for size, placement in zip(
                    gradient.device_mesh.shape, gradient.placements, strict=True
                ):
                    shards *= 1 if placement.is_replicate() else size
            total += local(gradient).double().square().sum() * (shards / self.size)
        with self.world.guarded():
            dist.all_reduce(total)
        return total.sqrt().float()


def _set_timeout(group: Any, seconds: float) -> None:
    from torch.distributed.distributed_c10d import _set_pg_timeout

    _set_pg_timeout(timedelta(seconds=seconds), group)
