"""The common arguments of commands, and the parsing of `--set`."""

import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Data = Annotated[list[str], typer.Argument(help="A file, or two that are aligned line by line.")]
DataOrConfig = Annotated[
    list[str],
    typer.Argument(help="A data file (or two, aligned line by line), or a configuration.toml."),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        help="The task: translate, classify, tag, language, pretrain, regress, series or forecast. "
        "Without it, it is guessed from the shape of the data."
    ),
]
DevFiles = Annotated[
    list[str] | None,
    typer.Option(
        help="A file to measure on; give it twice for two aligned files. Without it, a part of the "
        "training data is kept apart for that."
    ),
]
RunFolder = Annotated[Path, typer.Argument(help="A run's directory.", metavar="RUN")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A setting, as in --set train.minutes=3, which may be given many times. All keys are "
        "listed in docs/guides/configuration.md.",
    ),
]
DecodeSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A setting of decoding, as in --set decode.alpha=0.6, which may be given many times. "
        "Only keys of decode can be set here, as the rest was settled in training; they are "
        "listed in docs/guides/decoding.md.",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        help="What computes: auto, torch or ctranslate2 (extra 'fast'). Without it, what the run's "
        "configuration says."
    ),
]
Int8 = Annotated[
    bool, typer.Option("--int8", help="Compute with 8-bit weights, which is faster on a CPU.")
]
Others = Annotated[
    list[Path] | None,
    typer.Option("--with", help="Another run, which decides together with this one."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs to read.")]


def say(text: str) -> None:
    """Write to the log, which is stderr."""
    print(text, file=sys.stderr, flush=True)


def gather_settings(
    data: list[str], task: str | None, dev: list[str] | None, settings: list[str] | None
) -> tuple[dict[str, Any], str]:
    """The settings from the command line or a file, and their name in messages."""
    from saccade.config import assign_text
    from saccade.setup.choose import gather

    raw, where = gather(data, task=task, dev=dev)
    for setting in settings or []:
        assign_text(raw, setting)
    return raw, where


def decode_settings(settings: list[str] | None, engine: str | None, int8: bool) -> dict[str, Any]:
    """The decoding settings of the command line, as keys of the table `decode`."""
    from saccade.config import assign_text, owners_of
    from saccade.errors import ConfigError

    raw: dict[str, Any] = {}
    for setting in settings or []:
        assign_text(raw, setting)
    raw.get("data", {}).pop("root", None)  # see media_root
    if set(raw) - {"decode", "data"} or raw.get("data"):
        keys = [setting.partition("=")[0].strip() for setting in settings or []]
        suggestions = [key for key in keys if f"decode.{key}" in owners_of(key)]
        if suggestions:
            raise ConfigError(f"--set {suggestions[0]}: did you mean decode.{suggestions[0]}?")
        raise ConfigError(
            "--set: only the keys of decode can be changed here, as in --set decode.alpha=0.6; "
            "the rest was settled in training"
        )
    wanted = dict(raw.get("decode", {}))
    wanted |= {"engine": engine} if engine is not None else {}
    return wanted | ({"int8": True} if int8 else {})


def media_root(settings: list[str] | None) -> str:
    """The root folder of media paths in data files; "" is the folder of each file."""
    from saccade.config import assign_text

    raw: dict[str, Any] = {}
    for setting in settings or []:
        assign_text(raw, setting)
    return str(raw.get("data", {}).get("root", ""))


def device_for(decode: dict[str, Any]) -> Literal["auto", "cpu"]:
    """The device to load models on for these settings: 8-bit weights are for a CPU."""
    return "cpu" if decode.get("int8") else "auto"


def end_quietly() -> None:
    """Let SIGPIPE end the process when its reader closes the pipe, as `head` does."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
