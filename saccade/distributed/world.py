"""The processes of a job started by torchrun, or by whatever sets its environment variables.

Rank 0 leads, as in `ranks`: it alone decides, reports and writes, and sends the others commands.
Commands and small values go through gloo. Every process writes a heartbeat into the rendezvous
store once a second, by which the others find out which one has ended or hangs. The store may be in
rank 0 (without torchrun it is), and then hangs with it.
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
RENDEZVOUS_SECONDS = 120.0  # for all to join; overridden by SACCADE_RENDEZVOUS_SECONDS
COMMAND_SECONDS = 30 * 86400.0  # timeout of a command: preparing data may take long
HEARTBEAT_SECONDS = 1.0
SILENT_SECONDS = 4.0  # without a heartbeat: the process has ended, or is suspended


class LostRankError(TrainingError):
    """A rank has ended or hangs; `reported` if another rank prints the message."""

    reported = False


def launched() -> bool:
    """Whether a launcher has started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1") or 1) > 1


class World:
    """This process in a job of several."""

    def __init__(self) -> None:
        """Join the others; ConfigError if the rendezvous fails."""
        if missing := [name for name in VARIABLES if not os.environ.get(name)]:
            raise ConfigError(
                f"there is no rendezvous: {', '.join(missing)} not set; start with torchrun "
                "(torchrun --nproc-per-node 2 -m saccade train ...)"
            )
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.host = socket.gethostname()
        self.stopping = False  # whether any process was asked to stop, as of the last all_gather
        self.stop_requested: Callable[[], bool] = lambda: False  # of this process
        self.resume_command = "saccade resume"  # for the message about a lost rank
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
            while arrived < self.size:  # before the process group is made, which waits for ever
                if (seconds := seconds - 0.05) < 0:
                    raise TimeoutError
                time.sleep(0.05)
                arrived = self.store.add("arrived", 0)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if cuda else "gloo",
                store=PrefixStore("groups", store),
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=COMMAND_SECONDS),
            )
        except (RuntimeError, TimeoutError, ValueError, OSError) as error:
            reason = "not all have come" if isinstance(error, TimeoutError) else "nobody answers"
            raise ConfigError(
                f"rank {self.rank} of {self.size}: no rendezvous at {address}: {reason} (the "
                "first process has to run there, and all have to reach that port)"
            ) from None
        self.group: Any = dist.group.WORLD  # for all_gather, with a timeout of its own
        self._closed, self._diagnosing = threading.Event(), False
        self.leader_host, self._leader_seen = "host unknown", time.monotonic()
        self.store.set(f"host{self.rank}", self.host)
        self.store.set(f"beat{self.rank}", "0")
        watches = [self._send_heartbeats, *([self._watch_leader] if self.rank else [])]
        self._threads = [threading.Thread(target=watch, daemon=True) for watch in watches]
        for thread in self._threads:
            thread.start()

    def set_timeout(self, seconds: float) -> None:
        """Set the timeout of `all_gather` from now on; a collective operation."""
        self.timeout = seconds
        self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))

    # --- commands and values ----------------------------------------------------------------------

    def command(self, *command: Any) -> None:
        """Send the others a command: a name and its arguments."""
        with self.guarded():
            dist.broadcast_object_list([command], src=0, device=torch.device("cpu"))

    def commands(self) -> Iterator[tuple[Any, ...]]:
        """The commands of rank 0, up to and including "end"."""
        while True:
            box: list[Any] = [None]
            with self.guarded():
                dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
            yield box[0]
            if box[0][0] == "end":
                return

    def all_gather(self, value: Any) -> list[Any]:
        """Every process's value."""
        gathered: list[Any] = [None] * self.size
        with self.guarded():
            own = self.stop_requested(), value
            dist.all_gather_object(gathered, own, group=self.group)
        self.stopping = any(stop for stop, _ in gathered)
        return [value for _, value in gathered]

    # --- lost ranks -------------------------------------------------------------------------------

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Inside, a collective that fails or times out is a LostRankError that names the rank."""
        try:
            yield
        except LostRankError:
            raise
        except RuntimeError as error:  # torch's for any failure between processes
            text = str(error)
            if not isinstance(error, dist.DistError) and not _is_connection_error(text):
                raise
            timed_out = "imed out" in text or "timeout" in text.lower()
            raise self._lost_rank(timed_out) from None

    def _lost_rank(self, timed_out: bool) -> LostRankError:
        self._diagnosing = True
        lost, names = self._diagnose()
        reporter = min((r for r in range(self.size) if r not in lost), default=0)
        what = "has ended"
        if timed_out:
            what = f"gave no answer for {self.timeout:g} s (parallel.timeout)"
        error = LostRankError(
            f"{names} {what}: all are stopped; go on with `{self.resume_command}`, under the same "
            "launcher"
        )
        error.reported = self.rank != reporter
        return error

    def _diagnose(self) -> tuple[list[int], str]:
        """The lost ranks, as numbers and in words.

        In a thread, as the store may be in a rank 0 that hangs, and its clients have no timeout.
        """
        found: list[tuple[list[int], str]] = []

        def diagnose() -> None:
            with suppress(RuntimeError):
                lost = self._silent_ranks()
                names = ", ".join(f"rank {r} ({self._host_of(r)})" for r in lost)
                found.append((lost, names or "another process"))

        thread = threading.Thread(target=diagnose, daemon=True)
        thread.start()
        thread.join(3 * SILENT_SECONDS)
        return found[0] if found else ([0], f"rank 0 ({self.leader_host})")

    def _silent_ranks(self) -> list[int]:
        """Of the ranks that have not noticed a failure, those without a heartbeat; else all."""
        self.store.set(f"noticed{self.rank}", "1")
        before = self._heartbeats()
        time.sleep(SILENT_SECONDS)
        after = self._heartbeats()
        others = [r for r in range(self.size) if r != self.rank]
        unaware = [r for r in others if not self.store.check([f"noticed{r}"])]
        return [r for r in unaware if before[r] == after[r]] or unaware

    def _heartbeats(self) -> list[bytes]:
        return list(self.store.multi_get([f"beat{rank}" for rank in range(self.size)]))

    def _host_of(self, rank: int) -> str:
        return str(self.store.get(f"host{rank}"), "utf-8")

    def _send_heartbeats(self) -> None:
        """Send heartbeats, and note those of rank 0, until the store has gone."""
        count, last = 0, b""
        with suppress(RuntimeError):
            self.leader_host = self._host_of(0)
            while not self._closed.wait(HEARTBEAT_SECONDS):
                count += 1
                self.store.set(f"beat{self.rank}", str(count))
                if self.rank and (now := self.store.get("beat0")) != last:
                    last, self._leader_seen = now, time.monotonic()

    def _watch_leader(self) -> None:
        """End this process if rank 0 has no heartbeat and no collective has failed for it.

        A watchdog in a thread of its own, as a request to a store that hangs blocks its thread.
        """
        tick = time.monotonic()
        while not self._closed.wait(HEARTBEAT_SECONDS):
            before, tick = tick, time.monotonic()
            if tick - before > SILENT_SECONDS:  # it was this process that was suspended
                self._leader_seen = tick
            silence = tick - self._leader_seen
            if silence > self.timeout + 4 * SILENT_SECONDS and not self._diagnosing:
                if self.rank == 1:
                    message = (
                        f"saccade: rank 0 ({self.leader_host}) gave no sign of life for "
                        f"{self.timeout:g} s: all are stopped; go on with `{self.resume_command}`, "
                        "under the same launcher\n"
                    )
                    os.write(2, message.encode())
                os._exit(2)

    def close(self) -> None:
        """Leave the job, without waiting for the others."""
        self._closed.set()
        # Python ends a thread that is in the store when the interpreter ends, and C++ aborts then.
        for thread in self._threads:
            thread.join(SILENT_SECONDS)  # no longer: the store may hang
        with suppress(RuntimeError, ValueError):
            dist.destroy_process_group()


CONNECTION_WORDS = ("gloo", "onnection", "imed out", "NCCL", "peer", "socket", "Broken pipe")


def _is_connection_error(message: str) -> bool:
    return any(word in message for word in CONNECTION_WORDS)


_joined: World | None = None


def join() -> World | None:
    """The job of this process, joined; None if it is the only one."""
    global _joined
    if _joined is None and launched():
        _joined = World()
    return _joined


def joined() -> World | None:
    """The job of this process if it has joined one."""
    return _joined


def leave() -> None:
    global _joined
    if _joined is not None:
        _joined.close()
    _joined = None
