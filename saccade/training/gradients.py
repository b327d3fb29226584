"""The gradients of a step, summed over its batches, and cut where they do not fit into memory.

A slice of a batch draws the random numbers that the whole would have drawn for its rows, so that
cutting changes nothing but the order of some sums.
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
from saccade.models.networks import Network, halved
from saccade.nn.dropout import RowSlice, slice_of
from saccade.nn.precision import Halved, computing_in
from saccade.nn.state import concat, leaves, select, with_leaves
from saccade.runs.machine import out_of_memory
from saccade.training.stop import Interrupted, Stop

BATCH_STRIDE = 0x9E3779B97F4A7C15  # between the seeds of a step's batches, of all bits


@dataclass(frozen=True, slots=True)
class Sums:
    """What a step is made of, beside the gradients that are left on the weights."""

    nll: Tensor
    count: int  # of tokens, or of labels
    carry: Any  # for the next step


class Gradients:
    """Sums gradients; remembers what did not fit into memory."""

    def __init__(
        self,
        network: Network,
        parameters: Sequence[Tensor],  # of the network, that learn
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
            self.halved = halved(network, dtype)
        self.too_large: int | None = None  # positions: slices of this size or more do not fit
        self.trying: tuple[Batch, int] | None = None  # a batch, and how many of its rows

    def sum(
        self, batches: Sequence[Batch], carry: Any, progress: float, step: int, stop: Stop
    ) -> Sums:
        """The sums over some batches, and over all ranks."""
        sums = self.sum_here(batches, carry, progress, step, stop)
        if self.ranks.size == 1:
            return sums
        own = leaves(sums.carry)
        note = float(sums.nll), sums.count, [tensor.float().cpu().numpy() for tensor in own]
        notes = self.ranks.add([p.grad for p in self.parameters], note)
        carries = [carried for _, _, carried in notes if carried]
        whole = None
        if own:  # every rank with rows knows what all of them carry on
            tensors = [
                torch.from_numpy(np.concatenate(parts)).to(mine)
                for mine, *parts in zip(own, *carries, strict=True)
            ]
            whole = with_leaves(sums.carry, tensors)
        nll = torch.tensor(sum(nll for nll, _, _ in notes))
        return Sums(nll, sum(count for _, count, _ in notes), whole)

    def sum_here(
        self, batches: Sequence[Batch], carry: Any, progress: float, step: int, stop: Stop
    ) -> Sums:
        """The sums of this rank, tried with smaller slices as long as memory ends.

        A request to stop is answered between any two parts of the work, and leaves no trace.
        """
        while True:
            try:
                return self.sum_once(batches, carry, progress, step, stop)
            except Interrupted:
                self.clear()
                raise
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or self.trying is None:
                    raise
                if self.ranks.lockstep:
                    raise TrainingError(
                        f"out of memory with {self.trying[1]} rows of {self.trying[0].width} "
                        f"tokens, at step {step + 1}: lower train.batch_tokens, or raise "
                        "parallel.shard or parallel.tensor"
                    ) from None
                message = (str(error).splitlines() or ["no memory"])[0]
            # Here the error is gone, and with it the frames that held on to the memory.
            self.clear()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            batch, rows = self.trying
            if rows == 1:
                raise TrainingError(
                    f"out of memory with one example of {batch.width} tokens, at step {step + 1}: "
                    f"lower data.max_len, or take a smaller network ({message})"
                )
            self.too_large = rows * batch.width

    def sum_once(
        self, batches: Sequence[Batch], carry: Any, progress: float, step: int, stop: Stop
    ) -> Sums:
        """Forward and backward through every batch.

        The random numbers are those of the step and the batch: a rank that has no rows of one has
        drawn none.
        """
        self.trying = None
        if self.halved is not None:
            self.halved.cast()
        half = self.dtype != torch.float32 and self.halved is None
        inside: Callable[[], Any] = nullcontext
        if half and is_sharded(self.network):  # FSDP casts the weights
            inside = partial(computing_in, self.dtype)
        elif half:
            inside = partial(torch.autocast, self.device.type, self.dtype)
        network = self.halved or self.network
        nll, count = torch.zeros((), device=self.device), 0
        for number, batch in enumerate(batches, 1):
            carries = []
            seed = self.seed * 1_000_003 + step + (number - 1) * BATCH_STRIDE
            seed_all(seed % 2**63, self.device)
            if self.ranks.lockstep:
                self.ranks.sync(self.network, number == len(batches))
            for some, state in self.slices(batch, carry, own=number > 1):
                if stop.asked:
                    raise Interrupted
                with inside():
                    loss, state = network(some, state, progress)
                if stop.asked:
                    raise Interrupted
                if self.ranks.lockstep and self.is_idle(batch):
                    (loss.sum * 0.0).backward()
                    continue
                self.scaler.scale(loss.sum).backward()
                carries.append(state)
                nll += loss.nll.detach()
                count += loss.count
            carry = concat(carries) if len(carries) > 1 else carries[0] if carries else None
        return Sums(nll, count, carry)

    def slices(self, batch: Batch, carry: Any, own: bool) -> Iterator[tuple[Batch, Any]]:
        """This rank's rows on the device, at once or in slices, each with what it carries on.

        `carry` is that of all rows, or this rank's `own`.
        """
        fits = self.too_large is None or batch.count * batch.width < self.too_large
        if fits and self.ranks.size == 1:
            self.trying = batch, batch.count
            yield batch.to(self.device), carry
            return
        before = random_state(self.device)
        here = 0 if batch.part is None else batch.part.first  # of the rows that were read
        carried = self.ranks.part(batch.count)[0] if own else 0
        for cut in self.cuts(batch):
            rows = torch.arange(cut.first, cut.last)
            self.trying = batch, len(rows)
            set_random_state(before, self.device)
            some = None if carry is None else select(carry, (rows - carried).to(self.device))
            with slice_of(cut):
                yield batch.rows(rows - here).to(self.device), some
        if self.ranks.lockstep and self.is_idle(batch):
            one = torch.zeros(1, dtype=torch.int64)
            some = None if carry is None else select(carry, one.to(self.device))
            with slice_of(RowSlice(0, 1, batch.count, batch.words)):
                yield batch.rows(one).to(self.device), some

    def is_idle(self, batch: Batch) -> bool:
        """Whether none of the rows are this rank's."""
        first, last = self.ranks.part(batch.count)
        return first == last

    def cuts(self, batch: Batch) -> list[RowSlice]:
        """Slices of this rank's rows, none as large as what did not fit."""
        first, last = self.ranks.part(batch.count)
        rows, cuts = last - first, 1
        if self.too_large is not None:
            while cuts < rows and -(-rows // cuts) * batch.width >= self.too_large:
                cuts *= 2
        length = max(1, -(-rows // max(1, min(cuts, rows))))
        firsts = range(first, last, length)
        return [RowSlice(i, min(i + length, last), batch.count, batch.words) for i in firsts]

    def clear(self) -> None:
        self.network.zero_grad(set_to_none=True)


def seed_all(seed: int, device: torch.device) -> None:
    """Seed the generators that a step on this device draws from.

    `torch.manual_seed` also queues a call for every CUDA device that may come, with a stack trace
    each: at every step that is slow, and grows for ever.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def random_state(device: torch.device) -> Tensor:
    """The state of the generator that a step on this device draws from."""
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
