"""Weights and training states on disk: written aside, fsynced, hashed, renamed; never pickled.

A checkpoint is old or new, never half. Nothing that is read here is trusted: a file is a plain
file, no link and no pipe; it has the size and the hash that a manifest says; what is in it fits
the network. What does not is a CheckpointError.
"""

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import safetensors
import torch
from torch import Tensor, nn

from saccade.errors import CheckpointError, TrainingError
from saccade.runs.legacy import current_name
from saccade.runs.machine import out_of_memory

FORMAT = 1  # of a run directory; a reader refuses what is newer
MANIFEST = "manifest.json"
WANTED = {"model.safetensors", "training.safetensors", "state.json"}  # what a checkpoint is made of
BLOCK = 1 << 24  # bytes written at once, at most
SMALL = 1 << 20  # ... and at least, as far as there are so many
LARGEST = {"config.toml": 1 << 17, MANIFEST: 1 << 16, "state.json": 1 << 21}  # bytes
VOCABULARY = 1 << 25  # ... of any other JSON file
FREE = 1 << 27  # bytes of memory that JSON may take in any run: 80,000 pieces of a vocabulary
HEADER = 1 << 22  # bytes of a safetensors file that tell of its tensors ...
TENSORS = 1 << 15  # ... and how many: the layers of two stacks, and a state of each weight
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
Entry = tuple[int, str]  # a file's size and SHA-256


# --- writing --------------------------------------------------------------------------------------


def write_file(path: Path, blocks: Iterable[Any]) -> Entry:
    """Write a new file and sync it; its size and hash, taken on the way."""
    size, sha = 0, hashlib.sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags, 0o666)
    try:
        for block in _joined(blocks):
            left = memoryview(block)
            while left:
                some = left[:BLOCK]
                written = os.write(descriptor, some)
                sha.update(some[:written])
                size, left = size + written, left[written:]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return size, sha.hexdigest()


def _joined(blocks: Iterable[Any]) -> Iterator[Any]:
    """The same bytes, with the small blocks joined."""
    small = bytearray()
    for block in blocks:
        if len(small) + len(block) > SMALL and small:
            yield small
            small = bytearray()
        if len(block) > SMALL:
            yield block
        else:
            small += bytes(block)
    yield small


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> Entry:
    """Write a safetensors file, without a second copy of it in memory; its size and hash.

    The library's own writer gives neither the hash nor the number of a disk's error.
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
    """Replace a text: it is the old one or the new one, never half."""
    aside = path.with_name(path.name + ".aside")
    write_file(aside, [text.encode()])
    os.replace(aside, path)
    sync(path.parent)


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """The same for the weights that predict."""
    aside = path.with_name(path.name + ".aside")
    metadata = {"format": str(FORMAT), "sha256": fingerprint(weights)}
    write_tensors(aside, weights, metadata)
    os.replace(aside, path)
    sync(path.parent)


def save_checkpoint(
    folder: Path, step: int, files: Mapping[str, Mapping[str, Tensor]], state: Any
) -> Path:
    """Write `checkpoints/step-N` whole, or leave no trace of it."""
    final, aside, old = (folder / f"{name}-{step:08d}" for name in ("step", ".aside", ".old"))
    try:
        if not folder.is_dir():
            os.mkdir(folder)
            sync(folder.parent)
        recover(folder)
        os.mkdir(aside)
        written = {f"{name}.safetensors": write_tensors(aside / f"{name}.safetensors", tensors)
                   for name, tensors in files.items()}  # fmt: skip
        text = json.dumps(state, indent=1).encode()
        written["state.json"] = write_file(aside / "state.json", [text])
        write_manifest(aside, written, step)
        if final.exists():  # of the same step, and so perhaps the only one
            os.replace(final, old)
        os.replace(aside, final)
        sync(folder)
    except OSError:
        with suppress(OSError):
            recover(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
    return final


def write_manifest(folder: Path, files: Mapping[str, Entry], step: int = 0) -> None:
    """Write down what a folder's files are, and sync the folder."""
    manifest = {"format": FORMAT, "step": step, "files": files}
    write_file(folder / MANIFEST, [json.dumps(manifest, indent=1).encode()])
    sync(folder)


def recover(folder: Path) -> None:
    """Put right what a process left that died while it wrote or removed a checkpoint."""
    olds = list(folder.glob(".old-*"))
    for old in olds:
        final = folder / old.name.replace(".old", "step")
        if not final.exists():
            os.replace(old, final)
    if olds:
        sync(folder)  # what stands in the place of an old one must be on the disk before it goes
    for left in (*folder.glob(".old-*"), *folder.glob(".aside-*"), *folder.glob(".gone-*")):
        shutil.rmtree(left, ignore_errors=True)


def remove_checkpoints(folder: Path, keep: Iterable[Path]) -> None:
    """Remove the checkpoints that are not in `keep`; none of them is ever half removed."""
    kept = set(keep)
    for path in checkpoints(folder):
        if path not in kept:
            gone = folder / path.name.replace("step", ".gone")
            with suppress(OSError):
                os.replace(path, gone)
            shutil.rmtree(gone, ignore_errors=True)


def sync(path: Path) -> None:
    """Make sure that a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- reading --------------------------------------------------------------------------------------


def require_plain_file(path: Path) -> os.stat_result:
    """CheckpointError unless this is a plain file; what it is, if it is."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path}: cannot be read: {reason}") from None
    if stat.S_ISLNK(found.st_mode):
        raise CheckpointError(f"{path}: is a link; a run holds plain files: copy the file here")
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{path}: is no plain file")
    return found


def require_small_file(path: Path, room: int = FREE) -> int:
    """The bytes of memory that a JSON file takes to read; CheckpointError if there is no room.

    And unless it, or a TOML file, is plain, and as small as ours are.
    """
    most = LARGEST.get(path.name, VOCABULARY)
    if require_plain_file(path).st_size > most:
        raise CheckpointError(f"{path}: is larger than {most >> 10:,} KB, which none of ours is")
    needed = 0 if path.suffix == ".toml" else memory_of(path)
    if needed > room:
        raise CheckpointError(
            f"{path}: would take {needed >> 20:,} MB of memory, and one that fits the weights of "
            f"this run takes at most {max(room, 0) >> 20:,} MB"
        )
    return needed


def memory_of(path: Path) -> int:
    """About how many bytes of memory it takes to read a JSON file, a vocabulary's at most.

    Found in a small part of that: a value takes far more memory than bytes of the file.
    """
    bytes_, width, names, texts, values = 0, 1, 0, 0, 0
    try:
        with path.open("rb") as file:
            for block in iter(lambda: file.read(SMALL), b""):
                if not block.isascii():  # one character beyond makes all of a text wider
                    width = max(width, 4 if re.search(rb"[\xf0-\xff]", block) else 2)
                names, texts = names + block.count(b'":'), texts + block.count(b'"') // 2
                values += sum(block.count(mark) for mark in (b",", b"[", b"{"))
                bytes_ += len(block)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    return 640 * names + 220 * max(0, texts - names) + 48 * values + (2 * width + 2) * bytes_


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


class Header(NamedTuple):
    """What a safetensors file says of itself."""

    tensors: dict[str, Any]  # the dtype, the shape, the data_offsets and the name there of each
    metadata: dict[str, str]
    start: int  # of the tensors' bytes


def read_header(path: Path) -> Header:
    """What a safetensors file says of itself; it is sound, and no tensor has been read."""
    if not path.exists() and not path.is_symlink():
        raise CheckpointError(f"{path}: no such file; is this a finished run?")
    require_plain_file(path)
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > HEADER:
                raise ValueError(f"a header of {size} bytes, which none of ours has")
            text = file.read(size)
            if not text.isascii() or text.count(b"data_offsets") > TENSORS:
                raise ValueError(f"a header that is not ASCII, or of more than {TENSORS:,} tensors")
        with safetensors.safe_open(path, "numpy"):  # the library looks at every offset
            tensors = json.loads(text.decode())
    except Exception as error:  # the library has no one class for what a header can be
        kind = "not enough memory" if out_of_memory(error) else "damaged"
        raise CheckpointError(f"{path}: {kind}: {_short(error)}") from None
    metadata = tensors.pop("__metadata__", None) or {}
    renamed = {current_name(name): entry | {"name": name} for name, entry in tensors.items()}
    return Header(renamed, metadata, 8 + size)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    return dict(tensors_in(path))


def tensors_in(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a safetensors file by name, one after the other, and no second copy of any."""
    header = read_header(path)
    kinds = {name: dtype for dtype, name in DTYPES.items()}
    with path.open("rb") as file:
        for name, entry in header.tensors.items():
            if entry["dtype"] not in kinds:
                raise CheckpointError(f"{path}: '{_short(name)}' is of {entry['dtype']}")
            try:
                tensor = torch.empty(entry["shape"], dtype=kinds[entry["dtype"]])
            except (RuntimeError, MemoryError) as error:
                raise CheckpointError(f"{path}: not enough memory: {_short(error)}") from None
            _read(path, file, header, name, _bytes(tensor))
            yield name, tensor


def _read(path: Path, file: BinaryIO, header: Header, name: str, content: Any) -> None:
    """Read the bytes of one tensor to where they belong."""
    try:
        file.seek(header.start + header.tensors[name]["data_offsets"][0])
        whole = file.readinto(content) == len(content)  # type: ignore[attr-defined]
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if not whole:
        raise CheckpointError(f"{path}: damaged: it ends within '{_short(name)}'")


def load_weights(path: Path, network: nn.Module) -> None:
    """Read the weights of a file into a network of the same shapes, without a second copy."""
    load_into(path, weights_of(network))


def load_into(path: Path, into: Mapping[str, Tensor]) -> None:
    """Read the weights of a file into tensors of the same shapes."""
    header = refuse_misfit(path, into)
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
                raise CheckpointError(f"{path}: '{name}' is of {dtype}, as no weight is")
            here = parameter.device.type == "cpu" and parameter.is_contiguous()
            tensor = parameter.data if here else torch.empty(parameter.shape, dtype=parameter.dtype)
            content = _bytes(tensor)
            _read(path, file, header, name, content)
            sha.update(_title(header.tensors[name]["name"], tensor))
            sha.update(content)
            if not here:
                parameter.copy_(tensor)
    if header.metadata.get("sha256", sha.hexdigest()) != sha.hexdigest():
        raise CheckpointError(f"{path}: damaged: its hash is not that of its weights")


def refuse_misfit(path: Path, weights: Mapping[str, Tensor]) -> Header:
    """What a file of weights says of itself; CheckpointError unless these have its shapes.

    They may be ones that have no memory yet.
    """
    header = read_header(path)
    _compare({name: entry["shape"] for name, entry in header.tensors.items()}, weights, path)
    return header


def copy_weights(weights: Mapping[str, Tensor], network: nn.Module, path: Path) -> None:
    """Copy weights that are in memory into a network of the same shapes."""
    _compare({name: tensor.shape for name, tensor in weights.items()}, weights_of(network), path)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(weights[name])


def _compare(
    shapes: Mapping[str, Sequence[int]], weights: Mapping[str, Tensor], path: Path
) -> None:
    own = {name: tuple(weight.shape) for name, weight in weights.items()}
    if odd := sorted(own.keys() ^ shapes.keys()):
        raise CheckpointError(
            f"{path}: does not fit config.toml: {len(odd)} weights differ, '{_short(odd[0])}' first"
        )
    for name, shape in own.items():
        if shape != (found := tuple(shapes[name])):
            raise CheckpointError(
                f"{path}: does not fit config.toml: '{name}' is {_short(found)}, not {shape}"
            )


def _short(what: object) -> str:
    """A text of a stranger, as much of it as a message has room for."""
    text = str(what)
    return text if len(text) <= 200 else f"{text[:200]}..."


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, under its first name: tied weights are one."""
    return {name: p.detach() for name, p in network.named_parameters()}


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """One hash of all names, shapes and numbers."""
    sha = hashlib.sha256()
    for name in sorted(weights):
        sha.update(_title(name, weights[name]))
        sha.update(_bytes(weights[name]))
    return sha.hexdigest()


def _title(name: str, tensor: Tensor) -> bytes:
    return f"{name} {DTYPES.get(tensor.dtype)} {tuple(tensor.shape)}\n".encode()


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first, sound or not."""
    found = [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,18}", path.name)]
    return sorted(found, key=step_of)


def step_of(path: Path) -> int:
    """The step of a checkpoint, by its name."""
    return int(path.name.removeprefix("step-"))


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
    problem = damage(path, WANTED)
    if problem is None and read_json(path / MANIFEST).get("step") != step_of(path):
        return "the manifest is that of another step"
    return problem


def damage(path: Path, wanted: Iterable[str] = ()) -> str | None:
    """What is wrong with a folder that has a manifest, or None."""
    if path.is_symlink() or not path.is_dir():
        return "is no folder"
    try:
        manifest = read_json(path / MANIFEST)
        version, files = manifest["format"], manifest["files"]
        if type(version) is not int or version < 1:
            return f"has no format {version!r}"
        if version > FORMAT:
            return f"is of format {version}; this version reads up to {FORMAT}: upgrade saccade"
        if missing := set(wanted) - files.keys():
            return f"{min(missing)} is not in the manifest"
        for name, (size, sha) in files.items():
            if Path(name).name != name or name == MANIFEST:
                return f"{name!r} is no name of a file of ours"
            found = require_plain_file(path / name).st_size
            if found != size:
                return f"{name} has {found} bytes, not {size}"
            if digest(path / name) != sha:
                return f"{name} is damaged: its hash is not the manifest's"
    except CheckpointError as error:
        return str(error).removeprefix(f"{path}{os.sep}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"cannot be read: {error}"
    return None


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def failure(path: Path, folder: Path, error: OSError) -> TrainingError:
    """What to say of a run's file that cannot be written: why, what is left, what to do."""
    last, _ = latest_checkpoint(folder / "checkpoints")
    left = f"{last.name} is sound" if last else "there is no checkpoint yet"
    known = (folder / "config.toml").is_file()
    return TrainingError(
        f"{path}: cannot be written: {error.strerror or error}; training has stopped, {left}; make "
        f"room for it, then{f': saccade resume {folder}' if known else ' try again'}"
    )


def mean_of(paths: Iterable[Path]) -> tuple[dict[str, Tensor], list[str]]:
    """The mean of the weights of the sound ones of several checkpoints; what the others have."""
    total: dict[str, Tensor] = {}
    problems: list[str] = []
    count = 0
    for path in paths:
        if problem := defect(path):
            problems.append(f"{path}: {problem}")
            continue
        count += 1
        for name, tensor in tensors_in(path / "model.safetensors"):
            total[name] = tensor.double() + total[name] if name in total else tensor.double()
    if problems and not count:
        raise CheckpointError("\n".join(problems[:5]))
    return {name: (tensor / count).float() for name, tensor in total.items()}, problems
