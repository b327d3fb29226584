"""Training curves of runs, finished or still training, from their logs."""

import json
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

from saccade.errors import DataError
from saccade.inspect.packing import number
from saccade.runs.run import Run

MAX_POINTS = 2000  # of a curve; longer ones are subsampled
METRICS = "metrics.jsonl"


def curves(runs: Iterable[Run | Path | str]) -> dict[str, Any]:
    """The view: for each run its steps with loss and learning rate, and the scores on dev."""
    folders = [run.folder if isinstance(run, Run) else Path(run) for run in runs]
    return {
        "kind": "curves",
        "runs": [
            {"name": name} | curve(folder)
            for name, folder in zip(names_of(folders), folders, strict=True)
        ],
    }


def names_of(folders: list[Path]) -> list[str]:
    """A name for each run: its folder's, with a number where two have the same."""
    names: list[str] = []
    for folder in folders:
        base = folder.resolve().name or "run"
        tries = (base if i == 1 else f"{base} {i}" for i in count(1))
        names.append(next(name for name in tries if name not in names))
    return names


def curve(folder: Path) -> dict[str, Any]:
    """The losses of a run, its scores at each evaluation, and whether it has finished."""
    steps: list[dict[str, Any]] = []
    dev: list[dict[str, Any]] = []
    finished = ""
    for event in events(folder / METRICS):
        match event.get("event"):
            case "StepDone":
                steps.append(
                    {name: event.get(name) for name in ("step", "loss", "rate", "seconds")}
                )
            case "Evaluated":
                dev.append({"step": event.get("step"), "best": bool(event.get("best"))})
                dev[-1]["scores"] = _numbers(event.get("scores"))
            case "Finished":
                finished = str(event.get("reason", ""))
            case "Prepared":  # started or resumed
                start, finished = event.get("start") or 0, ""
                steps = [event for event in steps if (event["step"] or 0) <= start]
                dev = [event for event in dev if (event["step"] or 0) <= start]
    every = max(1, -(-len(steps) // MAX_POINTS))
    kept = steps[::-1][::every][::-1]  # with the last one
    return {
        "steps": [step["step"] for step in kept],
        "loss": [_number(step["loss"]) for step in kept],
        "rate": [_number(step["rate"]) for step in kept],
        "seconds": [_number(step["seconds"]) for step in kept],
        "dev": dev,
        "finished": finished,
    }


def events(path: Path) -> Iterable[dict[str, Any]]:
    """The events in a log; an incomplete last line is skipped."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        reason = "there is none" if isinstance(error, FileNotFoundError) else error.strerror
        raise DataError(f"{path}: what happened in training cannot be read: {reason}") from None
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


def _number(value: Any) -> float | None:
    return number(value) if isinstance(value, int | float) else None


def _numbers(scores: Any) -> dict[str, float | None]:
    return {name: _number(value) for name, value in scores.items()} if scores else {}
