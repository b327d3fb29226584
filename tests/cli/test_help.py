"""The help and the reference name every command and every option that there is, and no other."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer

from saccade import cli
from saccade.config import TASKS
from tests.cli.conftest import shell

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS: dict[str, Any] = typer.main.get_command(cli.app).commands


def options(command: Any) -> set[str]:
    return {name for one in command.params for name in one.opts if name[:2] == "--"} - {"--help"}


def synopsis() -> dict[str, set[str]]:
    """The options of each command in the reference."""
    text = (DOCS / "reference.md").read_text(encoding="utf-8").split("```")[1]
    found: dict[str, set[str]] = {}
    for line in text.replace("\n   ", " ").splitlines():
        if match := re.match(r"saccade ([a-z]+)", line):
            found.setdefault(match[1], set()).update(re.findall(r"--[a-z][a-z0-9-]*", line))
    return found


def test_the_reference_has_every_command_and_option_and_no_other() -> None:
    assert synopsis() == {name: options(command) for name, command in COMMANDS.items()}


def test_the_reference_says_what_every_command_does() -> None:
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    assert not [name for name in COMMANDS if f"\n| `{name}` |" not in text]


def test_every_option_has_a_help_that_is_a_sentence() -> None:
    for name, command in COMMANDS.items():
        for one in command.params:
            said = one.help or ""
            assert said.endswith("."), f"{name}: {one.name}: {said!r}"
            assert len(said.split()) > 1, f"{name}: {one.name}: {said!r}"
            assert not said.startswith(("Of ", "As ", "So ")), f"{name}: {one.name}: {said!r}"


def test_the_help_lists_every_task() -> None:
    for name in ("train", "check"):
        (said,) = [one.help for one in COMMANDS[name].params if one.name == "task"]
        assert not [task for task in TASKS if task not in said]


def test_the_help_has_an_example_and_the_exit_codes() -> None:
    said = shell("--help").stdout
    assert "saccade train words.tsv" in said
    for code in ("0 done", "1 a negative", "2 a mistake", "75 ", "130 "):
        assert code in " ".join(said.split())
    assert "..." not in said.replace("[ARGS]...", "")


def test_every_guide_is_in_the_index_and_in_the_menu() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8").split("## Where to go")[1]
    menu = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    guides = [f"guides/{path.name}" for path in (DOCS / "guides").glob("*.md")]
    assert len(guides) > 20
    assert not [guide for guide in guides if f"({guide})" not in index]
    assert not [guide for guide in guides if guide not in menu]


def test_a_mistake_in_a_path_is_told_without_torch(tmp_path: Path) -> None:
    (tmp_path / "data.tsv").write_text("a\tb\n" * 50)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("")
    code = (
        "import sys; from saccade import cli\n"
        "try: cli.main()\n"
        "except SystemExit as left: print(left.code, 'torch' in sys.modules)"
    )
    for words, said in (
        ([tmp_path], "is a directory"),
        ([tmp_path / "nowhere.tsv"], "no such file"),
        ([tmp_path / "data.tsv", "--out", tmp_path / "run"], "holds a run already"),
        ([tmp_path / "data.tsv", "--out", tmp_path / "data.tsv"], "is a file; name a folder"),
    ):
        command = [sys.executable, "-c", code, "train", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert said in done.stderr
        assert done.stdout == "2 False\n"


def test_a_setting_that_is_given_as_an_option_is_told_how(call: Any, tmp_path: Path) -> None:
    done = call("train", tmp_path, "--minutes", 3)
    assert done.code == 2
    assert "It is a setting: --set train.minutes=..." in done.err
    assert "It is a setting" not in call("train", tmp_path, "--nonsense", 3).err
