"""A run's directory: its configuration, its mark, and the lock that keeps a second process out.

The mark is the table [run] at the end of config.toml: the format, the version that wrote it, and
whether the data is prepared. Links are refused: what is written into a run stays in it.
"""

import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

import saccade
from saccade import config as c
from saccade.errors import CheckpointError, ConfigError
from saccade.models.networks import Network
from saccade.runs import files
from saccade.runs.machine import require_memory
from saccade.tasks.task import Task

LIMITS = ("train.steps", "train.epochs", "train.minutes", "train.patience")
# What may be edited in config.toml between two parts of a run: it changes no weight.
FREE = (
    *LIMITS,
    "train.workers",
    "train.keep",
    "train.device",
    "train.preflight",
    "data.",
    "decode.",
)

PLAIN = {".lock", "config.toml", "metrics.jsonl", "model.safetensors"}  # these are no folders

UNKNOWN = 1 << 28  # bytes: as many as a vocabulary of half a million words goes with


class Mark(BaseModel):
    """What a run says of itself."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    format: int = files.FORMAT
    saccade: str = saccade.__version__
    prepared: bool


def read_settings(folder: Path) -> tuple[dict[str, Any], Mark]:
    """The tables of a run's config.toml, and its mark."""
    path = folder / "config.toml"
    if not os.path.lexists(path):
        raise CheckpointError(f"{folder}: not a run: it has no config.toml")
    require_plain_file(folder)
    try:
        raw = tomllib.loads(files.read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not TOML: {error}") from None
    table = raw.pop("run", None)
    if table is None and "batch_tokens" in _table(raw, "decode"):  # before there were marks
        return raw, Mark(prepared=True)
    version = table.get("format") if isinstance(table, dict) else None
    if isinstance(version, int) and version > files.FORMAT:
        wrote = str(table.get("saccade"))[:40] if table else ""
        raise CheckpointError(
            f"{folder}: is a run of format {version}, written by saccade {wrote}; "
            f"this is saccade {saccade.__version__}, which reads up to format {files.FORMAT}: "
            f"install saccade {wrote} or newer"
        )
    try:
        return raw, Mark.model_validate({"format": None, "saccade": None} | (table or {}))
    except (ValidationError, TypeError):
        raise CheckpointError(f"{path}: damaged: its last table [run] is not whole") from None


def require_plain_file(folder: Path) -> None:
    """CheckpointError if a run or its data holds a link, a pipe or a file larger than ours are."""
    room = max(files.FREE, size_of(folder) * 3 // 2)
    for entry in _entries(folder):
        path = Path(entry.path)
        if entry.is_symlink():
            raise CheckpointError(f"{path}: is a link; a run holds plain files and folders")
        if entry.is_dir() and entry.name not in PLAIN and path.suffix != ".aside":
            continue
        if not path.exists():  # a process that trains has put it in its place
            continue
        files.require_plain_file(path)
        if path.suffix == ".json":  # read by others, who trust it
            room -= files.require_small_file(path, room)
    if os.path.lexists(folder / "data"):
        for entry in _entries(folder / "data"):
            files.require_plain_file(Path(entry.path))


def size_of(folder: Path) -> int:
    """The bytes of a run's files; where it has no weights yet, more than those will have."""
    size, weights = 0, False
    for place in (folder, folder / "data", *files.checkpoints(folder / "checkpoints")):
        with suppress(OSError), os.scandir(place) as found:  # a process that trains removes some
            for entry in found:
                size += entry.stat(follow_symlinks=False).st_size
                weights |= entry.name == "model.safetensors"
    return size if weights else UNKNOWN


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror}") from None


def _table(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = raw.get(name)
    return found if isinstance(found, dict) else {}


def read_config(folder: Path) -> c.Config:
    """The configuration of a run that can be used."""
    raw, mark = read_settings(folder)
    if not mark.prepared:
        raise CheckpointError(
            f"{folder}: its data is not prepared yet; go on with: saccade resume {folder}"
        )
    return config_in(raw, folder)


def config_in(raw: dict[str, Any], folder: Path) -> c.Config:
    """The configuration in these tables of a run."""
    try:
        return c.parse(raw, str(folder / "config.toml"))
    except (ConfigError, RecursionError) as error:
        raise CheckpointError(str(error)) from None


def fitting_network(task: Task, weights: Path) -> Network:
    """A run's network, still without memory; CheckpointError unless its weights fit it."""
    tensors = len(files.read_header(weights).tensors)
    for part in (task.config.encoder, task.config.decoder):
        least = 2 if part is not None and part.kind == "convolution" else 4  # tensors of a layer
        if part is not None and part.num_layers * least > tensors:
            raise CheckpointError(
                f"{weights}: does not fit config.toml: {tensors} weights are too few for the layers"
            )
    try:
        network = _build_meta(task)
    except ConfigError as error:
        raise CheckpointError(f"{weights}: does not fit config.toml: {error}") from None
    files.refuse_misfit(weights, files.weights_of(network))
    return network


def new_network(task: Task, device: torch.device) -> Network:
    """The network of a new run, still without memory; ConfigError if there is too little for it."""
    network = _build_meta(task)
    require_memory(network, task.config.train, device)
    return network


def _build_meta(task: Task) -> Network:
    try:
        return task.build_meta()
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0][:200]  # a number of bytes that is none
        raise ConfigError(f"no machine has memory for such a network: {reason}") from None


def write_settings(folder: Path, settings: Mapping[str, Any], prepared: bool) -> None:
    """Replace a run's config.toml."""
    mark = Mark(prepared=prepared).model_dump()
    text, most = c.write_tables({**settings, "run": mark}), files.LARGEST["config.toml"]
    if len(text.encode()) > most:
        raise ConfigError(f"the settings take more than {most >> 10} KB: shorten the longest list")
    files.write_text(folder / "config.toml", text)


def write_config(folder: Path, config: c.Config, prepared: bool) -> None:
    write_settings(folder, config.model_dump(mode="json", exclude_none=True), prepared)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep every other process out of a run; the lock of a process that died is no lock."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    path = folder / ".lock"
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        raise files.failure(path, folder, error) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except BlockingIOError:
            owner = os.read(descriptor, 20).decode(errors="replace").strip() or "?"
            raise CheckpointError(
                f"{folder}: another process ({owner}) is at work on this run: wait for its end"
            ) from None
        except OSError as error:
            raise files.failure(path, folder, error) from None
        yield
    finally:
        os.close(descriptor)


# --- what may change ------------------------------------------------------------------------------


def raised(config: c.Config, settings: Mapping[str, Any], folder: Path) -> c.Config:
    """The configuration with higher limits; everything else is refused."""
    now = flat(config.model_dump(mode="json", exclude_none=True))
    raw = config.model_dump(mode="json", exclude_none=True)
    for key, value in settings.items():
        if key not in LIMITS:
            raise ConfigError(
                f"--set {key}: only limits can be raised on resume ({', '.join(LIMITS)}); "
                "for another setting train anew"
            )
        if key not in now:
            own = ", ".join(f"{name} = {now[name]}" for name in LIMITS if name in now)
            raise ConfigError(f"--set {key}: the run has no such limit; it has {own or 'none'}")
        if type(value) in (int, float) and value < now[key]:
            raise ConfigError(
                f"--set {key}={value}: is below the {now[key]} of the run; limits can be raised"
            )
        raw["train"][key.removeprefix("train.")] = value
    return c.parse(raw, "--set") if settings else config


def differences(old: Mapping[str, Any], new: c.Config) -> list[tuple[str, Any, Any]]:
    """Every key with another value than before: (key, old, new); None where there is none."""
    whole = c.parse(dict(old), "checkpoint")  # with the defaults of keys that are newer
    before, after = (flat(one.model_dump(mode="json", exclude_none=True)) for one in (whole, new))
    keys = dict.fromkeys([*before, *after])
    return [
        (key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)
    ]


def check_changes(
    old: Mapping[str, Any], new: c.Config, folder: Path
) -> list[tuple[str, Any, Any]]:
    """What changed since a checkpoint; CheckpointError if the weights would not be the same."""
    try:
        found = differences(old, new)
    except (ConfigError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder}: its checkpoint is damaged: {error}") from None
    for key, before, after in found:
        if not any(key == free or (free[-1] == "." and key.startswith(free)) for free in FREE):
            raise CheckpointError(
                f"{folder / 'config.toml'}: {key} was {before} when the run was stopped, and is "
                f"{after} now: set it back, or train anew"
            )
    return found


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables as one, with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
