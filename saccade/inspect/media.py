"""Views of pictures, sounds and series: caption paths, speech alignments and forecasts."""

from base64 import b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade.data.corpora import Array
from saccade.data.pictures import pillow
from saccade.data.sounds import SoundField, is_frames, samples_of
from saccade.errors import ConfigError
from saccade.inspect.captions import caption_path, picture_field
from saccade.inspect.forecast import SHOWN_HORIZONS, SHOWN_ROWS
from saccade.inspect.opening import Item, forecast_window, source_of
from saccade.inspect.packing import matrix, number, numbers
from saccade.inspect.speech import hear
from saccade.models.forecaster import AnyForecaster
from saccade.models.networks import Generator
from saccade.runs.run import Run
from saccade.tasks.forecast import Forecast
from saccade.tasks.translate import Translate

ENVELOPE_PARTS = 600  # of a waveform, each drawn by its minimum and maximum
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)


def caption_view(
    run: Run, item: Item, target: str = "", layer: int | None = None
) -> dict[str, Any]:
    """The view of a caption's path: for each word the weights over the cells of the picture."""
    task, network = _translator(run)
    picture_field(task)
    source = source_of(run, item)
    text = target or run.predict([source])[0].text
    path = caption_path(task, network, source, text, -1 if layer is None else layer)
    rows, columns = path.maps.shape[1:]
    height, width = path.picture.shape[:2]
    return {
        "kind": "caption_path",
        "text": text,
        "words": path.words,
        "grid": [rows, columns],
        "weights": [matrix(weights) for weights in path.maps],
        "picture": {"width": width, "height": height, "url": png_url(path.picture)},
    }


def png_url(picture: Array) -> str:
    """A picture as a data: URL."""
    image, data = pillow()[0], BytesIO()
    flat = picture[:, :, 0] if picture.shape[2] == 1 else picture
    image.fromarray(np.ascontiguousarray(flat)).save(data, "PNG")
    return f"data:image/png;base64,{b64encode(data.getvalue()).decode()}"


def speech_view(run: Run, item: Item, target: str = "", layer: int | None = None) -> dict[str, Any]:
    """The view of speech: the alignment of tokens with time, and the waveform."""
    task, network = _translator(run)
    source = source_of(run, item)
    text = target or run.predict([source])[0].text
    alignment = hear(task, network, source, text, layer)
    (field,) = task.sources
    assert isinstance(field, SoundField)
    (cell,) = task.read([source])[0]
    wave: list[list[float | None]] = []
    if not is_frames(cell):
        wave = envelope(samples_of(cell, field.reader.rate))
    return {
        "kind": "speech",
        "text": text,
        "tokens": alignment.tokens,
        "weights": matrix(alignment.weights),
        "seconds": number(alignment.seconds),
        "length": number(alignment.seconds * alignment.weights.size(1)),
        "spoken": alignment.spoken and [numbers(pair) for pair in alignment.spoken],
        "wave": wave,
    }


def envelope(samples: Array) -> list[list[float | None]]:
    """The minimum and maximum of equal parts of a waveform."""
    parts = np.array_split(samples, min(ENVELOPE_PARTS, len(samples)))
    return [numbers([float(part.min()), float(part.max())]) for part in parts]


def _translator(run: Run) -> tuple[Translate, Generator]:
    if not isinstance(run.task, Translate) or not isinstance(run.network, Generator):
        raise ConfigError(f"a run of {run.config.task.title} does not generate text")
    return run.task, run.network


def forecast_view(run: Run, item: Item, samples: int = 0, seed: int = 1) -> dict[str, Any]:
    """The view of a forecast: for each series its history, the mean, and quantiles.

    The item is a window in JSON, as `predict` takes it, or the path of a table's file.
    """
    task, network = run.task, run.network
    if not isinstance(task, Forecast) or not isinstance(network, AnyForecaster):
        raise ConfigError(f"a run of {run.config.task.title} does not forecast")
    if isinstance(item, Path):
        forecast = run.forecast(item, LEVELS, samples, seed)
        table, first, H = forecast.table, forecast.first, len(forecast.mean)
        before = max(0, first - max(SHOWN_HORIZONS * H, SHOWN_ROWS))
        times = [table.time(i) for i in range(before, first)]
        parts = [
            _series(
                name,
                table.values[before:first, i],
                forecast.mean[:, i],
                forecast.quantiles[:, :, i],
            )
            for i, name in enumerate(table.names)
        ]
        return {"kind": "forecast", "times": [*times, *forecast.times], "series": parts}
    windows, row = forecast_window(task, item)
    predicted = task.predict_distribution(network, windows, row, seed=seed)
    _, which = windows.places(row)
    units = task.series.in_file_units
    span, names = task.series.span, task.series.known.names
    past = units(windows.history(row, span.lookback), which)[0]
    mean = units(predicted.mean, which)[0]
    bands = units(predicted.quantiles(LEVELS), which)[:, 0]
    parts = [
        _series(names[series], past[:, i], mean[:, i], bands[:, :, i])
        for i, series in enumerate(which[0])
    ]
    steps = [str(i) for i in range(-span.lookback, 0)] + [f"+{i + 1}" for i in range(span.horizon)]
    return {"kind": "forecast", "times": steps, "series": parts}


def _series(name: str, past: Array, mean: Array, bands: Array) -> dict[str, Any]:
    return {
        "name": name,
        "history": numbers(torch.from_numpy(np.asarray(past, np.float64))),
        "mean": numbers(torch.from_numpy(np.asarray(mean, np.float64))),
        "quantiles": {
            f"{level:g}": numbers(torch.from_numpy(np.asarray(band, np.float64)))
            for level, band in zip(LEVELS, bands, strict=True)
        },
    }
