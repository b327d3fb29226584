"""Exports made by an enemy: CTranslate2 trusts every size in its files, so it never sees them."""

import json
import os
import shutil
import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import saccade
from saccade.engines import ctranslate2 as fast
from saccade.engines.export import digest, is_export
from saccade.errors import ConfigError
from tests.faults.memory import GOLDEN
from tests.faults.test_hostile import DEEP

ctranslate2 = pytest.importorskip("ctranslate2")
TEXTS = ["abc", "dcba", "b"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with an export."""
    shutil.copytree(GOLDEN / "transformer", tmp_path / "run")
    saccade.load(tmp_path / "run").export()
    return tmp_path / "run"


def predictions(run: Path, engine: str) -> list[str]:
    found = saccade.load(run).predict(TEXTS, settings={"engine": engine})
    return [one.text for one in found]


def restamped(folder: Path) -> None:
    """An enemy can count, too: a stamp that fits what was changed."""
    stamp = folder / "saccade.json"
    said = json.loads(stamp.read_text())
    said["files"] = {p.name: digest(p) for p in folder.iterdir() if p != stamp}
    stamp.write_text(json.dumps(said))


# --- a stamp that tells ---------------------------------------------------------------------------


def harmed_export(folder: Path, away: Path, how: str) -> None:
    """Make one thing wrong with an export."""
    model, stamp = folder / "model.bin", folder / "saccade.json"
    data, said = model.read_bytes(), json.loads(stamp.read_text())
    file = stamp if "stamp" in how else model
    if how.startswith(("a pipe", "a link", "a folder")):
        shutil.move(file, away / file.name)
    match how:
        case "half":
            model.write_bytes(data[: len(data) // 2])
        case "a bit of the sizes":
            model.write_bytes(data[:9] + bytes([data[9] ^ 64]) + data[10:])
        case "a bit of the numbers":
            model.write_bytes(data[:-99] + bytes([data[-99] ^ 64]) + data[-98:])
        case "huge":
            os.truncate(model, 1 << 40)  # with holes: it would take an hour to hash
        case "a pipe" | "a pipe for a stamp":
            os.mkfifo(file)
        case "a link" | "a link for a stamp":
            file.symlink_to(away / file.name)
        case "a folder":
            file.mkdir()
        case "one more file":
            (folder / "shared_vocabulary.txt").write_text("a\nb\n")
        case "a deep stamp":
            stamp.write_text(DEEP)
        case "a list for a stamp":
            stamp.write_text("[]")
        case "a stamp without files":
            stamp.write_text(json.dumps({"weights": said["weights"]}))
        case "the stamp of other weights":
            stamp.write_text(json.dumps(said | {"weights": "0" * 64}))


@pytest.mark.parametrize("how", [
    "whole", "half", "a bit of the sizes", "a bit of the numbers", "huge", "a pipe",
    "a pipe for a stamp", "a link", "a link for a stamp", "a folder", "one more file",
    "a deep stamp", "a list for a stamp", "a stamp without files", "the stamp of other weights",
])  # fmt: skip
def test_a_harmed_export_is_not_used(how: str, run: Path, tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    harmed_export(run / "ctranslate2", tmp_path / "away", how)
    assert is_export(run / "ctranslate2", run / "model.safetensors") == (how == "whole")
    assert predictions(run, "ctranslate2") == predictions(run, "torch")


def test_an_export_writes_through_no_link(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("do not touch\n")
    (run / "ctranslate2" / "model.bin").unlink()
    (run / "ctranslate2" / "model.bin").symlink_to(secret)
    with pytest.raises(ConfigError, match="is no plain file"):
        saccade.load(run).export()
    assert secret.read_text() == "do not touch\n"


# --- a stamp that is right ------------------------------------------------------------------------


class Parts:
    """A model.bin, taken apart as CTranslate2 reads it, and put together with one thing wrong."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0
        self.version, self.spec, self.revision = self.number("I"), self.text(), self.number("I")
        self.variables = [list(self.variable()) for _ in range(self.number("I"))]
        self.aliases = [[self.text(), self.text()] for _ in range(self.number("I"))]
        self.count, self.alias_count = len(self.variables), len(self.aliases)
        self.end = data[self.at :]
        assert self.end == b""

    def number(self, form: str) -> Any:
        (found,) = struct.unpack_from(f"={form}", self.data, self.at)
        self.at += struct.calcsize(f"={form}")
        return found

    def text(self) -> bytes:
        size = self.number("H")
        self.at += size
        return self.data[self.at - size : self.at]

    def variable(self) -> Iterator[Any]:
        yield self.text()
        yield [self.number("I") for _ in range(self.number("B"))]
        yield self.number("B")
        size = self.number("I")
        yield size
        self.at += size
        yield self.data[self.at - size : self.at]

    def joined(self) -> bytes:
        def text(name: bytes) -> bytes:
            return struct.pack("=H", len(name)) + name

        found = struct.pack("=I", self.version) + text(self.spec)
        found += struct.pack("=II", self.revision, self.count)
        for name, dims, kind, size, content in self.variables:
            found += text(name) + struct.pack(f"=B{len(dims)}I", len(dims), *dims)
            found += struct.pack("=BI", kind, size) + content
        found += struct.pack("=I", self.alias_count)
        return found + b"".join(map(text, chain.from_iterable(self.aliases))) + self.end

    def named(self, part: bytes) -> list[Any]:
        return next(one for one in self.variables if part in one[0])


def change(parts: Parts, how: str) -> None:
    """Make one thing wrong that a stamp does not tell."""
    weight, scalar = parts.named(b"ffn/linear_0/weight"), parts.named(b"num_heads")
    match how:
        case "inflated dims":
            weight[1] = [2**31, 2**31]
        case "inflated dims, the same product":
            weight[1] = [weight[1][0] * 2, weight[1][1] // 2]
        case "one more dim":
            weight[1] = [*weight[1], 1]
        case "255 dims":
            weight[1] = [1] * 255
        case "too few bytes":
            weight[3], weight[4] = 4, weight[4][:4]
        case "too many bytes":
            weight[3] = 2**32 - 1
        case "another kind of number":
            weight[2] = 3  # as wide as a float
        case "no kind of number":
            weight[2] = 200
        case "too many variables":
            parts.count = 2**32 - 1
        case "one variable more":
            parts.variables.append([b"decoder/more\0", [1], 0, 4, bytes(4)])
            parts.count += 1
        case "one variable less":
            parts.variables.pop()
            parts.count -= 1
        case "one variable twice":
            parts.variables[1] = parts.variables[0]
        case "a name without an end":
            weight[0] = weight[0][:-1]
        case "a name that is too long":
            weight[0] = b"x" * 65535
        case "an empty name":
            weight[0] = b""
        case "a name that is no text":
            weight[0] = b"\xff\xfe\0"
        case "no heads":
            scalar[4] = bytes(len(scalar[4]))
        case "many heads":
            scalar[4] = b"\x7f" * len(scalar[4])
        case "too many aliases":
            parts.alias_count = 2**32 - 1
        case "an alias of nothing":
            parts.aliases[0][1] = b"nothing\0"
        case "an alias of another shape":
            parts.aliases[0][1] = weight[0]
        case "heads that are an alias":
            other = next(
                v for v in parts.variables if not v[1] and v[2] == scalar[2] and v != scalar
            )
            parts.variables.remove(scalar)
            parts.aliases.append([scalar[0], other[0]])
            parts.count, parts.alias_count = parts.count - 1, parts.alias_count + 1
        case "more at the end":
            parts.end = bytes(8)
        case "another version":
            parts.version = 2**31
        case "another model":
            parts.spec = b"WhisperSpec\0"
        case "another revision":
            parts.revision = 0


CHANGES = [
    "inflated dims", "inflated dims, the same product", "one more dim", "255 dims",
    "too few bytes", "too many bytes", "another kind of number", "no kind of number",
    "too many variables", "one variable more", "one variable less", "one variable twice",
    "a name without an end", "a name that is too long", "an empty name", "a name that is no text",
    "no heads", "many heads", "too many aliases", "an alias of nothing",
    "an alias of another shape", "heads that are an alias", "more at the end", "another version",
    "another model", "another revision",
]  # fmt: skip


class SeenError(Exception):
    """CTranslate2 was given a model of the run."""


@pytest.fixture
def nothing_is_seen(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gives CTranslate2 the run's own export is told."""
    real = ctranslate2.Translator

    def told(folder: str, **options: Any) -> Any:
        if Path(folder) == run / "ctranslate2":
            raise SeenError
        return real(folder, **options)

    monkeypatch.setattr(ctranslate2, "Translator", told)


def test_an_export_that_is_whole_is_seen(run: Path, nothing_is_seen: None) -> None:
    """Taken apart, put together and stamped again: it is the change alone that tells."""
    model = run / "ctranslate2" / "model.bin"
    data = Parts(model.read_bytes()).joined()
    assert data == model.read_bytes()
    restamped(run / "ctranslate2")
    with pytest.raises(SeenError):
        predictions(run, "ctranslate2")


@pytest.mark.parametrize("how", CHANGES)
def test_ctranslate2_never_sees_a_model_of_other_sizes(
    how: str, run: Path, nothing_is_seen: None
) -> None:
    model = run / "ctranslate2" / "model.bin"
    parts = Parts(model.read_bytes())
    before = model.read_bytes()
    change(parts, how)
    model.write_bytes(parts.joined())
    assert model.read_bytes() != before
    restamped(run / "ctranslate2")
    assert is_export(run / "ctranslate2", run / "model.safetensors")  # the stamp does not tell
    assert predictions(run, "ctranslate2") == predictions(run, "torch")


def test_nor_one_that_ends_anywhere(run: Path) -> None:
    model, task = run / "ctranslate2" / "model.bin", saccade.load(run).task
    data = model.read_bytes()
    assert fast.exported(task, run)
    for end in range(0, len(data), len(data) // 40):
        model.write_bytes(data[:end])
        restamped(run / "ctranslate2")
        assert fast.exported(task, run) is None


@pytest.mark.parametrize("name", ["config.json", "source_vocabulary.json", "model.bin"])
def test_nor_other_texts_beside_it(name: str, run: Path, nothing_is_seen: None) -> None:
    folder = run / "ctranslate2"
    found = sorted(path.name for path in folder.iterdir())
    file = folder / (name if name in found else "shared_vocabulary.json")
    for text in (DEEP, "[]", "{}", "", '{"add_source_bos": true}', '["a", "b"]', "[" + "1," * 99):
        file.write_text(text)
        restamped(folder)
        assert predictions(run, "ctranslate2") == predictions(run, "torch")
