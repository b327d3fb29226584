"""The command that serves runs over HTTP: serve."""

import os
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.options import say

KEY_VARIABLE = "SACCADE_KEY"


def serve(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs.", metavar="RUN ...")],
    host: Annotated[
        str, typer.Option(help="The address to listen on; any but this machine's own needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 is any that is free.")] = 8000,
    key_file: Annotated[
        Path | None,
        typer.Option(help=f"A file with the key that clients show. Without it, {KEY_VARIABLE}."),
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name by which clients call the server.")
    ] = None,
    languages: Annotated[
        list[str] | None,
        typer.Option(help="The languages of a translator, as in --languages RUN=de-en."),
    ] = None,
    waiting: Annotated[int, typer.Option(help="How many requests may wait.")] = 128,
    seconds: Annotated[float, typer.Option(help="How many seconds an answer may take.")] = 30.0,
    body_mb: Annotated[float, typer.Option(help="The largest request, in MB.")] = 2.0,
    width: Annotated[int, typer.Option(help="The widest beam that a client may ask for.")] = 16,
    threads: Annotated[
        int | None, typer.Option(help="How many threads compute. Without it, all cores but one.")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve runs over HTTP. With a page to try them and look inside, and APIs for programs."""
    from saccade.errors import ConfigError

    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise ConfigError("serving needs FastAPI: pip install 'saccade[serve]'") from None
    from saccade.serve.running import read_key, run_server
    from saccade.serve.settings import ServeSettings

    if not isfinite(body_mb):
        raise ConfigError(f"--body-mb {body_mb:g}: a number of MB is needed, as in --body-mb 2")
    key = read_key(key_file) if key_file else os.environ.get(KEY_VARIABLE)
    if key is not None and not key.strip():
        where = f"--key-file {key_file}" if key_file else KEY_VARIABLE
        raise ConfigError(
            f"{where}: there is no key in it: write one of 8 or more characters, or leave it out"
        )
    settings = ServeSettings(
        host=host,
        port=port,
        key=key or "",
        names=tuple(allow_host or ()),
        max_waiting=waiting,
        seconds=seconds,
        max_body_bytes=round(body_mb * 1e6),
        max_width=width,
    )
    run_server(runs, settings, languages or [], say, threads=threads, open_page=open_page)
