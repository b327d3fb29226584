"""A checkpoint is old or new, never half: whatever call fails, whatever a crash leaves, whatever
becomes of its bytes."""

import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import saccade
from saccade.data.digest import digest
from saccade.errors import CheckpointError, TrainingError
from saccade.runs import checkpoints, files
from saccade.runs.folder import read_settings
from saccade.training import session
from saccade.training.report import show
from saccade.training.session import resume, start
from tests.faults.shim import Shim
from tests.helpers import new_folder, run_through, same_weights, settings


def fewer(few: int, many: int) -> Any:
    """So many attempts, and many more in the tier of faults."""
    return pytest.mark.parametrize("times", [few, pytest.param(many, marks=pytest.mark.faults)])


again = pytest.mark.parametrize("new", [4, 3], ids=["a new step", "the same step again"])


def save(folder: Path, step: int, value: float) -> None:
    """What training does: a new checkpoint, then the old one goes."""
    parts = {"model": {"a": torch.full((50,), value)}, "training": {"c": torch.ones(20)}}
    path = checkpoints.save(folder / "checkpoints", step, parts, {"value": value})
    checkpoints.remove(folder / "checkpoints", [path])


def found(folder: Path) -> float:
    """What a resumed run would read."""
    checkpoints.recover(folder / "checkpoints")
    path, problems = checkpoints.latest(folder / "checkpoints")
    assert path is not None, problems
    value = files.read_json(path / "state.json")["value"]
    tensors = files.read_tensors(path / "model.safetensors")
    assert torch.equal(tensors["a"], torch.full((50,), value))
    return float(value)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A folder with a checkpoint of step 3."""
    (tmp_path / "before").mkdir()
    save(tmp_path / "before", 3, 1.0)
    return tmp_path / "before"


def saved_with(
    before: Path, folder: Path, new: int, fault: Callable[[int, str], Any] = lambda n, name: None
) -> tuple[Shim, int | None]:
    """The calls of a save in a copy of a folder, and the number of the error that ended it."""
    shutil.copytree(before, folder)
    with Shim(fault) as shim:
        try:
            save(folder, new, 2.0)
        except OSError as error:
            return shim, error.errno
    return shim, None


def failing(code: int, fails: Callable[[int], bool]) -> Callable[[int, str], None]:
    def fault(count: int, name: str) -> None:
        if fails(count):
            raise OSError(code, os.strerror(code))

    return fault


def test_our_files_are_what_safetensors_reads_and_writes(tmp_path: Path) -> None:
    mixed = {
        "f": torch.randn(3, 4), "s": torch.tensor(1.5), "l": torch.arange(3),
        "h": torch.ones(3).half(),
        "e": torch.zeros(0, 2), "b": torch.tensor([True, False, True]), "t": torch.randn(4, 3).T,
        "w": torch.randn(2).bfloat16(), "d": torch.randn(2).double(),
    }  # fmt: skip
    size, sha = files.write_tensors(tmp_path / "x.safetensors", mixed, {"format": "1"})
    read = safetensors.torch.load_file(tmp_path / "x.safetensors")
    assert read.keys() == mixed.keys()
    assert all(torch.equal(read[name], mixed[name]) for name in mixed)
    assert size == (tmp_path / "x.safetensors").stat().st_size
    assert sha == digest(tmp_path / "x.safetensors")


# --- calls that fail ------------------------------------------------------------------------------


@again
def test_a_failing_disk_leaves_a_sound_checkpoint(new: int, before: Path, tmp_path: Path) -> None:
    """EIO and ENOSPC at each I/O call of a save, one by one; a full disk stays full."""
    calls = saved_with(before, tmp_path / "sound", new)[0].count
    assert calls > 20
    for code in (errno.EIO, errno.ENOSPC):
        for number in range(1, calls + 1):
            folder = tmp_path / f"{code}-{number}"
            fault = failing(code, lambda count, number=number: count >= number)
            _, failed = saved_with(before, folder, new, fault)
            value = found(folder)
            assert value in (1.0, 2.0)
            assert failed == code or value == 2.0
            assert not list((folder / "checkpoints").glob(".aside*"))


@fewer(1, 6)
@again
def test_one_call_that_fails_and_a_crash_leave_a_sound_checkpoint(
    new: int, times: int, before: Path, tmp_path: Path
) -> None:
    """A disk that fails once, at each call in turn; what is done about it is no less safe."""
    numbers = random.Random(9)
    calls = saved_with(before, tmp_path / "sound", new)[0].count
    for number in range(1, calls + 1):
        folder = tmp_path / f"{number}"
        fault = failing(errno.EIO, lambda count, number=number: count == number)
        shim, failed = saved_with(before, folder, new, fault)
        crash = Crash(before, shim.log, folder)
        for upto in range(max(len(crash.log) - 6, 0), len(crash.log) + 1):
            for _ in range(times):
                assert found(crash.leave(upto, numbers)) in (1.0, 2.0)
        assert failed or found(folder) == 2.0


def test_short_writes_are_continued(before: Path, tmp_path: Path) -> None:
    def fault(count: int, name: str) -> Any:
        return (lambda fd, data: os.write(fd, data[:7])) if name == "write" else None

    saved_with(before, tmp_path / "run", 4, fault)
    assert found(tmp_path / "run") == 2.0


def test_a_full_disk_ends_training_with_a_line_and_a_sound_checkpoint(tmp_path: Path) -> None:
    config = settings("lstm", tmp_path)
    run_through(config, tmp_path / "straight")
    folder = new_folder(config, tmp_path / "run")
    saves = 0

    def fault(count: int, name: str) -> None:
        nonlocal saves
        saves += name == "mkdir"
        if saves > 3:  # the folder itself, and two checkpoints
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Shim(fault), pytest.raises(TrainingError) as caught:
        list(start(config, folder))
    assert str(caught.value) == (
        f"{folder}: cannot be written: No space left on device; training has stopped, "
        f"step-00000006 is intact; make room, then: saccade resume {folder}"
    )
    list(resume(folder))
    assert same_weights(tmp_path / "straight", folder)


# --- crashes --------------------------------------------------------------------------------------


class Crash:
    """What a disk may hold after a crash: all that was synced, and any part of the rest.

    A folder is names to nodes. Bytes of a file and changes of a folder that were not synced may be
    there or not, each for itself, in any order: data half written or full of zeros, a rename that
    came before the data it renames.
    """

    def __init__(self, root: Path, log: list[tuple[Any, ...]], where: Path):
        """From what was in `root`, and the calls that were made in `where`, a copy of it."""
        self.root, self.left = str(where), root.with_name("left")
        self.log = [call for call in log if Path(call[1]).is_relative_to(where)]
        self.before = root

    def leave(self, upto: int, numbers: random.Random) -> Path:
        """What a crash after so many calls may have left."""
        root = self.old(self.before)
        for entry in self.log[:upto]:
            self.apply(root, entry)
        shutil.rmtree(self.left, ignore_errors=True)
        self.write(root, numbers, self.left)
        return self.left

    def old(self, path: Path) -> dict[str, Any]:
        """The tree before, all of it synced."""
        if path.is_file():
            return {"file": True, "synced": path.read_bytes(), "now": path.read_bytes()}
        names = {inner.name: self.old(inner) for inner in path.iterdir()}
        return {"file": False, "synced": names, "now": dict(names), "later": []}

    def node(self, root: dict[str, Any], path: str) -> dict[str, Any]:
        for name in Path(path).relative_to(self.root).parts:
            root = root["now"][name]
        return root

    def apply(self, root: dict[str, Any], entry: tuple[Any, ...]) -> None:
        kind, path = entry[0], Path(entry[1])
        parent = self.node(root, str(path.parent)) if str(path) != self.root else root
        match kind:
            case "create" | "mkdir":
                if kind == "mkdir":
                    node: dict[str, Any] = {"file": False, "synced": {}, "now": {}, "later": []}
                else:
                    node = {"file": True, "synced": b"", "now": b""}
                parent["now"][path.name] = node
                parent["later"].append({path.name: node})
            case "write":
                self.node(root, str(path))["now"] += entry[2]
            case "fsync":
                node = self.node(root, str(path))
                node["synced"] = node["now"] if node["file"] else dict(node["now"])
                node["later"] = []
            case "replace":
                node = parent["now"].pop(path.name)
                change = {path.name: None, Path(entry[2]).name: node}
                parent["now"][Path(entry[2]).name] = node
                parent["later"].append(change)
            case "remove":
                node = parent["now"].pop(path.name)
                node["later"] += [{name: None} for name in node["now"]]
                node["now"] = {}
                parent["later"].append({path.name: None})

    def write(self, node: dict[str, Any], numbers: random.Random, target: Path) -> None:
        if node["file"]:
            lost, now = len(node["now"]) - len(node["synced"]), node["now"]
            kinds = [now, node["synced"], now[: numbers.randint(0, len(now))], bytes(len(now))]
            target.write_bytes(now if lost == 0 else numbers.choice(kinds))
            return
        target.mkdir()
        names = dict(node["synced"])
        share = numbers.choice([0.0, 0.5, 1.0])
        for change in node["later"]:
            if numbers.random() < share:
                names |= change
        for name, inner in names.items():
            if inner is not None:
                self.write(inner, numbers, target / name)


@pytest.mark.parametrize("first", [True, False], ids=["the first save", "a later one"])
@fewer(3, 12)
@again
def test_a_crash_leaves_the_old_checkpoint_or_the_new_one(
    first: bool, new: int, times: int, before: Path, tmp_path: Path
) -> None:
    if first:
        shutil.rmtree(before / "checkpoints")
    shim, _ = saved_with(before, tmp_path / "run", new)
    numbers, crash = random.Random(4), Crash(before, shim.log, tmp_path / "run")
    log = crash.log
    renamed = max(i for i, e in enumerate(log) if e[0] == "replace" and "aside" in e[1])
    after = next(i for i, e in enumerate(log) if i > renamed and e[0] == "fsync")
    seen = set()
    for upto in range(len(log) + 1):
        for _ in range(times):
            left = crash.leave(upto, numbers)
            if first and upto <= after:
                path, _ = checkpoints.latest(left / "checkpoints")
                assert path is None or found(left) == 2.0
            else:
                value = found(left)
                assert value == 2.0 if upto > after else value in (1.0, 2.0)
                seen.add(value)
    assert seen == ({2.0} if first else {1.0, 2.0})


def test_a_crash_leaves_the_old_text_or_the_new_one(tmp_path: Path) -> None:
    numbers, texts = random.Random(5), ("old" * 1000, "new" * 900)
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "config.toml").write_text(texts[0])
    shutil.copytree(tmp_path / "before", tmp_path / "run")
    with Shim() as shim:
        files.write_text(tmp_path / "run" / "config.toml", texts[1])
    crash = Crash(tmp_path / "before", shim.log, tmp_path / "run")
    for upto in range(len(crash.log) + 1):
        for _ in range(20):
            assert (crash.leave(upto, numbers) / "config.toml").read_text() in texts


@fewer(2, 10)
def test_a_crash_while_preparing_leaves_all_of_the_data_or_no_word_of_it(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What calls itself prepared has its vocabularies and its data, to the last byte."""
    config, numbers = settings("lstm", tmp_path), random.Random(10)
    empty, folder = tmp_path / "before", tmp_path / "run"
    empty.mkdir()
    folder.mkdir()
    real = session.prepare
    with Shim() as shim:

        def prepare(config: Any, folder: Path, *seen: Any) -> Any:
            """Written by others: nothing of it is synced yet, in no known order."""
            ready = real(config, folder, *seen)
            shim.log.append(("mkdir", str(folder / "data")))
            for file in (*folder.glob("*.json"), *(folder / "data").iterdir()):
                shim.log += [("create", str(file)), ("write", str(file), file.read_bytes())]
            return ready

        monkeypatch.setattr(session, "prepare", prepare)
        events = start(config, folder)
        next(events)
        events.close()
    names = [path.name for path in folder.glob("*.json")]
    crash, prepared = Crash(empty, shim.log, folder), 0
    for upto in range(len(crash.log) + 1):
        for _ in range(times):
            left = crash.leave(upto, numbers)
            if (left / "config.toml").exists() and read_settings(left)[1].prepared:
                prepared += 1
                assert files.damage(left / "data", ["dev.jsonl"]) is None
                for name in names:
                    assert (left / name).read_bytes() == (folder / name).read_bytes()
    assert names
    assert prepared


# --- damaged bytes --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a small run: an older one and a newer one."""
    folder = tmp_path_factory.mktemp("bits")
    run_through(settings("transformer", folder, steps=6, keep=2), folder / "run")
    assert len(checkpoints.paths(folder / "run" / "checkpoints")) == 2
    return folder / "run" / "checkpoints"


def flipped(data: bytes, numbers: random.Random, first: int = 0) -> bytes:
    place = numbers.randrange(first, len(data))
    return data[:place] + bytes([data[place] ^ 1 << numbers.randrange(8)]) + data[place + 1 :]


@fewer(60, 1000)
@pytest.mark.parametrize("how", ["a flipped bit", "a truncation"])
def test_damage_is_found(how: str, times: int, two: Path) -> None:
    numbers = random.Random(6)
    older, newer = checkpoints.paths(two)
    names = sorted(newer.iterdir())
    assert {file.name for file in names} >= checkpoints.REQUIRED_FILES | {files.MANIFEST}
    for i in range(times):
        file = names[i % len(names)]
        data = file.read_bytes()
        cut = data[: numbers.randrange(len(data))]
        file.write_bytes(cut if how == "a truncation" else flipped(data, numbers))
        path, problems = checkpoints.latest(two)
        assert path == older, f"{file} was not found to be damaged"
        assert str(newer) in problems[0]
        file.write_bytes(data)
    assert checkpoints.latest(two)[0] == newer


@fewer(8, 100)
def test_damaged_weights_are_named_and_not_used(times: int, two: Path) -> None:
    file = two.parent / "model.safetensors"
    data, numbers = file.read_bytes(), random.Random(8)
    for _ in range(times):
        file.write_bytes(flipped(data, numbers, 8 + int.from_bytes(data[:8], "little")))
        with pytest.raises(CheckpointError, match=r"model.safetensors: damaged"):
            saccade.load(two.parent)
    file.write_bytes(data)
    saccade.load(two.parent)


def test_damaged_data_is_not_trained_on(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two.parent, tmp_path / "run")
    file = tmp_path / "run" / "data" / "train.target.ids"
    file.write_bytes(flipped(file.read_bytes(), random.Random(9)))
    with pytest.raises(CheckpointError, match=r"train.target.ids is damaged"):
        list(resume(tmp_path / "run"))


def test_a_half_line_in_the_log_is_cut_off(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two.parent, tmp_path / "run")
    log, whole = tmp_path / "run" / "metrics.jsonl", b'{"event": "Prepared"}\n'
    log.write_bytes(whole + b'{"event": "Step')
    list(show(resume(tmp_path / "run"), tmp_path / "run", quiet=True))
    assert log.read_bytes().startswith(whole)
    assert all(json.loads(line) for line in log.read_text().splitlines())
