"""A run's directory: its configuration, and the lock that keeps a second process out.

The table [run] at the end of config.toml has the format, the version that wrote it, and whether
the data is prepared.
"""

import os
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

import saccade
from saccade import config as c
from saccade.errors import CheckpointError, ConfigError
from saccade.runs import files, guard
from saccade.runs.failures import disk_failure
from saccade.tasks.generate import permitted_lines

LIMITS = ("train.steps", "train.epochs", "train.minutes", "train.patience", "train.seeds")
# How a step is computed: a change affects rounding only, and is reported.
PARALLEL = tuple(f"parallel.{name}" for name in c.Parallel.model_fields)
COMPUTATION = ("train.precision", "train.processes", *PARALLEL)
# What may be edited in config.toml between two parts of a run: it changes no weight.
OTHERS = ("train.workers", "train.keep", "train.device", "train.preflight")
CHANGEABLE = (*LIMITS, *COMPUTATION, *OTHERS)
MAX_RUNS = 5  # that a message names
CHANGEABLE_TABLES = ("data.", "decode.")


class RunTable(BaseModel):
    """The table [run] of a config.toml."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    format: int = files.FORMAT
    saccade: str = saccade.__version__
    prepared: bool


def _why_not_a_run(folder: Path) -> str:
    """Why a folder is not a run, with the runs that are in it."""
    if not folder.is_dir():
        return "it is a file; name a run's folder" if folder.exists() else "there is no such folder"
    inside = sorted(str(path.parent) for path in folder.glob("*/config.toml"))
    if not inside:
        return "it has no config.toml"
    more = f" and {len(inside) - MAX_RUNS} more" if len(inside) > MAX_RUNS else ""
    return f"it has no config.toml; runs in it are {', '.join(inside[:MAX_RUNS])}{more}"


def read_settings(folder: Path) -> tuple[dict[str, Any], RunTable]:
    """The tables of a run's config.toml, and its table [run]."""
    path = folder / "config.toml"
    if not os.path.lexists(path):
        raise CheckpointError(f"{folder}: not a run: {_why_not_a_run(folder)}")
    guard.vet(folder)
    try:
        raw = tomllib.loads(files.read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not TOML: {error}") from None
    table = raw.pop("run", None)
    if table is None and "batch_tokens" in _table(raw, "decode"):  # older than the table [run]
        return raw, RunTable(prepared=True)
    version = table.get("format") if isinstance(table, dict) else None
    if isinstance(version, int) and version > files.FORMAT:
        wrote = str(table.get("saccade"))[:40] if table else ""
        raise CheckpointError(
            f"{folder}: is a run of format {version}, written by saccade {wrote}; "
            f"this is saccade {saccade.__version__}, which reads up to format {files.FORMAT}: "
            f"install saccade {wrote} or newer"
        )
    try:
        return raw, RunTable.model_validate({"format": None, "saccade": None} | (table or {}))
    except (ValidationError, TypeError):
        raise CheckpointError(f"{path}: damaged: the [run] table is incomplete") from None


def _table(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = raw.get(name)
    return found if isinstance(found, dict) else {}


def read_config(folder: Path) -> c.Config:
    """The configuration of a run whose data is prepared."""
    raw, run_table = read_settings(folder)
    if not run_table.prepared:
        raise CheckpointError(
            f"{folder}: its data is not prepared yet; "
            f"go on with: saccade resume {shlex.quote(str(folder))}"
        )
    return config_in(raw, folder)


def config_in(raw: dict[str, Any], folder: Path) -> c.Config:
    """The configuration in these tables of a run."""
    try:
        return c.parse(raw, str(folder / "config.toml"))
    except (ConfigError, RecursionError) as error:
        raise CheckpointError(str(error)) from None


def write_settings(folder: Path, settings: Mapping[str, Any], prepared: bool) -> None:
    """Replace a run's config.toml."""
    run_table = RunTable(prepared=prepared).model_dump()
    text, limit = c.write_tables({**settings, "run": run_table}), guard.MAX_BYTES["config.toml"]
    if len(text.encode()) > limit:
        raise ConfigError(f"the settings take more than {limit >> 10} KB: shorten the longest list")
    files.write_text(folder / "config.toml", text)


def write_config(folder: Path, config: c.Config, prepared: bool) -> None:
    write_settings(folder, config.model_dump(mode="json", exclude_none=True), prepared)


# --- files that the settings name -----------------------------------------------------------------


PERMITTED, LANGUAGE_MODEL = "permitted.txt", "language-model"


def with_own_copies(config: c.Config, folder: Path) -> c.Config:
    """The settings of a new run, with its own copies of the files that `decode` names.

    So a run is self-contained: the list of permitted outputs and the language model are in it.
    """
    decode, copies = config.decode, {}
    if decode.only:
        copies["only"] = PERMITTED
        _copy_list(decode.only, folder / copies["only"])
    if decode.model:
        copies["model"] = LANGUAGE_MODEL
        _copy_run(Path(decode.model), folder / copies["model"])
    return config.model_copy(update={"decode": decode.model_copy(update=copies)})


def _copy_list(name: str, path: Path) -> None:
    lines, size = [], 0
    for line in permitted_lines(name):
        lines.append(line)
        size += len(line.encode()) + 1
        if size > guard.MAX_LIST_BYTES:
            raise ConfigError(
                f"decode.only: {name}: a run holds a list of at most "
                f"{guard.MAX_LIST_BYTES >> 20} MB: name it when you predict instead"
            )
    files.write_text(path, "".join(f"{line}\n" for line in lines))


def _copy_run(source: Path, target: Path) -> None:
    """Copy what a run needs to predict."""
    try:
        read_config(source)
        guard.read_header(source / "model.safetensors")
    except CheckpointError as error:
        raise ConfigError(f"decode.model: {error}") from None
    target.mkdir(exist_ok=True)
    for path in (*source.glob("*.json"), source / "model.safetensors", source / "config.toml"):
        shutil.copyfile(path, target / path.name)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep every other process out of a run; the lock of a process ends with it."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    path = folder / ".lock"
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        raise disk_failure(path, folder, error) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except BlockingIOError:
            owner = os.read(descriptor, 20).decode(errors="replace").strip() or "?"
            raise CheckpointError(
                f"{folder}: another process ({owner}) is training this run: wait until it ends"
            ) from None
        except OSError as error:
            raise disk_failure(path, folder, error) from None
        yield
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether another process has locked a run."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        descriptor = os.open(folder / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


# --- what may change ------------------------------------------------------------------------------


def with_raised_limits(config: c.Config, settings: Mapping[str, Any]) -> c.Config:
    """The configuration with higher limits; everything else is refused."""
    now = flat(config.model_dump(mode="json", exclude_none=True))
    raw = config.model_dump(mode="json", exclude_none=True)
    for key, value in settings.items():
        if key in COMPUTATION:
            c.assign(raw, key, value)
            continue
        if key not in LIMITS:
            raise ConfigError(
                f"{key}: cannot be changed on resume: only limits can be raised "
                f"({', '.join(LIMITS)}), and train.precision, train.processes and parallel.* be "
                "set, which change how a step is computed, not what is learned; to change anything "
                "else start a new run"
            )
        if key not in now:
            own = [name for name in LIMITS if name in now and name != "train.seeds"]
            has = ", ".join(f"{name} = {now[name]}" for name in own)
            raise ConfigError(
                f"{key}: the run has no such limit; it has {has}: raise "
                f"{' or '.join(own)}, or start a new run with another limit"
                if own
                else f"{key}: the run has no limit that could be raised"
            )
        if type(value) in (int, float) and value < now[key]:
            raise ConfigError(
                f"{key} = {value} is below the {now[key]} of the run: limits can only be raised"
            )
        raw["train"][key.removeprefix("train.")] = value
    return c.parse(raw, "settings") if settings else config


def differences(old: Mapping[str, Any], new: c.Config) -> list[tuple[str, Any, Any]]:
    """Every key whose value has changed: (key, old, new); None where there is none."""
    parsed = c.parse(dict(old), "checkpoint")  # with the defaults of keys that are newer
    before, after = (flat(one.model_dump(mode="json", exclude_none=True)) for one in (parsed, new))
    keys = dict.fromkeys([*before, *after])
    return [
        (key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)
    ]


def check_changes(
    old: Mapping[str, Any], new: c.Config, folder: Path
) -> list[tuple[str, Any, Any]]:
    """The changes since a checkpoint; CheckpointError if they would change the weights."""
    try:
        changes = differences(old, new)
    except (ConfigError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder}: its checkpoint is damaged: {error}") from None
    own = ("decode.only", "decode.model")  # copies in the run, which may have been moved
    changes = [(k, a, b) for k, a, b in changes if k not in own or Path(str(a)).name != b]
    for key, before, after in changes:
        if key not in CHANGEABLE and not key.startswith(CHANGEABLE_TABLES):
            raise CheckpointError(
                f"{folder / 'config.toml'}: {key} was {before} when the run was stopped, and is "
                f"{after} now: set it back, or train anew"
            )
    return changes


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables as one, with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
