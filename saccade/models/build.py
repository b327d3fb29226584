"""Configurations -> networks: one `match` per union, and the first weights of every layer.

A network is first built, without memory, on the meta device; `materialize` gives it storage and
its first weights. `build` does both.
"""

from typing import assert_never

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade import config as c
from saccade.models import decoders, encoders, heads
from saccade.nn import attention, positions
from saccade.nn.convolution import GatedConvolution
from saccade.nn.loss import Loss
from saccade.nn.padded import Memory, Padded
from saccade.nn.recurrent import Recurrent
from saccade.nn.transformer import Block, build_norm


class Generator(nn.Module):
    """A decoder, after an encoder or, as a language model, alone."""

    def __init__(self, encoder: encoders.Encoder | None, decoder: decoders.Decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(
        self, source: Padded | None, tokens: Int[Tensor, "B T"], targets: Padded, smoothing: float
    ) -> Loss:
        """Teacher forcing: the loss of `targets` when the decoder reads `tokens`."""
        state = self.decoder.start(self.encode(source), tokens.size(0))
        return self.decoder.loss(tokens, targets, state, smoothing)[0]

    def encode(self, source: Padded | None) -> Memory | None:
        """The memory of a source; None of none."""
        return None if self.encoder is None or source is None else self.encoder(source)


class Classifier(nn.Module):
    """An encoder and a pooled head: (B, labels)."""

    def __init__(self, encoder: encoders.Encoder, head: heads.Pooled):
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, source: Padded) -> Float[Tensor, "B labels"]:
        return self.head(self.encoder(source))  # type: ignore[no-any-return]


class Tagger(nn.Module):
    """An encoder and a head for each word: (B, words, labels)."""

    def __init__(self, encoder: encoders.Encoder, head: heads.PerWord):
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, source: Padded, words: Int[Tensor, "B S"]) -> Float[Tensor, "B words labels"]:
        return self.head(self.encoder(source), words)  # type: ignore[no-any-return]


Network = Generator | Classifier | Tagger


def build(config: c.Config, source_size: int, target_size: int, seed: int | None = None) -> Network:
    """A configuration's network with its first weights; the sizes are of vocabularies or labels."""
    return materialize(
        build_meta(config, source_size, target_size), config.seed if seed is None else seed
    )


def build_meta(config: c.Config, source_size: int, target_size: int) -> Network:
    """A configuration's network without memory: shapes alone, on the meta device."""
    with torch.device("meta"):
        return build_network(config, source_size, target_size)


def materialize(network: Network, seed: int) -> Network:
    """The network on the meta device, with memory and its first weights."""
    allocate(network, torch.device("cpu"))
    torch.manual_seed(seed)
    init_weights(network)
    return network


def build_network(config: c.Config, source_size: int, target_size: int) -> Network:
    """The network of a configuration, on the current device, with no particular weights."""
    encoder = None if config.encoder is None else build_encoder(config.encoder, source_size)
    match config.task:
        case c.LanguageModel():
            assert config.decoder is not None
            return Generator(None, build_decoder(config.decoder, target_size, None))
        case c.Translate():
            assert config.decoder is not None
            assert encoder is not None
            decoder = build_decoder(config.decoder, target_size, encoder.dim)
            if config.task.joint:
                encoder.embedding.weight = decoder.embedding.weight
            return Generator(encoder, decoder)
        case c.Classify():
            assert isinstance(config.head, c.Pooled)
            assert encoder is not None
            head = config.head
            return Classifier(
                encoder, heads.Pooled(encoder.dim, target_size, head.pool, head.dropout)
            )
        case c.Tag():
            assert isinstance(config.head, c.PerWord)
            assert encoder is not None
            return Tagger(encoder, heads.PerWord(encoder.dim, target_size, config.head.dropout))
        case _:
            assert_never(config.task)


def build_encoder(
    config: c.RecurrentEncoder | c.TransformerEncoder | c.Convolution, vocab_size: int
) -> encoders.Encoder:
    match config:
        case c.RecurrentEncoder():
            layers = Recurrent(
                config.cell,
                config.dim,
                config.dim,
                config.num_layers,
                bidirectional=config.bidirectional,
                dropout=config.dropout,
                residual=config.residual,
            )
            embedding = encoders.Embedding(vocab_size, config.dim, scaled=True)
            return encoders.RecurrentEncoder(embedding, layers, config.dropout)
        case c.TransformerEncoder():
            return encoders.TransformerEncoder(
                encoders.Embedding(vocab_size, config.dim, config.scale_embedding),
                build_positions(config),
                build_blocks(config, None),
                build_norm(config.norm, config.dim) if config.norm_first else nn.Identity(),
                config.dropout,
            )
        case c.Convolution():
            return encoders.ConvolutionEncoder(
                encoders.Embedding(vocab_size, config.dim, scaled=True),
                build_positions(config),
                [
                    GatedConvolution(config.dim, config.kernel, config.dropout)
                    for _ in range(config.num_layers)
                ],
                config.dropout,
            )
        case _:
            assert_never(config)


def build_decoder(
    config: c.RecurrentDecoder | c.TransformerDecoder, vocab_size: int, memory_dim: int | None
) -> decoders.Decoder:
    match config:
        case c.RecurrentDecoder():
            off = config.attention == "off" or memory_dim is None
            reads_context = memory_dim is not None and (off or config.context == "cell")
            layers = Recurrent(
                config.cell,
                config.dim + (memory_dim if reads_context and memory_dim else 0),
                config.dim,
                config.num_layers,
                dropout=config.dropout,
                residual=config.residual,
            )
            return decoders.RecurrentDecoder(
                encoders.Embedding(vocab_size, config.dim, scaled=True),
                layers,
                memory_dim=memory_dim,
                attention=None if off else build_attention(config, memory_dim or 0),
                context_in_cell=config.context == "cell",
                dropout=config.dropout,
                tied=config.tied,
            )
        case c.TransformerDecoder():
            return decoders.TransformerDecoder(
                encoders.Embedding(vocab_size, config.dim, config.scale_embedding),
                build_positions(config),
                build_blocks(config, memory_dim),
                build_norm(config.norm, config.dim) if config.norm_first else nn.Identity(),
                config.dropout,
                config.tied,
            )
        case _:
            assert_never(config)


def build_attention(config: c.RecurrentDecoder, memory_dim: int) -> attention.Attention:
    scores: dict[str, type[attention.Score]] = {
        "parameter_free": attention.ParameterFree,
        "dot": attention.Dot,
        "scaled_dot": attention.ScaledDot,
        "general": attention.General,
        "concat": attention.Concat,
        "additive": attention.Additive,
    }
    return attention.Attention(scores[config.attention](config.dim, memory_dim))


def build_blocks(config: c.Transformer, memory_dim: int | None) -> list[Block]:
    return [
        Block(
            config.dim,
            config.num_heads,
            config.ff_dim,
            memory_dim=memory_dim,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            norm_first=config.norm_first,
            norm=config.norm,
            activation=config.activation,
            rotary=config.positions == "rotary",
        )
        for _ in range(config.num_layers)
    ]


def build_positions(config: c.Transformer | c.Convolution) -> nn.Module:
    match config.positions:
        case "sinusoidal":
            return positions.Sinusoidal(config.dim)
        case "learned":
            return positions.Learned(config.max_positions, config.dim)
        case "rotary" | "none":  # rotary positions are applied to queries and keys, in each layer
            return positions.Unmarked()


def allocate(network: nn.Module, device: torch.device) -> None:
    """Uninitialised storage for a network built on the meta device; what was tied stays tied."""
    first: dict[int, str] = {}
    tied: list[tuple[str, str]] = []
    for name, parameter in network.named_parameters(remove_duplicate=False):
        original = first.setdefault(id(parameter), name)
        if original != name:
            tied.append((name, original))
    network.to_empty(device=device)
    for name, original in tied:
        owner, _, leaf = name.rpartition(".")
        setattr(network.get_submodule(owner), leaf, network.get_parameter(original))


def init_weights(network: nn.Module) -> None:
    """Fill every parameter: by the kind of layer, from torch's generator, in a fixed order."""
    tables = {id(m.weight) for m in network.modules() if isinstance(m, nn.Embedding)}
    for module in network.modules():
        match module:
            case encoders.Embedding():
                nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
            case nn.Embedding():
                nn.init.normal_(module.weight, std=0.02)
            case nn.RNNBase():
                _init_recurrent(module)
            case nn.Linear() | nn.Conv1d():
                if id(module.weight) not in tables:  # a tied output layer is an embedding
                    nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            case nn.LayerNorm() | nn.RMSNorm():
                module.reset_parameters()


def _init_recurrent(layer: nn.RNNBase) -> None:
    for name, weight in layer.named_parameters():
        if "weight_ih" in name:
            nn.init.xavier_uniform_(weight)
        elif "weight_hh" in name:  # gate by gate: a rotation neither shrinks nor swells the state
            for gate in torch.split(weight, layer.hidden_size):
                nn.init.orthogonal_(gate)
        else:
            nn.init.zeros_(weight)
            if isinstance(layer, nn.LSTM) and "bias_ih" in name:
                weight.data[layer.hidden_size : 2 * layer.hidden_size] = 1.0  # remember, at first
