"""The command line: parse, call one function, print. stdout is data, stderr is log.

Exit 0 done, 1 a negative answer, 2 the user's mistake, 75 stopped by a signal with all saved.
Heavy imports stand inside the commands, so that `saccade --help` is instant.
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

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
MISUSE: Any = typer.BadParameter.__mro__[2]  # ClickException, of whichever click typer brings
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


app.command()(training.train)
app.command()(training.resume)
app.command()(predicting.predict)
app.command()(measuring.evaluate)
app.command()(measuring.score)
app.command()(measuring.exact)
app.command()(measuring.verify)
app.command()(looking.inspect)
app.command()(looking.compare)
app.command()(serving.serve)
app.command()(checking.check)
app.command("import")(exchange.import_)
app.command()(exchange.export)
app.command()(planning.plan)


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
