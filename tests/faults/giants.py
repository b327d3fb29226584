"""What an enemy does with large files: tens of megabytes, wrong at their very end or all over.

Each makes one thing wrong with a large run, whose network has tens of megabytes itself.
"""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade.data.batches import LONGEST
from saccade.runs import checkpoints, files
from saccade.runs.folder import read_config
from saccade.setup.prepare import load_task
from tests.faults.memory import GOLDEN, MB

Harm = Callable[[Path], None]
DIM = 800  # 20 MB of weights
MANY = 10 * MB  # ids, or lines


def the_checkpoint(run: Path) -> Path:
    return checkpoints.paths(run / "checkpoints")[-1]


def sealed(folder: Path, step: int) -> None:
    """An enemy can count, too: a manifest that fits what was changed."""
    files = {path.name: (path.stat().st_size, files.digest(path))
             for path in folder.iterdir() if path.name != files.MANIFEST}  # fmt: skip
    files.write_manifest(folder, files, step)


def make_large(run: Path) -> None:
    """A run that is sound, with a network of tens of megabytes, and so its checkpoint."""
    shutil.copytree(GOLDEN / "language-model", run)
    step = the_checkpoint(run)
    for path in (run / "config.toml", step / "state.json"):
        text = path.read_text().replace("dim = 16", f"dim = {DIM}")
        text = text.replace('"dim": 16', f'"dim": {DIM}')
        path.write_text(text.replace("steps = 150", "steps = 151"))
    network = load_task(read_config(run), run).build_meta()
    weights = {name: torch.full(p.shape, 0.01) for name, p in network.named_parameters()}
    order = sorted(weights.values(), key=lambda weight: weight.dim() <= 1)  # as the optimiser has
    moments = {f"optimizer.{i}.{name}": weight for i, weight in enumerate(order)
               for name in ("exp_avg", "exp_avg_sq")}  # fmt: skip
    moments |= {f"optimizer.{i}.step": torch.tensor(150.0) for i in range(len(order))}
    files.save_weights(run / "model.safetensors", weights)
    for name, tensors in (("model", weights), ("raw", weights), ("training", moments)):
        files.write_tensors(step / f"{name}.safetensors", tensors)
    sealed(step, 150)


def crowd(size: int) -> str:
    """As many values as go into so many bytes."""
    return "[" + "[]," * ((size - 8) // 3) + "[]]"


def wide(size: int) -> str:
    """A text that takes four bytes in memory for each byte of the file."""
    return "x" * (size - 64) + "\N{GRINNING FACE}"


# --- what a prediction reads ----------------------------------------------------------------------


def weights_with_a_wrong_hash(run: Path) -> None:
    with (run / "model.safetensors").open("r+b") as file:
        file.seek(-2, 2)
        file.write(b"\1")


def weights_cut_short(run: Path) -> None:
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-99])


def weights_in_half_precision(run: Path) -> None:
    path = run / "model.safetensors"
    files.save_weights(path, {n: t.half() for n, t in files.read_tensors(path).items()})


def weights_with_one_too_many(run: Path) -> None:
    path = run / "model.safetensors"
    more = {"more": torch.ones(5 * MB)}
    files.save_weights(path, files.read_tensors(path) | more)


def weights_with_a_deep_header(run: Path) -> None:
    text = b'{"a":' * ((files.HEADER - 8) // 5)
    (run / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(20 * MB))


def weights_with_a_wide_header(run: Path) -> None:
    text = json.dumps({"__metadata__": {"a": wide(files.HEADER - 99)}}, ensure_ascii=False).encode()
    (run / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


def weights_with_many_names(run: Path) -> None:
    entry = '"{:x}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    count = files.TENSORS
    text = "{" + ",".join(entry.format(i) for i in range(count)) + "}"
    (run / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text.encode())


def weights_of_holes(run: Path) -> None:
    text = json.dumps({"a": {"dtype": "F32", "shape": [2**36], "data_offsets": [0, 2**38]}})
    with (run / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text.encode())
        file.truncate(8 + len(text) + 2**38)  # 256 GB of nothing


def config_of_megabytes(run: Path) -> None:
    with (run / "config.toml").open("a") as file:
        file.write("# " + "x" * 40 * MB)


def config_of_many_values(run: Path) -> None:
    text = (run / "config.toml").read_text()
    room = files.LARGEST["config.toml"] - len(text) - 64
    (run / "config.toml").write_text(f"x = {crowd(room)}\n{text}")


def vocabulary_of_megabytes(run: Path) -> None:
    (run / "tokenizer.json").write_text('{"saccade": ' + crowd(files.VOCABULARY) + "}")


def vocabulary_of_values(run: Path) -> None:
    (run / "tokenizer.json").write_text('{"saccade": ' + crowd(4 * MB) + "}")


def vocabulary_of_one_text(run: Path) -> None:
    text = json.dumps({"saccade": wide(files.VOCABULARY - 64)}, ensure_ascii=False)
    (run / "tokenizer.json").write_text(text)


def vocabulary_of_many_words(run: Path, count: int = 500_000) -> None:
    """A vocabulary that is one: the embedding is another's."""
    content = json.loads((run / "tokenizer.json").read_text())
    vocab = content["tokenizer"]["model"]["vocab"]
    vocab |= {f"{i:x}h": i for i in range(len(vocab), count)}
    (run / "tokenizer.json").write_text(json.dumps(content))


def vocabulary_with_all_that_is_allowed(run: Path) -> None:
    vocabulary_of_many_words(run, 80_000)


# --- what training goes on from -------------------------------------------------------------------


def retrained(run: Path, change: Callable[[dict[str, Any]], None], name: str = "training") -> None:
    path = the_checkpoint(run) / f"{name}.safetensors"
    tensors = files.read_tensors(path)
    change(tensors)
    files.write_tensors(path, tensors)
    sealed(path.parent, 150)


def training_without_its_last(run: Path) -> None:
    """All of it is read before it is missed."""
    retrained(run, lambda tensors: tensors.pop("optimizer.0.step"))


def training_with_a_wrong_shape(run: Path) -> None:
    retrained(run, lambda tensors: tensors.update({"optimizer.0.exp_avg": torch.ones(10 * MB)}))


def training_of_many_rows(run: Path) -> None:
    """No bytes at all, which pretend to be the state of a billion streams."""
    retrained(run, lambda tensors: tensors.update({"carry.0": torch.ones(10**9, 0)}))


def training_with_odd_streams(run: Path) -> None:
    rows = {"carry.0": torch.ones(4000, DIM), "carry.1": torch.ones(4001, DIM)}
    retrained(run, lambda tensors: tensors.update(rows))


def training_in_double_precision(run: Path) -> None:
    retrained(run, lambda t: t.update({k: v.double() for k, v in t.items()}))


def checkpoint_with_a_wrong_hash(run: Path) -> None:
    path = the_checkpoint(run) / "model.safetensors"
    files.write_tensors(path, files.read_tensors(path), {"sha256": "0" * 64})
    sealed(path.parent, 150)


def checkpoint_with_one_too_many(run: Path) -> None:
    retrained(run, lambda tensors: tensors.update({"more": torch.ones(10 * MB)}), "raw")


def manifest_of_many_values(run: Path) -> None:
    (the_checkpoint(run) / files.MANIFEST).write_text(crowd(files.LARGEST[files.MANIFEST]))


def state_of_megabytes(run: Path) -> None:
    folder = the_checkpoint(run)
    (folder / "state.json").write_text('{"config": ' + crowd(20 * MB) + "}")
    sealed(folder, 150)


def state_of_many_values(run: Path) -> None:
    folder = the_checkpoint(run)
    (folder / "state.json").write_text(
        '{"config": ' + crowd(files.LARGEST["state.json"] - 64) + "}"
    )
    sealed(folder, 150)


def state_of_one_text(run: Path) -> None:
    folder = the_checkpoint(run)
    text = json.dumps({"config": wide(files.LARGEST["state.json"] - 64)}, ensure_ascii=False)
    (folder / "state.json").write_text(text)
    sealed(folder, 150)


# --- the data -------------------------------------------------------------------------------------


def data_with(run: Path, name: str, content: Any) -> None:
    content.tofile(run / "data" / name)
    sealed(run / "data", 0)


def data_with_a_strange_id(run: Path) -> None:
    ids = np.full(MANY, 6, np.int32)
    ids[-1] = 10**6
    data_with(run, "train.target.starts", np.array([0, 99, MANY]))
    data_with(run, "train.target.ids", ids)


def data_with_odd_starts(run: Path) -> None:
    starts = np.zeros(MANY // 2, np.int64)
    starts[-2:] = 10**6, (run / "data" / "train.target.ids").stat().st_size // 4
    data_with(run, "train.target.starts", starts)


def dev_set(run: Path, lines: bytes) -> None:
    (run / "data" / "dev.jsonl").write_bytes(lines)
    sealed(run / "data", 0)


def dev_set_wrong_at_its_end(run: Path) -> None:
    dev_set(run, b'[["a line of a text, no more"],null]\n' * (MANY // 20) + b"[[7],null]\n")


def dev_set_of_one_line(run: Path) -> None:
    dev_set(run, b'[["' + b"x" * 40 * MB + b'"],null]\n')


def dev_set_of_long_lines(run: Path) -> None:
    line = json.dumps([[wide(LONGEST - 99)], None], ensure_ascii=False).encode() + b"\n"
    dev_set(run, line * 10 + b"[]\n")


def dev_set_of_values(run: Path) -> None:
    dev_set(run, f"[[{crowd(LONGEST - 99)}],null]\n".encode() * 10)


LOADED: list[Harm] = [
    weights_with_a_wrong_hash, weights_cut_short, weights_in_half_precision,
    weights_with_one_too_many, weights_of_holes, config_of_megabytes, vocabulary_of_megabytes,
    vocabulary_of_values, vocabulary_of_one_text, vocabulary_of_many_words,
]  # fmt: skip
RESUMED: list[Harm] = [
    training_without_its_last, training_with_a_wrong_shape, training_of_many_rows,
    training_with_odd_streams, training_in_double_precision, checkpoint_with_a_wrong_hash,
    checkpoint_with_one_too_many, manifest_of_many_values, state_of_megabytes,
    data_with_a_strange_id, data_with_odd_starts, dev_set_wrong_at_its_end, dev_set_of_one_line,
]  # fmt: skip
# What fills the limits of text: in a small run there is nothing that it could be compared with.
FULL: list[Harm] = [
    weights_with_a_deep_header, weights_with_a_wide_header, weights_with_many_names,
    config_of_many_values, vocabulary_with_all_that_is_allowed,
]  # fmt: skip
FULL_RESUMED: list[Harm] = [
    state_of_many_values, state_of_one_text, dev_set_of_long_lines, dev_set_of_values,
]  # fmt: skip
