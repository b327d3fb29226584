"""Series of numbers, step by step: samples of a step's distribution, or its means.

A step is `(numbers, state) -> (raw, state)`, where `raw` are the parameters of a distribution of
the next numbers. As in search, no model is known here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from saccade.decoding.sample import uniforms
from saccade.nn.distributions import Distribution
from saccade.nn.state import select

NumberStep = Callable[[Tensor, Any], tuple[Tensor, Any]]  # ((N, F), state) -> ((N, n), state)
Choose = Callable[[Tensor, list[int], int], Tensor]  # ((N, n), the rows' numbers, t) -> (N, F)


@dataclass(frozen=True, slots=True)
class Series:
    """Rows of numbers (n, F), and log p of them, including the end of the series if it has one."""

    values: Float[Tensor, "n F"]
    score: float


def number_stepper(decoder: Callable[[Tensor, Any], tuple[Tensor, Any]]) -> NumberStep:
    """The step of a decoder: the numbers of one step in, the parameters for the next out."""

    def step(values: Float[Tensor, "N F"], state: Any) -> tuple[Float[Tensor, "N n"], Any]:
        raw, state = decoder(values[:, None], state)
        return raw[:, 0], state

    return step


def drawn(
    distribution: Distribution, seed: int, keys: Sequence[int], temperature: float = 1.0
) -> Choose:
    """Draws the next numbers of each row; each is a function of (seed, the row's key, t) alone."""

    def choose(raw: Float[Tensor, "N n"], rows: list[int], t: int) -> Float[Tensor, "N F"]:
        row_keys, draws = np.array([keys[row] for row in rows]), distribution.draws
        columns = [uniforms(seed, row_keys, t * draws + i) for i in range(draws)]
        noise = torch.from_numpy(np.stack(columns, -1)).to(raw.device)
        return distribution.sample(raw, noise, temperature)

    return choose


def expected(distribution: Distribution) -> Choose:
    """The mean of the next numbers; of binary ones the likelier value."""

    def choose(raw: Float[Tensor, "N n"], rows: list[int], t: int) -> Float[Tensor, "N F"]:
        mean = distribution.mean(raw)
        if distribution.binary:
            mean[:, distribution.binary] = mean[:, distribution.binary].round()
        return mean

    return choose


@torch.inference_mode()
def unroll(
    step: NumberStep,
    state: Any,
    first: Float[Tensor, "B F"],
    distribution: Distribution,
    *,
    choose: Choose,
    limits: Sequence[int],
    end: int | None = None,
) -> list[Series]:
    """For each row the numbers chosen step by step, at most `limits[b]` steps.

    `first` is the input of the first step: the last known numbers, or NaN. A series ends where the
    number `end` is 1, and that row is not part of it. A row's series does not depend on the others.
    """
    chosen: list[list[Tensor]] = [[] for _ in limits]
    scores = [0.0 for _ in limits]
    limit = torch.tensor(limits, device=first.device)
    alive = torch.arange(first.size(0), device=first.device)
    values, rows = first, alive.tolist()
    no_numbers = torch.full_like(first[:1], nan)
    if end is not None:
        no_numbers[:, end] = 1.0
    for t in range(max(limits, default=0) + 1):
        raw, state = step(values, state)
        values = choose(raw, rows, t)
        ended = limit[alive] <= t
        if end is not None:
            ended = ended | (values[:, end] == 1.0)
        values = torch.where(ended[:, None], no_numbers, values)  # -log p of nothing is 0
        log_p = (-distribution.nll(raw, values)).tolist()
        for row, one, more, done in zip(rows, values, log_p, ended.tolist(), strict=True):
            scores[row] += more
            if not done:
                chosen[row].append(one)
        stay = (~ended).nonzero().squeeze(1)
        if not len(stay):
            break
        if len(stay) < len(alive):
            values, alive, state = values[stay], alive[stay], select(state, stay)
            rows = alive.tolist()
    empty = first.new_zeros(0, first.size(1))
    return [
        Series(torch.stack(steps) if steps else empty, score)
        for steps, score in zip(chosen, scores, strict=True)
    ]
