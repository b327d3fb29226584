"""Omniglot's drawings as rows of (dx, dy, pen), for the task `series`.

    python recipes/omniglot_strokes/prepare.py train.jsonl dev.jsonl --out strokes

A line of the input is {"label": ..., "strokes": [[[x, y, t], ...], ...]}, where a new list is a pen
that was lifted; a line of the output is {"label": ..., "strokes": [[dx, dy, pen], ...]}. The points
are as far apart as APART pixels, or the end of a stroke; pen is 1 where it is lifted after a point.
The first row is where a drawing begins, from the middle of the picture. Times are left out.
"""

import argparse
import json
from pathlib import Path

MIDDLE = 52  # of a picture of 105 pixels
APART = 4  # pixels: pens were sampled unevenly, and many points do not move


def rows_of(strokes: list[list[list[float]]]) -> list[list[float]]:
    """A drawing as rows of (dx, dy, pen)."""
    rows: list[list[float]] = []
    before: tuple[float, float] = (MIDDLE, MIDDLE)
    for stroke in strokes:
        last = (stroke[0][0] - APART, stroke[0][1])  # the first point is kept
        for i, (x, y, *_) in enumerate(stroke):
            ends = i == len(stroke) - 1
            if ends or (x - last[0]) ** 2 + (y - last[1]) ** 2 >= APART**2:
                rows.append([x - before[0], y - before[1], int(ends)])
                last = before = (x, y)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for path in options.files:
        with path.open(encoding="utf-8") as drawings, (options.out / path.name).open("w") as out:
            for line in drawings:
                drawing = json.loads(line)
                strokes = rows_of(drawing["strokes"])
                out.write(json.dumps({"label": drawing["label"], "strokes": strokes}) + "\n")


if __name__ == "__main__":
    main()
