"""Forecasts as a table, as JSON, and as a picture with intervals."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from saccade.errors import ConfigError
from saccade.inspect.attention import new_figure, save
from saccade.runs.run import Run
from saccade.tasks.forecast import INTERVAL, Continuation

SHOWN_HORIZONS, SHOWN_ROWS = 4, 50  # of the history, whichever is more
MAX_PANELS = 12  # series in one picture
STANDARD_INPUT = "/dev/stdin"


def show(
    run: Run,
    file: Path | None,
    quantiles: str,
    samples: int,
    decode: Mapping[str, Any],
    plot: Path | None,
    as_json: bool,
    unused: Sequence[str],
) -> str:
    """The forecast of the table in a file, as text; with `plot` also as a picture.

    `unused` are given options that a forecast does not have.
    """
    if unused or set(decode) - {"kind", "seed"}:
        what = unused[0] if unused else f"decode.{min(set(decode) - {'kind', 'seed'})}"
        raise ConfigError(f"{what}: a forecast does not search: leave it out")
    levels = _levels(quantiles)
    name = STANDARD_INPUT if file is None or str(file) == "-" else str(file)
    seed = decode.get("seed", 1)
    drawn = _interval_levels() if plot is not None else ()
    forecast = run.forecast(name, (*levels, *drawn), samples, seed)
    if plot is not None:
        draw(forecast, plot)
    forecast = forecast.with_levels(levels)
    return json.dumps(forecast.record()) if as_json else forecast.csv().rstrip("\n")


def _levels(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"--quantiles {text}: write them as in 0.1,0.5,0.9") from None


def _interval_levels() -> tuple[float, float]:
    return round((1 - INTERVAL) / 2, 9), round((1 + INTERVAL) / 2, 9)


def draw(forecast: Continuation, path: str | Path) -> None:
    """History, forecast and its 80 % interval, a panel a series; needs the extra `plot`."""
    table, H = forecast.table, len(forecast.mean)
    names = table.names[:MAX_PANELS]
    figure = new_figure(8, 1.2 + 2.0 * len(names))
    from matplotlib.ticker import MaxNLocator  # an extra, which new_figure asks for

    low, high = (forecast.quantiles[forecast.levels.index(level)] for level in _interval_levels())
    before = max(0, forecast.first - max(SHOWN_HORIZONS * H, SHOWN_ROWS))
    past = np.arange(before, forecast.first)
    future = np.arange(forecast.first - 1, forecast.first + H)  # from the last value on
    for i, name in enumerate(names):
        axes = figure.add_subplot(len(names), 1, i + 1)
        axes.plot(past, table.values[before : forecast.first, i], color="black", linewidth=1)
        last = table.values[forecast.first - 1, i]
        mean, least, most = (np.append(last, part[:, i]) for part in (forecast.mean, low, high))
        axes.plot(future, mean, color="tab:blue", linewidth=1.5, label="forecast")
        band = f"{INTERVAL:.0%} interval"
        axes.fill_between(future, least, most, color="tab:blue", alpha=0.25, label=band)
        axes.set_title(name, fontsize=9, loc="left")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(lambda x, _: table.time(round(x)))
        axes.tick_params(labelsize=7)
        if i == 0:
            axes.legend(fontsize=7, loc="upper left")
    save(figure, path, dpi=150)
