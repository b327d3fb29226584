"""Processes that share each batch: every one computes the gradients of some of its rows.

The first one leads: it alone decides, reports and writes. Before a step it tells the others which;
then all add up their gradients and make the same update, so their weights stay the same bit for
bit. Gradients go through memory that all of them map, orders and notes through sockets.
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

START_SECONDS = 120.0  # for a process to come up


class Ranks:
    """This process among those that share each batch; alone, it has nobody to wait for."""

    rank, size = 0, 1
    lockstep = False  # whether all do each forward pass together, and so as many of them
    together = False  # whether all evaluate, and stop between two steps alone
    stopping = False  # whether any of them was asked to stop
    parameters: Sequence[Tensor] = ()  # whose gradients are added up

    @property
    def evaluates(self) -> bool:
        """Whether this process needs the weights that predict."""
        return self.rank == 0

    def part(self, rows: int) -> tuple[int, int]:
        """Which rows of a batch are this rank's: the first, and the one after the last."""
        first, last = (-(-rows * rank // self.size) for rank in (self.rank, self.rank + 1))
        return first, last

    def order(self, *what: Any) -> None:
        """Tell the others what is to be done next."""

    def exchange(self, note: Any) -> list[Any]:
        """Every rank's note, once all have given one."""
        return [note]

    def add(self, gradients: Sequence[Tensor | None], note: Any) -> list[Any]:
        """Sum gradients over all ranks, in place; and every rank's note."""
        return self.exchange(note)

    def sync(self, network: nn.Module, last: bool) -> None:
        """Say whether the next backward pass is the last of a step."""

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients together."""
        return torch.nn.utils.get_total_norm(gradients)

    @contextmanager
    def all_threads(self) -> Iterator[None]:
        """Inside, this process has the cores of all: the others wait."""
        before = torch.get_num_threads()
        torch.set_num_threads(max(before, self.size))
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def close(self) -> None: ...


class SharedRanks(Ranks):
    """Ranks on one machine, with the gradients of each in memory that all of them map.

    There are two buffers, used by turns: nobody writes into one that another may still be reading.
    """

    def __init__(self, rank: int, size: int, file: int, parameters: Sequence[Tensor]):
        self.rank, self.size = rank, size
        self.sizes = [parameter.numel() for parameter in parameters]
        total = sum(self.sizes)
        memory = mmap.mmap(file, 2 * size * total * 4)
        both = torch.from_numpy(np.frombuffer(memory, np.float32)).view(2, size, total)
        self.buffers = [list(buffer) for buffer in both]  # of each turn, one for each rank
        self.own = [self._views(buffer[rank], parameters) for buffer in self.buffers]
        self.sum = torch.empty(total)
        self.summed = self._views(self.sum, parameters)
        self.parameters = list(parameters)
        self.turn = 0

    def _views(self, flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        parts = torch.split(flat, self.sizes)
        return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]

    def add(self, gradients: Sequence[Tensor | None], note: Any) -> list[Any]:
        own, ranks = self.own[self.turn], self.buffers[self.turn]
        self.turn = 1 - self.turn
        for view, gradient in zip(own, gradients, strict=True):
            if gradient is None:
                view.zero_()
        there = [(v, g) for v, g in zip(own, gradients, strict=True) if g is not None]
        if there:
            torch._foreach_copy_([v for v, _ in there], [g for _, g in there])
        notes = self.exchange(note)
        torch.add(ranks[0], ranks[1], out=self.sum)  # in the order of ranks: the same bits for all
        for other in ranks[2:]:
            self.sum += other
        for parameter, view in zip(self.parameters, self.summed, strict=True):
            if parameter.requires_grad:
                parameter.grad = view
        return notes


class Leader(SharedRanks):
    """The first rank; it starts the others, as `command` with two file descriptors after it."""

    def __init__(self, size: int, parameters: Sequence[Tensor], command: Sequence[str]):
        self.connections: list[Connection] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
        bytes_needed = 2 * size * 4 * sum(parameter.numel() for parameter in parameters)
        with tempfile.TemporaryFile(dir=shared) as file:
            file.truncate(bytes_needed)
            for rank in range(1, size):
                here, there = socket.socketpair()
                ends = (there.fileno(), file.fileno())
                child = [*command, str(rank), str(size), *map(str, ends)]
                environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
                self.processes.append(subprocess.Popen(child, pass_fds=ends, env=environment))
                there.close()
                self.connections.append(Connection(here.detach()))
            super().__init__(0, size, file.fileno(), parameters)

    def ready(self) -> None:
        """Wait until all have come up."""
        end = time.monotonic() + START_SECONDS
        for connection in self.connections:
            if not connection.poll(max(0.0, end - time.monotonic())):
                raise TrainingError("a process that shares the batches does not start")
            self._receive(connection)

    def order(self, *what: Any) -> None:
        for connection in self.connections:
            self._send(connection, what)

    def exchange(self, note: Any) -> list[Any]:
        notes = [note, *(self._receive(connection) for connection in self.connections)]
        for connection in self.connections:
            self._send(connection, notes)
        return notes

    def ask(self, *what: Any) -> list[Any]:
        """Tell the others what to do, and take what each answers."""
        self.order(*what)
        return [self._receive(connection) for connection in self.connections]

    def _send(self, connection: Connection, what: Any) -> None:
        try:
            connection.send(what)
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
    """Another rank, which does as it is told."""

    def __init__(
        self, rank: int, size: int, connection: int, file: int, parameters: Sequence[Tensor]
    ):
        super().__init__(rank, size, file, parameters)
        os.close(file)
        self.connection = Connection(connection)

    def orders(self) -> Iterator[tuple[Any, ...]]:
        """What the leader says, until it has gone."""
        try:
            self.connection.send(None)
            while True:
                yield self.connection.recv()
        except (EOFError, OSError):
            return

    def answer(self, what: Any) -> None:
        self.connection.send(what)

    def exchange(self, note: Any) -> list[Any]:
        self.connection.send(note)
        notes: list[Any] = self.connection.recv()
        return notes


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that is here: all of it, unless it is one of torch's DTensors."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, wherever its parts are: for all processes at once."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def spread(part: Tensor, like: Tensor) -> Tensor:
    """A tensor of which this process has `part`, as of another one; the memory is the same."""
    if not hasattr(like, "to_local"):
        return part
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    shape: Any = {"shape": like.shape, "stride": like.stride()}
    return DTensor.from_local(part, like.device_mesh, like.placements, run_check=False, **shape)


@torch.no_grad()
def put(into: Tensor, found: Tensor) -> None:
    """Copy a whole tensor into one that may be a part of it; without the others."""
    if hasattr(into, "to_local"):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(into, DTensor)
        found = found.to(into.device, into.dtype)
        found = distribute_tensor(found, into.device_mesh, into.placements, src_data_rank=None)
    into.copy_(found)


def is_sharded(network: nn.Module) -> bool:
    """Whether weights are in parts in several processes, to be gathered where they are used."""
    return hasattr(network, "unshard")  # of torch's FSDPModule, which takes a while to import


def possible() -> bool:
    """Whether processes can be given file descriptors here."""
    return sys.platform != "win32"
