"""The defence against hostile files: an untrusted run is checked here before any of it is used.

`vet(folder)` is called when a run is opened, before anything in it is read. It guarantees that

- every file of the run and of its data/ is regular: no link, pipe, socket or device, so that
  nothing outside the run is read or written and no reader waits for ever;
- config.toml and all JSON files are no larger than the ones we write (MAX_BYTES);
- to parse all JSON files takes at most JSON_MEMORY_BYTES, or 1.5 times the size of the run if that
  is more. `require_loadable` holds the same limits when a run is written.

The rest needs more than the file itself, and is checked where it is used: tensors by their header
(`read_header`), weights against the configuration (`fitting_network`), tokenised data against the
network (`check_ids`), an export for CTranslate2 against the one we would write (`vetted_export`),
and the files that its own settings name (`own_decode`, `require_plain_inputs`, `with_root`).
A checkpoint is used only if all its files have the hashes of its manifest (`checkpoints.defect`).

No check allocates memory by a size in a file alone, no file is ever executed or unpickled, and
every error is a CheckpointError.
"""

import json
import os
import re
import stat
import struct
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch
from torch import Tensor, nn

from saccade import config as c
from saccade.data.corpora import Column, Corpus
from saccade.data.digest import digest
from saccade.engines.ctranslate2 import vocabularies
from saccade.engines.export import STAMP, spec_of, unsupported
from saccade.errors import CheckpointError, ConfigError
from saccade.models.networks import Generator, Network
from saccade.nn.padded import UNSCORED_ID
from saccade.runs.legacy import current_name
from saccade.runs.machine import out_of_memory, require_memory
from saccade.tasks.generate import GeneratingTask
from saccade.tasks.task import Task
from saccade.text.tokenizers import MAX_FILE_BYTES

MAX_BYTES = {"config.toml": 1 << 17, "manifest.json": 1 << 16, "state.json": 1 << 21}
MAX_VOCABULARY_BYTES = MAX_FILE_BYTES  # of any other JSON file
JSON_MEMORY_BYTES = 1 << 27  # to parse the JSON files of any run: a vocabulary of 80,000 pieces
UNTRAINED_BYTES = 1 << 28  # the assumed size of a run that has no weights yet
MAX_HEADER_BYTES = 1 << 22  # of a safetensors file
MAX_TENSORS = 1 << 15  # in a safetensors file: deep networks with an optimiser's state have fewer
MAX_STAMP_BYTES = 1 << 14  # of the stamp in an export
EXPORT_EXTRA_BYTES = 1 << 27  # of an export beside its weights: vocabularies, tables of positions
MAX_LIST_BYTES = 1 << 22  # of permitted outputs in a run
BLOCK_BYTES = 1 << 20  # read at once
NEVER_FOLDERS = {".lock", "config.toml", "metrics.jsonl", "model.safetensors"}


# --- a run ----------------------------------------------------------------------------------------


def vet(folder: Path) -> None:
    """CheckpointError if a run holds a link, a pipe, or a text larger than we write."""
    memory_left = _json_memory_allowed(_size_of(folder))
    for entry in _entries(folder):
        path = Path(entry.path)
        if entry.is_symlink():
            raise CheckpointError(
                f"{path}: is a symbolic link; a run may contain regular files only"
            )
        if entry.is_dir() and entry.name not in NEVER_FOLDERS and path.suffix != ".aside":
            continue
        if not path.exists():  # a process that is training has renamed it since
            continue
        require_plain_file(path)
        if path.suffix == ".json":  # its readers do not check it again
            memory_left -= require_small_file(path, memory_left)
    if os.path.lexists(folder / "data"):
        for entry in _entries(folder / "data"):
            require_plain_file(Path(entry.path))


def require_loadable(folder: Path, network: nn.Module) -> None:
    """ConfigError if `vet` would refuse the vocabularies of a new run, which are then removed.

    Their limit follows from the weights alone: a run can be copied without data and checkpoints.
    """
    paths = sorted(folder.glob("*.json"))
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    memory_left = _json_memory_allowed(weights + sum(path.stat().st_size for path in paths))
    try:
        for path in paths:
            memory_left -= require_small_file(path, memory_left)
    except CheckpointError as error:
        for path in paths:
            path.unlink()
        raise ConfigError(
            f"the vocabulary is too large to be loaded again: {error}; set a smaller size for the "
            "tokenizer, a higher min_count, or a larger network"
        ) from None


def _json_memory_allowed(run_bytes: int) -> int:
    return max(JSON_MEMORY_BYTES, 2 * run_bytes)


def _size_of(folder: Path) -> int:
    """The bytes of a run's files; before it has weights, an upper estimate."""
    size, trained = 0, False
    for place in (folder, folder / "data", *(folder / "checkpoints").glob("step-*")):
        with suppress(OSError), os.scandir(place) as found:  # a process that trains removes some
            for entry in found:
                size += entry.stat(follow_symlinks=False).st_size
                trained |= entry.name == "model.safetensors"
    return size if trained else UNTRAINED_BYTES


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror}") from None


# --- a file ---------------------------------------------------------------------------------------


def require_plain_file(path: Path) -> os.stat_result:
    """CheckpointError unless this is a regular file; its status, if it is."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path}: cannot be read: {reason}") from None
    if stat.S_ISLNK(found.st_mode):
        raise CheckpointError(
            f"{path}: is a symbolic link; a run may contain regular files only: copy the file here"
        )
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{path}: not a regular file")
    return found


def require_small_file(path: Path, memory_bytes: int | None = None) -> int:
    """The memory it takes to parse a JSON or TOML file.

    CheckpointError if that is too much, or unless it is a regular file no larger than we write.
    """
    limit = MAX_BYTES.get(path.name, MAX_VOCABULARY_BYTES)
    if require_plain_file(path).st_size > limit:
        raise CheckpointError(f"{path}: is larger than {limit >> 10:,} KB, the limit for its kind")
    needed = 0 if path.suffix == ".toml" else json_memory(path)
    allowed = JSON_MEMORY_BYTES if memory_bytes is None else memory_bytes
    if needed > allowed:
        raise CheckpointError(
            f"{path}: would take {needed >> 20:,} MB of memory, and one that fits the weights of "
            f"this run takes at most {max(allowed, 0) >> 20:,} MB"
        )
    return needed


def json_memory(path: Path) -> int:
    """An estimate of the bytes of memory to parse a JSON file, from its punctuation.

    A value takes many times the memory of the two or three bytes that it has in the file.
    """
    size, width, names, texts, values = 0, 1, 0, 0, 0
    try:
        with path.open("rb") as file:
            for block in iter(lambda: file.read(BLOCK_BYTES), b""):
                if not block.isascii():  # one wide character makes all of a Python string wide
                    width = max(width, 4 if re.search(rb"[\xf0-\xff]", block) else 2)
                names, texts = names + block.count(b'":'), texts + block.count(b'"') // 2
                values += sum(block.count(mark) for mark in (b",", b"[", b"{"))
                size += len(block)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    return 640 * names + 220 * max(0, texts - names) + 48 * values + (2 * width + 2) * size


def shortened(what: object) -> str:
    """Untrusted text, cut to the length of a message."""
    text = str(what)
    return text if len(text) <= 200 else f"{text[:200]}..."


# --- files that settings name ---------------------------------------------------------------------


def own_decode(decode: c.Decode, folder: Path, chosen: Container[str] = ()) -> c.Decode:
    """The settings with full paths; CheckpointError for a path outside of the run.

    `chosen` are keys that the user has set, whose paths may lead anywhere.
    """
    paths = {}
    for key in ("only", "model"):
        name = getattr(decode, key)
        if not name or key in chosen:
            continue
        try:
            path = (folder / name).resolve()
            inside = path.is_relative_to(folder.resolve())
        except (OSError, RuntimeError, ValueError):  # a loop of links, or an invalid path
            inside = False
        if not inside:
            raise CheckpointError(
                f"{folder / 'config.toml'}: decode.{key} = {shortened(name)!r} is not in the run, "
                "whose own settings name nothing outside of it: copy it there, or remove the key "
                f"and give --set decode.{key}=..."
            )
        paths[key] = str(path)
    if only := paths.get("only"):
        _require_list(Path(only))
    return decode.model_copy(update=paths)


def own_paths(config: c.Config, folder: Path) -> c.Config:
    """The same for the whole configuration."""
    return config.model_copy(update={"decode": own_decode(config.decode, folder)})


def with_root(config: c.Config, root: str) -> c.Config:
    """The configuration with the folder that the user permits as root of media paths.

    A run's own `data.root` permits nothing: it has to be given in each command.
    """
    return config.model_copy(update={"data": config.data.model_copy(update={"root": root})})


def _require_list(path: Path) -> None:
    """CheckpointError unless this is a small uncompressed list of outputs."""
    if require_plain_file(path).st_size > MAX_LIST_BYTES:
        raise CheckpointError(f"{path}: is larger than {MAX_LIST_BYTES >> 20} MB")
    with path.open("rb") as file:
        if file.read(2) == b"\x1f\x8b":
            raise CheckpointError(f"{path}: is compressed; a run holds a list as plain text")


def require_plain_inputs(raw: Mapping[str, Any]) -> None:
    """CheckpointError if settings that are not prepared yet name a device or a pipe as a file."""
    keys = (("data", "train"), ("data", "dev"), ("task", "vocabulary"), ("decode", "only"))
    for table, key in keys:
        found = raw.get(table)
        names = found.get(key) if isinstance(found, dict) else None
        for name in [names] if isinstance(names, str) else names or ():
            with suppress(OSError, TypeError, ValueError):  # its reader reports a missing file
                if not stat.S_ISREG(os.stat(name).st_mode):
                    raise CheckpointError(f"{table}.{key}: {shortened(name)}: not a regular file")


# --- tensors --------------------------------------------------------------------------------------


class Header(NamedTuple):
    """The header of a safetensors file."""

    tensors: dict[str, Any]  # by current name: dtype, shape, data_offsets and name in the file
    metadata: dict[str, str]
    start: int  # of the tensors' bytes


def read_header(path: Path) -> Header:
    """The header of a safetensors file, validated; no tensor is read."""
    if not path.exists() and not path.is_symlink():
        raise CheckpointError(f"{path}: no such file; is this a finished run?")
    require_plain_file(path)
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {size} bytes; the limit is {MAX_HEADER_BYTES:,}")
            text = file.read(size)
            if not text.isascii() or text.count(b"data_offsets") > MAX_TENSORS:
                raise ValueError(f"a header that is not ASCII, or of over {MAX_TENSORS:,} tensors")
        with safetensors.safe_open(path, "numpy"):  # the library checks every offset
            tensors = json.loads(text.decode())
    except Exception as error:  # the library has no one class for what a header can be
        kind = "not enough memory" if out_of_memory(error) else "damaged"
        raise CheckpointError(f"{path}: {kind}: {shortened(error)}") from None
    metadata = tensors.pop("__metadata__", None) or {}
    renamed = {current_name(name): entry | {"name": name} for name, entry in tensors.items()}
    return Header(renamed, metadata, 8 + size)


def fitting_header(path: Path, weights: Mapping[str, Tensor]) -> Header:
    """The header of a file of weights; CheckpointError unless these have its names and shapes.

    `weights` may be on the meta device.
    """
    header = read_header(path)
    shapes = {name: entry["shape"] for name, entry in header.tensors.items()}
    require_shapes(shapes, weights, path)
    return header


def require_shapes(
    shapes: Mapping[str, Sequence[int]], weights: Mapping[str, Tensor], path: Path
) -> None:
    """CheckpointError unless these are the names and shapes of the weights."""
    own = {name: tuple(weight.shape) for name, weight in weights.items()}
    if odd := sorted(own.keys() ^ shapes.keys()):
        first = shortened(odd[0])
        raise CheckpointError(
            f"{path}: does not fit config.toml: {len(odd)} weights differ, '{first}' first"
        )
    for name, shape in own.items():
        if shape != (found := tuple(shapes[name])):
            raise CheckpointError(
                f"{path}: does not fit config.toml: '{name}' is {shortened(found)}, not {shape}"
            )


def fitting_network(task: Task, weights: Path) -> Network:
    """A run's network on the meta device; CheckpointError unless its weights fit it."""
    tensors = len(read_header(weights).tensors)
    for part in (task.config.encoder, task.config.decoder):
        least = 2 if part is not None and part.kind == "convolution" else 4  # tensors of a layer
        if part is not None and getattr(part, "num_layers", 0) * least > tensors:
            raise CheckpointError(
                f"{weights}: does not fit config.toml: {tensors} weights are too few for the layers"
            )
    try:
        network = network_on_meta(task)
    except ConfigError as error:
        raise CheckpointError(f"{weights}: does not fit config.toml: {error}") from None
    fitting_header(weights, dict(network.named_parameters()))
    return network


def new_network(task: Task, device: torch.device) -> Network:
    """The network of a new run, on the meta device; ConfigError if the memory is too small."""
    network = network_on_meta(task)
    require_memory(network, task.config, device)
    return network


def network_on_meta(task: Task) -> Network:
    """A task's network on the meta device; ConfigError if its sizes are impossible."""
    try:
        return task.build_meta()
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0][:200]  # such as a size beyond 64 bits
        raise ConfigError(f"no machine has memory for such a network: {reason}") from None


def check_ids(task: Task, corpus: Corpus, folder: Path) -> None:
    """CheckpointError if tokenised data holds an id without an embedding or an output."""
    for column, field in zip(corpus.columns, task.fields, strict=True):
        odd = len(column) != len(corpus)
        masked = column is corpus.target and task.config.task.target_type == "labels"
        lowest = UNSCORED_ID if masked else 0
        if isinstance(column, Column) and len(ids := column.ids):
            odd |= not lowest <= int(ids.min()) <= int(ids.max()) < field.size
        if odd or not len(column):
            raise CheckpointError(f"{folder / 'data'}: does not fit this run: train anew")


# --- exports for CTranslate2 ----------------------------------------------------------------------


def vetted_export(task: Task, run: Path) -> Path | None:
    """The export in a run, if CTranslate2 can read it safely and it is of these weights, or None.

    CTranslate2 trusts every size in its files, so each is compared with the one we would write.
    """
    folder = run / "ctranslate2"
    if not isinstance(task, GeneratingTask) or unsupported(task.config):
        return None
    if not is_export(folder, run / "model.safetensors"):
        return None
    network, (source, target) = task.build_meta(), vocabularies(task)
    assert isinstance(network, Generator)
    output = task.output
    spec = spec_of(task.config, network, source, target, output.specials, output.frame)
    return folder if _is_safe(folder, spec, source, target) else None


def is_export(folder: Path, weights: Path) -> bool:
    """Whether a folder holds an export of these weights, complete and unchanged, and no more."""
    try:
        with os.scandir(folder) as found:
            entries = {entry.name: entry for entry in found}
        plain = all(entry.is_file(follow_symlinks=False) for entry in entries.values())
        if folder.is_symlink() or not plain or entries.pop(STAMP).stat().st_size > MAX_STAMP_BYTES:
            return False
        limit = 4 * weights.stat().st_size + EXPORT_EXTRA_BYTES
        if sum(entry.stat().st_size for entry in entries.values()) > limit:
            return False
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        if stamp["weights"] != digest(weights) or stamp["files"].keys() != entries.keys():
            return False
        return all(digest(folder / name) == sha for name, sha in stamp["files"].items())
    except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError):
        return False


def _is_safe(folder: Path, spec: Any, source: list[str], target: list[str]) -> bool:
    """Whether an export has every name and size that ours would have. No weight is read.

    The stamp is no proof: an attacker can write one, too.
    """
    settings = json.dumps(spec.config.to_dict(), indent=2, sort_keys=True) + "\n"
    texts = {"config.json": settings, "source_vocabulary.json": json.dumps(source, indent=2)}
    target_text = json.dumps(target, indent=2)
    try:
        return _is_model(folder / "model.bin", spec) and all(
            path.stat().st_size == len(text := texts.get(path.name, target_text))
            and path.read_text(encoding="utf-8") == text
            for path in folder.iterdir()
            if path.name not in ("model.bin", STAMP)
        )
    except (IndexError, KeyError, OSError, ValueError, struct.error):
        return False


def _is_model(path: Path, spec: Any) -> bool:
    """Whether a model.bin has exactly the variables of a specification, with its sizes."""
    from ctranslate2.specs.model_spec import CURRENT_BINARY_VERSION

    begin = CURRENT_BINARY_VERSION, f"{spec.name}\0".encode(), spec.revision
    missing = {f"{name}\0".encode(): value for name, value in spec.variables().items()}
    found: dict[bytes, Any] = {}
    kinds = ("float32", "int8", "int16", "int32", "float16", "bfloat16")  # by CTranslate2's number
    with path.open("rb") as file:

        def numbers(form: str) -> Any:
            return struct.unpack(f"={form}", file.read(struct.calcsize(f"={form}")))

        def name() -> bytes:
            return file.read(*numbers("H"))

        if (*numbers("I"), name(), *numbers("I")) != begin:
            return False
        for _ in range(*numbers("I")):
            key = name()
            found[key] = value = missing.pop(key)  # each of them once
            dims = numbers(f"{numbers('B')[0]}I")
            kind, size = numbers("BI")
            if (*dims, kinds[kind], size) != (*value.shape, value.dtype, value.num_bytes()):
                return False
            if value.is_scalar():  # a setting, such as the number of heads
                if file.read(size) != value.to_bytes():
                    return False
            else:
                file.seek(size, os.SEEK_CUR)
        for _ in range(*numbers("I")):  # aliases: variables that are the same as another
            value, same = missing.pop(name()), found[name()]
            if value.is_scalar() or (*value.shape, value.dtype) != (*same.shape, same.dtype):
                return False
        return not missing and file.tell() == path.stat().st_size
