"""Every recipe is a configuration: its keys exist, and its parts fit together."""

from pathlib import Path

import pytest

from saccade.config import Data, parse, read_toml

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_a_configuration_and_says_how_it_is_run(path: Path) -> None:
    config = parse(read_toml(str(path)), path.name)
    assert config.data.train
    assert config.data.dev or config.data.dev_share > Data().dev_share  # the end of a series
    assert f"saccade train recipes/{path.name}" in path.read_text(encoding="utf-8")
