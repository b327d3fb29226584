"""Drawings from series of pen movements: rows of (dx, dy, pen)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from saccade.data.corpora import Array
from saccade.inspect.attention import new_figure, save


def lines_of(rows: Sequence[Sequence[float]], pen: int | None = 2) -> list[Array]:
    """The lines (n, 2) of a drawing; the pen is lifted after a row in which column `pen` is 1.

    Without such a column (None) it is never lifted.
    """
    moves = np.asarray(rows, np.float64)
    if not moves.size:
        return []
    points = moves[:, :2].cumsum(0)
    lifted = np.zeros(0, int) if pen is None else np.flatnonzero(moves[:, pen] >= 0.5) + 1
    return [line for line in np.split(points, lifted) if len(line)]


def draw_strokes(
    series: Sequence[Sequence[Sequence[float]]],
    path: str | Path,
    *,
    titles: Sequence[str] = (),
    columns: int = 8,
    pen: int | None = 2,
    down: bool = True,
) -> None:
    """Drawings side by side in a picture file; needs the extra `plot`.

    With `down` y grows downwards, as in pictures.
    """
    columns = max(1, min(columns, len(series)))
    rows = max(1, -(-len(series) // columns))
    figure = new_figure(columns, rows * (1.25 if titles else 1.0))
    for i, drawing in enumerate(series):
        axes = figure.add_subplot(rows, columns, i + 1)
        for line in lines_of(drawing, pen):
            dot = "." if len(line) == 1 else ""
            axes.plot(line[:, 0], line[:, 1], color="black", linewidth=1.2, marker=dot)
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.1)
        axes.set_axis_off()
        if down:
            axes.invert_yaxis()
        if i < len(titles):
            axes.set_title(titles[i], fontsize=7)
    save(figure, path, dpi=100)
