"""The folder of a run, and checks of paths before torch is imported."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saccade.data.lines import FileError, data_files, missing, refuse_pipe
from saccade.errors import ConfigError, DataError


def run_folder(first: str, out: str | os.PathLike[str] | None) -> Path:
    """The directory `out`; else one under runs, named after the data or the folder of a pattern."""
    start = first if os.path.exists(first) else re.split(r"[*?[]", first)[0].rstrip("/-_")
    name = Path(start).name.strip(".").split(".")[0] or "run"
    return Path(out) if out is not None else Path("runs") / name


def refuse_folder(folder: Path) -> None:
    """ConfigError where no run can be made."""
    if folder.is_file():
        raise ConfigError(f"{folder}: is a file; name a folder (--out)")
    if os.path.lexists(folder / "config.toml"):
        raise ConfigError(
            f"{folder}: holds a run already; choose another folder (--out), or remove it"
        )


def refuse_paths(raw: Mapping[str, Any], out: Path | None) -> None:
    """DataError or ConfigError where a path in the settings is invalid; nothing is read."""
    data = raw.get("data")
    files = data.get("train") if isinstance(data, Mapping) else None
    names = [files] if isinstance(files, str) else files
    if not isinstance(names, list) or not names or not all(isinstance(one, str) for one in names):
        return  # the parser reports it
    for name in data_files(names):
        if os.path.isdir(name):
            raise DataError(str(FileError("unreadable", name, "is a directory").defect))
        if not os.path.lexists(name):
            raise DataError(str(missing(name).defect))
        try:
            refuse_pipe(name)
        except FileError as error:
            raise DataError(str(error.defect)) from None
    refuse_folder(run_folder(names[0], out))
