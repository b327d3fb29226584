"""Scaling laws: what was put in is found, and the interval holds what comes."""

import json
from math import exp, log
from pathlib import Path

import numpy as np
import pytest

from saccade.errors import ConfigError
from saccade.plan.scaling import (
    Trial,
    extrapolate,
    fit,
    larger_points,
    student_quantile,
    trial_of,
)
from tests.helpers import GOLDEN

SIZES, DATA = (1e5, 1e6, 1e7), (1e6, 1e7, 1e8)


def true_loss(parameters: float, tokens: float, floor: float = 1.5) -> float:
    return floor + exp(6.0 - 0.2 * log(parameters) - 0.15 * log(tokens))


def trials(noise: float, seed: int = 0) -> list[Trial]:
    draws = np.random.default_rng(seed)
    return [
        Trial("run", int(n), d, true_loss(n, d) * exp(noise * draws.standard_normal()))
        for n in SIZES
        for d in DATA
    ]


def test_a_law_without_noise_is_found() -> None:
    law = fit(trials(0.0))
    assert law.floor == pytest.approx(1.5, abs=0.02)
    assert law.alpha == pytest.approx(0.2, abs=0.01)
    assert law.beta == pytest.approx(0.15, abs=0.01)
    found = extrapolate(trials(0.0), 1e9, 1e10)
    assert found.loss == pytest.approx(true_loss(1e9, 1e10), rel=0.01)


def test_the_interval_holds_nine_of_ten_larger_runs() -> None:
    held = 0
    for seed in range(60):
        found = extrapolate(trials(0.01, seed), 1e8, 1e9)
        draw = np.random.default_rng(1000 + seed).standard_normal()
        held += found.low <= true_loss(1e8, 1e9) * exp(0.01 * draw) <= found.high
    assert held >= 51  # 85 % of 60
    near, far = (extrapolate(trials(0.01), 1e7 * n, 1e8 * n) for n in (1, 100))
    assert far.high / far.low > near.high / near.low


def test_a_law_of_size_alone_and_of_data_alone() -> None:
    sizes = [Trial("run", int(n), 1e7, true_loss(n, 1e7)) for n in (1e5, 1e6, 1e7)]
    law = fit(sizes)
    assert law.beta is None
    assert law.floor == 0.0  # three runs are too few for one
    data = [Trial("run", 10**6, d, true_loss(1e6, d)) for d in (1e6, 1e7, 1e8, 1e9)]
    assert fit(data).alpha is None
    assert fit(data).floor == pytest.approx(1.5, abs=0.05)
    assert larger_points(data, None, None) == [(10**6, 1e10), (10**6, 1e11)]
    assert larger_points(data, 5e6, None) == [(5e6, 1e9)]


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 runs are too few for a law of size or data: give"):
        fit([Trial("run", 10**n, 1e7, 3.0 - n / 10) for n in (5, 6)])
    with pytest.raises(ConfigError, match="3 runs are too few for a law of size and data: give"):
        fit(trials(0.0)[::4])
    with pytest.raises(ConfigError, match="all runs are of one size and saw as much"):
        fit([Trial("run", 1000, 1e7, 3.0)] * 4)
    with pytest.raises(ConfigError, match="--tokens 0: a number"):
        larger_points(trials(0.0), None, 0.0)


def test_students_quantiles_are_those_of_the_tables() -> None:
    for freedom, value in ((1, 6.314), (2, 2.920), (5, 2.015), (30, 1.697)):
        assert student_quantile(0.9, freedom) == pytest.approx(value, rel=2e-3)


def test_a_run_says_its_size_and_its_loss(tmp_path: Path) -> None:
    (source,) = [path for path in GOLDEN.iterdir() if path.name == "transformer"]
    run = tmp_path / "run"
    run.mkdir()
    for path in source.iterdir():
        if path.is_file():
            (run / path.name).write_bytes(path.read_bytes())
    events = [{"event": "Evaluated", "step": 5, "scores": {"loss": 2.5}, "best": True}]
    events += [{"event": "Evaluated", "step": 9, "scores": {"loss": 2.25}, "best": True}]
    text = "".join(json.dumps(event) + "\n" for event in events)
    (run / "metrics.jsonl").write_text(text + '{"event": "Eval')  # cut off
    found = trial_of(str(run))
    assert found.loss == 2.25
    assert found.parameters > 1000
    assert found.tokens > 9
    (run / "metrics.jsonl").write_text('{"event": "StepDone", "step": 3}\n')
    with pytest.raises(ConfigError, match="was never evaluated"):
        trial_of(str(run))
    with pytest.raises(ConfigError, match=r"no metrics\.jsonl"):
        trial_of(str(tmp_path))
