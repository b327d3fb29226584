"""Two language models, one from each end: what they may see, what they learn, and their layers."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import saccade
from saccade.errors import ConfigError
from saccade.models.networks import BidirectionalLM, Tagger
from saccade.nn.padded import Padded, pad
from saccade.nn.recurrent import LayerMix, reversed_rows
from saccade.runs import files
from saccade.runs.start import START_WEIGHTS
from saccade.setup.choose import gather
from saccade.training.session import fill
from tests.helpers import corpus, run_through, settings

ROWS = [[5, 7, 6, 9, 8, 3], [9, 6, 3], [7, 3]]
SMALL = {"kind": "recurrent", "dim": 16, "num_layers": 2, "separate": True}


def text(folder: Path) -> Path:
    """Lines in which both neighbours of a letter decide which it is, and no others."""
    numbers = random.Random(3)
    lines = ["".join("abcdef"[(i + first) % 6] for i in range(12)) for first in range(6)]
    path = folder / "text.txt"
    path.write_text("\n".join(numbers.choices(lines, k=150)) + "\n", encoding="utf-8")
    return path


def pretrained(folder: Path, **train: Any) -> Any:
    raw, where = gather(text(folder), task="pretrain")
    raw["task"] |= {"objective": {"kind": "bidirectional"}, "context": 16}
    raw["task"]["tokenizer"] = {"kind": "char"}
    raw |= {"encoder": SMALL, "train": {"steps": 6, "processes": 1, "batch_tokens": 400} | train}
    return fill(raw, where)[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("both ways")
    run_through(pretrained(folder, steps=120, rate=0.02), folder / "run")
    return folder / "run"


def sides(network: Any, rows: Padded) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.inference_mode():
        before, after = network.contexts((rows,))
        return network.head(before), network.head(after)


def test_nothing_leaks_between_the_directions(run: Path) -> None:
    network = saccade.load(run).network
    assert isinstance(network, BidirectionalLM)
    rows = pad(ROWS, 0)
    before, after = sides(network, rows)
    for row, length in enumerate(rows.lengths.tolist()):
        for changed in range(length):
            values = rows.values.clone()
            values[row, changed] = 10
            ahead, back = sides(network, Padded(values, rows.lengths))
            untouched = before[row, : changed + 1], ahead[row, : changed + 1]
            assert torch.equal(*untouched)  # from before a token, none of it and after it
            assert torch.equal(after[row, changed:length], back[row, changed:length])
            if changed + 1 < length:
                assert not torch.equal(before[row, changed + 1], ahead[row, changed + 1])
            if changed:
                assert not torch.equal(after[row, changed - 1], back[row, changed - 1])


def test_a_row_beside_longer_ones_is_said_as_alone(run: Path) -> None:
    network = saccade.load(run).network
    rows = pad(ROWS, 0)
    together = sides(network, rows)
    for i, row in enumerate(ROWS):
        for one, all_of in zip(sides(network, pad([row], 0)), together, strict=True):
            assert torch.allclose(one[0], all_of[i, : len(row)], atol=1e-6)


def test_both_learn_and_fill_a_gap_together(run: Path) -> None:
    model = saccade.load(run)
    assert model.evaluate()["perplexity"] < 1.6
    assert model.predict("abc<mask>ef").text == "abcdef"
    assert model.predict("<mask>fa").text == "efa"
    (good, _), (bad, _) = model.score([("abcdefab",), ("abddefab",)])
    assert good > bad + 3


def test_a_row_is_turned_within_its_length() -> None:
    x = torch.arange(8.0).view(2, 4, 1)
    assert reversed_rows(x, torch.tensor([4, 2])).flatten().tolist() == [3, 2, 1, 0, 5, 4, 6, 7]
    assert torch.equal(
        reversed_rows(reversed_rows(x, torch.tensor([4, 2])), torch.tensor([4, 2])), x
    )
    assert torch.equal(reversed_rows(x, None), x.flip(1))


def test_a_mix_is_the_mean_of_layers_at_first_and_gamma_scales_it() -> None:
    mix, layers = LayerMix(3), list(torch.randn(3, 2, 4, 5))
    mix.reset_parameters()
    assert torch.allclose(mix(layers), sum(layers) / 3, atol=1e-6)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.0, 100.0, 0.0]))
        mix.gamma.fill_(2.0)
    assert torch.allclose(mix(layers), 2 * layers[1])


@pytest.mark.parametrize("how", ["whole", "frozen"])
def test_a_tagger_begins_with_both_and_mixes_their_layers(
    how: str, run: Path, tmp_path: Path
) -> None:
    raw, where = gather(corpus(tmp_path, "tag"), task="tag")
    raw["start"] = {"run": str(run), "kind": how}
    raw["train"] = {"steps": 8, "processes": 1, "rate": 0.01}
    config = fill(raw, where)[0]
    assert config.encoder is not None
    assert getattr(config.encoder, "mix", False)
    run_through(config, tmp_path / "tagger")
    tagger, first = saccade.load(tmp_path / "tagger"), saccade.load(run).network
    assert isinstance(tagger.network, Tagger)
    now, then = files.weights_of(tagger.network), files.weights_of(first)
    taken = files.read_tensors(tmp_path / "tagger" / START_WEIGHTS).keys()
    assert taken == {name for name in then if name.startswith("encoder.")}
    assert all(torch.equal(now[name], then[name]) for name in taken) == (how == "frozen")
    assert float(now["encoder.body.mix.weights"].abs().max()) > 0
    assert float(now["encoder.body.mix.gamma"]) != 1.0


def test_an_encoder_that_would_leak_is_refused(tmp_path: Path) -> None:
    raw, where = gather(text(tmp_path), task="pretrain")
    raw["task"]["objective"] = {"kind": "bidirectional"}
    raw["encoder"] = SMALL | {"separate": False}
    with pytest.raises(ConfigError, match=r"never see each other: set .*encoder.separate = true"):
        fill(raw, where)
    raw["encoder"] = {"kind": "transformer"}
    with pytest.raises(ConfigError, match="never see each other"):
        fill(raw, where)
    tables = settings("tagger", tmp_path).model_dump(mode="json", exclude_none=True)
    tables["encoder"] = SMALL | {"num_layers": 1, "mix": True}
    with pytest.raises(ConfigError, match="mix requires num_layers"):
        saccade.config.parse(tables, "settings")
