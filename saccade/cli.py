"""The command line: parse, call one function, print. stdout is data, stderr is log.

Exit 0 done, 1 a negative answer, 2 the user's mistake, 75 stopped by a signal with all saved.
Heavy imports stand inside the commands, so that `saccade --help` is instant.
"""

import io
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from saccade.errors import SaccadeError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Sequence models: one command from a raw file to a model.",
)
MISUSE: Any = typer.BadParameter.__mro__[2]  # ClickException, of whichever click typer brings
TOLD = 10  # lines of an error
SHOWN = 100  # defects printed; a program that wants all asks for --json

Data = Annotated[list[str], typer.Argument(help="A file, or two that are aligned line by line.")]
DataOrConfig = Annotated[
    list[str],
    typer.Argument(help="A data file (or two, aligned line by line), or a configuration.toml."),
]
TaskName = Annotated[
    str | None, typer.Option(help="model, classify, tag or translate; else by the file's shape.")
]
DevFiles = Annotated[
    list[str] | None, typer.Option(help="A file to measure on (twice for two files).")
]
RunFolder = Annotated[Path, typer.Argument(help="A run's directory.", metavar="RUN")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, as in --set train.minutes=3.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def train(
    data: DataOrConfig,
    task: TaskName = None,
    dev: DevFiles = None,
    out: Annotated[Path | None, typer.Option(help="The run's directory.")] = None,
    settings: Settings = None,
) -> None:
    """Train a model from a raw file, with no configuration at all or with any."""
    from saccade.training.stop import Interrupted, Stop

    with Stop() as stop:
        from saccade.tasks.choose import complete
        from saccade.training.run import new_folder, put_off, start

        raw, where = _gathered(data, task, dev, settings)
        try:
            with stop.interruptible():
                config, reason = complete(raw, where)
        except Interrupted:
            _stopped(put_off(raw, out))
        folder = new_folder(config, out)
        say(f"{config.data.train[0]}: {reason}; all settings are in {folder / 'config.toml'}")
        _follow(start(config, folder, stop), folder)


@app.command()
def resume(
    run: RunFolder,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A limit to raise, as in --set train.steps=2000."),
    ] = None,
) -> None:
    """Go on with a run that was stopped, or further with one that has ended."""
    from saccade.training.stop import Stop

    with Stop() as stop:
        from saccade.config import assign_text
        from saccade.training.folder import flat, read_settings
        from saccade.training.run import resume as go_on

        read_settings(run)  # is it a run at all?
        raw: dict[str, Any] = {}
        for setting in settings or []:
            assign_text(raw, setting)
        _follow(go_on(run, stop, flat(raw)), run)


@app.command()
def verify(run: RunFolder, as_json: AsJson = False) -> None:
    """Try the laws on a run: batch = single, cached = uncached, ...; exit 1 if one fails."""
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
    file: Annotated[Path | None, typer.Argument(help="Lines to read; else standard input.")] = None,
    width: Annotated[int | None, typer.Option(help="Of the beam; 1 is greedy.")] = None,
    nbest: Annotated[int, typer.Option(help="So many for each line, best first.")] = 1,
    as_json: AsJson = False,
) -> None:
    """A line in, a line out, in order; with --nbest up to N lines of score<TAB>text for each."""
    from saccade.training.run import LINES, load

    _end_quietly()
    model = load(run)
    named = file is not None and str(file) != "-"
    inputs = model.sources(file) if file and model.reads(file) else lines(file)
    at_once = 1 if not named and sys.stdin.isatty() else LINES
    for found in model.stream(inputs, width, nbest, at_once):
        ranked = [(found.text, found.score), *found.others]
        if as_json:
            print(json.dumps([{"text": t, "score": s} for t, s in ranked], ensure_ascii=False))
        elif nbest > 1:
            print("\n".join(f"{score:.4f}\t{one_line(text)}" for text, score in ranked))
        else:
            print(one_line(found.text))


@app.command()
def evaluate(
    run: RunFolder,
    data: Annotated[
        list[str] | None, typer.Argument(help="Files as in training; else the run's own dev set.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The task's metrics on a file."""
    from saccade.training.run import load

    scores = load(run).evaluate(*(data or []))
    if as_json:
        print(json.dumps(scores))
    else:
        for name, value in scores.items():
            print(f"{name}\t{value:.4f}")


@app.command()
def score(run: RunFolder, data: Data, as_json: AsJson = False) -> None:
    """log p(target | source) and perplexity of each example, a line each."""
    from math import exp

    from saccade.training.run import load

    _end_quietly()
    total, tokens = 0.0, 0
    for log_p, count in load(run).score(*data):
        total, tokens = total + log_p, tokens + count
        perplexity = exp(min(-log_p / max(count, 1), 700.0))
        if as_json:
            record = {"log_p": log_p, "tokens": count, "perplexity": perplexity}
            print(json.dumps(record))
        else:
            print(f"{log_p:.4f}\t{count}\t{perplexity:.4f}")
    say(
        f"{total:.4f} for {tokens:,} tokens: "
        f"perplexity {exp(min(-total / max(tokens, 1), 700)):.4f}"
    )


@app.command()
def check(
    data: DataOrConfig,
    task: TaskName = None,
    dev: DevFiles = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """What is wrong with the data, with file and line; exit 1 if anything is."""
    from saccade.data.check import check as defects_of
    from saccade.tasks.choose import understand

    kind, config = understand(*_gathered(data, task, dev, settings))
    _end_quietly()
    found = 0
    for defect in defects_of(config, kind):
        found += 1
        if as_json:
            print(json.dumps({name: getattr(defect, name) for name in defect.__slots__}))
        elif found <= SHOWN:
            print(defect)
    if found > SHOWN and not as_json:
        print(f"... and {found - SHOWN:,} more; --json lists all")
    say(f"{found:,} defect{'' if found == 1 else 's'}" if found else "no defects")
    raise typer.Exit(1 if found else 0)


# --- helpers --------------------------------------------------------------------------------------


def _gathered(
    data: list[str], task: str | None, dev: list[str] | None, settings: list[str] | None
) -> tuple[dict[str, Any], str]:
    """What the user said on the command line or in a file, and what to call it in messages."""
    from saccade.config import assign_text
    from saccade.training.run import gather

    raw, where = gather(data, task=task, dev=dev)
    for setting in settings or []:
        assign_text(raw, setting)
    return raw, where


def _end_quietly() -> None:
    """Let the process end when its reader has seen enough, as `head` has, like any other filter."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _stopped(folder: Path) -> NoReturn:
    say(f"all is saved; go on with: saccade resume {folder}")
    raise typer.Exit(75)


def _follow(events: Any, folder: Path) -> None:
    """Show a training run to its end, and say what can be done with it."""
    from saccade.training.events import Finished
    from saccade.training.report import show

    for event in show(events, folder):
        if isinstance(event, Finished) and event.reason == "stopped":
            _stopped(folder)
        if isinstance(event, Finished):
            for name, value in event.scores.items():
                print(f"{name}\t{value:.4f}")
    say(f"the run is in {folder}; next: saccade predict {folder} FILE")


def lines(path: Path | None) -> Iterator[str]:
    """The lines of a file or of standard input, one at a time, read as training files are."""
    from saccade.data.lines import Defect, FileError, lines_of
    from saccade.errors import DataError

    standard = path is None or str(path) == "-"
    stream = io.FileIO(sys.stdin.fileno(), closefd=False) if standard else None
    try:
        for row in lines_of("standard input" if standard else str(path), stream):
            if isinstance(row, Defect):
                raise DataError(str(row))
            yield row
    except FileError as error:
        raise DataError(str(error.defect)) from None


def one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> NoReturn:
    """The entry point: a user's mistake is a few lines and exit 2, never a traceback."""
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except SaccadeError as error:
        told, more = str(error).splitlines()[:TOLD], len(str(error).splitlines()) - TOLD
        say("\n".join([f"saccade: {told[0]}", *told[1:]] + [f"... and {more} more"] * (more > 0)))
        sys.exit(2)
    except MISUSE as error:
        error.show()
        sys.exit(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        say("stopped before there was anything to save")
        sys.exit(130)
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
