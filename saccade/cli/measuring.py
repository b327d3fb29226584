"""Commands that measure runs: evaluate, score, exact, verify."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from saccade.cli.options import (
    AsJson,
    Data,
    DecodeSettings,
    Engine,
    Int8,
    Others,
    RunFolder,
    decode_settings,
    device_for,
    end_quietly,
    media_root,
    say,
)


def evaluate(
    run: RunFolder,
    data: Annotated[
        list[str] | None,
        typer.Argument(help="Files as in training. Without them, the run's own dev set."),
    ] = None,
    others: Others = None,
    settings: DecodeSettings = None,
    engine: Engine = None,
    int8: Int8 = False,
    by_label: Annotated[
        bool, typer.Option("--by-label", help="For labels: also precision, recall and F1 of each.")
    ] = False,
    matrix: Annotated[
        bool, typer.Option("--confusion", help="For labels: also which is taken for which.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the task's metrics on a file.

    Each task has metrics of its own, and all of them are printed; docs/guides has a page for each.
    task.metric, which is set in training, is the one that the best weights are chosen by.
    """
    from saccade.runs.machine import tune_malloc
    from saccade.runs.run import load
    from saccade.training.report import following

    end_quietly()
    tune_malloc()
    wanted = decode_settings(settings, engine, int8)
    device = device_for(wanted)
    ensemble = [load(other, device) for other in others or []]
    model = load(run, device)
    model.root = media_root(settings)
    table = None
    if by_label or matrix:
        from saccade.inspect.confusion import confusion, label_lines, matrix_lines

        table = confusion(model, data or [])
    scores = following(model.evaluating(*(data or []), settings=wanted, others=ensemble))
    if as_json:
        more = (
            {} if table is None else {key: table[key] for key in ("labels", "counts", "by_label")}
        )
        print(json.dumps(scores | more, ensure_ascii=False))
        return
    print("\n".join(model.task.report(scores)))
    if table is not None:
        parts = [label_lines(table)] * by_label + [matrix_lines(table)] * matrix
        print("\n" + "\n\n".join("\n".join(lines) for lines in parts))


def score(
    run: RunFolder, data: Data, settings: DecodeSettings = None, as_json: AsJson = False
) -> None:
    """Print log p of each target. A line for each example: log p, tokens, perplexity.

    Of numbers: log p, rows, nats a row.
    """
    from math import exp

    from saccade.errors import ConfigError
    from saccade.runs.machine import tune_malloc
    from saccade.runs.run import load

    end_quietly()
    tune_malloc()
    total, tokens = 0.0, 0
    if wanted := decode_settings(settings, None, False):
        raise ConfigError(f"--set decode.{min(wanted)}: to score is not to search: leave it out")
    model = load(run)
    model.root = media_root(settings)
    numbers = model.config.task.target_type == "numbers"
    unit, rate = ("rows", "nats") if numbers else ("tokens", "perplexity")

    def per_unit(log_p: float, count: int) -> float:
        nats = -log_p / max(count, 1)
        return nats if numbers else exp(min(nats, 700.0))

    for log_p, count in model.score(*data):
        total, tokens = total + log_p, tokens + count
        if as_json:
            print(json.dumps({"log_p": log_p, unit: count, rate: per_unit(log_p, count)}))
        else:
            print(f"{log_p:.4f}\t{count}\t{per_unit(log_p, count):.4f}")
    say(f"{total:.4f} for {tokens:,} {unit}: {rate} {per_unit(total, tokens):.4f}")


def exact(
    run: RunFolder,
    data: Data,
    alpha: Annotated[float, typer.Option(help="Length-normalisation exponent (0: none).")] = 0.0,
    budget: Annotated[int, typer.Option(help="Prefixes to expand per line, at most.")] = 20_000,
    order: Annotated[
        str, typer.Option(help="Search order: depth (depth-first) or best (best-first).")
    ] = "depth",
    limit: Annotated[int | None, typer.Option(help="Search the first N lines only.", min=1)] = None,
    settings: DecodeSettings = None,
    as_json: AsJson = False,
) -> None:
    """Find the highest-scoring outputs exactly, to tell search errors from model errors."""
    from itertools import islice

    from saccade.runs.machine import tune_malloc
    from saccade.runs.printing import lines_in_words, one_line
    from saccade.runs.run import load
    from saccade.tasks.exact import summary
    from saccade.training.report import counting

    tune_malloc()
    model = load(run)
    wanted = {"alpha": alpha, "length": "power"} | decode_settings(settings, None, False)
    lines = []
    end_quietly()
    for line in counting(islice(model.compare(data, wanted, budget, order), limit), None):
        lines.append(line)
        if line.problem:
            say(f"source {len(lines):,}: {line.problem}; skipped")
        if as_json:
            print(json.dumps(asdict(line), ensure_ascii=False))
        elif not line.problem:
            beam = line.beams[5][0]
            verdict = "proved" if line.proved else "budget exhausted"
            print(f"{line.score:.4f}\t{verdict}\t{one_line(line.text)}\t{one_line(beam)}")
    report = summary(lines)
    if as_json:
        print(json.dumps({"summary": report}))
        return
    say(
        f"{lines_in_words(report['lines'])}, {report['proved']:.1f} % proved after "
        f"{report['steps']:,.0f} steps a line; of the proved:\n"
        f"{report['model_error']:.1f} % of the optima are wrong (model error), "
        f"{report['empty_optimum']:.1f} % are empty"
    )
    say("width  search error  wrong  empty")
    for width, shares in report["widths"].items():
        missed, wrong, empty = shares["search_error"], shares["wrong"], shares["empty"]
        say(f"{width:5}  {missed:10.1f} %  {wrong:5.1f}  {empty:5.1f}")


def verify(run: RunFolder, as_json: AsJson = False) -> None:
    """Test a run. Batches, caches and engines must give the same; exit 1 if one does not."""
    from saccade.verify import verify as laws

    end_quietly()
    found = []
    for law in laws(run):
        found.append(law)
        if not as_json:
            print(law, flush=True)
    if as_json:
        print(json.dumps([law.record() for law in found]))
    raise typer.Exit(0 if all(law.passed is not False for law in found) else 1)
