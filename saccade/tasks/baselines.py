"""The baselines of every forecast: the value a season ago, and least squares.

Both are fitted to the windows of the training rows, and predict a mean and a deviation of each
step, as a network does. Windows are read in chunks, so memory does not grow with them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from saccade.data.corpora import Array
from saccade.data.windows import SeriesField, Windows
from saccade.errors import CheckpointError

NUMBERS_AT_ONCE = 1 << 22  # in a chunk of windows
MAX_LAGS = 2048  # of least squares, which takes their square in memory
RIDGE = 1e-3  # of the mean squared input, for each window
FILE = "baselines.safetensors"


@dataclass(frozen=True)
class Baselines:
    """Seasonal-naive and linear forecasts of windows, in units of the training rows' deviation."""

    season: int
    weights: Array  # (L, H): from the look-back to the targets, both less the last known value
    naive_deviation: Array  # (N, H)
    linear_deviation: Array

    @classmethod
    def fit(cls, windows: Windows, season: int) -> "Baselines":
        H, N = windows.span.horizon, windows.values.shape[1]
        L = min(windows.span.lookback, MAX_LAGS)
        inputs, outputs, energy, count = np.zeros((L, L)), np.zeros((L, H)), 0.0, 0
        for rows in _row_chunks(windows):
            x, y = _differences(windows, rows)
            complete = ~np.isnan(y).any(1)
            x, y = x[complete, -L:], y[complete]
            inputs += x.T @ x
            outputs += x.T @ y
            energy, count = energy + float((x**2).sum()), count + len(x)
        ridge = RIDGE * energy / max(L, 1) + 1e-12
        inputs[np.diag_indices(L)] += ridge
        weights = np.linalg.solve(inputs, outputs)
        unscaled = cls(season, weights, np.zeros((N, H)), np.zeros((N, H)))
        sums, squares = np.zeros((N, H)), np.zeros((2, N, H))
        for rows in _row_chunks(windows):
            gold, (_, series) = windows.targets(rows), windows.places(rows)
            for i, (mean, _) in enumerate(unscaled.forecast(windows, rows).values()):
                np.add.at(squares[i], series, np.nan_to_num(gold - mean).transpose(0, 2, 1) ** 2)
            np.add.at(sums, series, ~np.isnan(gold).transpose(0, 2, 1))
        naive, linear = np.sqrt(squares / np.maximum(sums, 1))
        return cls(season, weights, naive, linear)

    def forecast(self, windows: Windows, rows: Array) -> dict[str, tuple[Array, Array]]:
        """The mean and the deviation of some windows by each method, (B, H, C)."""
        first, series = windows.places(rows)
        past, _ = windows.read(first, series)
        lookback = past[:, -len(self.weights) :, : series.shape[1]].transpose(0, 2, 1)  # (B, C, L)
        B, C, L = lookback.shape
        x, last = (lookback - lookback[..., -1:]).reshape(-1, L), lookback[..., -1:]
        linear = ((x @ self.weights).reshape(B, C, -1) + last).transpose(0, 2, 1)
        seasonal_steps = np.arange(windows.span.horizon) % self.season
        naive = windows.history(rows, self.season)[:, seasonal_steps]
        return {
            "seasonal_naive": (naive, self.naive_deviation[series].transpose(0, 2, 1)),
            "linear": (linear, self.linear_deviation[series].transpose(0, 2, 1)),
        }

    def save(self, folder: Path) -> None:
        tensors = {name: np.ascontiguousarray(getattr(self, name), np.float32) for name in TENSORS}
        safetensors.numpy.save_file(tensors, folder / FILE)

    @classmethod
    def load(cls, folder: Path, field: SeriesField, season: int) -> "Baselines":
        """What `save` wrote; CheckpointError if it does not fit."""
        path, span, N = folder / FILE, field.span, len(field.known.names)
        lags = min(span.lookback, MAX_LAGS)
        shapes = [(lags, span.horizon), (N, span.horizon), (N, span.horizon)]
        tensors: dict[str, Any] = {}
        try:
            with safetensors.safe_open(path, "numpy") as file:
                for name, shape in zip(TENSORS, shapes, strict=True):
                    if tuple(file.get_slice(name).get_shape()) != shape:
                        raise ValueError(f"'{name}' has another shape than {shape}")
                    tensors[name] = file.get_tensor(name).astype(np.float64)
        except Exception as error:  # the library has no one class for what a file can be
            raise CheckpointError(f"{path}: cannot be read: {error!s:.200}: train anew") from None
        return cls(season, *(tensors[name] for name in TENSORS))


TENSORS = ("weights", "naive_deviation", "linear_deviation")


def _row_chunks(windows: Windows) -> list[Array]:
    """The numbers of all windows, in chunks."""
    width = (windows.span.lookback + windows.span.horizon) * (
        windows.values.shape[1] if windows.span.joint else 1
    )
    size = max(1, NUMBERS_AT_ONCE // width)
    return [np.arange(i, min(i + size, len(windows))) for i in range(0, len(windows), size)]


def _differences(windows: Windows, rows: Array) -> tuple[Array, Array]:
    """Look-backs (n, S) and targets (n, H), both less the last value before the targets."""
    first, series = windows.places(rows)
    past, _ = windows.read(first, series)
    lookback = past[..., : series.shape[1]].astype(np.float64)
    parts = lookback, windows.targets(rows)
    x, y = ((part - lookback[:, -1:]).transpose(0, 2, 1) for part in parts)
    return x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
