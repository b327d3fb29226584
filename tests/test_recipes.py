"""Every recipe is a configuration: its keys exist, and its parts fit together."""

from pathlib import Path

import pytest

from saccade.config import Data, parse, read_toml

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "recipes").glob("*/*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_a_configuration_and_says_how_it_is_run(path: Path) -> None:
    config = parse(read_toml(str(path)), path.name)
    assert config.data.train
    assert config.data.dev or config.data.dev_share > Data().dev_share  # the end of a series
    command = f"saccade train {path.relative_to(ROOT).as_posix()}"
    assert command in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", sorted({path.parent for path in RECIPES}), ids=lambda p: p.name)
def test_the_readme_of_a_recipe_has_its_command_its_data_and_its_result(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert f"saccade train recipes/{folder.name}/" in text
    assert "**Data.**" in text
    assert "**Result.**" in text
