"""The checkpoints of a run: saved atomically, whenever the process or the machine stops.

A checkpoint is a folder step-N, written under another name, synced, and renamed. It is used only if
every file has the size and the hash in its manifest. `folder` is a run's checkpoints/.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from saccade.data.digest import digest
from saccade.errors import CheckpointError
from saccade.runs import files, shards

REQUIRED_FILES = {"model.safetensors", "training.safetensors", "state.json"}


def save(
    folder: Path,
    step: int,
    parts: Mapping[str, Mapping[str, Tensor]],
    state: Any,
    write_more: Callable[[Path], None] | None = None,
) -> Path:
    """Write step-N with a safetensors file for each part; if that fails, nothing is left.

    `write_more` writes further files into `shards` in the folder that becomes step-N.
    """
    final, temporary, old = (folder / f"{name}-{step:08d}" for name in ("step", ".aside", ".old"))
    try:
        if not folder.is_dir():
            os.mkdir(folder)
            files.sync(folder.parent)
        recover(folder)
        os.mkdir(temporary)
        written = {
            f"{name}.safetensors": files.write_tensors(temporary / f"{name}.safetensors", tensors)
            for name, tensors in parts.items()
        }
        if write_more is not None:
            write_more(temporary)
            for path in sorted((temporary / shards.FOLDER).glob("*")):
                files.sync(path)
                written[f"{shards.FOLDER}/{path.name}"] = path.stat().st_size, digest(path)
            files.sync(temporary / shards.FOLDER)
        text = json.dumps(state, indent=1).encode()
        written["state.json"] = files.write_file(temporary / "state.json", [text])
        files.write_manifest(temporary, written, step)
        if final.exists():  # of the same step, and so perhaps the only one
            os.replace(final, old)
        os.replace(temporary, final)
        files.sync(folder)
    except OSError:
        with suppress(OSError):
            recover(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
    return final


def recover(folder: Path) -> None:
    """Repair the state after a process died while it wrote or removed a checkpoint."""
    olds = list(folder.glob(".old-*"))
    for old in olds:
        final = folder / old.name.replace(".old", "step")
        if not final.exists():
            os.replace(old, final)
    if olds:
        files.sync(folder)  # the replacement must be on the disk before the old one is removed
    for left in (*folder.glob(".old-*"), *folder.glob(".aside-*"), *folder.glob(".gone-*")):
        shutil.rmtree(left, ignore_errors=True)


def remove(folder: Path, keep: Iterable[Path]) -> None:
    """Remove the checkpoints that are not in `keep`, each atomically."""
    kept = set(keep)
    for path in paths(folder):
        if path not in kept:
            removed = folder / path.name.replace("step", ".gone")
            with suppress(OSError):
                os.replace(path, removed)
            shutil.rmtree(removed, ignore_errors=True)


def paths(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first, sound or not."""
    found = [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,18}", path.name)]
    return sorted(found, key=step_of)


def step_of(path: Path) -> int:
    """The step of a checkpoint, by its name."""
    return int(path.name.removeprefix("step-"))


def latest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest intact checkpoint, and the problems of those that are newer."""
    problems: list[str] = []
    for path in reversed(paths(folder)):
        problem = defect(path)
        if problem is None:
            return path, problems
        problems.append(f"{path}: {problem}")
    return None, problems


def defect(path: Path) -> str | None:
    """The problem of a checkpoint, or None if every file matches its manifest."""
    problem = files.damage(path, REQUIRED_FILES)
    if problem is None and files.read_json(path / files.MANIFEST).get("step") != step_of(path):
        return "the manifest is that of another step"
    return problem


def mean(checkpoints: Iterable[Path]) -> tuple[dict[str, Tensor], list[str]]:
    """The mean weights of the intact ones of several checkpoints, and the problems of the others.

    Tensor by tensor, so that only the mean and one tensor are in memory.
    """
    total: dict[str, Tensor] = {}
    problems: list[str] = []
    count = 0
    for path in checkpoints:
        if problem := defect(path):
            problems.append(f"{path}: {problem}")
            continue
        count += 1
        for name, tensor in files.tensors_in(path / "model.safetensors"):
            total[name] = tensor.double() + total[name] if name in total else tensor.double()
    if problems and not count:
        raise CheckpointError("\n".join(problems[:5]))
    return {name: (tensor / count).float() for name, tensor in total.items()}, problems
