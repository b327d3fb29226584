"""A caption's path: each word's weights lie on the right cells, in any architecture."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.errors import ConfigError
from saccade.inspect.captions import CaptionPath, caption_path, draw_path
from saccade.inspect.command import write
from saccade.inspect.view import kinds, view
from saccade.runs.run import Run
from saccade.setup.choose import fill_config, gather
from saccade.setup.prepare import prepare
from tests.architectures import DECODERS
from tests.media import captions, shapes, write_jsonl

PICTURE = {
    "kind": "picture",
    "height": 32,
    "width": 16,
    "cell": 8,
    "channels": 8,
}  # a grid of 4 x 2


def small_run(folder: Path, data: Path, decoder: str = "lstm_additive_cell", **more: Any) -> Run:
    """A run with random weights that describes pictures."""
    raw, where = gather(data, task="translate")
    raw["task"] |= {"columns": {"image": PICTURE}, "target": more.pop("target", {"kind": "word"})}
    raw["encoder"] = {"kind": "none", "dim": 16}
    raw["decoder"] = DECODERS[decoder]
    raw |= more
    config, _ = fill_config(raw, where)
    folder.mkdir()
    task = prepare(config, folder).task
    return Run(folder, config, task, task.build().eval())


def attending_to(run: Run, cells: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let token t of every output attend to position cells[t] alone."""

    def score(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        scores = torch.full((query.size(0), 1, keys.size(1)), -1e9)
        scores[:, 0, cells[score.calls]] = 0.0  # type: ignore[attr-defined]
        score.calls += 1  # type: ignore[attr-defined]
        return scores

    score.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(run.network.decoder.attention.score, "forward", score)


def test_each_word_looks_where_its_weights_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(tmp_path / "run", captions(tmp_path))
    attending_to(run, [0, 3, 6, 7], monkeypatch)
    source = run.source_of(str(tmp_path / "pictures" / "0.png"))
    found = caption_path(run.task, run.network, source, "a red circle")
    assert found.words == ["a", "red", "circle"]
    assert found.maps.shape == (3, 4, 2)
    assert [tuple(np.argwhere(one)[0]) for one in found.maps.numpy()] == [(0, 0), (1, 1), (3, 0)]
    assert found.picture.shape == (32, 16, 3)
    assert found.upsampled[0].flatten().argmax() // 16 < 8  # in the first row of cells


def test_pieces_of_a_word_are_one_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(tmp_path / "run", captions(tmp_path), target={"kind": "char"})
    attending_to(run, [0, 1, 2, 3, 3, 3, 7], monkeypatch)
    source = run.source_of(str(tmp_path / "pictures" / "0.png"))
    found = caption_path(run.task, run.network, source, "a red ")
    assert found.words == ["a", "red"]
    first, second = found.maps.flatten(1)  # a and the blank after it; r, e, d and a blank
    assert first.tolist() == [0.5, 0.5, 0, 0, 0, 0, 0, 0]
    assert second.tolist() == [0, 0, 0.25, 0.75, 0, 0, 0, 0]


def test_the_cells_stand_after_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"image": name, "question": "what is it?", "answer": f"a {colour} {shape} {i}"}
        for i, (name, colour, shape) in enumerate(shapes(tmp_path, 20))
    ]
    run = small_run(tmp_path / "run", write_jsonl(tmp_path / "vqa.jsonl", rows))
    tokens = len(run.task.sources[0].rows([("what is it?",)])[0])
    attending_to(run, [tokens + 5, tokens, 0], monkeypatch)
    source = run.source_of((str(tmp_path / "pictures" / "0.png"), "what is it?"))
    found = caption_path(run.task, run.network, source, "a red")
    assert found.maps.flatten(1).argmax(1).tolist() == [5, 0]


def test_an_empty_caption_has_no_path(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", captions(tmp_path))
    source = run.source_of(str(tmp_path / "pictures" / "0.png"))
    with pytest.raises(ConfigError, match="empty"):
        caption_path(run.task, run.network, source, " ")


@pytest.mark.parametrize("layer", [-1, 0])
def test_a_transformer_attends_with_each_layer(tmp_path: Path, layer: int) -> None:
    run = small_run(tmp_path / "run", captions(tmp_path), "transformer")
    source = run.source_of(str(tmp_path / "pictures" / "0.png"))
    found = caption_path(run.task, run.network, source, "a red circle", layer)
    assert torch.allclose(found.maps.sum((1, 2)), torch.ones(3), atol=1e-5)
    with pytest.raises(ConfigError, match="layer 9"):
        caption_path(run.task, run.network, source, "a red circle", 9)


def test_a_pyramid_has_no_path(tmp_path: Path) -> None:
    encoder = {"kind": "pyramid", "dim": 16, "num_layers": 2}
    run = small_run(tmp_path / "run", captions(tmp_path), encoder=encoder)
    source = run.source_of(str(tmp_path / "pictures" / "0.png"))
    with pytest.raises(ConfigError, match="4 positions for a 4 x 2 grid"):
        caption_path(run.task, run.network, source, "a red circle")


def test_a_panel_is_light_where_its_word_looked(tmp_path: Path) -> None:
    maps = torch.zeros(1, 2, 2)
    maps[0, 0, 0] = 1.0
    draw_path(CaptionPath(np.full((32, 32, 3), 255, np.uint8), ["word"], maps), tmp_path / "p.png")
    drawn = np.asarray(Image.open(tmp_path / "p.png").convert("L"), float)
    panel = drawn[drawn.shape[0] // 4 :, drawn.shape[1] // 2 :]  # the second: below its title
    high, wide = panel.shape
    upper_left, lower_right = panel[: high // 3, : wide // 3], panel[-high // 3 :, wide // 2 : -20]
    assert upper_left.mean() > 200 > 100 > np.median(lower_right)


def test_inspect_draws_the_path_of_what_is_predicted(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", captions(tmp_path))
    picture = str(tmp_path / "pictures" / "0.png")
    assert kinds(run)[0] == "caption_path"
    seen = view(run, picture, "caption_path", target="a red circle")
    assert seen["words"] == ["a", "red", "circle"]
    assert [len(one) for one in seen["weights"]] == [seen["grid"][0]] * 3
    write([seen], tmp_path / "own.png")
    write([seen], tmp_path / "own.html")
    assert (tmp_path / "own.html").read_text().count("<figcaption>") == 3
    assert (tmp_path / "own.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ConfigError, match=r"name a \.html"):
        write([seen], tmp_path / "own.nothing")
