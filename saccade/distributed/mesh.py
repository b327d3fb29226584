"""The layout of processes: which rows of a batch, and which part of the weights, are whose.

Rank r of a layout (data, shard, tensor) stands at ((d * shard) + s) * tensor + t: those that share
the heads are neighbours, and so on one machine. Rows are divided among data x shard, so the rows of
a rank, and with them an epoch's order, are a function of (seed, epoch, batch, layout).
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
        """Among how many the rows of a batch are divided."""
        return self.data * self.shard

    @property
    def whole(self) -> bool:
        """Whether every process has all weights."""
        return self.shard == self.tensor == 1

    def __str__(self) -> str:
        return " x ".join(f"{name} {n}" for name, n in zip(NAMES, self, strict=True))


def layout_of(parallel: c.Parallel, size: int) -> Layout:
    """The layout that a configuration asks for; ConfigError where `size` processes are not it."""
    data, shard, tensor = parallel.data, parallel.shard, parallel.tensor
    asked = max(data, 1) * max(shard, 1) * tensor
    left = size // asked
    if not data and shard:
        data = left
    elif not shard:
        data, shard = max(data, 1), left
    if data * shard * tensor != size or not left:
        wanted = " x ".join(
            f"{name} {'any' if n == 0 else n}"
            for name, n in zip(NAMES, (parallel.data, parallel.shard, parallel.tensor), strict=True)
        )
        several = not parallel.data or not parallel.shard
        needed = f"a multiple of {asked}" if several else str(asked)
        raise ConfigError(
            f"parallel: {wanted} needs {needed} processes, and there {'is' if size == 1 else 'are'}"
            f" {size}: start as many (torchrun --nproc-per-node N -m saccade ...), or change "
            "the table [parallel]"
        )
    if parallel.sequence and tensor == 1:
        raise ConfigError("parallel: sequence is for tensor > 1: set it to false, or raise tensor")
    if parallel.offload and shard == 1:
        raise ConfigError("parallel: offload is for shard > 1: set it to false, or raise shard")
    return Layout(data, shard, tensor)


class MeshRanks(Ranks):
    """This process in a layout of those that were started together."""

    together = True

    def __init__(self, world: World, layout: Layout, device: torch.device):
        self.world, self.layout = world, layout
        self.rank, self.size = world.rank, world.size
        self.row = self.rank // layout.tensor  # of those that divide the rows
        self.mesh: DeviceMesh = init_device_mesh(device.type, layout, mesh_dim_names=NAMES)
        self.replicas: Any = self._replicas()  # the group whose gradients are added up here
        for group in (*(self.mesh.get_group(name) for name in NAMES), self.replicas):
            if group is not None and group is not dist.group.WORLD:
                _set_timeout(group, world.timeout)

    def _replicas(self) -> Any:
        """The processes that have the same part of the weights, and other rows."""
        found = None
        for t in range(self.layout.tensor):
            group = dist.new_group(list(range(t, self.size, self.layout.tensor)))
            found = group if self.rank % self.layout.tensor == t else found
        return found

    def __str__(self) -> str:
        return str(self.layout)

    @property
    def lockstep(self) -> bool:  # type: ignore[override]
        """Whether a forward pass is done together: then all do as many."""
        return not self.layout.whole

    @property
    def evaluates(self) -> bool:
        return True

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        return self.world.stopping

    def part(self, rows: int) -> tuple[int, int]:
        first, last = (-(-rows * i // self.layout.rows) for i in (self.row, self.row + 1))
        return first, last

    def order(self, *what: Any) -> None:
        if self.rank == 0:
            self.world.order(*what)

    def exchange(self, note: Any) -> list[Any]:
        return self.world.exchange(note)

    def add(self, gradients: Sequence[Tensor | None], note: Any) -> list[Any]:
        """Sum gradients over those with other rows; the notes of one rank for each part of rows.

        Sharded ones are summed where they are made, by FSDP.
        """
        if self.layout.shard == 1 and self.layout.data > 1:
            with self.world.guarded():
                self._all_reduce(gradients)
        return self.exchange(note)[:: self.layout.tensor]

    def _all_reduce(self, gradients: Sequence[Tensor | None]) -> None:
        there = []
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            if not parameter.requires_grad:
                continue
            if gradient is None:  # another rank may have one
                parameter.grad = gradient = torch.zeros_like(parameter)
            there.append(local(gradient))
        flat = torch.cat([g.reshape(-1) for g in there])
        dist.all_reduce(flat, group=self.replicas)
        parts = torch.split(flat, [g.numel() for g in there])
        torch._foreach_copy_(there, [part.view_as(g) for part, g in zip(parts, there, strict=True)])

    def sync(self, network: nn.Module, last: bool) -> None:
        """Say whether the next backward pass is the last of a step: then FSDP sums gradients."""
        if isinstance(network, FSDPModule):
            network.set_requires_gradient_sync(last)

    @contextmanager
    def all_threads(self) -> Iterator[None]:
        yield  # the others work, too

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients together, wherever their parts are."""
        if self.layout.whole:
            return torch.nn.utils.get_total_norm(gradients)
        total = torch.zeros((), dtype=torch.float64, device=local(gradients[0]).device)
        for gradient in gradients:
            parts = 1  # processes that have different parts of it
            if isinstance(gradient, DTensor):
                for size, placement in zip(
                    gradient.device_mesh.shape, gradient.placements, strict=True
                ):
                    parts *= 1 if placement.is_replicate() else size
            share = parts / self.size
            total += local(gradient).double().square().sum() * share
        with self.world.guarded():
            dist.all_reduce(total)
        return total.sqrt().float()


def _set_timeout(group: Any, seconds: float) -> None:
    from torch.distributed.distributed_c10d import _set_pg_timeout

    _set_pg_timeout(timedelta(seconds=seconds), group)
