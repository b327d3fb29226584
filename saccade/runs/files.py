"""The files of a run: written to a temporary name, fsynced, hashed, renamed; never pickle.

So replacing a file is atomic. Files are checked by `guard` before they are read.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from saccade.data.digest import digest
from saccade.distributed.ranks import copy_full
from saccade.errors import CheckpointError
from saccade.runs.guard import (
    Header,
    fitting_header,
    read_header,
    require_plain_file,
    require_shapes,
    require_small_file,
    shortened,
)

FORMAT = 2  # of a run directory; newer ones are refused
MANIFEST = "manifest.json"
MAX_WRITE_BYTES = 1 << 24  # of one call
JOINED_BYTES = 1 << 20  # smaller blocks are joined up to this size
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
Entry = tuple[int, str]  # a file's size and SHA-256


# --- writing --------------------------------------------------------------------------------------


def write_file(path: Path, blocks: Iterable[Any]) -> Entry:
    """Write a new file and sync it; its size and hash."""
    size, sha = 0, hashlib.sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags, 0o666)
    try:
        for block in _joined(blocks):
            left = memoryview(block)
            while left:
                some = left[:MAX_WRITE_BYTES]
                written = os.write(descriptor, some)
                sha.update(some[:written])
                size, left = size + written, left[written:]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return size, sha.hexdigest()


def _joined(blocks: Iterable[Any]) -> Iterator[Any]:
    """The same bytes with small blocks joined."""
    small = bytearray()
    for block in blocks:
        if len(small) + len(block) > JOINED_BYTES and small:
            yield small
            small = bytearray()
        if len(block) > JOINED_BYTES:
            yield block
        else:
            small += bytes(block)
    yield small


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> Entry:
    """Write a safetensors file, without a second copy of it in memory; its size and hash.

    The library's own writer gives neither the hash nor the errno of a disk error.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # aligned
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def blocks() -> Iterator[Any]:
        yield len(text).to_bytes(8, "little") + text
        yield from (_bytes(tensors[name]) for name in order)

    return write_file(path, blocks())


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically."""
    temporary = path.with_name(path.name + ".aside")
    write_file(temporary, [text.encode()])
    os.replace(temporary, path)
    sync(path.parent)


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Replace a file of weights atomically."""
    temporary = path.with_name(path.name + ".aside")
    metadata = {"format": str(FORMAT), "sha256": fingerprint(weights)}
    write_tensors(temporary, weights, metadata)
    os.replace(temporary, path)
    sync(path.parent)


def write_manifest(folder: Path, entries: Mapping[str, Entry], step: int = 0) -> None:
    """Write the manifest of a folder's files, and sync the folder."""
    manifest = {"format": FORMAT, "step": step, "files": entries}
    write_file(folder / MANIFEST, [json.dumps(manifest, indent=1).encode()])
    sync(folder)


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- reading --------------------------------------------------------------------------------------


def read_text(path: Path) -> str:
    """The text of a run's small file."""
    require_small_file(path)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a run's file."""
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: cannot be read: no JSON object")
    return found


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    return dict(tensors_in(path))


def tensors_in(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a safetensors file by name, one after the other, without a second copy."""
    header = read_header(path)
    kinds = {name: dtype for dtype, name in DTYPES.items()}
    with path.open("rb") as file:
        for name, entry in header.tensors.items():
            if entry["dtype"] not in kinds:
                raise CheckpointError(f"{path}: '{shortened(name)}' is of {entry['dtype']}")
            try:
                tensor = torch.empty(entry["shape"], dtype=kinds[entry["dtype"]])
            except (RuntimeError, MemoryError) as error:
                raise CheckpointError(f"{path}: not enough memory: {shortened(error)}") from None
            _read(path, file, header, name, _bytes(tensor))
            yield name, tensor


def _read(path: Path, file: BinaryIO, header: Header, name: str, content: Any) -> None:
    """Read the bytes of one tensor into `content`."""
    try:
        file.seek(header.start + header.tensors[name]["data_offsets"][0])
        complete = file.readinto(content) == len(content)  # type: ignore[attr-defined]
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if not complete:
        raise CheckpointError(f"{path}: damaged: it ends within '{shortened(name)}'")


def load_weights(path: Path, network: nn.Module) -> None:
    """Read the weights of a file into a network of the same shapes, without a second copy."""
    load_into(path, weights_of(network))


def load_into(path: Path, into: Mapping[str, Tensor]) -> None:
    """Read the weights of a file into tensors of the same shapes."""
    header = fitting_header(path, into)
    version = header.metadata.get("format", "")
    if re.fullmatch(r"[0-9]{1,9}", version) and int(version) > FORMAT:
        raise CheckpointError(
            f"{path}: is of format {version}; this version reads up to {FORMAT}: upgrade saccade"
        )
    sha = hashlib.sha256()
    with path.open("rb") as file, torch.no_grad():
        for name in sorted(into, key=lambda name: str(header.tensors[name]["name"])):
            parameter, dtype = into[name], header.tensors[name]["dtype"]
            if dtype != DTYPES[parameter.dtype]:
                raise CheckpointError(f"{path}: '{name}' is of {dtype}, which weights cannot have")
            in_place = parameter.device.type == "cpu" and parameter.is_contiguous()
            in_place = in_place and not hasattr(parameter, "to_local")  # a shard of a DTensor
            tensor = parameter.data
            if not in_place:
                tensor = torch.empty(parameter.shape, dtype=parameter.dtype)
            content = _bytes(tensor)
            _read(path, file, header, name, content)
            sha.update(_tensor_header(header.tensors[name]["name"], tensor))
            sha.update(content)
            if not in_place:
                copy_full(parameter, tensor)
    if header.metadata.get("sha256", sha.hexdigest()) != sha.hexdigest():
        raise CheckpointError(f"{path}: damaged: its hash does not match its weights")


def copy_weights(weights: Mapping[str, Tensor], network: nn.Module, path: Path) -> None:
    """Copy weights that are in memory into a network of the same shapes."""
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    require_shapes(shapes, weights_of(network), path)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            copy_full(parameter, weights[name])


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, under its first name: tied weights are one."""
    return {name: p.detach() for name, p in network.named_parameters()}


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """One hash of all names, shapes and values."""
    sha = hashlib.sha256()
    for name in sorted(weights):
        sha.update(_tensor_header(name, weights[name]))
        sha.update(_bytes(weights[name]))
    return sha.hexdigest()


def _tensor_header(name: str, tensor: Tensor) -> bytes:
    return f"{name} {DTYPES.get(tensor.dtype)} {tuple(tensor.shape)}\n".encode()


def damage(path: Path, required: Iterable[str] = ()) -> str | None:
    """The first problem of a folder that has a manifest, or None."""
    if path.is_symlink() or not path.is_dir():
        return "is no folder"
    try:
        manifest = read_json(path / MANIFEST)
        version, entries = manifest["format"], manifest["files"]
        if type(version) is not int or version < 1:
            return f"has no format {version!r}"
        if version > FORMAT:
            return f"is of format {version}; this version reads up to {FORMAT}: upgrade saccade"
        if missing := set(required) - entries.keys():
            return f"{min(missing)} is not in the manifest"
        for name, (size, sha) in entries.items():
            plain = name.removeprefix("shards/")
            if Path(plain).name != plain or name == MANIFEST or (path / "shards").is_symlink():
                return f"{name!r} is not the name of a file in this folder"
            found = require_plain_file(path / name).st_size
            if found != size:
                return f"{name} has {found} bytes, not {size}"
            if digest(path / name) != sha:
                return f"{name} is damaged: its hash does not match the manifest"
    except CheckpointError as error:
        return str(error).removeprefix(f"{path}{os.sep}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"cannot be read: {error}"
    return None
