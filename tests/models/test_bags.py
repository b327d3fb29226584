"""Tags are a source without order: in which order they stand changes nothing, what they are does.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

import saccade
from saccade.config import parse
from saccade.errors import ConfigError
from saccade.inspect.attention import align
from saccade.inspect.view import view
from saccade.models.build import build
from saccade.models.encoders import EarlyFusion
from saccade.models.networks import Generator
from saccade.nn.padded import Padded, pad
from tests.architectures import DECODERS, ENCODERS, IDS, TRANSFORMER, source_batch
from tests.setup.test_strings import inflections

BAG = IDS._replace(ordered=False)


def tagged(encoder: str, fusion: str = "early") -> Generator:
    raw: dict[str, Any] = {
        "task": {
            "kind": "translate",
            "columns": {"2": {"kind": "word", "ordered": False}},
            "fusion": fusion,
        },
        "data": {"max_len": 40},
        "encoder": ENCODERS[encoder],
        "decoder": DECODERS["transformer"],
    }
    net = build(parse(raw, "test"), [IDS, BAG], IDS, seed=3).eval()
    assert isinstance(net, Generator)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return net


def said(net: Generator, *sources: Padded) -> torch.Tensor:
    tokens = torch.arange(5, 11).expand(len(sources[0].lengths), 6)
    with torch.inference_mode():
        return net.decoder(tokens, net.decoder.start(net.encode(sources), len(tokens)))[0]


@pytest.mark.parametrize("fusion", ["early", "late"])
@pytest.mark.parametrize("encoder", ["lstm", "transformer", "transformer_rotary", "convolution"])
def test_the_order_of_tags_changes_nothing(encoder: str, fusion: str) -> None:
    net, letters = tagged(encoder, fusion), source_batch()
    tags = pad([[5, 9, 7, 12], [8, 6], [10, 11, 5]])
    turned = pad([[12, 5, 7, 9], [6, 8], [11, 5, 10]])
    others = pad([[12, 5, 7, 8], [6, 9], [11, 5, 13]])
    assert torch.allclose(said(net, letters, tags), said(net, letters, turned), atol=1e-5)
    assert not torch.allclose(said(net, letters, tags), said(net, letters, others), atol=1e-2)


@pytest.mark.parametrize("fusion", ["early", "late"])
def test_a_bag_does_not_see_its_padding(fusion: str) -> None:
    net, letters = tagged("lstm", fusion), source_batch((7,))
    longer = Padded(torch.tensor([[8, 6, 19, 17]]), torch.tensor([2]))
    assert torch.allclose(said(net, letters, pad([[8, 6]])), said(net, letters, longer), atol=1e-5)


def test_tags_take_no_position() -> None:
    """So a decoder that edits passes over the letters alone, and positions are those of letters."""
    net = tagged("lstm")
    assert isinstance(net.encoder, EarlyFusion)
    memory = net.encode((source_batch((7, 7)), pad([[5, 6, 7], [5, 6, 7]])))
    assert memory is not None
    assert memory.values.shape[1] == 7


def test_only_a_source_beside_others_has_no_order() -> None:
    bag = {"kind": "word", "ordered": False}
    raw: dict[str, Any] = {
        "task": {"kind": "translate", "source": bag},
        "encoder": TRANSFORMER,
        "decoder": TRANSFORMER,
    }
    with pytest.raises(ConfigError, match=r"source\.ordered = false"):
        parse(raw, "test")
    raw |= {"task": {"kind": "translate", "columns": {"1": bag}}, "data": {"source": [1]}}
    with pytest.raises(ConfigError, match="no source is left"):
        parse(raw, "test")


def test_a_file_of_lemmas_forms_and_tags_has_a_bag_of_tags(tmp_path: Path) -> None:
    """Without a configuration: the third column is told by its look, and read without order."""
    (tmp_path / "words.tsv").write_text("".join(inflections()), encoding="utf-8")
    settings = {"train.steps": 3, "train.processes": 1, "decode.width": 1}
    run = saccade.train(tmp_path / "words.tsv", out=tmp_path / "run", settings=settings, quiet=True)
    columns = run.config.task.own
    assert [(name, columns[name].ordered) for name in columns] == [("3", False)]  # type: ignore[union-attr]
    one, other = run.predict([("talka", "V;V.PTCP;PRS"), ("talka", "PRS;V;V.PTCP")])
    assert one.text == other.text
    assert one.score == pytest.approx(other.score, abs=1e-4)
    for kind in ("attention", "saliency"):  # which have a name for each position
        view(run, ("talka", "V;PST"), kind)
    assert align(run.task, run.network, ("talka", "V;PST"), "talked").source == [*"talka", "<eos>"]
