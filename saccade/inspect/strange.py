"""Degenerate outputs for a file: empty, copied, looping, of odd length, or source-independent."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from saccade.data.lines import Example
from saccade.errors import ConfigError, DataError
from saccade.inspect.packing import number
from saccade.runs.printing import one_line
from saccade.runs.run import Run
from saccade.tasks.translate import Translate

MAX_LINES = 20_000
LOOPS = 4  # repetitions in a row
LONGEST_LOOP = 8  # words of a repeated phrase
RATIO = 3.0  # to the median ratio of lengths
SMALL_DROP = 0.1  # in nats per token, with another source: the output is source-independent
KINDS = ("empty", "copied", "looping", "too long", "too short", "source-independent")


def strange(run: Run, path: str, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """The view: degenerate outputs of a run for the inputs in a file.

    An output is source-independent if it is about as likely with another line's source.
    """
    task = run.task
    if not isinstance(task, Translate):
        raise ConfigError(f"a run of {run.config.task.title} does not generate text")
    sources = inputs_in(run, path)
    request = run.request(settings=settings)
    texts = [prediction.text for prediction in run.stream(sources, request, file=path)]
    usual = median(
        [len(t) / max(_length(s), 1) for s, t in zip(sources, texts, strict=True) if t] or [1]
    )
    drops = source_drops(run, sources, texts)
    lines: list[dict[str, Any]] = []
    for i, (source, text) in enumerate(zip(sources, texts, strict=True)):
        kinds = signs(source, text, usual)
        if drops[i] is not None and drops[i] < SMALL_DROP:  # type: ignore[operator]
            kinds.append("source-independent")
        if kinds:
            lines.append(
                {
                    "line": i + 1,
                    "signs": kinds,
                    "source": " | ".join(source),
                    "text": text,
                    "drop": None if drops[i] is None else number(drops[i] or 0.0),
                }
            )
    counts = {kind: sum(kind in line["signs"] for line in lines) for kind in KINDS}
    known = [drop for drop in drops if drop is not None]
    return {
        "kind": "strange",
        "file": path,
        "measured": len(sources),
        "usual_ratio": number(usual),
        "mean_drop": number(sum(known) / len(known)) if known else None,
        "counts": counts,
        "lines": lines,
    }


def inputs_in(run: Run, path: str) -> list[tuple[str, ...]]:
    """The inputs in a file: of examples as in training, or one in each line."""
    try:
        rows = [row.source for row in run.rows(path)]
    except DataError:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = [line.rstrip("\r\n") for line in file]
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise DataError(f"{path}: {reason}; name a file with an input in each line") from None
        rows = [run.source_of(line) for line in lines if line.strip()]
    if not rows:
        raise DataError(f"{path}: holds no input")
    return list(dict.fromkeys(rows))[:MAX_LINES]


def _length(source: Sequence[str]) -> int:
    return sum(map(len, source))


def signs(source: Sequence[str], text: str, usual: float) -> list[str]:
    """The kinds of degeneration of one output; `usual` is the median ratio of lengths."""
    if not text.strip():
        return ["empty"]
    found = []
    if " ".join(text.split()) == " ".join(" ".join(source).split()):
        found.append("copied")
    if loops(text.split()) or (loops([*"".join(text.split())]) and " " not in text.strip()):
        found.append("looping")
    ratio = len(text) / max(_length(source), 1)
    if ratio > RATIO * usual and len(text) > 10:
        found.append("too long")
    if ratio < usual / RATIO and _length(source) > 10:
        found.append("too short")
    return found


def loops(words: Sequence[str]) -> bool:
    """Whether a phrase is repeated several times in a row."""
    for size in range(1, LONGEST_LOOP + 1):
        same = 0  # consecutive words that equal those `size` before
        for i in range(size, len(words)):
            same = same + 1 if words[i] == words[i - size] else 0
            if same >= size * (LOOPS - 1):
                return True
    return False


def source_drops(
    run: Run, sources: Sequence[tuple[str, ...]], texts: Sequence[str]
) -> list[float | None]:
    """How much less likely each output is with the next line's source, in nats per token."""
    if len(sources) < 2:
        return [None] * len(sources)
    full = [i for i, text in enumerate(texts) if text.strip()]
    own = [Example(sources[i], texts[i]) for i in full]
    other = [Example(sources[(i + 1) % len(sources)], texts[i]) for i in full]
    with_own, with_other = (run.task.score(run.network, rows) for rows in (own, other))
    drops: list[float | None] = [None] * len(sources)
    for i, (a, n), (b, _) in zip(full, with_own, with_other, strict=True):
        drops[i] = (a - b) / max(n, 1)
    return drops


def text_of(view: dict[str, Any]) -> list[str]:
    """The view as lines of text."""
    n = view["measured"]
    lines = [f"{kind}\t{count}\t{100 * count / n:.1f} %" for kind, count in view["counts"].items()]
    for line in view["lines"]:
        cells = [", ".join(line["signs"]), line["source"], line["text"]]
        lines.append("\t".join([str(line["line"]), *map(one_line, cells)]))
    return lines
