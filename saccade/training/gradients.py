"""The gradients of a step, accumulated over batches, which are split if memory runs out.

A slice of a batch draws the random numbers that its rows would have in the whole batch, so that
splitting changes nothing but the order of some sums.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade.data.batches import Batch
from saccade.distributed.ranks import Ranks, is_sharded
from saccade.errors import TrainingError
from saccade.models.networks import Network, half_precision
from saccade.nn.dropout import RowSlice, slice_of
from saccade.nn.precision import Halved, computing_in
from saccade.nn.state import concat, leaves, select, with_leaves
from saccade.runs.machine import out_of_memory
from saccade.training.stop import Interrupted, Stop

BATCH_STRIDE = 0x9E3779B97F4A7C15  # between the seeds of a step's batches, of all bits


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of a step; its gradients are left on the parameters."""

    nll: Tensor
    count: int  # of tokens, or of labels
    carry: Any  # for the next step


class Gradients:
    """Accumulates gradients; remembers the size that did not fit into memory."""

    def __init__(
        self,
        network: Network,
        parameters: Sequence[Tensor],  # the trainable ones
        device: torch.device,
        dtype: torch.dtype,
        scaler: Any,
        seed: int,
    ) -> None:
        self.network, self.device, self.dtype, self.scaler = network, device, dtype, scaler
        self.seed = seed
        self.ranks = Ranks()
        self.parameters = parameters
        self.halved: Halved | None = None
        if device.type == "cpu" and dtype != torch.float32 and not is_sharded(network):
            self.halved = half_precision(network, dtype)
        self.too_large: int | None = None  # tokens: slices of this size or more do not fit
        self.current: tuple[Batch, int] | None = None  # the batch, and the rows of its slice

    def sum(
        self, batches: Sequence[Batch], carry: Any, progress: float, step: int, stop: Stop
    ) -> Sums:
        """The sums over batches and ranks."""
        sums = self.local_sum(batches, carry, progress, step, stop)
        if self.ranks.size == 1:
            return sums
        own = leaves(sums.carry)
        value = float(sums.nll), sums.count, [tensor.float().cpu().numpy() for tensor in own]
        values = self.ranks.all_reduce([p.grad for p in self.parameters], value)
        carries = [carried for _, _, carried in values if carried]
        full_carry = None
        if own:  # each rank with rows has the carry of all
            tensors = [
                torch.from_numpy(np.concatenate(parts)).to(tensor)
                for tensor, *parts in zip(own, *carries, strict=True)
            ]
            full_carry = with_leaves(sums.carry, tensors)
        nll = torch.tensor(sum(nll for nll, _, _ in values))
        return Sums(nll, sum(count for _, count, _ in values), full_carry)

    def local_sum(
        self, batches: Sequence[Batch], carry: Any, progress: float, step: int, stop: Stop
    ) -> Sums:
        """The sums of this rank, retried with smaller slices after running out of memory.

        Interrupted, if a stop is requested, leaves no gradients behind.
        """
        while True:
            try:
                return self.accumulate(batches, carry, progress, step, stop)
            except Interrupted:
                self.clear()
                raise
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or self.current is None:
                    raise
                if self.ranks.lockstep:
                    raise TrainingError(
                        f"out of memory with {self.current[1]} rows of {self.current[0].width} "
                        f"tokens, at step {step + 1}: lower train.batch_tokens, or raise "
                        "parallel.shard or parallel.tensor"
                    ) from None
                message = (str(error).splitlines() or ["no memory"])[0]
            # The error is released by now, and with it the frames that held on to the memory.
            self.clear()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            batch, rows = self.current
            if rows == 1:
                raise TrainingError(
                    f"out of memory with one example of {batch.width} tokens, at step {step + 1}: "
                    f"lower data.max_len, or take a smaller network ({message})"
                )
            self.too_large = rows * batch.width

    def accumulate(
        self, batches: Sequence[Batch], carry: Any, progress: float, step: int, stop: Stop
    ) -> Sums:
        """Forward and backward through every batch.

        Random numbers are seeded by step and batch, so they do not depend on how many a rank has
        drawn before.
        """
        self.current = None
        if self.halved is not None:
            self.halved.cast()
        half = self.dtype != torch.float32 and self.halved is None
        precision: Callable[[], Any] = nullcontext
        if half and is_sharded(self.network):  # FSDP casts the weights
            precision = partial(computing_in, self.dtype)
        elif half:
            precision = partial(torch.autocast, self.device.type, self.dtype)
        network = self.halved or self.network
        nll, count = torch.zeros((), device=self.device), 0
        for number, batch in enumerate(batches, 1):
            carries = []
            seed = self.seed * 1_000_003 + step + (number - 1) * BATCH_STRIDE
            seed_all(seed % 2**63, self.device)
            if self.ranks.lockstep:
                self.ranks.set_gradient_sync(self.network, number == len(batches))
            for rows, state in self.slices(batch, carry, own=number > 1):
                if stop.requested:
                    raise Interrupted
                with precision():
                    loss, state = network(rows, state, progress)
                if stop.requested:
                    raise Interrupted
                if self.ranks.lockstep and self.is_idle(batch):  # a row that is not its own
                    (loss.sum * 0.0).backward()
                    continue
                self.scaler.scale(loss.sum).backward()
                carries.append(state)
                nll += loss.nll.detach()
                count += loss.count
            carry = concat(carries) if len(carries) > 1 else carries[0] if carries else None
        return Sums(nll, count, carry)

    def slices(self, batch: Batch, carry: Any, own: bool) -> Iterator[tuple[Batch, Any]]:
        """This rank's rows on the device, in one or more slices, each with its carried state.

        `carry` is that of all rows, or of this rank's `own`.
        """
        fits = self.too_large is None or batch.count * batch.width < self.too_large
        if fits and self.ranks.size == 1:
            self.current = batch, batch.count
            yield batch.to(self.device), carry
            return
        before = random_state(self.device)
        first_loaded = 0 if batch.part is None else batch.part.first
        first_carried = self.ranks.row_range(batch.count)[0] if own else 0
        for part in self.row_slices(batch):
            rows = torch.arange(part.first, part.last)
            self.current = batch, len(rows)
            set_random_state(before, self.device)
            state = None if carry is None else select(carry, (rows - first_carried).to(self.device))
            with slice_of(part):
                yield batch.rows(rows - first_loaded).to(self.device), state
        if self.ranks.lockstep and self.is_idle(batch):
            row = torch.zeros(1, dtype=torch.int64)
            state = None if carry is None else select(carry, row.to(self.device))
            with slice_of(RowSlice(0, 1, batch.count, batch.words)):
                yield batch.rows(row).to(self.device), state

    def is_idle(self, batch: Batch) -> bool:
        """Whether this rank has none of the rows."""
        first, last = self.ranks.row_range(batch.count)
        return first == last

    def row_slices(self, batch: Batch) -> list[RowSlice]:
        """Slices of this rank's rows, all smaller than what did not fit into memory."""
        first, last = self.ranks.row_range(batch.count)
        rows, count = last - first, 1
        if self.too_large is not None:
            while count < rows and -(-rows // count) * batch.width >= self.too_large:
                count *= 2
        length = max(1, -(-rows // max(1, min(count, rows))))
        firsts = range(first, last, length)
        return [RowSlice(i, min(i + length, last), batch.count, batch.words) for i in firsts]

    def clear(self) -> None:
        self.network.zero_grad(set_to_none=True)


def seed_all(seed: int, device: torch.device) -> None:
    """Seed the random generators that a step on this device uses.

    Without CUDA, `torch.manual_seed` queues a call with a stack trace for its later initialisation:
    done at every step, that is slow and leaks memory.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def random_state(device: torch.device) -> Tensor:
    """The state of the random generator that a step on this device uses."""
    match device.type:
        case "cuda":
            return torch.cuda.get_rng_state()
        case "mps":
            return torch.mps.get_rng_state()
        case _:
            return torch.get_rng_state()


def set_random_state(state: Tensor, device: torch.device) -> None:
    match device.type:
        case "cuda":
            torch.cuda.set_rng_state(state)
        case "mps":
            torch.mps.set_rng_state(state)
        case _:
            torch.set_rng_state(state)
