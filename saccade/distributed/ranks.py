"""Data parallelism on one machine: each process computes the gradients of some rows of a batch.

Rank 0 is the leader: it alone decides, reports and writes. It sends a command before each step;
then all sum their gradients and make the same update, so their weights stay bit for bit the same.
Gradients are in shared memory, commands and small values go through sockets.
"""

import mmap
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from saccade.errors import TrainingError

START_SECONDS = 120.0  # for a process to start


class Ranks:
    """This process among those that share each batch; by itself a single process."""

    rank, size = 0, 1
    lockstep = False  # forward passes communicate: all ranks need the same number of them
    launched = False  # started by a launcher: all ranks evaluate, and stop only between steps
    stopping = False  # whether any rank was asked to stop
    parameters: Sequence[Tensor] = ()  # whose gradients are summed

    @property
    def evaluates(self) -> bool:
        """Whether this rank needs the weights used for prediction."""
        return self.rank == 0

    def row_range(self, rows: int) -> tuple[int, int]:
        """This rank's rows of a batch: the first, and the one after the last."""
        first, last = (-(-rows * rank // self.size) for rank in (self.rank, self.rank + 1))
        return first, last

    def command(self, *command: Any) -> None:
        """Send the other ranks a command: a name and its arguments."""

    def all_gather(self, value: Any) -> list[Any]:
        """Every rank's value."""
        return [value]

    def all_reduce(self, gradients: Sequence[Tensor | None], value: Any) -> list[Any]:
        """Sum gradients over all ranks, in place; returns every rank's value."""
        return self.all_gather(value)

    def set_gradient_sync(self, network: nn.Module, last: bool) -> None:
        """Have FSDP reduce gradients in the next backward pass only if it is a step's last."""

    def gradient_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The total norm of gradients, whose shards may be on several ranks."""
        return torch.nn.utils.get_total_norm(gradients)

    @contextmanager
    def all_threads(self) -> Iterator[None]:
        """Inside, this process uses the cores of all ranks, which wait."""
        before = torch.get_num_threads()
        torch.set_num_threads(max(before, self.size))
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def close(self) -> None: ...


class SharedRanks(Ranks):
    """Ranks on one machine, with the gradients of each in shared memory.

    There are two buffers, used in turn, so that no rank writes into one that another still reads.
    """

    def __init__(self, rank: int, size: int, file: int, parameters: Sequence[Tensor]):
        self.rank, self.size = rank, size
        self.sizes = [parameter.numel() for parameter in parameters]
        total = sum(self.sizes)
        memory = mmap.mmap(file, 2 * size * total * 4)
        both = torch.from_numpy(np.frombuffer(memory, np.float32)).view(2, size, total)
        self.buffers = [list(buffer) for buffer in both]  # of each turn, a buffer for each rank
        self.own = [self._views(buffer[rank], parameters) for buffer in self.buffers]
        self.sum = torch.empty(total)
        self.summed = self._views(self.sum, parameters)
        self.parameters = list(parameters)
        self.turn = 0

    def _views(self, flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        parts = torch.split(flat, self.sizes)
        return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]

    def all_reduce(self, gradients: Sequence[Tensor | None], value: Any) -> list[Any]:
        own, ranks = self.own[self.turn], self.buffers[self.turn]
        self.turn = 1 - self.turn
        for view, gradient in zip(own, gradients, strict=True):
            if gradient is None:
                view.zero_()
        pairs = [(v, g) for v, g in zip(own, gradients, strict=True) if g is not None]
        if pairs:
            torch._foreach_copy_([v for v, _ in pairs], [g for _, g in pairs])
        values = self.all_gather(value)  # after it all buffers are written
        torch.add(ranks[0], ranks[1], out=self.sum)  # in the order of ranks: the same bits in all
        for other in ranks[2:]:
            self.sum += other
        for parameter, view in zip(self.parameters, self.summed, strict=True):
            if parameter.requires_grad:
                parameter.grad = view
        return values


class Leader(SharedRanks):
    """Rank 0; it starts the others by `command`, with their rank and file descriptors appended."""

    def __init__(self, size: int, parameters: Sequence[Tensor], command: Sequence[str]):
        self.connections: list[Connection] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
        bytes_needed = 2 * size * 4 * sum(parameter.numel() for parameter in parameters)
        with tempfile.TemporaryFile(dir=shared) as file:
            file.truncate(bytes_needed)
            for rank in range(1, size):
                own, other = socket.socketpair()
                inherited = (other.fileno(), file.fileno())
                child = [*command, str(rank), str(size), *map(str, inherited)]
                environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
                process = subprocess.Popen(child, pass_fds=inherited, env=environment)
                self.processes.append(process)
                other.close()
                self.connections.append(Connection(own.detach()))
            super().__init__(0, size, file.fileno(), parameters)

    def ready(self) -> None:
        """Wait until all processes have started."""
        deadline = time.monotonic() + START_SECONDS
        for connection in self.connections:
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                raise TrainingError("a process that shares the batches does not start")
            self._receive(connection)

    def command(self, *command: Any) -> None:
        for connection in self.connections:
            self._send(connection, command)

    def all_gather(self, value: Any) -> list[Any]:
        values = [value, *(self._receive(connection) for connection in self.connections)]
        for connection in self.connections:
            self._send(connection, values)
        return values

    def _send(self, connection: Connection, message: Any) -> None:
        try:
            connection.send(message)
        except OSError:
            raise self._lost() from None

    def _receive(self, connection: Connection) -> Any:
        try:
            return connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None

    def _lost(self) -> TrainingError:
        return TrainingError(
            "a process that shares the batches has ended, perhaps for want of memory: go on with "
            "`saccade resume`, with --set train.processes=1 if it happens again"
        )

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        for process in self.processes:
            process.kill()
            process.wait()


class Follower(SharedRanks):
    """Another rank, which carries out the leader's commands."""

    def __init__(
        self, rank: int, size: int, connection: int, file: int, parameters: Sequence[Tensor]
    ):
        super().__init__(rank, size, file, parameters)
        os.close(file)
        self.connection = Connection(connection)

    def commands(self) -> Iterator[tuple[Any, ...]]:
        """The leader's commands, until it ends."""
        try:
            self.connection.send(None)  # ready
            while True:
                yield self.connection.recv()
        except (EOFError, OSError):
            return

    def all_gather(self, value: Any) -> list[Any]:
        self.connection.send(value)
        values: list[Any] = self.connection.recv()
        return values


def local(tensor: Tensor) -> Tensor:
    """This process's shard of a tensor: all of it, unless it is a DTensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor gathered from its shards; a collective operation."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def as_sharded(part: Tensor, like: Tensor) -> Tensor:
    """`part` as this process's shard of a tensor sharded like another; the memory is shared."""
    if not hasattr(like, "to_local"):
        return part
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    shape: Any = {"shape": like.shape, "stride": like.stride()}
    return DTensor.from_local(part, like.device_mesh, like.placements, run_check=False, **shape)


@torch.no_grad()
def copy_full(into: Tensor, full: Tensor) -> None:
    """Copy a full tensor into one that may be sharded; without communication."""
    if hasattr(into, "to_local"):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(into, DTensor)
        full = full.to(into.device, into.dtype)
        full = distribute_tensor(full, into.device_mesh, into.placements, src_data_rank=None)
    into.copy_(full)


def is_sharded(network: nn.Module) -> bool:
    """Whether weights are sharded by FSDP, which gathers them where they are used."""
    return hasattr(network, "unshard")  # of FSDPModule, whose import takes a while


def can_pass_descriptors() -> bool:
    """Whether a child process can inherit file descriptors here."""
    return sys.platform != "win32"
