"""Sampling: tokens drawn by their probability, the same for a row whatever batch it is in."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.decoding.search import Hypothesis, Pick, Step, generate


def sample(
    step: Step,
    state: Any,
    first: Int[Tensor, "B"],
    *,
    end: int,
    limits: Sequence[int],
    seed: int | Sequence[int],
    keys: Sequence[int],
) -> list[Hypothesis]:
    """For each source a text drawn from the step's probabilities.

    Every number drawn is a function of (seed, the row's key, t) alone; the seed is one for all
    rows, or one for each. The score is log p under the step, with its temperature and filters.
    """
    return generate(step, state, first, end=end, limits=limits, pick=draw(seed, keys))


def draw(seed: int | Sequence[int], keys: Sequence[int]) -> Pick:
    """Draws a token for each row by the probabilities of the step."""
    seeds = [seed] * len(keys) if isinstance(seed, int) else seed

    def pick(log_probs: Float[Tensor, "N V"], rows: list[int], t: int) -> Int[Tensor, "N"]:
        each = np.array([seeds[row] for row in rows], np.uint64)
        u = torch.from_numpy(uniforms(each, np.array([keys[row] for row in rows]), t))
        cdf = log_probs.double().exp().cumsum(-1)  # (N, V)
        at = u.to(cdf.device)[:, None] * cdf[:, -1:]
        # The first whose cdf is above `at`: never one of probability 0, and never beyond the last.
        return torch.searchsorted(cdf, at, right=True).squeeze(1).clamp(max=cdf.size(1) - 1)

    return pick


def uniforms(seed: int | npt.NDArray[Any], keys: npt.NDArray[Any], t: int) -> npt.NDArray[Any]:
    """A number in [0, 1) for each key, mixed from (seed, key, t) by SplitMix (Steele 2014)."""
    with np.errstate(over="ignore"):
        x = _mix(np.asarray(seed, np.uint64) + np.zeros_like(keys, dtype=np.uint64))
        x = _mix(x ^ keys.astype(np.uint64))
        x = _mix(x ^ np.uint64(t))
    return np.asarray((x >> np.uint64(11)).astype(np.float64) / float(1 << 53))


def _mix(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
