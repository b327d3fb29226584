"""The command line: parse, call one function, print. stdout is data, stderr is log.

Exit 0 done, 1 a negative answer, 2 the user's mistake, 75 stopped by a signal with all saved.
Heavy imports stand inside the commands, so that `saccade --help` is instant.
"""

import json
import os
import shlex
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from saccade import __version__, exchange
from saccade.errors import SaccadeError
from saccade.exchange import say

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
MISUSE: Any = typer.BadParameter.__mro__[2]  # ClickException, of whichever click typer brings
MAX_ERROR_LINES = 10
NEIGHBOURS = 10  # of a word, unless --nbest says otherwise

Data = Annotated[list[str], typer.Argument(help="A file, or two that are aligned line by line.")]
DataOrConfig = Annotated[
    list[str],
    typer.Argument(help="A data file (or two, aligned line by line), or a configuration.toml."),
]
TaskName = Annotated[
    str | None,
    typer.Option(help="As translate, classify, forecast (see the guides); else guessed."),
]
DevFiles = Annotated[
    list[str] | None, typer.Option(help="A file to measure on (given twice for two aligned files).")
]
RunFolder = Annotated[Path, typer.Argument(help="A run's directory.", metavar="RUN")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, as in --set train.minutes=3.")
]
DecodeSettings = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting of decoding, as in --set decode.alpha=0.6."),
]
Engine = Annotated[
    str | None, typer.Option(help="auto, torch or ctranslate2 (extra 'fast'); else as configured.")
]
Int8 = Annotated[bool, typer.Option("--int8", help="8-bit weights: faster on a CPU.")]
Others = Annotated[
    list[Path] | None, typer.Option("--with", help="Another run, for an ensemble with this one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"saccade {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Sequence models: one command from a raw file to a model."""


@app.command()
def train(
    data: DataOrConfig,
    task: TaskName = None,
    dev: DevFiles = None,
    from_run: Annotated[
        Path | None,
        typer.Option("--from", help="A run to start from: vocabulary and weights."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's directory.")] = None,
    seeds: Annotated[int | None, typer.Option(help="So many runs, which predict together.")] = None,
    settings: Settings = None,
) -> None:
    """Train a model from a raw file. What you do not set is chosen for you."""
    from saccade.training.stop import Interrupted, Stop

    with Stop() as stop:
        from saccade.training.session import fill, new_folder, save_unprepared, start

        raw, where = _gathered(data, task, dev, settings)
        if seeds is not None:
            raw["train"] = {**raw.get("train", {}), "seeds": seeds}
        if from_run is not None:
            raw["start"] = {**raw.get("start", {}), "run": str(from_run)}
        try:
            with stop.interruptible():
                config, reason, seen = fill(raw, where)
        except Interrupted:
            _stopped(save_unprepared(raw, out))
        folder = new_folder(config, out)
        say(f"{config.data.train[0]}: {reason}")
        _follow(start(config, folder, stop, seen), folder)
        _follow_seeds(folder, stop)


@app.command()
def resume(
    run: RunFolder,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A limit to raise, as in --set train.steps=2000."),
    ] = None,
) -> None:
    """Go on with a run that was stopped. With a higher limit one that has ended goes on, too."""
    from saccade.training.stop import Stop

    with Stop() as stop:
        from saccade.config import assign_text
        from saccade.runs.folder import flat, read_settings
        from saccade.training.session import resume as go_on

        read_settings(run)  # is it a run at all?
        raw: dict[str, Any] = {}
        for setting in settings or []:
            assign_text(raw, setting)
        _follow(go_on(run, stop, flat(raw)), run)
        _follow_seeds(run, stop, flat(raw))


@app.command()
def verify(run: RunFolder, as_json: AsJson = False) -> None:
    """Test a run. Batches, caches and engines must give the same; exit 1 if one does not."""
    from saccade.verify import verify as laws

    _end_quietly()
    found = []
    for law in laws(run):
        found.append(law)
        if not as_json:
            print(law, flush=True)
    if as_json:
        print(json.dumps([law.record() for law in found]))
    raise typer.Exit(0 if all(law.passed is not False for law in found) else 1)


@app.command()
def predict(
    run: RunFolder,
    file: Annotated[
        Path | None, typer.Argument(help="Lines, or one photo or sound; else standard input.")
    ] = None,
    width: Annotated[int | None, typer.Option(help="The beam's width; 1 is greedy search.")] = None,
    nbest: Annotated[int, typer.Option(help="Answers to each line, the best first.")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Sample instead of searching.")] = False,
    prefix: Annotated[str, typer.Option(help="What every answer has to begin with.")] = "",
    prefixes: Annotated[
        Path | None, typer.Option(help="A file: what each answer has to begin with, line by line.")
    ] = None,
    others: Others = None,
    settings: DecodeSettings = None,
    engine: Engine = None,
    int8: Int8 = False,
    stream: Annotated[bool, typer.Option("--stream", help="Show the text as it comes.")] = False,
    details: Annotated[
        bool, typer.Option("--details", help="With --json: tokens, alternatives, the beam's tree.")
    ] = False,
    fill: Annotated[
        str, typer.Option(help="One text, with <mask> in place of what is missing.")
    ] = "",
    quantiles: Annotated[
        str, typer.Option(help="Of a forecast, as in --quantiles 0.1,0.5,0.9.")
    ] = "",
    plot: Annotated[Path | None, typer.Option(help="A picture of a forecast, to be drawn.")] = None,
    neighbours: Annotated[
        str, typer.Option(help="A word, of word vectors: the words that are nearest.")
    ] = "",
    analogy: Annotated[
        tuple[str, str, str] | None,
        typer.Option(help="Three words, of word vectors: a is to b as c is to the answer."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Answer each line with a line. With --nbest up to N lines of score<TAB>text for each."""
    from saccade.data.lines import input_lines
    from saccade.errors import ConfigError
    from saccade.runs.machine import tune_malloc
    from saccade.runs.printing import lines_in_words, one_line, printed, warning_of_unknown
    from saccade.runs.run import LINES_AT_ONCE, load
    from saccade.training.report import counting

    _end_quietly()
    if details and not as_json:
        raise ConfigError("--details are for programs to read: add --json")
    wanted = _decode(settings, engine, int8)
    wanted |= {"width": width} if width is not None else {}
    wanted |= {"kind": "sample"} if sample else {}
    tune_malloc()
    device = _device(wanted)
    model = load(run, device)
    fellows = [load(other, device) for other in others or []]
    if model.config.task.kind == "forecast":
        from saccade.inspect.forecast import show

        useless = {"--width": width, "--prefix": prefix, "--prefixes": prefixes, "--with": others}
        useless |= {"--stream": stream, "--details": details, "--nbest": nbest > 1 and not sample}
        options = [name for name, value in useless.items() if value]
        print(show(model, file, quantiles, nbest if sample else 0, wanted, plot, as_json, options))
        return
    if quantiles or plot:
        raise ConfigError("--quantiles and --plot are for forecasts: leave them out")
    named = file is not None and str(file) != "-"
    name = str(file) if named else "standard input"
    unknown: list[int] = []  # of each line that has what the model has no token for
    model.root = _root(settings)
    asked = neighbours or " ".join(analogy or ())
    nbest = NEIGHBOURS if asked and nbest == 1 else nbest
    inputs: Any = model.sources(file) if file and model.reads(file) else input_lines(file)
    alone = file is not None and model.is_input(file)
    if alone:  # not a list of inputs
        inputs = [str(file)]
    if fill:
        model.require_fill(file)
        inputs, name, alone = [fill], "--fill", True
    if asked:
        model.require_vectors()
        inputs, alone = [asked], True
    if stream:
        lone = nbest == 1 and (width or 1) == 1 and not (prefix or prefixes or others or as_json)
        if not lone or int8 or engine == "ctranslate2":
            raise ConfigError(
                "--stream writes one answer, greedy or with --sample, and takes --set; leave out "
                "--width, --nbest, --prefix, --prefixes, --with, --engine, --int8 and --json"
            )
        request = model.text_request(wanted)
        for number, item in enumerate(inputs, 1):
            for piece in model.stream_text(
                item, number=number, request=request, file=None if alone else name
            ):
                print(one_line(piece), end="", flush=True)
            print(flush=True)
            unknown += [count] if (count := model.unknown(item)) else []
        if unknown:
            say(warning_of_unknown(unknown, model.task))
        return
    scored = as_json or nbest > 1
    request = model.request(
        nbest=nbest, settings=wanted, scored=scored, details=details, others=fellows
    )
    if prefix or prefixes:
        model.check_prefix(prefix)
    begin: Any = input_lines(prefixes) if prefixes else repeat(prefix)
    at_once = 1 if not named and sys.stdin.isatty() else LINES_AT_ONCE
    lost = 0
    found = model.stream(inputs, request, begin, at_once, None if alone else name)
    with model:  # its processes end with it, also when it is interrupted
        for number, one in enumerate(counting(found, file if named and not alone else None), 1):
            if one.problem and asked:
                raise ConfigError(one.problem)
            if one.problem:
                lost += 1
                say(f"{model.place(number, name)}: {one.problem}; left empty")
            unknown += [one.unknown] if one.unknown else []
            print("\n".join(printed(one, nbest, as_json, model.task)))
    if unknown:
        say(warning_of_unknown(unknown, model.task))
    if lost:
        say(f"{lines_in_words(lost)} could not be answered: left empty")
    if prefixes and next(begin, None) is not None:
        say(f"{prefixes}: more lines than there were inputs; the last ones were not used")


@app.command()
def evaluate(
    run: RunFolder,
    data: Annotated[
        list[str] | None, typer.Argument(help="Files as in training; else the run's own dev set.")
    ] = None,
    others: Others = None,
    settings: DecodeSettings = None,
    engine: Engine = None,
    int8: Int8 = False,
    as_json: AsJson = False,
) -> None:
    """Print the task's metrics on a file."""
    from saccade.runs.machine import tune_malloc
    from saccade.runs.run import load
    from saccade.training.report import following

    _end_quietly()
    tune_malloc()
    wanted = _decode(settings, engine, int8)
    device = _device(wanted)
    fellows = [load(other, device) for other in others or []]
    model = load(run, device)
    model.root = _root(settings)
    scores = following(model.evaluating(*(data or []), settings=wanted, others=fellows))
    if as_json:
        print(json.dumps(scores))
    else:
        print("\n".join(model.task.report(scores)))


@app.command()
def score(
    run: RunFolder, data: Data, settings: DecodeSettings = None, as_json: AsJson = False
) -> None:
    """Print log p of each target. A line for each example: log p, tokens, perplexity.

    Of numbers: log p, rows, nats a row.
    """
    from math import exp

    from saccade.runs.machine import tune_malloc
    from saccade.runs.run import load

    _end_quietly()
    tune_malloc()
    total, tokens = 0.0, 0
    model = load(run)
    _decode(settings, None, False)
    model.root = _root(settings)
    numbers = model.config.task.target_type == "numbers"
    things, measure = ("rows", "nats") if numbers else ("tokens", "perplexity")

    def measured(log_p: float, count: int) -> float:
        nats = -log_p / max(count, 1)
        return nats if numbers else exp(min(nats, 700.0))

    for log_p, count in model.score(*data):
        total, tokens = total + log_p, tokens + count
        if as_json:
            print(json.dumps({"log_p": log_p, things: count, measure: measured(log_p, count)}))
        else:
            print(f"{log_p:.4f}\t{count}\t{measured(log_p, count):.4f}")
    say(f"{total:.4f} for {tokens:,} {things}: {measure} {measured(total, tokens):.4f}")


@app.command()
def exact(
    run: RunFolder,
    data: Data,
    alpha: Annotated[
        float, typer.Option(help="The best is by log p / length^alpha; 0 is log p itself.")
    ] = 0.0,
    budget: Annotated[
        int, typer.Option(help="Prefixes to extend, at most, for each line.")
    ] = 20_000,
    order: Annotated[str, typer.Option(help="depth or best: what to extend first.")] = "depth",
    limit: Annotated[int | None, typer.Option(help="Only so many lines.")] = None,
    settings: DecodeSettings = None,
    as_json: AsJson = False,
) -> None:
    """Find the best outputs of all. Beside those of beams they tell if search or model errs."""
    from itertools import islice

    from saccade.runs.machine import tune_malloc
    from saccade.runs.printing import lines_in_words, one_line
    from saccade.runs.run import load
    from saccade.tasks.exact import summary
    from saccade.training.report import counting

    tune_malloc()
    model = load(run)
    wanted = {"alpha": alpha, "length": "power"} | _decode(settings, None, False)
    lines = []
    _end_quietly()
    for line in counting(islice(model.compare(data, wanted, budget, order), limit), None):
        lines.append(line)
        if line.problem:
            say(f"source {len(lines):,}: {line.problem}; passed over")
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


@app.command()
def inspect(
    run: RunFolder,
    item: Annotated[
        str,
        typer.Argument(help="A text, a photo or a sound; a tab between columns.", metavar="INPUT"),
    ],
    out: Annotated[Path, typer.Option(help="The picture to write: .png, .svg or .pdf.")],
    target: Annotated[str, typer.Option(help="The output; else what the model predicts.")] = "",
    layer: Annotated[
        int | None,
        typer.Option(
            help="Of a Transformer's attention, from 0; else of a picture's path the last."
        ),
    ] = None,
) -> None:
    """Draw what each word of the output attends to: an alignment, or the path over a picture."""
    from saccade.inspect.view import inspect as draw
    from saccade.runs.printing import one_line
    from saccade.runs.run import load

    print(one_line(draw(load(run, ensemble=False), item, out, target, layer)))
    say(f"drawn to {out}")


app.command("import")(exchange.import_)
app.command()(exchange.export)
app.command()(exchange.outline)


@app.command()
def check(
    data: DataOrConfig,
    task: TaskName = None,
    dev: DevFiles = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Find what is wrong with the data. Names file and line; exit 1 if there is anything."""
    from collections import Counter

    from saccade.check.doctor import check as findings_of
    from saccade.check.findings import error, grouped, table
    from saccade.data.lines import Defect, counted
    from saccade.errors import DataError
    from saccade.setup.choose import task_and_data

    _end_quietly()
    try:
        raw, where = _gathered(data, task, dev, settings)
        pretrained = None
        if "start" in raw:
            from saccade.runs.start import pretrained_config  # which imports torch

            pretrained = pretrained_config(raw, where)
        settings_of_task, settings_of_data = task_and_data(raw, where, pretrained)
        found = findings_of(settings_of_data, settings_of_task)
    except DataError as problem:  # nothing can be read at all
        if not isinstance(problem.defect, Defect):
            raise
        found = iter([error(problem.defect)])
    levels: Counter[str] = Counter()
    for finding in found if as_json else (groups := grouped(found)):
        levels[finding.level] += finding.count
        if as_json:
            print(json.dumps(finding.record(), ensure_ascii=False))
    if not as_json:
        for line in table(groups):
            print(line)
    errors, warnings = levels["error"], levels["warning"]
    counts = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
    say(counts if errors + warnings else "no defects")
    raise typer.Exit(1 if errors + warnings else 0)


# --- helpers --------------------------------------------------------------------------------------


def _gathered(
    data: list[str], task: str | None, dev: list[str] | None, settings: list[str] | None
) -> tuple[dict[str, Any], str]:
    """What the user said on the command line or in a file, and what to call it in messages."""
    from saccade.config import assign_text
    from saccade.setup.choose import gather

    raw, where = gather(data, task=task, dev=dev)
    for setting in settings or []:
        assign_text(raw, setting)
    return raw, where


def _decode(settings: list[str] | None, engine: str | None, int8: bool) -> dict[str, Any]:
    """What the user said of decoding on the command line, as keys of the table `decode`."""
    from saccade.config import assign_text
    from saccade.errors import ConfigError

    raw: dict[str, Any] = {}
    for setting in settings or []:
        assign_text(raw, setting)
    raw.get("data", {}).pop("root", None)  # see _root
    if set(raw) - {"decode", "data"} or raw.get("data"):
        raise ConfigError(
            "--set: only the keys of decode can be changed here, as in --set decode.alpha=0.6; "
            "the rest was settled in training"
        )
    wanted = dict(raw.get("decode", {}))
    wanted |= {"engine": engine} if engine is not None else {}
    return wanted | ({"int8": True} if int8 else {})


def _root(settings: list[str] | None) -> str:
    """The folder that paths to media in data files may lead to; "" is that of each file."""
    from saccade.config import assign_text

    raw: dict[str, Any] = {}
    for setting in settings or []:
        assign_text(raw, setting)
    return str(raw.get("data", {}).get("root", ""))


def _device(decode: dict[str, Any]) -> Literal["auto", "cpu"]:
    """Where to load models for these settings: 8-bit weights are for a CPU."""
    return "cpu" if decode.get("int8") else "auto"


def _end_quietly() -> None:
    """Let the process end when its reader has seen enough, as `head` has, like any other filter."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _stopped(folder: Path) -> NoReturn:
    say(f"all is saved; go on with: saccade resume {shlex.quote(str(folder))}")
    raise typer.Exit(75)


def _follow(events: Any, folder: Path, whole: Path | None = None) -> None:
    """Show a training run to its end; once stopped it is the `whole` that can be resumed."""
    from saccade.training.events import Finished, Prepared
    from saccade.training.report import show

    for event in show(events, folder):
        if isinstance(event, Prepared) and not event.start:
            say(f"all settings are in {folder / 'config.toml'}")
        if isinstance(event, Finished) and event.stopped:
            _stopped(whole or folder)
        if isinstance(event, Finished):
            for name, value in event.scores.items():
                print(f"{name}\t{value:.4f}")


def _follow_seeds(folder: Path, stop: Any, limits: dict[str, Any] | None = None) -> None:
    """The same with the run's other seeds; then a table, and what can be done with the whole."""
    from saccade.runs.folder import read_config
    from saccade.training.seeds import compare_seeds, other_seeds

    config = read_config(folder)
    for number, (member, events) in enumerate(other_seeds(folder, stop, limits), 2):
        say(f"seed {number} of {config.train.seeds}")
        _follow(events, member, folder)
    if config.train.seeds > 1:
        print("metric\tmean\tdeviation\tensemble")
        for name, middle, spread, together in compare_seeds(folder, config).rows():
            print(f"{name}\t{middle:.4f}\t{spread:.4f}\t{together:.4f}")
    say(f"the run is in {folder}; next: saccade predict {shlex.quote(str(folder))} FILE")


def main() -> NoReturn:
    """The entry point: a user's mistake is a few lines and exit 2, never a traceback."""
    try:
        code = app(standalone_mode=False)
        if code == 130:  # typer has seen Ctrl-C first
            raise KeyboardInterrupt
        sys.stdout.flush()
    except SaccadeError as error:
        lines = str(error).splitlines()
        shown, more = lines[:MAX_ERROR_LINES], len(lines) - MAX_ERROR_LINES
        say("\n".join([f"saccade: {shown[0]}", *shown[1:]] + [f"... and {more} more"] * (more > 0)))
        sys.exit(2)
    except MISUSE as error:
        error.show()
        sys.exit(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        say("stopped; there was nothing to save yet")
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(130)  # at once, whatever threads and libraries are still doing
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
