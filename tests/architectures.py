"""Every architecture that a configuration can name, small: the laws are tried on each."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from saccade.config import Config, Tokenizer, parse
from saccade.decoding.search import Step
from saccade.decoding.steps import ensemble, stepper
from saccade.models.build import build
from saccade.models.networks import Generator, Network
from saccade.nn.padded import Padded, pad
from saccade.text.vocab import Inventory, Specials

VOCAB = 20
IDS = Inventory(VOCAB, Specials().ids, Specials().unk)
RECURRENT = {"kind": "recurrent", "dim": 16, "dropout": 0.0}
TRANSFORMER = {
    "kind": "transformer",
    "dim": 16,
    "num_heads": 2,
    "ff_dim": 32,
    "num_layers": 2,
    "dropout": 0.0,
}
BERT = {
    "norm_first": False,
    "norm_embedding": True,
    "norm_eps": 1e-12,
    "activation": "gelu",
    "positions": "learned",
    "max_positions": 40,
    "scale_embedding": False,
}
# What published networks have otherwise: in an encoder, and in a decoder.
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama": TRANSFORMER
    | {"num_heads": 4, "num_kv_heads": 2, "norm": "rms", "norm_eps": 1e-5, "activation": "swiglu"}
    | {"positions": "rotary", "rotary_theta": 500.0, "bias": False, "scale_embedding": False},
    "t5": TRANSFORMER
    | {"positions": "relative", "relative_buckets": 8, "relative_distance": 12, "norm": "rms"}
    | {"bias": False, "head_dim": 6, "activation": "geglu"},
    "bart": TRANSFORMER | BERT | {"position_offset": 2, "norm_eps": 1e-5},
    "marian": TRANSFORMER
    | {"positions": "sinusoidal_halves", "norm_first": False, "activation": "silu"},
}
ONLY_PUBLISHED = (*PUBLISHED, "bert", "gpt2")
ENCODERS: dict[str, dict[str, Any]] = {
    "elman": RECURRENT | {"cell": "elman"},
    "elman_relu": RECURRENT | {"cell": "elman_relu"},
    "gru": RECURRENT | {"cell": "gru", "num_layers": 2, "residual": True},
    "lstm": RECURRENT | {"cell": "lstm", "num_layers": 2},
    "lstm_one_way": RECURRENT | {"cell": "lstm", "bidirectional": False},
    "elmo": RECURRENT | {"cell": "lstm", "num_layers": 2, "separate": True, "mix": True},
    "transformer": TRANSFORMER,
    "transformer_post": TRANSFORMER | {"norm_first": False, "activation": "gelu"},
    "transformer_rotary": TRANSFORMER
    | {"positions": "rotary", "norm": "rms", "activation": "swiglu"},
    "transformer_learned": TRANSFORMER | {"positions": "learned", "max_positions": 40},
    **PUBLISHED,
    "transformer_causal": TRANSFORMER | {"causal": True},
    "bert": TRANSFORMER | BERT | {"segments": 2},
    "convolution": {"kind": "convolution", "dim": 16, "num_layers": 2, "dropout": 0.0},
}
SCORES = ("parameter_free", "dot", "scaled_dot", "general", "concat", "additive")
DECODERS: dict[str, dict[str, Any]] = {
    "elman_off": RECURRENT | {"cell": "elman", "attention": "off"},
    "elman_relu_off": RECURRENT | {"cell": "elman_relu", "attention": "off"},
    "gru_off": RECURRENT | {"cell": "gru", "attention": "off", "num_layers": 2, "residual": True},
    "gru_copied_off": RECURRENT | {"cell": "gru", "attention": "off", "first_state": "copied"},
    "lstm_off": RECURRENT | {"cell": "lstm", "attention": "off", "tied": False},
    **{
        f"lstm_{score}_{place}": RECURRENT
        | {"cell": "lstm", "attention": score, "context": place, "num_layers": 2}
        for score in SCORES
        for place in ("cell", "output")
    },
    "gru_additive_cell": RECURRENT | {"cell": "gru", "attention": "additive"},
    "elman_general_output": RECURRENT
    | {"cell": "elman", "attention": "general", "context": "output"},
    "transformer": TRANSFORMER,
    "transformer_post": TRANSFORMER | {"norm_first": False, "activation": "gelu", "tied": False},
    "transformer_rotary": TRANSFORMER
    | {"positions": "rotary", "norm": "rms", "activation": "swiglu"},
    "transformer_learned": TRANSFORMER | {"positions": "learned", "max_positions": 40},
    "transformer_none": TRANSFORMER | {"positions": "none"},
    "edit": RECURRENT | {"kind": "edit"},
    **PUBLISHED,
    "gpt2": TRANSFORMER
    | {"positions": "learned", "max_positions": 40, "activation": "gelu_tanh"}
    | {"scale_embedding": False, "output_bias": False},
}


def config_of(task: str, encoder: str | None = None, decoder: str | None = None) -> Config:
    raw: dict[str, Any] = {"task": {"kind": task}, "data": {"max_len": 40}}
    if task == "language":
        raw["task"]["context"] = 40
    if encoder is not None:
        raw["encoder"] = ENCODERS[encoder]
    if decoder is not None:
        raw["decoder"] = DECODERS[decoder]
    if task in ("classify", "tag"):
        raw["head"] = {"kind": "pooled" if task == "classify" else "per_word", "dropout": 0.0}
    return parse(raw, "test")


def network(
    task: str, encoder: str | None = None, decoder: str | None = None, fusion: str = ""
) -> Network:
    """A small network with random weights, larger than the first ones so that differences show.

    With a kind of fusion it has two sources.
    """
    config = config_of(task, encoder, decoder)
    if fusion:
        settings = config.task.model_copy(update={"columns": {"2": Tokenizer()}, "fusion": fusion})
        config = config.model_copy(update={"task": settings})
    built = build(config, [IDS, IDS] if fusion else [IDS], IDS, seed=3)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return built.eval()


@cache
def generator(encoder: str, decoder: str) -> Generator:
    """One for all tests: nobody changes it."""
    built = network("translate", encoder, decoder)
    assert isinstance(built, Generator)
    return built


@cache
def language_model(decoder: str) -> Generator:
    """One for all tests: nobody changes it."""
    built = network("language", None, decoder)
    assert isinstance(built, Generator)
    return built


# Whatever a search can be given: every decoder with a source, language models, and an ensemble.
SPEAKERS = (*DECODERS, "model lstm_off", "model gru_off", "model transformer", "ensemble")


def begin(speaker: str, source: Padded, banned: Sequence[int] = ()) -> tuple[Step, Any]:
    """The step of a speaker and its state after reading a source; language models read nothing."""
    if speaker == "ensemble":
        parts = [begin(one, source, banned) for one in ("transformer", "lstm_additive_cell")]
        return ensemble([step for step, _ in parts]), tuple(state for _, state in parts)
    kind, _, decoder = speaker.rpartition(" ")
    net = language_model(decoder) if kind else generator("lstm", decoder)
    with torch.inference_mode():
        memory = net.encode(() if kind else (source,))
        state = net.decoder.start(memory, len(source.lengths))
    return stepper(net.decoder, banned), state


def source_batch(lengths: tuple[int, ...] = (7, 3, 5)) -> Padded:
    numbers = torch.Generator().manual_seed(5)
    return pad([torch.randint(5, VOCAB, (n,), generator=numbers).tolist() for n in lengths])
