"""Pen movements to look at: where a pen is lifted a line ends, and a picture exists."""

from pathlib import Path

import numpy as np
import pytest

from saccade.errors import ConfigError
from saccade.inspect.strokes import draw_strokes, lines_of

ROWS = [[1.0, 2.0, 0], [3.0, 0.0, 1], [0.0, 1.0, 1], [1.0, 1.0, 0]]


def test_a_line_ends_where_the_pen_is_lifted() -> None:
    first, dot, last = lines_of(ROWS)
    assert np.array_equal(first, [[1, 2], [4, 2]])
    assert np.array_equal(dot, [[4, 3]])
    assert np.array_equal(last, [[5, 4]])
    (whole,) = lines_of(ROWS, pen=None)
    assert len(whole) == 4
    assert lines_of([]) == []


@pytest.mark.parametrize("name", ["a.nothing", "gone/a.png"])
def test_a_picture_that_cannot_be_written_is_said(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        draw_strokes([ROWS], tmp_path / name)


def test_drawings_are_a_picture(tmp_path: Path) -> None:
    draw_strokes([ROWS, ROWS, []], tmp_path / "a.png", titles=["a", "b"], columns=2, down=False)
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
