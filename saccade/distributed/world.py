"""The processes that were started together, by torchrun or by whatever sets its variables.

The first one leads, as in `ranks`: it alone decides, reports and writes, and tells the others what
is next. Orders and notes go through gloo. Every process leaves a beat in the rendezvous' store once
a second, by which the others find out who has ended or hangs. The store may be in the first process
(without torchrun it is), so that it may hang with it.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from saccade.errors import ConfigError, TrainingError

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
RENDEZVOUS_SECONDS = 120.0  # for all to come; SACCADE_RENDEZVOUS_SECONDS says otherwise
ORDER_SECONDS = 30 * 86400.0  # that an order may be waited for: preparing data may take long
BEAT_SECONDS = 1.0
SILENT_SECONDS = 4.0  # without a beat: ended, or stopped


class Lost(TrainingError):  # noqa: N818
    """One of the processes has ended, or hangs; `said` where another one says so."""

    said = False


def launched() -> bool:
    """Whether this process is one of several that a launcher has started."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1") or 1) > 1


class World:
    """This process among those that were started together."""

    def __init__(self) -> None:
        """Meet the others; ConfigError where that fails."""
        if missing := [name for name in VARIABLES if not os.environ.get(name)]:
            raise ConfigError(
                f"there is no rendezvous: {', '.join(missing)} not set; start with torchrun "
                "(torchrun --nproc-per-node 2 -m saccade train ...)"
            )
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.host = socket.gethostname()
        self.stopping = False  # whether any process was asked to stop, as of the last exchange
        self.asked: Callable[[], bool] = lambda: False  # whether this one was
        self.resume = "saccade resume"  # what to say where one is lost
        self.timeout = RENDEZVOUS_SECONDS
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        seconds = float(os.environ.get("SACCADE_RENDEZVOUS_SECONDS", RENDEZVOUS_SECONDS))
        cuda = torch.cuda.is_available()
        if cuda and self.local_rank < torch.cuda.device_count():
            torch.cuda.set_device(self.local_rank)
        try:
            limit = timedelta(seconds=seconds)
            store, _, _ = next(rendezvous("env://", self.rank, self.size, timeout=limit))
            store.set_timeout(limit)
            self.store = PrefixStore("saccade", store)
            arrived = self.store.add("arrived", 1)
            while arrived < self.size:  # before any group is made: it would wait for ever
                if (seconds := seconds - 0.05) < 0:
                    raise TimeoutError
                time.sleep(0.05)
                arrived = self.store.add("arrived", 0)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if cuda else "gloo",
                store=PrefixStore("groups", store),
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=ORDER_SECONDS),
            )
        except (RuntimeError, TimeoutError, ValueError, OSError) as error:
            reason = "not all have come" if isinstance(error, TimeoutError) else "nobody answers"
            raise ConfigError(
                f"rank {self.rank} of {self.size}: no rendezvous at {address}: {reason} (the "
                "first process has to run there, and all have to reach that port)"
            ) from None
        self.talk: Any = dist.group.WORLD  # the group for notes, which has a time limit
        self._over, self._blaming = threading.Event(), False
        self.leader, self._heard = "host unknown", time.monotonic()  # the first process; its beat
        self.store.set(f"host{self.rank}", self.host)
        self.store.set(f"beat{self.rank}", "0")
        threading.Thread(target=self._beat, daemon=True).start()
        if self.rank:
            threading.Thread(target=self._watch, daemon=True).start()

    def limit(self, seconds: float) -> None:
        """From now on nobody waits for a note for longer than this; for all processes at once."""
        self.timeout = seconds
        self.talk = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))

    # --- orders and notes -------------------------------------------------------------------------

    def order(self, *what: Any) -> None:
        """Tell the others what is to be done next."""
        with self.guarded():
            dist.broadcast_object_list([what], src=0, device=torch.device("cpu"))

    def orders(self) -> Iterator[tuple[Any, ...]]:
        """What the first process says, until it says that this is the end."""
        while True:
            box: list[Any] = [None]
            with self.guarded():
                dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
            yield box[0]
            if box[0][0] == "end":
                return

    def exchange(self, note: Any) -> list[Any]:
        """Every process's note, once all have given one."""
        found: list[Any] = [None] * self.size
        with self.guarded():
            dist.all_gather_object(found, (self.asked(), note), group=self.talk)
        self.stopping = any(asked for asked, _ in found)
        return [note for _, note in found]

    # --- who is lost ------------------------------------------------------------------------------

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Inside, an operation that fails or takes too long is a Lost that says who is to blame."""
        try:
            yield
        except Lost:
            raise
        except RuntimeError as error:  # torch's for all that can happen between processes
            text = str(error)
            if not isinstance(error, dist.DistError) and not _is_connection(text):
                raise
            late = "imed out" in text or "timeout" in text.lower()
            raise self._lost(late) from None

    def _lost(self, late: bool) -> Lost:
        """Who has no beat any more; or else, who has not noticed that somebody is missing."""
        self._blaming = True
        silent, names = self._asked_in_time()
        here = min((r for r in range(self.size) if r not in silent), default=0)
        what = f"gave no answer for {self.timeout:g} s (parallel.timeout)" if late else "has ended"
        error = Lost(
            f"{names} {what}: all are stopped; go on with `{self.resume}`, under the same launcher"
        )
        error.said = self.rank != here
        return error

    def _asked_in_time(self) -> tuple[list[int], str]:
        """Who is lost, as ranks and in words.

        The store may be the first process's, and then answers as little as that does; without a
        time limit of its own, as its clients wait for an answer for ever.
        """
        found: list[tuple[list[int], str]] = []

        def ask() -> None:
            with suppress(RuntimeError):
                silent = self._silent()
                names = ", ".join(f"rank {r} ({self._host(r)})" for r in silent)
                found.append((silent, names or "another process"))

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(3 * SILENT_SECONDS)
        return found[0] if found else ([0], f"rank 0 ({self.leader})")

    def _silent(self) -> list[int]:
        """Of the processes that have not noticed anything, those that do not beat; else all."""
        self.store.set(f"noticed{self.rank}", "1")
        before = self._beats()
        time.sleep(SILENT_SECONDS)
        after = self._beats()
        others = [r for r in range(self.size) if r != self.rank]
        waiting = [r for r in others if not self.store.check([f"noticed{r}"])]
        return [r for r in waiting if before[r] == after[r]] or waiting

    def _beats(self) -> list[bytes]:
        return list(self.store.multi_get([f"beat{rank}" for rank in range(self.size)]))

    def _host(self, rank: int) -> str:
        return str(self.store.get(f"host{rank}"), "utf-8")

    def _beat(self) -> None:
        """Beat, and listen to the first process, until there is no store any more."""
        count, last = 0, b""
        with suppress(RuntimeError):
            self.leader = self._host(0)
            while not self._over.wait(BEAT_SECONDS):
                count += 1
                self.store.set(f"beat{self.rank}", str(count))
                if self.rank and (now := self.store.get("beat0")) != last:
                    last, self._heard = now, time.monotonic()

    def _watch(self) -> None:
        """End this process where the first one gives no sign of life and nobody else says so.

        In a thread of its own: one that asks a store which does not answer notices nothing.
        """
        tick = time.monotonic()
        while not self._over.wait(BEAT_SECONDS):
            before, tick = tick, time.monotonic()
            if tick - before > SILENT_SECONDS:  # it was this process that was stopped
                self._heard = tick
            if tick - self._heard > self.timeout + 4 * SILENT_SECONDS and not self._blaming:
                if self.rank == 1:
                    words = f"saccade: rank 0 ({self.leader}) gave no sign of life for "
                    words += f"{self.timeout:g} s: all are stopped; go on with `{self.resume}`"
                    os.write(2, f"{words}, under the same launcher\n".encode())
                os._exit(2)

    def close(self) -> None:
        """Leave; nobody waits for anybody."""
        self._over.set()
        with suppress(RuntimeError, ValueError):
            dist.destroy_process_group()


def _is_connection(text: str) -> bool:
    words = (
        "gloo",
        "Connection",
        "connection",
        "imed out",
        "NCCL",
        "peer",
        "socket",
        "Broken pipe",
    )
    return any(word in text for word in words)


_joined: World | None = None


def join() -> World | None:
    """The processes that this one was started with; None alone."""
    global _joined
    if _joined is None and launched():
        _joined = World()
    return _joined


def joined() -> World | None:
    """The same, without meeting them first."""
    return _joined


def leave() -> None:
    global _joined
    if _joined is not None:
        _joined.close()
    _joined = None
