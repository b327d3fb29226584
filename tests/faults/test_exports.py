"""Exports made by an attacker: CTranslate2 trusts every size in its files; it never sees them."""

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import saccade
from saccade.data.digest import digest
from saccade.engines.ctranslate2 import export
from saccade.errors import ConfigError
from saccade.runs.guard import is_export, vetted_export
from tests.faults.hostile import DEEP
from tests.helpers import GOLDEN

ctranslate2 = pytest.importorskip("ctranslate2")
TEXTS = ["abc", "dcba", "b"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> saccade.Run:
    """A run with an export."""
    folder = tmp_path_factory.mktemp("exported") / "run"
    shutil.copytree(GOLDEN / "transformer", folder)
    run = saccade.load(folder)
    run.export()
    return run


@pytest.fixture
def run(sound: saccade.Run, tmp_path: Path) -> Path:
    shutil.copytree(sound.folder, tmp_path / "run")
    return tmp_path / "run"


def stamp(folder: Path, **new: Any) -> None:
    """An attacker can hash, too: a stamp that fits what was changed."""
    file = folder / "saccade.json"
    said = json.loads(file.read_text())
    said["files"] = {p.name: digest(p) for p in folder.iterdir() if p != file}
    file.write_text(json.dumps(said | new))


# --- what CTranslate2 is given --------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False])
def test_ctranslate2_is_given_what_was_vetted_and_nothing_else(
    whole: bool, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where the export is no sound one, the answers are still right."""
    real, given = ctranslate2.Translator, []
    monkeypatch.setattr(
        ctranslate2,
        "Translator",
        lambda folder, **more: given.append(folder) or real(folder, **more),
    )
    if not whole:
        (run / "ctranslate2" / "config.json").write_text("{}")
        stamp(run / "ctranslate2")
    model = saccade.load(run)
    said = [[one.text for one in model.predict(TEXTS, settings={"engine": engine})]
            for engine in ("ctranslate2", "torch")]  # fmt: skip
    assert said[0] == said[1]
    assert [folder == str(run / "ctranslate2") for folder in given] == [whole]


def test_an_export_writes_through_no_link(run: Path, tmp_path: Path, sound: saccade.Run) -> None:
    secret, model = tmp_path / "secret.txt", run / "ctranslate2" / "model.bin"
    secret.write_text("do not touch\n")
    model.unlink()
    model.symlink_to(secret)
    with pytest.raises(ConfigError, match="not a regular file"):
        export(sound.task, sound.network, run / "ctranslate2")
    assert secret.read_text() == "do not touch\n"


# --- a stamp that tells ---------------------------------------------------------------------------


def moved(file: Path) -> Path:
    return Path(shutil.move(file, file.parents[2] / file.name))


HARMS: dict[str, Callable[[Path, Path], Any]] = {  # to a model.bin and its stamp
    "half": lambda model, stamp: os.truncate(model, model.stat().st_size // 2),
    "a bit of the sizes": lambda model, stamp: flip(model, 9),
    "a bit of the numbers": lambda model, stamp: flip(model, -99),
    "huge": lambda model, stamp: os.truncate(model, 1 << 40),  # with holes: an hour to hash
    "a pipe": lambda model, stamp: (moved(model), os.mkfifo(model)),
    "a pipe for a stamp": lambda model, stamp: (moved(stamp), os.mkfifo(stamp)),
    "a link": lambda model, stamp: model.symlink_to(moved(model)),
    "a link for a stamp": lambda model, stamp: stamp.symlink_to(moved(stamp)),
    "a folder": lambda model, stamp: (moved(model), model.mkdir()),
    "one more file": lambda model, stamp: (model.parent / "vocabulary.txt").write_text("a\n"),
    "a deep stamp": lambda model, stamp: stamp.write_text(DEEP),
    "a list for a stamp": lambda model, stamp: stamp.write_text("[]"),
    "no files": lambda model, stamp: edit_stamp(stamp, lambda said: said.pop("files")),
    "other weights": lambda model, stamp: edit_stamp(stamp, lambda s: s.update(weights="0" * 64)),
}


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 64
    file.write_bytes(data)


def edit_stamp(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    change(said := json.loads(file.read_text()))
    file.write_text(json.dumps(said))


@pytest.mark.parametrize("how", HARMS)
def test_a_harmed_export_is_not_used(how: str, run: Path, sound: saccade.Run) -> None:
    assert vetted_export(sound.task, run) == run / "ctranslate2"
    HARMS[how](run / "ctranslate2" / "model.bin", run / "ctranslate2" / "saccade.json")
    assert vetted_export(sound.task, run) is None


# --- a stamp that is right ------------------------------------------------------------------------


class Parts:
    """A model.bin, taken apart as CTranslate2 reads it, and put together with one thing wrong."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0
        self.version, self.spec, self.revision = self.number("I"), self.text(), self.number("I")
        self.variables = [list(self.variable()) for _ in range(self.number("I"))]
        self.aliases = [[self.text(), self.text()] for _ in range(self.number("I"))]
        self.more = self.more_aliases = 0  # than there are
        self.end = data[self.at :]
        assert self.end == b""

    def number(self, form: str) -> Any:
        (found,) = struct.unpack_from(f"={form}", self.data, self.at)
        self.at += struct.calcsize(f"={form}")
        return found

    def text(self, form: str = "H") -> bytes:
        size = self.number(form)
        self.at += size
        return self.data[self.at - size : self.at]

    def variable(self) -> Iterator[Any]:
        yield self.text()
        yield [self.number("I") for _ in range(self.number("B"))]
        yield self.number("B")
        content = self.text("I")
        yield len(content)
        yield content

    def joined(self) -> bytes:
        def text(name: bytes) -> bytes:
            return struct.pack("=H", len(name)) + name

        found = struct.pack("=I", self.version) + text(self.spec)
        found += struct.pack("=II", self.revision, len(self.variables) + self.more)
        for name, dims, kind, size, content in self.variables:
            found += text(name) + struct.pack(f"=B{len(dims)}I", len(dims), *dims)
            found += struct.pack("=BI", kind, size) + content
        found += struct.pack("=I", len(self.aliases) + self.more_aliases)
        return found + b"".join(map(text, chain.from_iterable(self.aliases))) + self.end

    def named(self, part: bytes) -> list[Any]:
        return next(one for one in self.variables if part in one[0])

    def alias_the_heads(self) -> None:
        heads = self.named(b"num_heads")
        alike = (v for v in self.variables if not v[1] and v[2] == heads[2] and v != heads)
        self.aliases.append([heads[0], next(alike)[0]])
        self.variables.remove(heads)


NAME, DIMS, KIND, SIZE, CONTENT = range(5)  # of a variable


def weight(field: int, new: Callable[[Any], Any]) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        found = parts.named(b"ffn/linear_0/weight")
        found[field] = new(found[field])

    return change


def heads(new: bytes) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        found = parts.named(b"num_heads")
        found[CONTENT] = new * len(found[CONTENT])

    return change


CHANGES: dict[str, Callable[[Parts], Any]] = {
    "inflated dims": weight(DIMS, lambda dims: [2**31, 2**31]),
    "inflated dims, the same product": weight(DIMS, lambda dims: [dims[0] * 2, dims[1] // 2]),
    "one more dim": weight(DIMS, lambda dims: [*dims, 1]),
    "255 dims": weight(DIMS, lambda dims: [1] * 255),
    "too few bytes": lambda parts: (weight(SIZE, lambda size: 4)(parts),
                                    weight(CONTENT, lambda content: content[:4])(parts)),
    "too many bytes": weight(SIZE, lambda size: 2**32 - 1),
    "another kind of number": weight(KIND, lambda kind: 3),  # as wide as a float
    "no kind of number": weight(KIND, lambda kind: 200),
    "too many variables": lambda parts: setattr(parts, "more", 2**31),
    "one variable more": lambda parts: parts.variables.append([b"more\0", [1], 0, 4, bytes(4)]),
    "one variable less": lambda parts: parts.variables.pop(),
    "one variable twice": lambda parts: parts.variables.__setitem__(1, parts.variables[0]),
    "a name without an end": weight(NAME, lambda name: name[:-1]),
    "a name that is too long": weight(NAME, lambda name: b"x" * 65535),
    "an empty name": weight(NAME, lambda name: b""),
    "a name that is no text": weight(NAME, lambda name: b"\xff\xfe\0"),
    "no heads": heads(b"\0"),
    "many heads": heads(b"\x7f"),
    "too many aliases": lambda parts: setattr(parts, "more_aliases", 2**31),
    "an alias of nothing": lambda parts: parts.aliases[0].__setitem__(1, b"nothing\0"),
    "an alias of another shape": lambda parts: parts.aliases[0].__setitem__(
        1, parts.named(b"ffn/linear_0/weight")[NAME]),
    "heads that are an alias": lambda parts: parts.alias_the_heads(),
    "more at the end": lambda parts: setattr(parts, "end", bytes(8)),
    "another version": lambda parts: setattr(parts, "version", 2**31),
    "another model": lambda parts: setattr(parts, "spec", b"WhisperSpec\0"),
    "another revision": lambda parts: setattr(parts, "revision", 0),
}  # fmt: skip


@pytest.mark.parametrize("how", [None, *CHANGES])
def test_a_model_of_other_sizes_is_not_used(how: str | None, run: Path, sound: saccade.Run) -> None:
    """Taken apart, put together and stamped again it is used: the change alone tells."""
    model = run / "ctranslate2" / "model.bin"
    parts = Parts(before := model.read_bytes())
    CHANGES.get(how or "", lambda parts: None)(parts)
    model.write_bytes(parts.joined())
    assert (model.read_bytes() == before) == (how is None)
    stamp(run / "ctranslate2")
    assert is_export(run / "ctranslate2", run / "model.safetensors")  # the stamp does not tell
    assert (vetted_export(sound.task, run) is None) == (how is not None)


def test_nor_one_that_ends_anywhere(run: Path, sound: saccade.Run) -> None:
    model = run / "ctranslate2" / "model.bin"
    data = model.read_bytes()
    for end in range(0, len(data), len(data) // 40):
        model.write_bytes(data[:end])
        stamp(run / "ctranslate2")
        assert vetted_export(sound.task, run) is None


def test_nor_one_with_other_texts(run: Path, sound: saccade.Run) -> None:
    for file in sorted((run / "ctranslate2").iterdir()):
        if file.name == "saccade.json":
            continue
        before = file.read_bytes()
        for text in (DEEP, "[]", "{}", "", '{"add_source_bos": true}', '["a", "b"]', "[1,1,"):
            file.write_text(text)
            stamp(run / "ctranslate2")
            assert vetted_export(sound.task, run) is None
        file.write_bytes(before)
