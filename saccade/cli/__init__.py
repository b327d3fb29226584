"""The command line: parse, call one function, print. stdout is data, stderr is log.

Exit 0 done, 1 a negative result, 2 a usage error, 75 stopped by a signal with all saved.
Heavy imports are inside the commands, so that `saccade --help` is fast.
"""

import os
import sys
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer

from saccade import __version__
from saccade.cli import (
    checking,
    exchange,
    looking,
    measuring,
    planning,
    predicting,
    serving,
    training,
)
from saccade.cli.options import say
from saccade.errors import SaccadeError

EPILOG = "\n\n".join(
    (
        "Example: saccade train words.tsv --set train.minutes=3",
        "and then: echo saccade | saccade predict runs/words",
        "Exit codes: 0 done; 1 a negative answer of check or verify; 2 a mistake in what was "
        "given, with what to do about it; 75 training was stopped by a signal, with all saved; "
        "130 ended at once.",
        "Every key of --set is explained in docs/guides/configuration.md, and every option by "
        "saccade COMMAND --help.",
    )
)
USE_PANEL, TRAIN_PANEL, ANALYSE_PANEL, EXCHANGE_PANEL = (
    "Use a run",
    "Make a run",
    "Look at data and runs",
    "Bring models in and out",
)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=EPILOG,
)
CLICK_ERROR: Any = typer.BadParameter.__mro__[2]  # ClickException, of whichever click typer brings
MAX_ERROR_LINES = 10


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


app.command(rich_help_panel=TRAIN_PANEL)(training.train)
app.command(rich_help_panel=TRAIN_PANEL)(training.resume)
app.command(rich_help_panel=USE_PANEL)(predicting.predict)
app.command(rich_help_panel=USE_PANEL)(measuring.evaluate)
app.command(rich_help_panel=USE_PANEL)(measuring.score)
app.command(rich_help_panel=USE_PANEL)(measuring.exact)
app.command(rich_help_panel=USE_PANEL)(serving.serve)
app.command(rich_help_panel=ANALYSE_PANEL)(checking.check)
app.command(rich_help_panel=ANALYSE_PANEL)(looking.inspect)
app.command(rich_help_panel=ANALYSE_PANEL)(looking.compare)
app.command(rich_help_panel=ANALYSE_PANEL)(measuring.verify)
app.command(rich_help_panel=ANALYSE_PANEL)(planning.plan)
app.command("import", rich_help_panel=EXCHANGE_PANEL)(exchange.import_)
app.command(rich_help_panel=EXCHANGE_PANEL)(exchange.export)


def _hint(option: str) -> str:
    """The setting for an unknown option, if it is the name of one."""
    from saccade.config import owners_of

    keys = owners_of(option.removeprefix("--").replace("-", "_")) if option else []
    return f"It is a setting: {' or '.join(f'--set {key}=...' for key in keys)}" if keys else ""


def main() -> NoReturn:
    """The entry point: a user's error is a short message and exit 2, never a traceback."""
    try:
        code = app(standalone_mode=False, prog_name="saccade")
        if code == 130:  # typer has caught Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()
    except SaccadeError as error:
        lines = str(error).splitlines()
        shown, more = lines[:MAX_ERROR_LINES], len(lines) - MAX_ERROR_LINES
        say("\n".join([f"saccade: {shown[0]}", *shown[1:]] + [f"... and {more} more"] * (more > 0)))
        exit_process(2)
    except CLICK_ERROR as error:
        error.show()
        if hint := _hint(getattr(error, "option_name", "")):
            say(hint)
        exit_process(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        say("interrupted")
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(130)  # without waiting for threads
    exit_process(code or 0)


def exit_process(code: int) -> NoReturn:
    """Exit; under a launcher without cleanup, as gloo's threads may abort during shutdown."""
    if "RANK" in os.environ:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
