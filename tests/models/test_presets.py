"""Named sizes expand into plain settings."""

from pathlib import Path

import pytest

from saccade.config import RecurrentEncoder, TransformerDecoder, TransformerEncoder
from saccade.errors import ConfigError
from saccade.models.presets import SIZES, expand
from saccade.setup.choose import fill_config, gather
from tests.helpers import corpus


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["recurrent", "transformer", "convolution"])
def test_a_size_is_plain_settings_in_the_run(size: str, kind: str, tmp_path: Path) -> None:
    raw, where = gather(corpus(tmp_path, "translate"))
    raw |= {"size": size, "encoder": {"kind": kind}}
    config, _ = fill_config(raw, where)
    assert config.encoder is not None
    for key, value in expand(size, kind).items():
        assert getattr(config.encoder, key) == value
    assert isinstance(config.decoder, TransformerDecoder)


def test_base_and_big_are_vaswanis(tmp_path: Path) -> None:
    raw, where = gather(corpus(tmp_path, "translate"))
    base = fill_config(raw | {"size": "base"}, where)[0].encoder
    big = fill_config(raw | {"size": "big"}, where)[0].encoder
    assert isinstance(base, TransformerEncoder)
    assert isinstance(big, TransformerEncoder)
    assert (base.dim, base.num_layers, base.num_heads, base.ff_dim) == (512, 6, 8, 2048)
    assert (big.dim, big.num_layers, big.num_heads, big.ff_dim) == (1024, 6, 16, 4096)
    assert (base.dropout, big.dropout) == (0.1, 0.3)
    assert not base.norm_first


def test_a_size_yields_to_what_the_user_says(tmp_path: Path) -> None:
    raw, where = gather(corpus(tmp_path, "translate"))
    raw |= {"size": "small", "encoder": {"kind": "recurrent", "num_layers": 5}}
    encoder = fill_config(raw, where)[0].encoder
    assert isinstance(encoder, RecurrentEncoder)
    assert (encoder.dim, encoder.num_layers) == (256, 5)


def test_a_size_that_is_none_is_refused(tmp_path: Path) -> None:
    raw, where = gather(corpus(tmp_path, "translate"))
    with pytest.raises(
        ConfigError, match="no size 'huge'; choose one of tiny, small, base, big, trans"
    ):
        fill_config(raw | {"size": "huge"}, where)


def test_a_published_size_can_be_trained_from_scratch(tmp_path: Path) -> None:
    raw, where = gather(corpus(tmp_path, "language"))
    decoder = fill_config(raw | {"size": "gpt2", "task": {"kind": "language"}}, where)[0].decoder
    assert isinstance(decoder, TransformerDecoder)
    assert (decoder.dim, decoder.activation, decoder.output_bias) == (768, "gelu_tanh", False)
    with pytest.raises(ConfigError, match="size 'gpt2' is that of a Transformer, of its decoder"):
        expand("gpt2", "transformer", "encoder")
    with pytest.raises(ConfigError, match="size 'elmo' is that of a recurrent network, of its enc"):
        expand("elmo", "transformer", "encoder")
