"""Scaling laws of a user's own runs: loss against size and data, with intervals.

loss = floor + exp(a - alpha log parameters - beta log tokens): the power laws of Kaplan et al. 2020
(arxiv.org/abs/2001.08361) with a floor that nothing goes below, as in Hoffmann et al. 2022
(arxiv.org/abs/2203.15556). For each floor the rest is linear in logarithms. The interval holds for
every floor that explains the runs nearly as well as the best one does.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log
from pathlib import Path
from typing import Any

import numpy as np

from saccade.errors import ConfigError
from saccade.plan.subject import subject_of

CONFIDENCE = 0.9
FLOORS = 200  # that are tried, from 0 to the lowest loss
Row = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Trial:
    """A finished run: its size, its training tokens, and its loss on the dev set."""

    name: str
    parameters: int
    tokens: float
    loss: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """The loss of a larger run, and an interval around it."""

    parameters: float
    tokens: float
    loss: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Law:
    """A fitted law."""

    floor: float
    a: float
    alpha: float | None  # of parameters; None where all runs have as many
    beta: float | None  # of tokens
    error: float  # of a run's loss, in logarithms
    trials: tuple[Trial, ...]

    def loss(self, parameters: float, tokens: float) -> float:
        log_loss = self.a - (self.alpha or 0.0) * log(parameters) - (self.beta or 0.0) * log(tokens)
        return self.floor + exp(log_loss)


def trial_of(run: str) -> Trial:
    """The result of a run, from its metrics.jsonl."""
    folder = Path(run)
    if not (folder / "metrics.jsonl").is_file():
        raise ConfigError(f"{run}: no run that has been trained: it has no metrics.jsonl")
    subject = subject_of(run)
    losses, steps = [], 0
    for event in _events(folder / "metrics.jsonl"):
        steps = max(steps, int(event.get("step", 0)))
        scores = event.get("scores")
        if isinstance(scores, dict) and isfinite(loss := float(scores.get("loss", "nan"))):
            losses.append(loss)
    if not losses or not steps:
        raise ConfigError(f"{run}: it was never evaluated, so it has no loss on a dev set")
    if min(losses) <= 0.0:
        raise ConfigError(
            f"{run}: its loss goes below 0, as a density's may; scaling laws need positive losses"
        )
    count = sum(p.numel() for p in subject.network.parameters())
    return Trial(run, count, steps * subject.tokens, min(losses))


def _events(path: Path) -> Iterable[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:  # a line that was cut off
                continue
            if isinstance(event, dict):
                yield event


def fit(trials: Sequence[Trial]) -> Law:
    """The law that explains the runs best; ConfigError where they are too few."""
    laws = _laws(trials)
    return laws[0]


def extrapolate(trials: Sequence[Trial], parameters: float, tokens: float) -> Forecast:
    """The loss at another size and amount of data, with an interval of 90 %."""
    laws = _laws(trials)
    best = laws[0].loss(parameters, tokens)
    lows, highs = [], []
    matrix = _matrix(trials)
    point = _point(trials, parameters, tokens)
    degrees = len(trials) - matrix.shape[1] - (len(laws) > 1)
    inverse = np.linalg.pinv(matrix.T @ matrix)
    for law in laws:
        width = law.error * float(np.sqrt(1.0 + point @ inverse @ point))
        margin = student_quantile(CONFIDENCE, max(degrees, 1)) * width
        middle = log(max(law.loss(parameters, tokens) - law.floor, 1e-300))
        lows.append(law.floor + exp(min(middle - margin, 700.0)))
        highs.append(law.floor + exp(min(middle + margin, 700.0)))
    return Forecast(parameters, tokens, best, min(lows), max(highs))


def _laws(trials: Sequence[Trial]) -> list[Law]:
    """The best law first, and those of other floors that explain the runs nearly as well."""
    matrix = _matrix(trials)
    losses = np.array([trial.loss for trial in trials])
    unknown = matrix.shape[1]
    if unknown == 1:
        raise ConfigError("--scaling: all runs are of one size and saw as much: vary one of them")
    if len(trials) < unknown + 1:
        what = "size and data" if unknown == 3 else "size or data"
        raise ConfigError(
            f"--scaling: {len(trials)} runs are too few for a law of {what}: give at least "
            f"{unknown + 1}, of different sizes"
        )
    fit_floor = len(trials) >= unknown + 2  # enough for a floor, too
    floors = np.linspace(0.0, float(losses.min()) * 0.999, FLOORS) if fit_floor else np.zeros(1)
    fits = [_law(trials, matrix, losses, float(floor)) for floor in floors]
    order = sorted(fits, key=lambda pair: pair[0])
    best = order[0][0]
    degrees = len(trials) - unknown - fit_floor
    # An F-test of one unknown more: the square of Student's t.
    quantile = student_quantile(CONFIDENCE, max(degrees, 1))
    limit = best * (1.0 + quantile**2 / max(degrees, 1)) + 1e-12
    return [law for squares, law in order if squares <= limit]


def _law(trials: Sequence[Trial], matrix: Row, losses: Row, floor: float) -> tuple[float, Law]:
    """The sum of squared errors of losses, in logarithms, and the law with this floor."""
    logs = np.log(losses - floor)
    weights, *_ = np.linalg.lstsq(matrix, logs, rcond=None)
    errors = logs - matrix @ weights
    degrees = max(1, len(trials) - matrix.shape[1] - (floor > 0))
    error = float(np.sqrt((errors**2).sum() / degrees))
    # of the losses themselves, relative: near its floor a law's logarithms are all noise
    squares = float((((np.exp(matrix @ weights) + floor) / losses - 1.0) ** 2).sum())
    size, data = _varied(trials)
    slopes = iter(weights[1:])
    alpha = -float(next(slopes)) if size else None
    beta = -float(next(slopes)) if data else None
    return squares, Law(floor, float(weights[0]), alpha, beta, error, tuple(trials))


def _varied(trials: Sequence[Trial]) -> tuple[bool, bool]:
    """Whether sizes differ, and whether what was seen does: by more than a tenth."""
    sizes = [trial.parameters for trial in trials]
    tokens = [trial.tokens for trial in trials]
    return max(sizes) > 1.1 * min(sizes), max(tokens) > 1.1 * min(tokens)


def _matrix(trials: Sequence[Trial]) -> Row:
    return np.array([_point(trials, trial.parameters, trial.tokens) for trial in trials])


def _point(trials: Sequence[Trial], parameters: float, tokens: float) -> Row:
    size, data = _varied(trials)
    logs = [log(parameters)] * size + [log(tokens)] * data
    return np.array([1.0, *logs])


def student_quantile(confidence: float, degrees: int) -> float:
    """The two-sided quantile of Student's t distribution."""
    x = np.concatenate([np.linspace(0.0, 20.0, 20001), np.geomspace(20.0, 1e4, 20000)[1:]])
    density = (1.0 + x**2 / degrees) ** (-(degrees + 1) / 2)
    area = np.concatenate([[0.0], np.cumsum(np.diff(x) * (density[1:] + density[:-1]) / 2)])
    return float(np.interp(confidence * area[-1], area, x))


def larger_points(
    trials: Sequence[Trial], parameters: float | None, tokens: float | None
) -> list[tuple[float, float]]:
    """The sizes and data to extrapolate to: those asked for, or 10 and 100 times the largest."""
    for name, value in (("parameters", parameters), ("tokens", tokens)):
        if value is not None and not 1.0 <= value < 1e18:
            raise ConfigError(f"--{name} {value:g}: a number from 1 to 1e18")
    size = max(trial.parameters for trial in trials)
    data = max(trial.tokens for trial in trials)
    if parameters is not None or tokens is not None:
        return [(parameters or size, tokens or data)]
    sizes, seen = _varied(trials)
    return [(size * (n if sizes else 1), data * (n if seen else 1)) for n in (10, 100)]
