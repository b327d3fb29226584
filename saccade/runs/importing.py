"""Published weights as a run: a folder in the Hugging Face layout, and two smaller formats.

`import_run(path, out)` writes a run like any other. Tensors are read and written one parameter at a
time, so it takes the memory of the largest parameter, however large the folder is. An untrusted
folder is checked as an untrusted run is (`guard`): headers before tensors, sizes before memory;
nothing is unpickled.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from saccade import config as c
from saccade.data.fields import Labels, Lines, TargetText, Text, Words
from saccade.errors import CheckpointError, ConfigError
from saccade.models.layouts import Same
from saccade.models.pretrained import alternatives, published
from saccade.models.pretrained_parts import Published, Values, Weight
from saccade.runs import files, guard
from saccade.runs.folder import write_config
from saccade.tasks.classify import Classify
from saccade.tasks.language import LanguageModel
from saccade.tasks.pretrain import Fill
from saccade.tasks.tag import Tag
from saccade.tasks.task import Task
from saccade.tasks.translate import Translate
from saccade.text import published as older
from saccade.text.imported import Imported, imported
from saccade.text.tokenizers import Tokenizer
from saccade.text.vocab import Specials, Vocab

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
ROWS_BYTES = 1 << 24  # of a large table, read at once
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_SPM_BYTES = 1 << 25
Log = Callable[[str], None]


class Converted(NamedTuple):
    """A task with its vocabularies, and the source of its network's weights."""

    task: Task
    weight: Callable[[str, tuple[int, ...]], Iterator[Tensor]]  # by name and shape, in row chunks
    notes: list[str]  # for the user


def import_run(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    log: Log = print,
    columns: int = 1,
) -> Path:
    """Write a run with the weights and the vocabulary of a published model.

    `columns` is the number of texts that a classifier reads: 2 if it was trained on pairs, which a
    config.json does not tell.
    """
    from saccade.runs.converters import converted_file  # which are of another kind
    from saccade.runs.vector_files import converted_vectors, is_vectors

    path, out = Path(path), Path(out)
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder")
    if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out}: already exists; choose another folder (--out)")
    try:
        if (path / "config.json").exists():
            converted = converted_folder(path, columns)
        elif columns > 1:
            raise ConfigError(ONE_TEXT)
        else:
            converted = converted_vectors(path) if is_vectors(path) else converted_file(path)
    except (ArithmeticError, RecursionError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be imported: {guard.shortened(error)}") from None
    existed = out.is_dir()
    try:
        out.mkdir(parents=True, exist_ok=True)
        converted.task.save(out)
        guard.require_loadable(out, converted.task.build_meta())
        count = write_weights(converted, out / SINGLE)
        write_config(out, converted.task.config, prepared=True)
    except BaseException as error:
        shutil.rmtree(out, ignore_errors=True)
        if existed:
            out.mkdir(exist_ok=True)
        if isinstance(error, OSError):
            raise ConfigError(f"{out}: cannot be written: {error.strerror or error}") from None
        if isinstance(error, RuntimeError | ValueError):
            raise CheckpointError(f"{path}: cannot be read: {guard.shortened(error)}") from None
        raise
    for line in converted.notes:
        log(line)
    log(f"{count:,} parameters, a run of the task '{converted.task.config.task.kind}' in {out}")
    return out


def write_weights(converted: Converted, path: Path) -> int:
    """Write the weights of a network one after the other; the number of parameters."""
    shapes = {n: tuple(p.shape) for n, p in converted.task.build_meta().named_parameters()}
    header: dict[str, Any] = {"__metadata__": {"format": str(files.FORMAT), "sha256": "0" * 64}}
    end = 0
    for name in sorted(shapes):
        start, end = end, end + 4 * torch.Size(shapes[name]).numel()
        header[name] = {"dtype": "F32", "shape": list(shapes[name]), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    sha = hashlib.sha256()  # of names and values in the order of `files.fingerprint`

    def blocks() -> Iterator[Any]:
        yield len(text).to_bytes(8, "little") + text
        for name in sorted(shapes):
            sha.update(f"{name} F32 {shapes[name]}\n".encode())
            for part in converted.weight(name, shapes[name]):
                block = part.float().contiguous().reshape(-1).view(torch.uint8).numpy()
                sha.update(block.data)
                yield block

    files.write_file(path, blocks())
    with path.open("r+b") as file:
        file.seek(8 + text.index(b"0" * 64))
        file.write(sha.hexdigest().encode())
        file.flush()
        os.fsync(file.fileno())
    return end // 4


# --- tensors --------------------------------------------------------------------------------------


class Shards:
    """The tensors of one or more safetensors files, read lazily."""

    def __init__(self, folder: Path):
        self.entries: dict[str, tuple[Path, guard.Header, str]] = {}
        for path in shards_of(folder):
            header = guard.read_header(path)
            for key, entry in header.tensors.items():
                if entry["dtype"] not in KINDS and not entry["dtype"].startswith(("I", "U", "BO")):
                    raise CheckpointError(f"{path}: '{guard.shortened(key)}' is {entry['dtype']}")
                self.entries[entry["name"]] = path, header, key

    def shape(self, name: str) -> tuple[int, ...]:
        _, header, key = self.entries[name]
        return tuple(header.tensors[key]["shape"])

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Some rows of a tensor, or all, in single precision."""
        path, header, key = self.entries[name]
        entry, shape = header.tensors[key], self.shape(name)
        if entry["dtype"] not in KINDS:
            raise CheckpointError(f"{path}: '{guard.shortened(name)}' is of {entry['dtype']}")
        dtype = KINDS[entry["dtype"]]
        first, last = entry["data_offsets"]
        row = (last - first) // shape[0] if shape and shape[0] else last - first
        stop = shape[0] if shape and stop is None else stop
        size = (stop - start) * row if shape and stop is not None else row
        with path.open("rb") as file:
            content = _bytes_at(file, header.start + first + start * row, size, path)
        rows = () if not shape or stop is None else (stop - start, *shape[1:])
        return torch.frombuffer(content, dtype=dtype).reshape(rows).float()


KINDS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


def _bytes_at(file: BinaryIO, place: int, size: int, path: Path) -> bytearray:
    content = bytearray(size)
    file.seek(place)
    if file.readinto(content) != size:  # type: ignore[attr-defined]
        raise CheckpointError(f"{path}: damaged: it ends inside a tensor")
    return content


def shards_of(folder: Path) -> list[Path]:
    """The safetensors files of a folder; CheckpointError if there are only pickles, or none."""
    if os.path.lexists(folder / INDEX):
        table = _json(folder / INDEX).get("weight_map")
        if not isinstance(table, dict) or not table:
            raise CheckpointError(f"{folder / INDEX}: has no weight_map")
        names = sorted({str(name) for name in table.values()})
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise CheckpointError(
                    f"{folder / INDEX}: {guard.shortened(name)!r} is not a safetensors file of "
                    "this folder"
                )
        return [regular_file(folder / name) for name in names]
    if os.path.lexists(folder / SINGLE):
        return [regular_file(folder / SINGLE)]
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLES)
    if pickled:
        raise CheckpointError(
            f"{folder / pickled[0]}: is a pickle or of an old format, which can run a stranger's "
            "code when it is read. Convert it where you trust it, with transformers: "
            'AutoModel.from_pretrained("FOLDER").save_pretrained("NEW") writes model.safetensors'
        )
    raise CheckpointError(f"{folder}: has no {SINGLE}")


def regular_file(path: Path) -> Path:
    """The regular file behind a path. Folders of Hugging Face's cache hold links to them."""
    try:
        found = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    guard.require_plain_file(found)
    return found


def _json(path: Path) -> dict[str, Any]:
    found = regular_file(path)
    try:
        return files.read_json(found)
    except CheckpointError as error:
        raise CheckpointError(str(error).replace(str(found), str(path))) from None


def _text(path: Path) -> str:
    found = regular_file(path)
    if found.stat().st_size > guard.MAX_VOCABULARY_BYTES:
        raise CheckpointError(f"{path}: is larger than {guard.MAX_VOCABULARY_BYTES >> 20} MB")
    try:
        return found.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None


# --- a folder of Hugging Face's -------------------------------------------------------------------


def converted_folder(folder: Path, columns: int = 1) -> Converted:
    """A folder with config.json, safetensors, and tokenizer.json or older vocabularies."""
    where = str(folder / "config.json")
    raw = _json(folder / "config.json")
    shards = Shards(folder)
    model = published(raw, where, shards.entries)
    source, target = tokenizers_of(folder, model, Values(raw, where))
    task = task_of(model, raw, folder, source, target, columns)
    try:
        shapes = {n: tuple(p.shape) for n, p in guard.network_on_meta(task).named_parameters()}
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from None
    rules = {rule.ours: rule for rule in model.weights}
    new = _missing_head(model, shards, rules, shapes, folder)
    used = {
        found
        for rule in rules.values()
        for name in rule.theirs
        if (found := _name_in_file(shards, name, model.prefix))
    }
    notes = [
        f"{folder}: {model.model_type}, "
        + ", ".join(
            f"{part} of {table['num_layers']} layers x {table['dim']}"
            for part, table in model.tables.items()
            if "num_layers" in table
        )
    ]
    if new:
        notes.append(f"missing in the folder, initialised randomly: {', '.join(sorted(new))}")
    left = sorted(n for n in shards.entries.keys() - used if not _is_unused(n, model))
    if left:
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        notes.append(f"not used: {', '.join(guard.shortened(n) for n in left[:5])}{more}")

    def weight(name: str, shape: tuple[int, ...]) -> Iterator[Tensor]:
        if name in new:
            yield initial_weight(name, shape)
            return
        rule = rules[name]
        theirs = [_name_in_file(shards, one, model.prefix) for one in rule.theirs]
        if None in theirs:
            assert rule.missing is not None
            yield torch.full(shape, rule.missing)
            return
        if isinstance(rule.layout, Same) and len(shape) > 1:
            step = max(1, ROWS_BYTES // (4 * shape[1]))
            for start in range(0, shape[0], step):
                part = shards.read(str(theirs[0]), start, min(start + step, shape[0]))
                yield rule.layout.join([part])
            return
        yield rule.layout.join([shards.read(str(one)) for one in theirs])

    return Converted(task, weight, notes)


def _name_in_file(shards: Shards, name: str, prefix: str) -> str | None:
    """The name of a tensor in these files."""
    return next((n for n in alternatives(name, prefix) if n in shards.entries), None)


def _is_unused(name: str, model: Published) -> bool:
    return any(
        one.startswith(model.unused) or one.endswith(("position_ids",))
        for one in (name, model.prefix + name)
    )


def _missing_head(
    model: Published,
    shards: Shards,
    rules: Mapping[str, Weight],
    shapes: Mapping[str, tuple[int, ...]],
    folder: Path,
) -> set[str]:
    """The parameters of a missing head; CheckpointError if any other is missing or does not fit."""
    new = set()
    for name, shape in shapes.items():
        rule = rules.get(name)
        theirs = (
            [] if rule is None else [_name_in_file(shards, n, model.prefix) for n in rule.theirs]
        )
        if rule is None or None in theirs:
            if name.startswith("head."):
                new.add(name)
            elif rule is None or rule.missing is None:
                lost = name if rule is None else rule.theirs[theirs.index(None)]
                raise CheckpointError(f"{folder}: there is no tensor '{lost}'")
            continue
        found = rule.layout.shape([shards.shape(str(n)) for n in theirs])
        if found != shape:
            raise CheckpointError(
                f"{folder}: does not fit its config.json: '{guard.shortened(theirs[0])}' makes "
                f"{found}, not {shape}"
            )
    return new


def initial_weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """The initial weights of a layer: norms 1, biases 0, others random."""
    if len(shape) == 1:
        return torch.full(shape, 1.0 if name.endswith("norm.weight") else 0.0)
    numbers = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=numbers) * 0.02


# --- tasks ----------------------------------------------------------------------------------------

ONE_TEXT = "--columns: of what can be imported, classifiers alone read several texts"


def task_of(
    model: Published,
    raw: Mapping[str, Any],
    folder: Path,
    source: Tokenizer,
    target: Tokenizer,
    columns: int = 1,
) -> Task:
    """The task of a published model, with its vocabularies."""
    tokenizer = source.config.model_dump()
    longest = model.longest or 1024
    context = max(8, min(longest, 1024))
    tables: dict[str, Any] = dict(model.tables)
    if columns > 1 and model.kind != "classify":
        raise ConfigError(ONE_TEXT)
    texts = [*range(1, columns + 1)]
    tsv = {"format": "tsv", "source": texts, "target": columns + 1, "columns": columns + 1}
    width = raw.get("num_beams")
    if model.kind in ("language", "translate"):
        beams = width if type(width) is int and 0 < width <= 64 else None
        tables["decode"] = {"width": beams or (1 if model.kind == "language" else 5)}

    def config(task: dict[str, Any], data: dict[str, Any]) -> c.Config:
        return c.parse({"task": task, "data": data | {"max_len": longest}, **tables}, str(folder))

    try:
        match model.kind:
            case "language":
                task = {"kind": "language", "tokenizer": tokenizer, "context": context}
                return LanguageModel(config(task, {"format": "text"}), Lines(target))
            case "translate":
                sides = {"source": tokenizer, "target": tokenizer, "joint": model.joint}
                settings = config({"kind": "translate", **sides}, tsv)
                return Translate(settings, (Text(source),), TargetText(target))
            case "masked":
                task = {"kind": "pretrain", "tokenizer": tokenizer, "context": context}
                return Fill(config(task, {"format": "text"}), Lines(target))
            case "classify":
                labels = Labels(labels_of(raw))
                settings = config({"kind": "classify", "tokenizer": tokenizer}, tsv)
                return Classify(settings, (Text(source),), labels)
            case _:
                labels = Labels(labels_of(raw))
                data = {"format": "columns", "source": [1], "target": 2}
                settings = config({"kind": "tag", "tokenizer": tokenizer}, data)
                return Tag(settings, (Words(source),), labels)
    except ConfigError as error:
        raise CheckpointError(str(error)) from None


def labels_of(raw: Mapping[str, Any]) -> Vocab:
    """The labels of a config.json in their order."""
    found = raw.get("id2label")
    if not isinstance(found, dict) or not found:
        count = Values(raw, "config.json").size("num_labels", default=2)  # which is left out there
        found = {str(i): f"LABEL_{i}" for i in range(count)}
    names = [str(found.get(str(i), "")) for i in range(len(found))]
    if len({*names}) < len(names) or "" in names:
        raise CheckpointError("config.json: id2label: its labels are not numbered, or not distinct")
    return Vocab({name: len(names) - i for i, name in enumerate(names)})


# --- vocabularies ---------------------------------------------------------------------------------

BERT_NAMES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BYTE_NAMES = {
    "gpt2": ("<|endoftext|>",),
    "roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "bart": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
}


def tokenizers_of(folder: Path, model: Published, values: Values) -> tuple[Imported, Imported]:
    """The tokenizers of a model's source and target, mostly the same one."""
    contents = list(_contents(folder, model))
    names = _special_names(folder)
    found = []
    for where, content in contents:
        specials, start, line = _specials(model, values, content, names)
        tokenizer = imported(
            content, model.rows, specials, start=start, line=line, where=str(where)
        )
        found.append(tokenizer)
    return found[0], found[-1]


def _contents(folder: Path, model: Published) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each tokenizer.json of a folder, or its older vocabulary files converted to that format."""

    def has(*names: str) -> bool:
        return all(os.path.lexists(folder / name) for name in names)

    if has("tokenizer.json"):
        yield folder / "tokenizer.json", _json(folder / "tokenizer.json")
        return
    kind = model.model_type
    try:
        if kind in ("bert", "distilbert") and has("vocab.txt"):
            settings = folder / "tokenizer_config.json"
            lower = not settings.exists() or bool(_json(settings).get("do_lower_case", True))
            text = _text(folder / "vocab.txt")
            yield folder / "vocab.txt", older.wordpiece(text, lower, BERT_NAMES)
            return
        for vocab, merges in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
            if kind in BYTE_NAMES and has(vocab, merges):
                pieces = older.vocabulary(_text(folder / vocab))
                content = older.byte_level(pieces, _text(folder / merges), BYTE_NAMES[kind])
                yield folder / vocab, content
                return
        if kind == "marian" and has("source.spm", "target.spm", "vocab.json"):
            ids = older.vocabulary(_text(folder / "vocab.json"))
            for name in ("source.spm", "target.spm"):
                spm = older.sentencepiece(_small_bytes(folder / name))
                yield folder / name, older.unigram(spm, "<unk>", "</s>", ids)
            return
        for name in ("spiece.model", "tokenizer.model"):
            if kind in ("t5", "llama", "pegasus") and has(name):
                found = older.sentencepiece(_small_bytes(folder / name))
                if found.kind == older.BPE:
                    yield folder / name, older.scored_bpe(found.pieces, found.dummy_prefix)
                else:
                    extra = max(0, min(100, model.rows - len(found.pieces)))
                    sentinels = extra if kind == "t5" else 0
                    yield folder / name, older.unigram(found, "<unk>", "</s>", extra=sentinels)
                return
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder}: its vocabulary cannot be read: {error}") from None
    raise CheckpointError(
        f"{folder}: has no tokenizer.json, nor the older vocabulary files of {kind}"
    )


def _small_bytes(path: Path) -> bytes:
    found = regular_file(path)
    if found.stat().st_size > MAX_SPM_BYTES:
        raise CheckpointError(f"{path}: is larger than {MAX_SPM_BYTES >> 20} MB")
    return found.read_bytes()


def _special_names(folder: Path) -> dict[str, str]:
    """The special tokens by role: pad, unk, cls and so on."""
    names: dict[str, str] = {}
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        if not os.path.lexists(folder / file):
            continue
        for key, value in _json(folder / file).items():
            content = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(content, str):
                names[key.removesuffix("_token")] = content
    return names


def _specials(
    model: Published, values: Values, content: Mapping[str, Any], names: Mapping[str, str]
) -> tuple[Specials, Sequence[int], Sequence[int]]:
    """The special ids, those before a target, and those before a language model's first token."""
    ids: dict[str, int] = {}
    vocab = content.get("model", {}).get("vocab", {}) if isinstance(content, dict) else {}
    pairs = vocab.items() if isinstance(vocab, dict) else ((p[0], i) for i, p in enumerate(vocab))
    wanted = {*names.values(), *BERT_NAMES, "<pad>", "<unk>", "<s>", "</s>", "<mask>"}
    ids.update({p: i for p, i in pairs if isinstance(p, str) and p in wanted})
    for token in content.get("added_tokens") or ():
        ids[str(token.get("content"))] = token.get("id")

    def one(role: str, *others: str) -> int | None:
        found = [ids.get(names.get(role, ""))]
        found += [values.token(f"{role}_token_id")] + [ids.get(name) for name in others]
        return next((i for i in found if type(i) is int), None)

    unk = one("unk", "[UNK]", "<unk>")
    mask = one("mask", "[MASK]", "<mask>") if model.kind in ("masked", "classify", "tag") else None
    if "decoder" not in model.tables:
        first, last = one("cls", "[CLS]", "<s>"), one("sep", "[SEP]", "</s>")
        pad = one("pad", "[PAD]", "<pad>")
        if first is None or last is None:
            raise CheckpointError(f"{values.where}: its tokenizer has no marks around a text")
        pad, unk = (last if i is None else i for i in (pad, unk))
        return Specials(pad, unk, first, last, last, mask), (), ()
    eos = values.token("eos_token_id")
    eos = one("eos", "</s>", "<|endoftext|>") if eos is None else eos
    if eos is None:
        raise CheckpointError(f"{values.where}: there is no eos_token_id")
    bos, pad = one("bos", "<s>"), one("pad", "<pad>")
    bos = eos if bos is None else bos
    pad = eos if pad is None else pad
    unk = eos if unk is None else unk
    if "encoder" not in model.tables:
        return Specials(pad, unk, bos, eos, eos), (bos,), (bos,)
    start = values.token("decoder_start_token_id", pad)
    assert start is not None
    begin = (start, bos) if model.model_type == "bart" else (start,)
    return Specials(pad, unk, start, eos, eos), begin, (start,)
