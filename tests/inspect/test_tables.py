"""Positions and embeddings: the numbers that the network itself uses."""

from pathlib import Path

import pytest
import torch

from saccade.errors import ConfigError, DataError
from saccade.inspect.packing import unpacked
from saccade.inspect.tables import index_of, projected, table_of
from saccade.inspect.view import kinds, view
from saccade.nn.positions import RotaryFrequencies, rotate, sinusoids
from tests.architectures import ENCODERS
from tests.inspect.test_views import labelling
from tests.small_runs import small_run

MARKED = [name for name in ENCODERS if ENCODERS[name]["kind"] != "recurrent"]


@pytest.mark.parametrize("encoder", MARKED)
def test_every_way_of_marking_positions_is_drawn(encoder: str, tmp_path: Path) -> None:
    run = labelling("classify", tmp_path, encoder)
    found = view(run, "", "positions", length=16)
    table, gram = unpacked(found["matrix"]), unpacked(found["gram"])
    assert gram.shape == (16, 16)
    if found["type"] in ("sinusoidal", "learned", "rotary"):
        assert len(table) == 16
        assert gram == pytest.approx(table @ table.T, rel=1e-2, abs=1e-2)


def test_sinusoids_are_those_of_the_network(tmp_path: Path) -> None:
    run = labelling("classify", tmp_path, "transformer")
    found = view(run, "", "positions", length=8)
    assert unpacked(found["matrix"]) == pytest.approx(sinusoids(8, 16).numpy(), abs=1e-4)
    gram = unpacked(found["gram"])
    assert gram[2, 4] == pytest.approx(gram[3, 5], abs=1e-3)  # by distance alone


def test_turns_are_those_of_rotary_positions(tmp_path: Path) -> None:
    run = labelling("classify", tmp_path, "llama")  # whose theta is its own
    found = view(run, "", "positions", length=8)
    waves = torch.tensor(unpacked(found["matrix"]))
    one = torch.zeros(1, 1, 8, waves.size(1))
    one[..., 0::2] = 1.0
    turned = rotate(one, 0, RotaryFrequencies(500.0))[0, 0]
    assert torch.allclose(turned[:, 0::2], waves[:, 1::2].float(), atol=1e-4)
    assert torch.allclose(turned[:, 1::2], waves[:, 0::2].float(), atol=1e-4)


def test_a_network_without_positions_says_so(tmp_path: Path) -> None:
    run = labelling("classify", tmp_path, "lstm")
    assert "positions" not in kinds(run)
    with pytest.raises(ConfigError, match="no positional encoding"):
        view(run, "", "positions")
    with pytest.raises(ConfigError, match="length 0"):
        view(run, "", "positions", length=0)


def test_neighbours_are_by_cosine(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    tokenizer, table = table_of(run)
    table = table.detach()
    found = view(run, "", "embeddings", word="a", n=3)
    one = index_of(tokenizer, "a")
    names = tokenizer.tokens(range(len(table)))
    cosines = torch.nn.functional.cosine_similarity(table, table[one][None])
    for near in found["neighbours"]:
        assert near["text"] != "a"
        index = names.index(near["text"])
        assert near["similarity"] == pytest.approx(float(cosines[index]), abs=1e-4)
    order = [near["similarity"] for near in found["neighbours"]]
    assert order == sorted(order, reverse=True)
    with pytest.raises(DataError, match="'xyz' is not in the vocabulary"):
        view(run, "", "embeddings", word="xyz")


def test_a_projection_keeps_what_lies_in_two_dimensions() -> None:
    flat = torch.randn(20, 2, generator=torch.Generator().manual_seed(1))
    turned = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(2)))[0][:2]
    places, shares = projected(flat @ turned + 3.0)
    assert sum(shares) == pytest.approx(1.0, abs=1e-5)
    assert torch.allclose(torch.cdist(places, places), torch.cdist(flat, flat), atol=1e-4)
    again, _ = projected(flat @ turned + 3.0)
    assert torch.equal(places, again)
