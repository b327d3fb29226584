"""Attention to look at: the right tokens, weights that sum to one, a picture that exists."""

from pathlib import Path

import pytest
import torch

from saccade.errors import ConfigError
from saccade.inspect.attention import Alignment, align, draw_picture, draw_text
from tests.small_runs import small_task


@pytest.mark.parametrize("decoder", ["transformer", "lstm_additive_cell", "lstm_general_output"])
def test_an_alignment_has_a_row_for_each_target_token(decoder: str, tmp_path: Path) -> None:
    task, network = small_task("translate", tmp_path, decoder=decoder)
    found = align(task, network, ("abc",), "cba")  # type: ignore[arg-type]
    assert found.source == ["a", "b", "c", "<eos>"]
    assert found.target == ["c", "b", "a", "<eos>"]
    assert found.mean.shape == (4, 4)
    assert torch.allclose(found.mean.sum(-1), torch.ones(4), atol=1e-5)


def test_without_attention_there_is_nothing_to_see(tmp_path: Path) -> None:
    task, network = small_task("translate", tmp_path, decoder="lstm_off")
    with pytest.raises(ConfigError, match="no attention"):
        align(task, network, ("abc",), "cba")  # type: ignore[arg-type]


def test_a_map_is_drawn_as_text_and_as_a_picture(tmp_path: Path) -> None:
    drawn = Alignment(["a", "b"], ["X", "YY"], {"m": torch.tensor([[1.0, 0.0], [0.4, 0.6]])})
    rows = draw_text(drawn).splitlines()
    assert len(rows) == 3
    assert rows[1].split() == ["X", "█"]
    draw_picture(drawn, tmp_path / "map.png", "a title")
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"
