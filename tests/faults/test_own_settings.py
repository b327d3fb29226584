"""What a run's own settings name: copies inside of it, and nothing else."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import saccade
from saccade.errors import CheckpointError, ConfigError
from saccade.runs import guard
from saccade.training.events import Changed
from saccade.training.session import resume
from saccade.verify import verify
from tests.helpers import run_through, settings

LIST = ["ab", "dcba"]


def with_decode(config: Any, **decode: Any) -> Any:
    return config.model_copy(update={"decode": config.decode.model_copy(update=decode)})


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a list, a language model, and a run that was trained with both named."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "list.txt").write_text("\n".join(LIST))
    config = settings("lstm", folder, steps=2)
    run_through(config, folder / "plain")
    speaker = settings("language model", folder, steps=2)
    vocabulary = {"vocabulary": str(folder / "plain" / "target.json")}
    speaker = speaker.model_copy(update={"task": speaker.task.model_copy(update=vocabulary)})
    run_through(speaker, folder / "lm")
    named = {"only": str(folder / "list.txt"), "model": str(folder / "lm")}
    run_through(with_decode(config, **named), folder / "run")
    return folder


def test_a_run_has_its_own_copies_and_is_enough_by_itself(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = saccade.load(parts / "plain")
    named = {"only": str(parts / "list.txt"), "model": str(parts / "lm")}
    expected = first.predict(["abc", "d"], settings=named)
    shutil.copytree(parts / "run", tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    run = saccade.load("moved")
    assert (run.config.decode.only, run.config.decode.model) == ("permitted.txt", "language-model")
    found = run.predict(["abc", "d"])
    assert [one.text for one in found] == [one.text for one in expected]
    assert {one.text for one in found} <= set(LIST)
    assert all(law.passed is not False for law in verify(Path("moved")))
    events = list(resume(Path("moved"), settings={"train.steps": 3}))
    assert [event.key for event in events if isinstance(event, Changed)] == ["train.steps"]


@pytest.mark.parametrize("key", ["only", "model"])
def test_what_a_run_names_outside_is_refused_and_what_the_user_names_is_not(
    key: str, parts: Path, tmp_path: Path
) -> None:
    run, outside = tmp_path / "run", str(parts / {"only": "list.txt", "model": "lm"}[key])
    shutil.copytree(parts / "run", run)
    config = run / "config.toml"
    config.write_text(
        re.sub(rf'^{key} = ".*"', f'{key} = "{outside}"', config.read_text(), flags=re.M)
    )
    opened = saccade.load(run)
    for work in (lambda: opened.predict(["abc"]), opened.evaluate, lambda: list(resume(run))):
        with pytest.raises(CheckpointError, match=rf"decode\.{key} = .* is not in the run.*--set"):
            work()
    assert opened.predict(["abc"], settings={key: outside})[0].text in LIST
    (told,) = opened.predict(["abc"], settings={key: ""})
    assert not told.problem


def test_what_cannot_be_copied_is_refused_before_anything_is_read(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings("lstm", tmp_path, steps=2)
    monkeypatch.setattr(guard, "MAX_LIST_BYTES", 5)
    for name, value, said in (
        ("only", str(parts / "list.txt"), "name it when you predict"),
        ("model", str(tmp_path / "none"), "decode.model: .*not a run"),
    ):
        with pytest.raises(ConfigError, match=said):
            run_through(with_decode(config, **{name: value}), tmp_path / "run")
        assert not (tmp_path / "run" / "config.toml").exists()
        assert not (tmp_path / "run" / "data").exists()


def test_a_compressed_list_in_a_run_is_refused(parts: Path, tmp_path: Path) -> None:
    """A few bytes of it can be any number of lines."""
    shutil.copytree(parts / "run", tmp_path / "run")
    (tmp_path / "run" / "permitted.txt").write_bytes(b"\x1f\x8b\x08 and so on")
    with pytest.raises(CheckpointError, match="is compressed"):
        saccade.load(tmp_path / "run").predict(["abc"])
