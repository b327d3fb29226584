"""Small tables of series, for the tests of forecasts."""

from pathlib import Path

import numpy as np


def table(folder: Path, rows: int = 200, name: str = "series.csv", noise: float = 0.01) -> Path:
    """Two noisy sines with a season of 12, a row a day; a holiday that lifts both, and the cause
    of the second, a day before."""
    rng = np.random.default_rng(0)
    t = np.arange(rows)
    holiday = (rng.random(rows) < 0.1).astype(float)
    cause = rng.standard_normal(rows)
    sine = np.sin(2 * np.pi * t / 12)
    a = 10 + 3 * sine + 2 * holiday + noise * rng.standard_normal(rows)
    b = 100 - 20 * sine + 2 * holiday + 5 * np.append(0, cause[:-1])
    days = np.datetime64("2020-01-01") + t
    path = folder / name
    with path.open("w") as file:
        file.write("day,a,b,holiday,cause\n")
        for row in zip(days, a, b, holiday, cause, strict=True):
            file.write("{},{:.5f},{:.5f},{:.0f},{:.5f}\n".format(*row))
    return path


QUICK = {
    "task.horizon": 4,
    "task.lookback": 12,
    "task.season": 12,
    "train.steps": 8,
    "train.evaluate_every": 4,
    "train.processes": 1,
}
