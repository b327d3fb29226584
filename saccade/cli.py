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

import click
import typer

from saccade.errors import SaccadeError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Sequence models: one command from a raw file to a model.",
)

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
    from saccade.tasks.choose import complete
    from saccade.training.run import new_folder, start

    config, reason = complete(*_gathered(data, task, dev, settings))
    folder = new_folder(config, out)
    say(f"{config.data.train[0]}: {reason}; all settings are in {folder / 'config.toml'}")
    stop = Stop()
    _follow(start(config, folder, stop), folder, stop)


@app.command()
def resume(run: RunFolder) -> None:
    """Go on with a run that was stopped."""
    from saccade.training.run import read_config
    from saccade.training.run import resume as go_on

    read_config(run)  # is it a run at all?
    stop = Stop()
    _follow(go_on(run, stop), run, stop)


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
    from collections import Counter

    from saccade.data.check import check as findings_of
    from saccade.data.findings import table, together
    from saccade.data.lines import counted
    from saccade.tasks.choose import understand

    settings_of_task, settings_of_data = understand(*_gathered(data, task, dev, settings))
    _end_quietly()
    found = findings_of(settings_of_data, settings_of_task)
    levels: Counter[str] = Counter()
    for finding in found if as_json else (groups := together(found)):
        levels[finding.level] += finding.count
        if as_json:
            print(json.dumps(finding.record(), ensure_ascii=False))
    if not as_json:
        for line in table(groups):
            print(line)
    errors, warnings = levels["error"], levels["warning"]
    told = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
    say(told if errors + warnings else "no defects")
    raise typer.Exit(1 if errors + warnings else 0)


# --- helpers --------------------------------------------------------------------------------------


class Stop:
    """Asks training to stop at the first SIGTERM or Ctrl-C; a second Ctrl-C ends the process."""

    def __init__(self) -> None:
        self.asked = False

    def listen(self) -> None:
        """From now on a signal is a request; before, it ends the process at once."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._ask)

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked:
            sys.exit(130)
        self.asked = True
        say("stopping after this step; again to stop at once")

    def __call__(self) -> bool:
        return self.asked


def _gathered(
    data: list[str], task: str | None, dev: list[str] | None, settings: list[str] | None
) -> tuple[dict[str, Any], str]:
    """What the user said on the command line or in a file, and what to call it in messages."""
    from saccade.config import assign_text
    from saccade.tasks.choose import gather

    raw, where = gather(data, task=task, dev=dev)
    for setting in settings or []:
        assign_text(raw, setting)
    return raw, where


def _end_quietly() -> None:
    """Let the process end when its reader has seen enough, as `head` has, like any other filter."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _follow(events: Any, folder: Path, stop: Stop) -> None:
    """Show a training run to its end, and say what can be done with it."""
    from saccade.training.events import Finished, Prepared
    from saccade.training.report import show

    for event in show(events, folder):
        if isinstance(event, Prepared):
            stop.listen()
        if isinstance(event, Finished) and event.reason == "stopped":
            say(f"all is saved; go on with: saccade resume {folder}")
            raise typer.Exit(75)
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
        say(f"saccade: {error}")
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        say("stopped before there was anything to save")
        sys.exit(130)
    except KeyboardInterrupt:
        say("stopped before there was anything to save")
        sys.exit(130)
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
