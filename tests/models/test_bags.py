"""Tags are a source without order: how they are ordered changes nothing, what they are does."""

from pathlib import Path
from typing import Any

import pytest
import torch

import saccade
from saccade.config import Tokenizer as Settings
from saccade.config import parse
from saccade.data.fields import Text
from saccade.errors import ConfigError
from saccade.inspect.attention import align
from saccade.inspect.view import view
from saccade.models.build import build
from saccade.models.networks import Generator
from saccade.nn.padded import Padded, pad
from saccade.text.tokenizers import Tokenizer
from tests.architectures import DECODERS, ENCODERS, IDS, TRANSFORMER, source_batch
from tests.setup.test_strings import inflections

BAG = IDS._replace(ordered=False)


def tagged(encoder: str | dict[str, Any]) -> Generator:
    raw: dict[str, Any] = {
        "task": {
            "kind": "translate",
            "columns": {"2": {"kind": "word", "ordered": False}},
        },
        "data": {"max_len": 40},
        "encoder": ENCODERS[encoder] if isinstance(encoder, str) else encoder,
        "decoder": DECODERS["transformer"],
    }
    net = build(parse(raw, "test"), [IDS, BAG], IDS, seed=3).eval()
    assert isinstance(net, Generator)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return net


def vectors(net: Generator, *sources: Padded) -> torch.Tensor:
    with torch.inference_mode():
        memory = net.encode(sources)
    assert memory is not None
    return memory.values


def said(net: Generator, *sources: Padded) -> torch.Tensor:
    tokens = torch.arange(5, 11).expand(len(sources[0].lengths), 6)
    with torch.inference_mode():
        return net.decoder(tokens, net.decoder.start(net.encode(sources), len(tokens)))[0]


def test_the_order_in_which_tags_are_written_is_not_read() -> None:
    settings = Settings(kind="word", separator=";", ordered=False)
    field = Text(Tokenizer.train(settings, ["V;PST;3;SG", "N;PL"]))
    one, other, third = field.rows([("V;PST;SG",), ("SG;V;PST",), ("SG;V;PL",)])
    assert one == other
    assert one[-1] == field.tokenizer.specials.eos
    assert sorted(one) != sorted(third)
    in_order = Text(Tokenizer.train(settings.model_copy(update={"ordered": True}), ["a;b"]))
    assert in_order.rows([("a;b",)]) != in_order.rows([("b;a",)])


@pytest.mark.parametrize("encoder", ["lstm", "transformer", "convolution"])
def test_a_batch_of_letters_and_tags_is_its_rows(encoder: str) -> None:
    net, letters = tagged(encoder), source_batch()
    tags = pad([[5, 9, 7, 12], [8], [10, 11, 5]])
    whole = said(net, letters, tags)
    for row, n in enumerate(letters.lengths.tolist()):
        alone = pad([letters.values[row, :n].tolist()])
        own = pad([tags.values[row, : tags.lengths[row]].tolist()])
        assert torch.allclose(said(net, alone, own)[0], whole[row], atol=1e-5)


def test_every_letter_knows_all_tags_and_no_tag_is_nearer() -> None:
    """In an encoder whose positions do not see each other."""
    net = tagged({"kind": "none", "dim": 16, "dropout": 0.0})
    letters, tags = source_batch((7,)), pad([[8, 6, 9]])
    plain = vectors(net, letters, tags)
    assert plain.shape[1] == 7 + 3
    assert torch.allclose(vectors(net, letters, pad([[9, 8, 6]]))[:, :7], plain[:, :7], atol=1e-5)
    for changed in ([7, 6, 9], [8, 7, 9], [8, 6, 7]):
        moved = vectors(net, letters, pad([changed]))[:, :7] - plain[:, :7]
        assert bool((moved.norm(dim=-1) > 0.05).all())
        assert torch.allclose(moved, moved[:, :1].expand_as(moved), atol=1e-5)


def test_only_a_column_of_its_own_has_no_order() -> None:
    raw: dict[str, Any] = {
        "task": {"kind": "translate", "source": {"kind": "word", "ordered": False}},
        "encoder": TRANSFORMER,
        "decoder": TRANSFORMER,
    }
    with pytest.raises(ConfigError, match=r"source\.ordered = false"):
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
    assert align(run.task, run.network, ("talka", "V;PST"), "talked").source[:6] == [
        *"talka",
        "<eos>",
    ]
