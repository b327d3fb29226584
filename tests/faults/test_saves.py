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

from saccade.errors import CheckpointError, TrainingError
from saccade.runs import checkpoints, files
from saccade.training.session import resume, start
from tests.faults.shim import Shim
from tests.helpers import new_folder, run_through, settings, weights

TENSORS = {
    "model": {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(5)},
    "training": {"optimizer.0.step": torch.tensor(3.0), "optimizer.0.exp_avg": torch.ones(2, 3)},
}


def save(folder: Path, step: int, value: float) -> None:
    """What training does: a new checkpoint, then the old one goes."""
    files = {"model": {"a": torch.full((50,), value)}, "training": {"c": torch.ones(20)}}
    path = checkpoints.save(folder / "checkpoints", step, files, {"value": value})
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


def calls_of(work: Callable[[], Any]) -> Shim:
    with Shim() as shim:
        work()
    return shim


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
    assert sha == files.digest(tmp_path / "x.safetensors")


# --- calls that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["a new step", "the same step again"])
def test_a_failing_disk_leaves_a_sound_checkpoint(again: bool, tmp_path: Path) -> None:
    """EIO and ENOSPC at each I/O call of a save, one by one."""
    (tmp_path / "0").mkdir()
    save(tmp_path / "0", 3, 1.0)
    new = 3 if again else 4
    calls = calls_of(lambda: save(tmp_path / "0", new, 2.0)).count
    assert calls > 20
    for code in (errno.EIO, errno.ENOSPC):
        for number in range(1, calls + 1):
            folder = tmp_path / f"{code}-{number}"
            folder.mkdir()
            save(folder, 3, 1.0)

            def fault(count: int, name: str, number: int = number, code: int = code) -> None:
                if count >= number:  # a full disk stays full
                    raise OSError(code, os.strerror(code))

            failed = False
            try:
                with Shim(fault):
                    save(folder, new, 2.0)
            except OSError as error:
                failed = error.errno == code
            value = found(folder)
            assert value in (1.0, 2.0)
            assert failed or value == 2.0
            assert [p.name[:5] for p in (folder / "checkpoints").iterdir()].count(".asid") == 0


@pytest.mark.parametrize("again", [False, True], ids=["a new step", "the same step again"])
def test_one_call_that_fails_and_a_crash_leave_a_sound_checkpoint(
    again: bool, tmp_path: Path
) -> None:
    """A disk that fails once, at each call in turn; what is done about it is no less safe."""
    numbers, new = random.Random(9), 3 if again else 4
    (tmp_path / "0").mkdir()
    save(tmp_path / "0", 3, 1.0)
    calls = calls_of(lambda: save(tmp_path / "0", new, 2.0)).count
    for number in range(1, calls + 1):
        before, folder = tmp_path / f"{number}-before", tmp_path / f"{number}"
        before.mkdir()
        save(before, 3, 1.0)
        shutil.copytree(before, folder)

        def fault(count: int, name: str, number: int = number) -> None:
            if count == number:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        failed = False
        try:
            with Shim(fault) as shim:
                save(folder, new, 2.0)
        except OSError:
            failed = True
        log = moved(shim.log, folder, before)
        for upto in range(max(len(log) - 6, 0), len(log) + 1):
            for attempt in range(6):
                left = tmp_path / f"{number}-{upto}-{attempt}"
                Crash(before, log).leave(upto, numbers, left)
                assert found(left) in (1.0, 2.0)
                shutil.rmtree(left)
        assert failed or found(folder) == 2.0


def test_short_writes_are_continued(tmp_path: Path) -> None:
    def fault(count: int, name: str) -> Any:
        return (lambda fd, data: os.write(fd, data[:7])) if name == "write" else None

    with Shim(fault):
        save(tmp_path, 3, 1.0)
    assert found(tmp_path) == 1.0


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
    assert "No space left on device" in str(caught.value)
    assert "step-00000006 is sound" in str(caught.value)
    assert f"saccade resume {folder}" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    list(resume(folder))
    one, other = weights(tmp_path / "straight"), weights(folder)
    assert all(torch.equal(one[name], other[name]) for name in one)


# --- crashes --------------------------------------------------------------------------------------


class Crash:
    """What a disk may hold after a crash: all that was synced, and any part of the rest.

    A folder is names to nodes. Bytes of a file and changes of a folder that were not synced may be
    there or not, each for itself, in any order: data half written or full of zeros, a rename that
    came before the data it renames.
    """

    def __init__(self, root: Path, log: list[tuple[Any, ...]]):
        self.root, self.log = str(root), log

    def leave(self, upto: int, numbers: random.Random, target: Path) -> None:
        """Make in `target` what a crash after so many calls has left of `root`."""
        root: dict[str, Any] = self.old(Path(self.root))
        for entry in self.log[:upto]:
            self.apply(root, entry)
        self.write(root, numbers, target)

    def old(self, path: Path) -> dict[str, Any]:
        """The tree before, all of it synced."""
        names = {}
        for inner in path.iterdir():
            names[inner.name] = (
                self.old(inner)
                if inner.is_dir()
                else {"file": True, "synced": inner.read_bytes(), "now": inner.read_bytes()}
            )
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


def moved(log: list[tuple[Any, ...]], old: Path, new: Path) -> list[tuple[Any, ...]]:
    """The same calls in another folder."""
    return [
        tuple(w.replace(str(old), str(new)) if isinstance(w, str) else w for w in entry)
        for entry in log
    ]


@pytest.mark.parametrize("first", [True, False], ids=["the first save", "a later one"])
@pytest.mark.parametrize("again", [False, True], ids=["a new step", "the same step again"])
def test_a_crash_leaves_the_old_checkpoint_or_the_new_one(
    first: bool, again: bool, tmp_path: Path
) -> None:
    if first and again:
        pytest.skip("there is nothing to write again")
    numbers, folder = random.Random(4), tmp_path / "run"
    folder.mkdir()
    if not first:
        save(folder, 3, 1.0)
    shutil.copytree(folder, tmp_path / "before")
    shim = calls_of(lambda: save(folder, 3 if again else 4, 2.0))
    log = moved(shim.log, folder, tmp_path / "before")
    crash = Crash(tmp_path / "before", log)
    renamed = max(i for i, e in enumerate(log) if e[0] == "replace" and "aside" in e[1])
    after = next(i for i, e in enumerate(log) if i > renamed and e[0] == "fsync")
    seen = set()
    for upto in range(len(log) + 1):
        for attempt in range(8):
            left = tmp_path / f"{upto}-{attempt}"
            crash.leave(upto, numbers, left)
            if first and upto <= after:
                path, _ = checkpoints.latest(left / "checkpoints")
                assert path is None or found(left) == 2.0
            else:
                value = found(left)
                assert value == 2.0 if upto > after else value in (1.0, 2.0)
                seen.add(value)
            shutil.rmtree(left)
    assert seen == ({2.0} if first else {1.0, 2.0})


def test_a_crash_leaves_the_old_text_or_the_new_one(tmp_path: Path) -> None:
    numbers, folder = random.Random(5), tmp_path / "before"
    folder.mkdir()
    (folder / "config.toml").write_text("old" * 1000)
    shutil.copytree(folder, tmp_path / "run")
    shim = calls_of(lambda: files.write_text(tmp_path / "run" / "config.toml", "new" * 900))
    log = moved(shim.log, tmp_path / "run", folder)
    for upto in range(len(log) + 1):
        for attempt in range(20):
            left = tmp_path / f"{upto}-{attempt}"
            Crash(folder, log).leave(upto, numbers, left)
            assert (left / "config.toml").read_text() in ("old" * 1000, "new" * 900)


def test_a_crash_while_preparing_leaves_all_of_the_data_or_no_word_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What calls itself prepared has its vocabularies and its data, to the last byte."""
    from saccade.runs.folder import read_settings
    from saccade.training import session

    config, numbers = settings("lstm", tmp_path), random.Random(10)
    before, folder = tmp_path / "before", tmp_path / "run"
    before.mkdir()
    folder.mkdir()
    real = session.prepare
    with Shim() as shim:

        def prepare(config: Any, folder: Path) -> Any:
            """Written by others: nothing of it is synced yet, in no known order."""
            ready = real(config, folder)
            shim.log.append(("mkdir", str(folder / "data")))
            for file in (*folder.glob("*.json"), *(folder / "data").iterdir()):
                shim.log += [("create", str(file)), ("write", str(file), file.read_bytes())]
            return ready

        monkeypatch.setattr(session, "prepare", prepare)
        events = start(config, folder)
        next(events)
        events.close()
    names = [path.name for path in folder.glob("*.json")]
    assert names
    log = [e for e in moved(shim.log, folder, before) if Path(e[1]).is_relative_to(before)]
    prepared = 0
    for upto in range(len(log) + 1):
        for attempt in range(8):
            left = tmp_path / f"{upto}-{attempt}"
            Crash(before, log).leave(upto, numbers, left)
            if (left / "config.toml").exists() and read_settings(left)[1].prepared:
                prepared += 1
                assert files.damage(left / "data", ["dev.jsonl"]) is None
                for name in names:
                    assert (left / name).read_bytes() == (folder / name).read_bytes()
            shutil.rmtree(left)
    assert prepared


# --- damaged bytes --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a small run: an older one and a newer one."""
    folder = tmp_path_factory.mktemp("bits")
    run_through(settings("transformer", folder, keep=2), folder / "run")
    assert len(checkpoints.paths(folder / "run" / "checkpoints")) == 2
    return folder / "run" / "checkpoints"


def passed_over(folder: Path, damaged: Path) -> None:
    older, newer = checkpoints.paths(folder)
    path, problems = checkpoints.latest(folder)
    assert path == older, f"{damaged} was not found to be damaged"
    assert str(newer) in problems[0]


def test_a_thousand_flipped_bits_are_found(two: Path) -> None:
    numbers = random.Random(6)
    found = sorted(checkpoints.paths(two)[-1].iterdir())
    assert {file.name for file in found} >= files.WANTED | {files.MANIFEST}
    for i in range(1000):
        file = found[i % len(found)]
        data = file.read_bytes()
        place, bit = numbers.randrange(len(data)), 1 << numbers.randrange(8)
        changed = data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]
        file.write_bytes(changed)
        passed_over(two, file)
        file.write_bytes(data)
    assert checkpoints.latest(two)[0] == checkpoints.paths(two)[-1]


def test_two_hundred_truncations_are_found(two: Path) -> None:
    numbers = random.Random(7)
    found = sorted(checkpoints.paths(two)[-1].iterdir())
    for i in range(200):
        file = found[i % len(found)]
        data = file.read_bytes()
        file.write_bytes(data[: numbers.randrange(len(data))])
        passed_over(two, file)
        file.write_bytes(data)


def test_damaged_weights_are_named_and_not_used(two: Path) -> None:
    import saccade

    file = two.parent / "model.safetensors"
    data, numbers = file.read_bytes(), random.Random(8)
    start = 8 + int.from_bytes(data[:8], "little")
    for _ in range(50):
        place = numbers.randrange(start, len(data))
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CheckpointError, match=r"model.safetensors: damaged"):
            saccade.load(two.parent)
    file.write_bytes(data)
    saccade.load(two.parent)


def test_damaged_data_is_not_trained_on(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two.parent, tmp_path / "run")
    file = tmp_path / "run" / "data" / "train.target.ids"
    data = bytearray(file.read_bytes())
    data[8] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"train.target.ids is damaged"):
        list(resume(tmp_path / "run"))


def test_a_half_line_in_the_log_is_cut_off(tmp_path: Path) -> None:
    config = settings("lstm", tmp_path)
    from saccade.training.report import show

    folder = new_folder(config, tmp_path / "run")
    list(show(start(config, folder), folder, quiet=True))
    log = folder / "metrics.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"event": "Step')
    list(show(resume(folder), folder, quiet=True))
    assert log.read_bytes().startswith(whole)
    assert all(json.loads(line) for line in log.read_text().splitlines())
