"""Run directories made by an enemy: a CheckpointError each, and nothing else happens."""

import json
import os
import random
import re
import shutil
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import saccade
from saccade.errors import CheckpointError
from saccade.runs import files
from saccade.training.session import resume
from saccade.verify import verify
from tests.faults import giants
from tests.faults.giants import sealed, the_checkpoint
from tests.faults.memory import GOLDEN, MB, Gauge

DEEP = "[" * 200_000
Mutation = Callable[[Path, random.Random], None]


# --- what an enemy does ---------------------------------------------------------------------------


def files_of(run: Path) -> list[Path]:
    """The files that a prediction reads."""
    return sorted(p for p in run.iterdir() if p.suffix in (".toml", ".json", ".safetensors")
                  and p.name != "expected.json")  # fmt: skip


def truncated(run: Path, numbers: random.Random) -> None:
    file = numbers.choice(files_of(run))
    data = file.read_bytes().rstrip(b"\n}")
    file.write_bytes(data[: numbers.randrange(len(data) - 4)])


def another_kind_of_file(run: Path, numbers: random.Random) -> None:
    file = numbers.choice(files_of(run))
    data = file.read_bytes()
    file.unlink()
    match numbers.randrange(6):
        case 0:
            os.mkfifo(file)
        case 1:
            file.symlink_to(run.parent / "outside" / "secret.txt")
        case 2:
            file.symlink_to(file.name)  # to itself
        case 3:
            file.mkdir()
        case 4:  # even if it is the right file
            (run.parent / "outside" / file.name).write_bytes(data)
            file.symlink_to(run.parent / "outside" / file.name)
        case 5:
            here = os.getcwd()
            os.chdir(run)  # the name of a socket is short
            with socket.socket(socket.AF_UNIX) as plug:
                plug.bind(file.name)
            os.chdir(here)


def link_beside(run: Path, numbers: random.Random) -> None:
    """Where training would write."""
    names = [
        "metrics.jsonl",
        ".lock",
        "model.safetensors.aside",
        "config.toml.aside",
        "tensorboard",
    ]
    (run / numbers.choice(names)).symlink_to(run.parent / "outside" / "secret.txt")


def odd_json(run: Path, numbers: random.Random) -> None:
    file = numbers.choice([path for path in files_of(run) if path.suffix == ".json"])
    texts = [DEEP, '{"a":' * 100_000, "NaN", "[]", "{}", '{"saccade": {}}', "9" * 5000, "\udcff"]
    texts += ['{"a": NaN}', '{"a": 1e999}', '{"saccade": null, "tokenizer": null}', "\0", ""]
    file.write_text(numbers.choice(texts), errors="surrogatepass")


def odd_toml(run: Path, numbers: random.Random) -> None:
    file = run / "config.toml"
    text = file.read_text()
    changes: list[Callable[[str], str]] = [
        lambda t: f"x = {DEEP}\n" + t,
        lambda t: t.replace("dim = 16", "dim = -16"),
        lambda t: t.replace("dim = 16", "dim = 1000000000"),  # four exabytes of weights
        lambda t: t.replace("dim = 16", "dim = 1e3"),
        lambda t: t.replace("dim = 16", "dim = nan"),
        lambda t: t.replace("dim = 16", "dim = 18"),
        lambda t: t.replace("num_layers = 1", "num_layers = 100000000"),
        lambda t: t.replace("ff_dim = 32", "ff_dim = 1000000000"),
        lambda t: t.replace("kernel = 3", "kernel = 1000000001"),
        lambda t: t.replace("size = 5000", "size = 1" + "0" * 5000),
        lambda t: t.replace("format = 1", "format = 99"),
        lambda t: t.replace("format = 1", "format = true"),
        lambda t: t.replace("format = 1", "format = 'x'"),
        lambda t: t.replace("prepared = true", "prepared = 1"),
        lambda t: t.replace("prepared = true", "prepared = false"),
        lambda t: t.replace("kind =", "kinds =", 1),
        lambda t: t + "\n[run]\n",
        lambda t: t[: t.index("[run]")].replace("batch_tokens", "batch_token"),
        lambda t: "\0" + t,
        lambda t: t.replace("[task]", "[task]\nmodule = 'os'"),
        lambda t: t.replace('kind = "', "kind = \"__import__('os')", 1),
    ]
    changed = numbers.choice(changes)(text)
    if changed == text or (run / "data").exists() > ("prepared = false" not in changed):
        odd_toml(run, numbers)  # a run whose data is gone is resumed by preparing it
    else:
        file.write_text(changed)


def odd_tensors(run: Path, numbers: random.Random) -> None:
    odd_safetensors(run / "model.safetensors", numbers)


def odd_safetensors(file: Path, numbers: random.Random) -> None:
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    name = numbers.choice([key for key in header if key != "__metadata__"])
    entry = header[name]
    raw: bytes | None = None
    match numbers.randrange(14):
        case 0:
            raw = (
                struct.pack("<Q", numbers.choice([2**63, 2**40, 2**64 - 1, len(data), 0]))
                + data[8:]
            )
        case 1:
            raw = struct.pack("<Q", len(DEEP)) + DEEP.encode() + body
        case 2:
            entry["data_offsets"] = [0, 2**60]
        case 3:
            entry["data_offsets"] = entry["data_offsets"][::-1]
        case 4:
            entry["dtype"] = numbers.choice(["F8", "object", "I64", "BOOL", None, 7])
        case 5:
            entry["shape"] = numbers.choice([[2**40, 2**40], [-1], [0], "x", [1e9], [2**62]])
        case 6:
            header["../../outside/secret.txt"] = header.pop(name)
        case 7:
            header["__metadata__"] = {"format": "99"}
        case 8:
            header["__metadata__"] = numbers.choice([{"format": 1}, [], "x", {"sha256": "0" * 64}])
        case 9:
            body = body + bytes(8)
        case 10:
            body = body[:-4]
        case 11:
            del header[name]
        case 12:
            header["__reduce__"] = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        case 13:
            body = bytes([body[0] ^ 1]) + body[1:]
    if raw is None:
        text = json.dumps(header).encode()
        raw = struct.pack("<Q", len(text)) + text + body
    file.write_bytes(raw)


def large(run: Path, numbers: random.Random) -> None:
    """Files of tens of megabytes; the scene has put the large run in the place of the small."""
    harms = giants.RESUMED if "steps = 152" in (run / "config.toml").read_text() else giants.LOADED
    numbers.choice(harms)(run)


def no_weights(run: Path, numbers: random.Random) -> None:
    """Nothing but a configuration, of a network that no machine holds."""
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    (run / "model.safetensors").unlink()
    config = run / "config.toml"
    size = numbers.choice([10**6, 10**7, 10**9, 10**18, 10**40])
    config.write_text(config.read_text().replace("dim = 16", f"dim = {size}"))


LOADED: list[Mutation] = [
    truncated, another_kind_of_file, odd_json, odd_toml, odd_tensors, no_weights, large,
]  # fmt: skip


def odd_manifest(run: Path, numbers: random.Random) -> None:
    file = the_checkpoint(run) / files.MANIFEST
    manifest = json.loads(file.read_text())
    entries = manifest["files"]
    name = numbers.choice(list(entries))
    match numbers.randrange(12):
        case 0:
            entries[name][0] = numbers.choice([float("nan"), -1, 2**70, "12", None, [], True])
        case 1:
            entries[name][1] = numbers.choice(["", None, "0" * 64, 7])
        case 2:
            tricks = [
                "../../config.toml",
                "/etc/passwd",
                "..",
                ".",
                "",
                "a\0b",
                "x/../y",
                "manifest.json",
            ]
            entries[numbers.choice(tricks)] = entries[name]
        case 3:
            del entries[name]
        case 4:
            manifest["format"] = numbers.choice([0, -1, 99, "1", None, True, 1.5, float("nan")])
        case 5:
            manifest["step"] = numbers.choice([151, "150", None, float("nan")])
        case 6:
            manifest["files"] = numbers.choice([[], None, "x", 7, {"model.safetensors": 1}])
        case 7:
            file.write_text(DEEP)
            return
        case 8:
            file.write_text(numbers.choice(["", "{", "null", "[1]", '"x"', "NaN", "{}"]))
            return
        case 9:
            entries[name] = entries[name] * 2
        case 10:
            other = file.parent / name
            other.unlink()
            other.symlink_to("/dev/zero") if numbers.random() < 0.5 else os.mkfifo(other)
        case 11:
            file.parent.rename(file.parent.with_name("step-99999999"))
            return
    file.write_text(json.dumps(manifest))


def odd_state(run: Path, numbers: random.Random) -> None:
    folder = the_checkpoint(run)
    file = folder / "state.json"
    state = json.loads(file.read_text())
    wrong: list[tuple[str, Any]] = [
        ("step", "x"), ("step", -1), ("step", 2**80), ("step", None), ("epoch", [1]), ("epoch", -3),
        ("index", 10**6), ("index", "0x"), ("seconds", float("nan")), ("best", [1]), ("best", "x"),
        ("ranked", 5), ("ranked", [[1]]), ("saved", {"a": 1}), ("saved", [-1]), ("plateau", 7),
        ("slow", -1), ("slow", float("nan")), ("pending", "perhaps"), ("scaler", 5), ("bad", -1),
        ("config", {"task": {"kind": "tag"}}), ("config", 5), ("config", {"seed": 77}),
        ("config", [[]]), ("config", "x"),
    ]  # fmt: skip
    key, value = numbers.choice(wrong)
    state[key] = value
    file.write_text(numbers.choice([json.dumps(state)] * 8 + ["[]", DEEP]))
    sealed(folder, 150)


def odd_training(run: Path, numbers: random.Random) -> None:
    folder = the_checkpoint(run)
    file = folder / "training.safetensors"
    tensors = files.read_tensors(file)
    name = numbers.choice(sorted(tensors))
    match numbers.randrange(7):
        case 0:
            tensors["optimizer.999.exp_avg"] = torch.ones(3)
        case 1:
            tensors["../x"] = torch.ones(3)
        case 2:
            tensors["optimizer.x.exp_avg"] = torch.ones(3)
        case 3:
            tensors[next(n for n in tensors if n.endswith("exp_avg"))] = torch.ones(3, 5, 7)
        case 4:
            del tensors[next(n for n in tensors if "exp_avg" in n)]
        case 5:
            tensors["carry.0"] = torch.ones(2, 99)
        case 6:
            tensors = {"carry.1": torch.ones(2, 16), name: tensors[name]}
    files.write_tensors(file, {key: tensor.clone() for key, tensor in tensors.items()})
    sealed(folder, 150)


def odd_weights(run: Path, numbers: random.Random) -> None:
    folder = the_checkpoint(run)
    name = numbers.choice(["model", "raw", "training"])
    for _ in range(20):
        odd_safetensors(folder / f"{name}.safetensors", random.Random(numbers.random()))
        try:
            files.read_tensors(folder / f"{name}.safetensors")
        except CheckpointError:
            break
        shutil.copy(
            GOLDEN / "language-model/checkpoints" / folder.name / f"{name}.safetensors", folder
        )
    sealed(folder, 150)


def odd_folders(run: Path, numbers: random.Random) -> None:
    name = numbers.choice(["checkpoints", "data", "step"])
    path = the_checkpoint(run) if name == "step" else run / name
    away = run.parent / "outside" / path.name
    shutil.move(path, away)
    path.symlink_to(away)


def odd_data(run: Path, numbers: random.Random) -> None:
    import numpy as np

    data = run / "data"
    ids, starts = data / "train.target.ids", data / "train.target.starts"
    table = np.fromfile(starts, np.int64)
    match numbers.randrange(10):
        case 0:
            np.full(table[-1], 10**6, np.int32).tofile(ids)
        case 1:
            np.full(table[-1], -5, np.int32).tofile(ids)
        case 2:
            table[3] = 10**12
            table.tofile(starts)
        case 3:
            table[:-1][::-1].tofile(starts)
        case 4:
            starts.write_bytes(b"")
        case 5:
            texts = ["[]", "null", "[1, 2]\n", '[["a"]]', "[[1], 5]\n", DEEP, '{"a": 1}']
            (data / "dev.jsonl").write_text(numbers.choice(texts) + "\n")
        case 6:
            (data / "dev.target.ids").write_bytes(b"123")
        case 7:
            file = numbers.choice(sorted(data.iterdir()))
            file.unlink()
            os.mkfifo(file)
            return
        case 8 | 9:  # and nothing says what the files are
            (data / files.MANIFEST).unlink()
            odd_file_in_the_data(run, numbers)
            return
    sealed(data, 0)


def odd_file_in_the_data(run: Path, numbers: random.Random) -> None:
    """A pipe, or a link, even if it is to the right file."""
    file = numbers.choice(sorted((run / "data").iterdir()))
    away = run.parent / "outside" / file.name
    shutil.move(file, away)
    os.mkfifo(file) if numbers.random() < 0.5 else file.symlink_to(away)


RESUMED: list[Mutation] = [
    odd_manifest, odd_state, odd_training, odd_weights, odd_folders, odd_data, link_beside,
    odd_toml, another_kind_of_file, no_weights, large,
]  # fmt: skip


# --- what becomes of it ---------------------------------------------------------------------------


class Scene:
    """A folder with a run in it, and something outside that must stay as it is."""

    def __init__(self, folder: Path, large: Path, gauge: Gauge):
        self.folder, self.run, self.outside = folder, folder / "run", folder / "outside"
        self.large, self.gauge = large, gauge
        self.secret = {"secret.txt": "do not touch\n"}

    def set(self, name: str, mutation: Mutation | None = None) -> None:
        for path in (self.run, self.outside):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.large if mutation is large else GOLDEN / name, self.run)
        self.outside.mkdir()
        for file, text in self.secret.items():
            (self.outside / file).write_text(text)

    def seen(self) -> dict[str, bytes]:
        files = (path for path in self.folder.rglob("*") if not path.is_relative_to(self.run))
        return {str(p): p.read_bytes() for p in files if p.is_file() and not p.is_symlink()}


@pytest.fixture
def scene(tmp_path: Path, large: Path, gauge: Gauge) -> Scene:
    return Scene(tmp_path, large, gauge)


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """A test that opens a pipe would wait for ever: end it."""
    timer = threading.Timer(300, os._exit, [1])
    timer.start()
    yield
    timer.cancel()


def attack(scene: Scene, mutation: Mutation, number: int, work: str) -> None:
    """The run is refused, nothing outside is written, memory is 1.5 times the files at most."""
    mutation(scene.run, random.Random(number))
    before = scene.seen()
    scene.gauge.refuses(work, scene.run, f"{work}: {mutation.__name__}")
    assert scene.seen() == before


def load_hostile(scene: Scene, count: int) -> None:
    names = sorted(path.name for path in GOLDEN.iterdir())
    for number in range(count):
        mutation = LOADED[number % len(LOADED)]
        scene.set(names[number // len(LOADED) % len(names)], mutation)
        attack(scene, mutation, number, "load")


def resume_hostile(scene: Scene, count: int) -> None:
    for number in range(count):
        mutation = RESUMED[number % len(RESUMED)]
        scene.set("language-model", mutation)
        config = scene.run / "config.toml"
        config.write_text(re.sub(r"steps = 15\d", "steps = 152", config.read_text()))
        attack(scene, mutation, number, "resume")


def test_what_measures_memory_sees_it(gauge: Gauge) -> None:
    if gauge.problem:
        pytest.skip(gauge.problem)
    for _ in range(3):  # and again, when the first has left its memory to the second
        assert 40 * MB <= gauge.open("numbers", Path()).peak < 43 * MB
        assert 5 * MB <= gauge.open("texts", Path()).peak < 12 * MB


def test_what_watches_sees_what_is_done(gauge: Gauge, tmp_path: Path) -> None:
    done = gauge.open("harm", tmp_path / "run").done
    assert [word.split()[0] for word in done] == ["compile", "exec", "open"]


def test_hostile_runs_are_not_loaded(scene: Scene) -> None:
    load_hostile(scene, 60)


def test_hostile_runs_are_not_resumed(scene: Scene) -> None:
    resume_hostile(scene, 45)


@pytest.mark.faults
def test_five_hundred_hostile_runs_are_not_loaded(scene: Scene) -> None:
    load_hostile(scene, 500)
    print(scene.gauge.largest)


@pytest.mark.faults
def test_five_hundred_hostile_runs_are_not_resumed(scene: Scene) -> None:
    resume_hostile(scene, 500)
    print(scene.gauge.largest)


# --- what lies inside a run -----------------------------------------------------------------------


@pytest.mark.parametrize("manifest", [True, False], ids=["with a manifest", "without one"])
@pytest.mark.parametrize("work", ["load", "evaluate", "verify", "resume"])
def test_nobody_opens_a_pipe_or_follows_a_link_in_the_data(
    work: str, manifest: bool, scene: Scene
) -> None:
    for number in range(6):
        scene.set("language-model")
        if not manifest:
            (scene.run / "data" / files.MANIFEST).unlink()
        attack(scene, odd_file_in_the_data, number, work)


def test_data_of_another_run_is_neither_measured_nor_verified(scene: Scene) -> None:
    import numpy as np

    scene.set("language-model")
    data = scene.run / "data"
    (data / files.MANIFEST).unlink()
    for name, work in (("dev", "evaluate"), ("train", "verify")):
        ids = data / f"{name}.target.ids"
        before = ids.read_bytes()
        np.full(len(before) // 4, 10**6, np.int32).tofile(ids)
        run = saccade.load(scene.run)
        with pytest.raises(CheckpointError, match="does not fit this run"):
            run.evaluate() if work == "evaluate" else list(verify(scene.run))
        ids.write_bytes(before)
    (data / "dev.jsonl").write_text("")
    with pytest.raises(CheckpointError, match="no example"):
        list(verify(scene.run))


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "model.safetensors.aside"])
def test_a_folder_where_a_file_belongs_is_refused(name: str, scene: Scene) -> None:
    scene.set("language-model")
    (scene.run / name).mkdir()
    for work in (saccade.load, lambda run: list(resume(run))):
        with pytest.raises(CheckpointError, match="is no plain file"):
            work(scene.run)
