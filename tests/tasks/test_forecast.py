"""Simple forecasts, runs that do not fit, and one step ahead on real series."""

import json
from pathlib import Path

import numpy as np
import pytest

import saccade
from saccade import config as c
from saccade.data.seasons import part
from saccade.data.series import Table, read_table
from saccade.data.windows import SeriesField, Span
from saccade.errors import CheckpointError
from saccade.tasks import baselines as baselines_of
from saccade.tasks.baselines import FILE, Baselines
from tests.real_data import NEEDS_REAL_DATA, ROOT
from tests.series import QUICK, table

SPAN = Span(lookback=12, horizon=5, past=0, known=0, joint=False)


def table_of(values: np.ndarray, folder: Path) -> Table:
    path = folder / "t.csv"
    path.write_text("y\n" + "".join("\n" if np.isnan(y) else f"{y}\n" for y in values))
    return read_table(str(path), c.Forecast(), c.Data())


def test_the_seasonal_naive_forecast_is_the_value_a_season_ago(tmp_path: Path) -> None:
    values = np.arange(80) % 20 + np.arange(80) // 20 * 0.5
    whole = table_of(values, tmp_path)
    field = SeriesField.fit(part(whole, 0, 60), SPAN, season=20)
    windows = field.windows(whole, 60)
    baselines = Baselines.fit(windows, season=20)  # a season is longer than the look-back
    mean, _ = baselines.forecast(windows, np.arange(len(windows)))["seasonal_naive"]
    said = field.in_file_units(mean, np.zeros((len(windows), 1), np.int64))
    for i, row in enumerate(range(60, 76)):
        np.testing.assert_allclose(said[i, :, 0], values[row - 20 : row - 15], rtol=1e-5)


def test_the_linear_forecast_is_least_squares(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = np.cumsum(rng.standard_normal(300))
    whole = table_of(values, tmp_path)
    field = SeriesField.fit(whole, SPAN, season=1)
    windows = field.windows(whole, 12)
    baselines = Baselines.fit(windows, season=1)
    mean, deviation = baselines.forecast(windows, np.arange(len(windows)))["linear"]
    x = np.stack([values[t - 12 : t] - values[t - 1] for t in range(12, 296)])
    y = np.stack([values[t : t + 5] - values[t - 1] for t in range(12, 296)])
    weights = np.linalg.lstsq(x, y, rcond=None)[0]
    exact = np.mean((x @ weights - y) ** 2) / field.scales.deviation[0] ** 2
    errors = mean[:, :, 0] - windows.targets(np.arange(len(windows)))[:, :, 0]
    assert np.mean(errors**2) == pytest.approx(exact, rel=0.01)
    np.testing.assert_allclose(np.sqrt(np.mean(errors**2, 0)), deviation[0, :, 0], rtol=1e-4)


def test_least_squares_looks_back_as_far_as_memory_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines_of, "MAX_LAGS", 4)
    whole = table_of(np.cumsum(np.random.default_rng(0).standard_normal(300)), tmp_path)
    field = SeriesField.fit(whole, SPAN, season=1)
    long = field.windows(whole, SPAN.lookback)
    found = Baselines.fit(long, season=1)
    assert found.weights.shape == (4, SPAN.horizon)
    found.save(tmp_path)
    again = Baselines.load(tmp_path, field, 1)
    rows = np.arange(len(long))
    first, second = found.forecast(long, rows)["linear"], again.forecast(long, rows)["linear"]
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    values = long.targets(rows)
    mean, _ = found.forecast(long, rows)["linear"]
    naive, _ = found.forecast(long, rows)["seasonal_naive"]
    assert np.mean((mean - values) ** 2) < 1.02 * np.mean((naive - values) ** 2)


def test_gaps_are_neither_learned_from_nor_scored(tmp_path: Path) -> None:
    values = np.sin(np.arange(100) / 3)
    values[40:60] = np.nan
    whole = table_of(values, tmp_path)
    field = SeriesField.fit(whole, SPAN, season=1)
    windows = field.windows(whole, 12)
    rows = set(windows.places(np.arange(len(windows)))[0].tolist())
    assert not rows & set(range(40, 61))  # nothing of the target, or of the look-back, is there
    assert {39, 61} <= rows
    assert np.isfinite(Baselines.fit(windows, 1).linear_deviation).all()
    (past, _, _), _ = windows.parts(np.arange(len(windows)))
    assert bool(past.values.isfinite().all())


def test_a_run_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    run = saccade.train(
        table(tmp_path, 80), task="forecast", out=tmp_path / "run", settings=QUICK, quiet=True
    )
    (run.folder / FILE).unlink()
    with pytest.raises(CheckpointError, match=FILE):
        saccade.load(run.folder).evaluate()
    path = run.folder / "target.json"
    record = json.loads(path.read_text())
    for key, value in (("span", [13, 4, 0, 0, False]), ("mean", [0.0]), ("clock", {"form": "x"})):
        path.write_text(json.dumps(record | {key: value}))
        with pytest.raises(CheckpointError, match=r"target\.json"):
            saccade.load(run.folder)


class TestRealSeries:
    pytestmark = NEEDS_REAL_DATA

    @pytest.mark.parametrize(
        ("name", "settings", "ar9"),
        [
            ("sunspots", {"lookback": 9, "frame": {"centre": "mean"}}, 13.39),
            ("co2", {"lookback": 104}, 0.469),
        ],
    )
    def test_one_step_ahead_is_nearer_than_ar9(
        self, tmp_path: Path, name: str, settings: dict[str, object], ar9: float
    ) -> None:
        path = ROOT / "series_statsmodels" / f"{name}.train.csv"
        own = {f"task.{key}": value for key, value in settings.items()}
        own |= {"task.horizon": 1, "task.metric": "mse"}
        run = saccade.train(path, task="forecast", out=tmp_path / "run", settings=own, quiet=True)
        scores = run.evaluate()
        assert scores["rmse"] < ar9
        assert scores["rmse"] < scores["seasonal_naive_rmse"]

    def test_etth1_is_seven_series_of_17420_hours(self) -> None:
        found = read_table(str(ROOT / "ett" / "ETTh1.csv.gz"), c.Forecast(), c.Data())
        assert found.values.shape == (17_420, 7)
        assert not np.isnan(found.values).any()
        assert found.time(17_420) == "2018-06-26 20:00:00"
