"""The gradients of a step, summed over its batches, and cut where they do not fit into memory.

A slice of a batch draws the random numbers that the whole would have drawn for its rows, so that
cutting changes nothing but the order of some sums.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saccade.data.batches import Batch
from saccade.errors import TrainingError
from saccade.models.networks import Network
from saccade.nn.dropout import RowSlice, slice_of
from saccade.nn.state import concat, select
from saccade.runs.machine import out_of_memory
from saccade.training.stop import Interrupted, Stop


@dataclass(frozen=True, slots=True)
class Sums:
    """What a step is made of, beside the gradients that are left on the weights."""

    nll: Tensor
    count: int  # of tokens, or of labels
    carry: Any  # for the next step


class Gradients:
    """Sums gradients; remembers what did not fit into memory."""

    def __init__(
        self, network: Network, device: torch.device, dtype: torch.dtype, scaler: Any, seed: int
    ) -> None:
        self.network, self.device, self.dtype, self.scaler = network, device, dtype, scaler
        self.seed = seed
        self.too_large: int | None = None  # positions: slices of this size or more do not fit
        self.trying: tuple[Batch, int] | None = None  # a batch, and how many of its rows

    def sum(
        self, batches: Sequence[Batch], carry: Any, progress: float, step: int, stop: Stop
    ) -> Sums:
        """The sums over some batches, tried with smaller slices as long as memory ends.

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
        """Forward and backward through every batch; the random numbers are those of the step."""
        self.trying = None
        seed_all((self.seed * 1_000_003 + step) % 2**63, self.device)
        half = self.dtype != torch.float32
        nll, count = torch.zeros((), device=self.device), 0
        for batch in batches:
            carries = []
            for some, state in self.slices(batch, carry):
                if stop.asked:
                    raise Interrupted
                with torch.autocast(self.device.type, self.dtype) if half else nullcontext():
                    loss, state = self.network(some, state, progress)
                if stop.asked:
                    raise Interrupted
                self.scaler.scale(loss.sum).backward()
                carries.append(state)
                nll += loss.nll.detach()
                count += loss.count
            carry = carries[0] if len(carries) == 1 else concat(carries)
        return Sums(nll, count, carry)

    def slices(self, batch: Batch, carry: Any) -> Iterator[tuple[Batch, Any]]:
        """A batch on the device, whole or in slices, each with its rows of what is carried."""
        cuts = [] if self.too_large is None else self.cuts(batch, self.too_large)
        if len(cuts) < 2:
            self.trying = batch, len(batch.target.values)
            yield batch.to(self.device), carry
            return
        before = random_state(self.device)
        for cut in cuts:
            rows = torch.arange(cut.first, cut.last)
            self.trying = batch, len(rows)
            set_random_state(before, self.device)
            some = None if carry is None else select(carry, rows.to(self.device))
            with slice_of(cut):
                yield batch.rows(rows).to(self.device), some

    def cuts(self, batch: Batch, too_large: int) -> list[RowSlice]:
        """Slices of rows, none as large as what did not fit."""
        rows, cuts = batch.count, 1
        while cuts < rows and -(-rows // cuts) * batch.width >= too_large:
            cuts *= 2
        length = -(-rows // min(cuts, rows))
        firsts = range(0, rows, length)
        return [RowSlice(i, min(i + length, rows), rows, batch.words) for i in firsts]

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
