"""The laws of forecasts, for every way to make one: nothing of the future, and of no neighbour."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import saccade
from saccade.data.batches import Batch, collate
from saccade.data.series import Table
from saccade.models.forecaster import AnyForecaster, StepForecaster
from saccade.runs.run import Run
from saccade.tasks.forecast import Forecast, windows_in
from saccade.verify import verify
from tests.architectures import ENCODERS, ONLY_PUBLISHED
from tests.series import QUICK, table

BODY = {"kind": "recurrent", "dim": 8, "bidirectional": False}
STEPS = {"output": {"kind": "gaussian"}, "encoder": BODY}
KINDS: dict[str, dict[str, Any]] = {
    "linear": {},
    "cycle": {"task.frame": {"cycle": True, "centre": "last"}},
    "plain": {"task.frame": {"centre": "none", "scale": False}, "head.beta": 0.0},
    "covariates": {"task.known": ["holiday"], "task.past": ["cause"], "task.series": ["a", "b"]},
    "joint": {"task.channels": "joint", "encoder": BODY},
    "joint_known": {"task.channels": "joint", "task.known": ["holiday"], "task.past": ["cause"]},
    "steps": STEPS | {"decoder": {"kind": "recurrent", "dim": 8, "tied": False}},
    "attention": STEPS
    | {"decoder": {"kind": "transformer", "dim": 8, "num_heads": 2, "ff_dim": 8, "tied": False},
       "output": {"kind": "mixture", "components": 2}, "task.known": ["holiday"]},
    **{name: {"encoder": ENCODERS[name], "head.pool": "mean"} for name in ENCODERS
       if name not in ONLY_PUBLISHED},
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    found = {}
    for name, settings in KINDS.items():
        folder = tmp_path_factory.mktemp(name)
        path = table(folder, 90)
        found[name] = saccade.train(
            path, task="forecast", out=folder / "run", settings=QUICK | settings, quiet=True
        )
    return found


def parts(run: Run) -> tuple[Forecast, AnyForecaster, Table]:
    assert isinstance(run.task, Forecast)
    assert isinstance(run.network, AnyForecaster)
    train = run.config.data.train[0]
    return run.task, run.network, run.task.table_in(train)


@pytest.mark.parametrize("name", KINDS)
def test_changing_the_future_changes_no_forecast(runs: dict[str, Run], name: str) -> None:
    task, network, whole = parts(runs[name])
    values, beside = whole.values.copy(), whole.covariates.copy()
    values[50:] += 1000.0
    beside[50:, :, : task.series.span.past] -= 50.0
    changed = replace(whole, values=values, covariates=beside)
    said = []
    for one in (whole, changed):
        windows = task.series.windows(one, 50)
        N = 1 if task.series.span.joint else len(one.names)
        said.append(task.predict_distribution(network, windows, np.arange(N), 3))
    np.testing.assert_array_equal(said[0].mean, said[1].mean)
    np.testing.assert_array_equal(said[0].deviation, said[1].deviation)


@pytest.mark.parametrize("name", KINDS)
def test_a_gap_at_the_end_of_a_look_back_is_not_filled_from_the_target(
    runs: dict[str, Run], name: str
) -> None:
    task, network, whole = parts(runs[name])
    means = []
    for later in (0.0, 1000.0):
        values = whole.values.copy()
        values[46:50] = np.nan
        values[50:] += later
        windows = task.series.windows(replace(whole, values=values), 50)
        means.append(task.predict_distribution(network, windows, np.arange(1), 3).mean)
    np.testing.assert_array_equal(means[0], means[1])


@pytest.mark.parametrize("name", KINDS)
def test_a_batch_is_its_rows_and_padding_is_invisible(runs: dict[str, Run], name: str) -> None:
    task, network, whole = parts(runs[name])
    batch = collate(task.corpus(task.series.windows(whole, 30)), np.arange(5))
    wide = Batch(tuple(map(_widened, batch.sources)), _widened(batch.target))
    with torch.inference_mode():
        together = network.nll(batch.sources, batch.target)
        padded = network.nll(wide.sources, wide.target)
        alone = [batch.rows(torch.tensor([i])) for i in range(5)]
        single = torch.cat([network.nll(one.sources, one.target) for one in alone])
        loss, _ = network(batch)
    torch.testing.assert_close(together, single, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(together, padded, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(loss.nll, together.sum(), rtol=1e-4, atol=1e-4)
    assert loss.count == batch.target.values.numel()


def _widened(padded: Any) -> Any:
    extra = padded.values[:, :1].repeat(1, 3, *[1] * (padded.values.dim() - 2))
    return replace(padded, values=torch.cat([padded.values, extra], 1))


@pytest.mark.parametrize("name", KINDS)
def test_a_gap_in_a_target_counts_nothing(runs: dict[str, Run], name: str) -> None:
    task, network, whole = parts(runs[name])
    batch = collate(task.corpus(task.series.windows(whole, 30)), np.arange(4))
    batch.target.values[1, 2:] = torch.nan
    with torch.inference_mode():
        loss, _ = network(batch)
        each = network.nll(batch.sources, batch.target)
    assert bool(each.isfinite().all())
    assert loss.count == batch.target.values.numel() - 2 * batch.target.values.size(2)


@pytest.mark.parametrize("name", ["steps", "attention"])
def test_step_by_step_is_all_at_once(runs: dict[str, Run], name: str) -> None:
    task, network, whole = parts(runs[name])
    assert isinstance(network, StepForecaster)
    batch = collate(task.corpus(task.series.windows(whole, 30)), np.arange(5))
    with torch.inference_mode():
        window, state = network.start(batch.sources)
        values = window.own[:, -4:]
        at_once, _ = network.decoder(values, state)
        said = []
        for t in range(4):
            raw, state = network.decoder(values[:, t : t + 1], state)
            said.append(raw)
    torch.testing.assert_close(torch.cat(said, 1), at_once, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["linear", "steps"])
def test_a_density_is_one_of_the_series_themselves(runs: dict[str, Run], name: str) -> None:
    """Of one step: the probabilities of all values add up to 1."""
    task, network, whole = parts(runs[name])
    batch = collate(task.corpus(task.series.windows(whole, 30)), np.zeros(4001, np.int64))
    values = torch.linspace(-30, 30, 4001)
    batch.target.values[:] = torch.nan
    batch.target.values[:, 0, 0] = values
    with torch.inference_mode():
        density = (-network.nll(batch.sources, batch.target)).exp()
    assert float(torch.trapezoid(density, values)) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("name", KINDS)
def test_a_window_as_json_is_the_window(runs: dict[str, Run], name: str) -> None:
    task, _, whole = parts(runs[name])
    values = whole.values.copy()
    values[33] = np.nan
    corpus = task.corpus(task.series.windows(replace(whole, values=values), 30))
    rows = np.arange(0, len(corpus), 7)
    examples = task.examples(corpus)
    again = collate(task.encode([examples[int(i)] for i in rows]), np.arange(len(rows)))
    for one, other in zip(
        (*collate(corpus, rows).sources, collate(corpus, rows).target),
        (*again.sources, again.target), strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one.values, other.values, equal_nan=True)


@pytest.mark.parametrize("name", ["linear", "covariates", "joint", "steps", "attention", "lstm"])
def test_the_laws_hold_on_a_run(runs: dict[str, Run], name: str) -> None:
    found = {law.name: law for law in verify(runs[name].folder)}
    assert [law for law in found.values() if law.passed is False] == []
    assert found["stop and resume = straight through"].passed
    assert found["batch = single"].passed
    assert found["cached = uncached"].passed is (True if name in ("steps", "attention") else None)


@pytest.mark.parametrize("name", ["linear", "joint", "steps"])
def test_a_prediction_of_json_is_the_forecast_of_the_file(runs: dict[str, Run], name: str) -> None:
    task, _, whole = parts(runs[name])
    future = np.full((4, len(whole.names)), 7.0)
    nothing = np.zeros((4, *whole.covariates.shape[1:]))
    longer = replace(
        whole,
        values=np.concatenate([whole.values, future]),
        covariates=np.concatenate([whole.covariates, nothing]),
    )
    windows = task.series.windows(longer, len(whole))
    example = task.examples(task.corpus(windows))[0]
    said = json.loads(runs[name].predict([example.source])[0].text)
    found = runs[name].forecast(whole.file).mean
    np.testing.assert_allclose(np.array(said["mean"])[:, 0], found[:, 0], rtol=1e-4)


def test_windows_are_read_in_an_order_of_seed_and_epoch(runs: dict[str, Run]) -> None:
    task, _, whole = parts(runs["linear"])
    corpus = task.corpus(task.series.windows(whole, 12))
    plans = [[task.epoch(corpus, n).examples(i) for i in range(2)] for n in (0, 0, 1)]
    assert plans[0] == plans[1] != plans[2]
    seen = sorted(
        i for n in range(len(task.epoch(corpus, 3))) for i in task.epoch(corpus, 3).examples(n)
    )
    assert seen == list(range(len(corpus)))
    assert windows_in(corpus).values.shape == whole.values.shape
