"""What `saccade inspect` shows: the requested views, and their files."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from saccade.errors import ConfigError, DataError
from saccade.inspect.curves import curves
from saccade.inspect.examples import worst
from saccade.inspect.figures import draw
from saccade.inspect.page import page
from saccade.inspect.probes import probe
from saccade.inspect.strange import strange
from saccade.inspect.view import OPTIONS, SEARCHED, WITHOUT_INPUT, kinds, view
from saccade.runs.run import Run, load
from saccade.tasks.forecast import Forecast
from saccade.tasks.generate import GeneratingTask

View = dict[str, Any]
PICTURES = (".png", ".svg", ".pdf")


def look(
    words: Sequence[str],
    kind: str,
    options: Mapping[str, Any],
    decode: Mapping[str, Any],
    whole: Mapping[str, Any],
    out: Path | None,
) -> list[View]:
    """The views: of an input, or of a run as a `whole`."""
    if len(whole) > 1 or (whole and kind):
        names = [f"--{name}" for name in whole] + (["--view"] if kind else [])
        raise ConfigError(f"{' and '.join(names)}: choose one of them")
    if "curves" in whole:
        return [curves(words)]
    if len(words) > 2 or (whole and len(words) > 1):
        raise ConfigError(
            f"{words[-1]!r} is one word too many: a run and one input are enough; put quotes "
            "around an input with blanks, and --curves for several runs"
        )
    run = load(words[0], ensemble=False)
    item = words[1] if len(words) > 1 else ""
    if "worst" in whole:
        return [worst(run, whole["worst"])]
    if "probes" in whole:
        return [probe(run, whole["probes"])]
    if "strange" in whole:
        return [strange(run, whole["strange"], dict(decode))]
    available = kinds(run)
    if not kind and not item:
        raise ConfigError(
            f"missing input; for views of the run itself use --view {'|'.join(WITHOUT_INPUT)}, "
            "--curves or --worst 20"
        )
    if kind and kind not in OPTIONS:
        raise ConfigError(f"no view {kind!r}: of this run there are {', '.join(available)}")
    if kind and kind not in WITHOUT_INPUT and not item:
        raise DataError(f"--view {kind}: missing input")
    shown = [kind] if kind else [k for k in available if k not in WITHOUT_INPUT]
    shown = shown if kind or (out and out.suffix == ".html") else default_view(shown, options)
    unused = [name for name in options if not any(name in OPTIONS[k] for k in shown)]
    if unused:
        raise ConfigError(f"--{unused[0]}: has no effect on {', '.join(shown)}: leave it out")
    return [_view(run, item, k, options, decode) for k in shown]


def default_view(shown: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """The default view: the first that has all options."""
    suitable = [k for k in shown if all(name in OPTIONS[k] for name in options)]
    return list((suitable or shown)[:1])


def _view(run: Run, item: Any, kind: str, options: Any, decode: Mapping[str, Any]) -> View:
    own = {name: value for name, value in options.items() if name in OPTIONS[kind]}
    searched = decode if kind in SEARCHED and isinstance(run.task, GeneratingTask) else {}
    if isinstance(run.task, Forecast) and os.path.isfile(item):  # False for a long text, too
        item = Path(item)
    return view(run, item, kind, settings=searched, **own)


def write(views: Sequence[View], out: Path, title: str = "") -> None:
    """Write views into a file of the format of its suffix; `title` is that of a page."""
    if out.suffix in PICTURES:
        if len(views) > 1:
            raise ConfigError(f"{out}: a picture shows one view: name it with --view")
        return draw(views[0], out)
    if out.suffix not in (".html", ".json"):
        raise ConfigError(
            f"{out}: cannot be written: name a .html, a .json, or a picture: {', '.join(PICTURES)}"
        )
    record: Any = views[0] if len(views) == 1 else {"views": views}
    text = (
        page(views, title)
        if out.suffix == ".html"
        else json.dumps(record, ensure_ascii=False) + "\n"
    )
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror}") from None
    return None
