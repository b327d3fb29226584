"""Weights and training states on disk: written aside, fsynced, hashed, renamed; never pickled."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from saccade.errors import CheckpointError

FORMAT = 1  # of a run directory; a reader refuses what is newer
MANIFEST = "manifest.json"


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, under its first name: tied weights are one."""
    return {name: p.detach() for name, p in network.named_parameters()}


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Replace the file at `path`: it is the old one or the new one, never half."""
    aside = path.with_name(path.name + ".aside")
    tensors = {name: tensor.contiguous().cpu() for name, tensor in weights.items()}
    safetensors.torch.save_file(tensors, aside, metadata={"format": str(FORMAT)})
    _put(aside, path)


def write_text(path: Path, text: str) -> None:
    """The same for a text."""
    aside = path.with_name(path.name + ".aside")
    aside.write_text(text, encoding="utf-8")
    _put(aside, path)


def _put(aside: Path, path: Path) -> None:
    _readable(aside)
    sync(aside)
    os.replace(aside, path)
    sync(path.parent)


def _readable(path: Path) -> None:
    """Give a file the mode that any other new file has: safetensors makes them private."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def load_weights(path: Path, network: nn.Module) -> None:
    """Copy the weights of a file into a network of the same shape."""
    with suppress(OSError, safetensors.SafetensorError):  # `read_tensors` says what is wrong
        with safetensors.safe_open(path, "pt") as file:
            version = (file.metadata() or {}).get("format", "")
        if version.isdigit() and int(version) > FORMAT:
            raise CheckpointError(
                f"{path}: is of format {version}; "
                f"this version reads up to {FORMAT}: upgrade saccade"
            )
    copy_weights(read_tensors(path), network, path)


def copy_weights(weights: Mapping[str, Tensor], network: nn.Module, path: Path) -> None:
    own = dict(network.named_parameters())
    if own.keys() != weights.keys():
        odd = sorted(own.keys() ^ weights.keys())
        raise CheckpointError(
            f"{path}: does not fit config.toml: {len(odd)} weights differ, '{odd[0]}' first"
        )
    for name, parameter in own.items():
        if parameter.shape != weights[name].shape:
            raise CheckpointError(
                f"{path}: does not fit config.toml: '{name}' is {tuple(weights[name].shape)}, "
                f"not {tuple(parameter.shape)}"
            )
        with torch.no_grad():
            parameter.copy_(weights[name])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; is this a finished run?") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path}: damaged: {error}") from None


def save_checkpoint(
    folder: Path, step: int, files: Mapping[str, Mapping[str, Tensor]], state: Any
) -> Path:
    """Write `checkpoints/step-N` whole, or leave no trace of it."""
    final = folder / f"step-{step:08d}"
    aside = folder / f".aside-{step:08d}"
    for left in folder.glob(".aside-*"):  # by a process that died while it wrote
        shutil.rmtree(left, ignore_errors=True)
    aside.mkdir(parents=True)
    for name, tensors in files.items():
        contiguous = {key: tensor.contiguous().cpu() for key, tensor in tensors.items()}
        safetensors.torch.save_file(contiguous, aside / f"{name}.safetensors")
    (aside / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
    manifest = {
        "format": FORMAT,
        "step": step,
        "files": {
            path.name: [path.stat().st_size, digest(path)] for path in sorted(aside.iterdir())
        },
    }
    (aside / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for path in aside.iterdir():
        _readable(path)
        sync(path)
    sync(aside)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(aside, final)
    sync(folder)
    return final


def remove_checkpoints(folder: Path, keep: Iterable[Path]) -> None:
    """Remove the checkpoints that are not in `keep`."""
    kept = set(keep)
    for path in checkpoints(folder):
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def latest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest sound checkpoint, and what is wrong with those that are newer."""
    problems: list[str] = []
    for path in reversed(checkpoints(folder)):
        problem = defect(path)
        if problem is None:
            return path, problems
        problems.append(f"{path}: {problem}")
    return None, problems


def defect(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None if every file is what its manifest says."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] > FORMAT:
            return f"is of format {manifest['format']}; this version reads up to {FORMAT}"
        for name, (size, sha) in manifest["files"].items():
            file = path / Path(name).name
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size} bytes, not {size}"
            if digest(file) != sha:
                return f"{name} is damaged: its hash is not the manifest's"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"cannot be read: {error}"
    return None


def read_state(path: Path) -> Any:
    """The plain part of a checkpoint's training state."""
    try:
        return json.loads((path / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / 'state.json'}: cannot be read: {error}") from None


def mean_of(paths: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints."""
    total: dict[str, Tensor] = {}
    count = 0
    for path in paths:
        count += 1
        for name, tensor in read_tensors(path / "model.safetensors").items():
            total[name] = tensor.double() + total[name] if name in total else tensor.double()
    return {name: (tensor / count).float() for name, tensor in total.items()}


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Make sure that a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
