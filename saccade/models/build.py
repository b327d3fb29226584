"""Configurations -> networks: one `match` per union, and the initialisation of every layer.

A network is first built on the meta device, without memory; `materialize` gives it storage and
initial weights. `build` does both.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias, assert_never

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from saccade import config as c
from saccade.models import decoders, encoders, forecaster, heads
from saccade.models.networks import (
    BidirectionalLM,
    Classifier,
    Generator,
    Network,
    Regressor,
    Tagger,
    TokenPredictor,
)
from saccade.models.vectors import WordVectors
from saccade.nn import attention, bodies, distributions, horizon, positions, stems
from saccade.nn.convolution import GatedConvolution
from saccade.nn.dropout import WordDropout
from saccade.nn.lora import AdaptedLinear, adapt
from saccade.nn.loss import Vocabulary
from saccade.nn.pointer import Pointer
from saccade.nn.products import Linear
from saccade.nn.recurrent import LayerMix, Recurrent, Separate, build_layer
from saccade.nn.stems import Embedding
from saccade.nn.transformer import Block, CausalStack, build_norm
from saccade.text.vocab import Inventory, Specials

END = Specials._fields.index("eos")  # among the special ids of text
SEPARATOR = Specials._fields.index("sep")
Source: TypeAlias = Inventory | c.Vectors  # what a network has to know about one: ids, or vectors
Target: TypeAlias = Inventory | c.Reals  # the same of a target: ids, or numbers


def build(
    config: c.Config,
    sources: Sequence[Source],
    target: Target,
    seed: int | None = None,
) -> Network:
    """A configuration's network, initialised, for these sets of ids or labels."""
    seed = config.seed if seed is None else seed
    return materialize(build_meta(config, sources, target), seed)


def build_meta(config: c.Config, sources: Sequence[Source], target: Target) -> Network:
    """A configuration's network without memory: shapes alone, on the meta device."""
    with torch.device("meta"), NoInit():
        network = build_network(config, sources, target)
        if isinstance(start := config.start, c.LowRank):
            adapt(network, start.products, start.rank, start.alpha, start.dropout)
    return network


class NoInit(TorchFunctionMode):
    """Skips the initialisation in torch's layers.

    On the meta device it does nothing, but imports torch's compiler, which takes a second.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if getattr(func, "__module__", "") == "torch.nn.init" or name in ("uniform_", "normal_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def materialize(network: Network, seed: int) -> Network:
    """A network on the meta device, with storage and initial weights."""
    allocate(network, torch.device("cpu"))
    torch.manual_seed(seed)
    init_weights(network)
    return network


def build_network(config: c.Config, sources: Sequence[Source], target: Target) -> Network:
    """The network of a configuration, on the current device, not initialised."""
    train = config.train
    encoder = None
    if config.encoder is not None:
        encoder = build_encoders(config.encoder, sources, train.word_dropout, config.task.early)
    match config.task:
        case c.LanguageModel() | c.Translate():
            assert isinstance(target, Inventory)
            return build_generator(config, encoder, target)
        case c.Pretrain():
            assert isinstance(target, Inventory)
            if isinstance(objective := config.task.objective, c.Word2Vec):
                assert isinstance(encoder, encoders.Encoder)
                cbow = isinstance(objective, c.Cbow)
                return WordVectors(encoder, cbow, objective.negatives, train.rate)
            if not isinstance(config.head, c.PerToken):
                return build_generator(config, encoder, target)
            assert isinstance(encoder, encoders.Encoder)
            assert isinstance(encoder.stem, stems.TextStem)
            embedding = encoder.stem.embedding
            if isinstance(config.task.objective, c.Bidirectional):
                token_head = build_token_head(config.head, embedding, encoder.dim // 2)
                return BidirectionalLM(encoder, token_head, label_smoothing=train.label_smoothing)
            token_head = build_token_head(config.head, embedding, encoder.dim)
            pair, weight = build_pair_head(config.task, encoder.dim)
            smoothing = train.label_smoothing
            return TokenPredictor(
                encoder, token_head, pair, pair_weight=weight, label_smoothing=smoothing
            )
        case c.Classify():
            assert config.head is not None
            assert encoder is not None
            head = build_head(config.head, encoder.dim, Linear(encoder.dim, target.size))
            return Classifier(
                encoder, head, label_smoothing=train.label_smoothing, rdrop=train.rdrop
            )
        case c.Tag():
            assert config.head is not None
            assert encoder is not None
            head = build_head(config.head, encoder.dim, Linear(encoder.dim, target.size))
            return Tagger(encoder, head, label_smoothing=train.label_smoothing, rdrop=train.rdrop)
        case c.Regress():
            assert config.head is not None
            assert config.output is not None
            assert encoder is not None
            assert isinstance(target, c.Reals)
            output = build_output(config.output, encoder.dim, target)
            return Regressor(encoder, build_head(config.head, encoder.dim, output))
        case c.Series():
            assert config.decoder is not None
            assert config.output is not None
            assert encoder is not None
            assert isinstance(target, c.Reals)
            io = number_io(config.decoder, config.output, target)
            return Generator(encoder, build_decoder(config.decoder, io, encoder.dim))
        case c.Forecast():
            assert isinstance(target, Inventory)
            return build_forecaster(config, config.task, encoder, target.size)
        case _:
            assert_never(config.task)


def build_generator(
    config: c.Config, encoder: encoders.AnyEncoder | None, target: Inventory
) -> Generator:
    """A decoder of text, after an encoder if there is one."""
    assert config.decoder is not None
    memory_dim = None if encoder is None else encoder.dim
    io = token_io(config.decoder, target, config.train.word_dropout)
    end = target.special[END] if target.special else 0
    decoder = build_decoder(config.decoder, io, memory_dim, end)
    if config.decoder.copies and not isinstance(config.decoder, c.EditDecoder):
        assert memory_dim is not None
        decoder.pointer = Pointer(decoder.dim, memory_dim)
    shared = isinstance(config.task, c.Pretrain) and encoder is not None
    if shared or (isinstance(config.task, c.Translate) and config.task.joint):
        assert encoder is not None
        stem = encoder.first_stem
        assert isinstance(stem, stems.TextStem)
        assert isinstance(io.embedding, Embedding)
        stem.embedding.weight = io.embedding.weight
    monotone = words = None
    if config.train.bag and encoder is not None:
        words = heads.BagOfWords(encoder.dim, target.size)
    if config.train.ctc and encoder is not None:
        monotone = heads.CTCHead(encoder.dim, target.size, target.special[0])
    return Generator(
        encoder,
        decoder,
        monotone=monotone,
        ctc=config.train.ctc,
        words=words,
        bag=config.train.bag,
        rdrop=config.train.rdrop,
        label_smoothing=config.train.label_smoothing,
        scheduled_sampling=config.train.scheduled_sampling,
        special=target.special,
    )


def build_forecaster(
    config: c.Config, task: c.Forecast, encoder: encoders.AnyEncoder | None, series: int
) -> forecaster.AnyForecaster:
    """The network of a forecast, for `series` series."""
    assert task.lookback
    assert task.horizon
    assert task.season
    assert encoder is None or isinstance(encoder, encoders.Encoder)
    S, H, covariates = task.lookback, task.horizon, c.covariate_sets(task, series)
    channels = series if task.channels == "joint" else 1
    past, known = covariates * len(task.past), covariates * len(task.known)
    effects = horizon.Effects(series, task.season if task.frame.cycle else 1, known)
    frame = forecaster.WindowFrame(
        S, H, channels, known, effects, task.frame.centre, task.frame.scale
    )
    if config.decoder is not None:
        assert config.output is not None
        assert encoder is not None
        io = number_io(config.decoder, config.output, c.Reals(channels))
        decoder = build_decoder(config.decoder, io, encoder.dim)
        return forecaster.StepForecaster(frame, encoder, decoder)
    head, settings = None, config.head
    assert isinstance(settings, c.Horizon)
    if encoder is not None:
        output = nn.Linear(encoder.dim, 2 * H * channels)
        head = heads.Pooled(encoder.dim, output, settings.pool, settings.dropout)
    shortcut = horizon.Shortcut(S, H, past) if settings.shortcut else None
    spread = horizon.ForecastScale(series, H)
    return forecaster.Forecaster(frame, shortcut, encoder, head, spread, settings.beta)


def build_encoders(
    config: c.Encoder,
    sources: Sequence[Source],
    word_dropout: float,
    early: bool,
) -> encoders.AnyEncoder:
    """An encoder of one source, or of several."""
    ordered = [is_ordered(source) for source in sources]
    if len(sources) > 1 and early:
        read = [build_stem(config, source, word_dropout) for source in sources]
        return encoders.EarlyFusion(read, build_body(config), config.dim, ordered)
    each = [build_encoder(config, source, word_dropout) for source in sources]
    return each[0] if len(each) == 1 else encoders.LateFusion(each)


def build_encoder(
    config: c.Encoder,
    source: Source,
    word_dropout: float = 0.0,
) -> encoders.Encoder:
    """A stem for the source, and the body that the configuration names."""
    stem = build_stem(config, source, word_dropout)
    return encoders.Encoder(stem, build_body(config), config.dim)


def is_ordered(source: Source) -> bool:
    """Whether the positions of a source are ordered."""
    return not isinstance(source, Inventory) or source.ordered


def build_stem(
    config: c.Encoder,
    source: Source,
    word_dropout: float,
) -> nn.Module:
    if isinstance(source, Inventory):
        scaled = not isinstance(config, c.TransformerEncoder) or config.scale_embedding
        embedding = Embedding(source.size, config.dim, scaled)
        segments = config.segments if isinstance(config, c.TransformerEncoder) else 0
        separator = source.special[SEPARATOR] if len(source.special) > SEPARATOR else -1
        words = build_word_dropout(source, word_dropout)
        if source.spelled:
            return stems.SpelledStem(embedding, words)
        return stems.TextStem(embedding, words, segments, separator)
    reader, size, dim = source.reader, source.size, config.dim
    match reader:
        case c.Numbers(stride=1) | c.Sound(stride=1):
            return stems.LinearStem(size, dim)
        case c.Numbers() | c.Sound():
            return stems.StridedStem(size, dim, reader.stride)
        case c.Picture(stem="patches"):
            return stems.PatchStem(size, reader.grid, dim)
        case c.Picture():
            colours, cell = reader.colours, reader.cell
            shape = reader.channels, reader.blocks, reader.standardised
            return stems.ResidualStem(colours, reader.grid, cell, dim, *shape)
        case _:
            assert_never(reader)


def build_body(
    config: c.Encoder,
) -> bodies.Body:
    match config:
        case c.RecurrentEncoder():
            mix = LayerMix(config.num_layers + 1) if config.mix else None
            return bodies.RecurrentBody(build_recurrent(config), config.dropout, mix)
        case c.TransformerEncoder():
            parts = build_positions(config), build_blocks(config, None), build_last_norm(config)
            body = bodies.TransformerBody(*parts, config.dropout, build_first_norm(config))
            body.causal = config.causal
            return body
        case c.Convolution():
            return bodies.ConvolutionBody(
                build_positions(config),
                [
                    GatedConvolution(config.dim, config.kernel, config.dropout)
                    for _ in range(config.num_layers)
                ],
                config.dropout,
            )
        case c.Pyramid():
            width = [config.dim, *[2 * config.dim] * (config.num_layers - 1)]
            stack = [
                build_layer(config.cell, n, config.dim // 2, bidirectional=True) for n in width
            ]
            return bodies.PyramidBody(stack, config.dropout)
        case c.NoBody():
            return bodies.NoBody(config.dropout)
        case _:
            assert_never(config)


def build_recurrent(config: c.RecurrentEncoder) -> Recurrent | Separate:
    """The layers of an encoder; separate directions have half of the width each."""

    def stack(width: int, both: bool) -> Recurrent:
        return Recurrent(
            config.cell,
            config.dim,
            width,
            config.num_layers,
            bidirectional=both,
            dropout=config.dropout,
            weight_dropout=config.weight_dropout,
            residual=config.residual,
        )

    if config.separate:
        return Separate(stack(config.dim // 2, False), stack(config.dim // 2, False))
    return stack(config.dim, config.bidirectional)


def build_decoder(
    config: c.Decoder,
    io: decoders.TokenIO,
    memory_dim: int | None,
    end: int = 0,
) -> decoders.Decoder:
    match config:
        case c.RecurrentDecoder():
            off = config.attention == "off" or memory_dim is None
            reads_context = memory_dim is not None and (off or config.context == "cell")
            reads_context = reads_context and config.first_state == "learned"
            layers = Recurrent(
                config.cell,
                config.dim + (memory_dim if reads_context and memory_dim else 0),
                config.dim,
                config.num_layers,
                dropout=config.dropout,
                weight_dropout=config.weight_dropout,
                residual=config.residual,
            )
            return decoders.RecurrentDecoder(
                io,
                layers,
                memory_dim=memory_dim,
                attention=None if off else build_attention(config, memory_dim or 0),
                context_in_cell=config.context == "cell",
                copied=config.first_state == "copied",
                dropout=config.dropout,
            )
        case c.TransformerDecoder():
            blocks = build_blocks(config, memory_dim)
            parts = build_positions(config), blocks, build_last_norm(config)
            stack = CausalStack(*parts, config.dropout, build_first_norm(config))
            return decoders.TransformerDecoder(io, stack)
        case c.EditDecoder():
            assert memory_dim is not None
            layers = Recurrent(
                config.cell, config.dim, config.dim, config.num_layers, dropout=config.dropout
            )
            return decoders.EditDecoder(
                io,
                layers,
                memory_dim=memory_dim,
                end=end,
                copies=config.copies,
                dropout=config.dropout,
            )
        case _:
            assert_never(config)


def token_io(config: c.Decoder, target: Inventory, word_dropout: float) -> decoders.TokenIO:
    """An embedding table and an output layer, which may be tied."""
    scaled = not isinstance(config, c.TransformerDecoder) or config.scale_embedding
    embedding = Embedding(target.size, config.dim, scaled)
    biased = not isinstance(config, c.TransformerDecoder) or config.output_bias
    output = Vocabulary(config.dim, target.size, bias=biased)
    if config.tied:
        output.weight = embedding.weight
    return decoders.TokenIO(embedding, build_word_dropout(target, word_dropout), output)


def number_io(config: c.Decoder, output: c.Output, target: c.Reals) -> decoders.TokenIO:
    """A linear embedding of numbers, and a distribution of the next ones as output."""
    embedding = stems.NumberEmbedding(target.size, config.dim)
    return decoders.TokenIO(embedding, nn.Identity(), build_output(output, config.dim, target))


def build_head(
    config: c.Pooled | c.PerWord | c.Horizon | c.PerToken, dim: int, output: nn.Module
) -> heads.Pooled | heads.PerWord:
    match config:
        case c.Pooled():
            return heads.Pooled(dim, output, config.pool, config.dropout, config.dense)
        case c.Horizon():
            return heads.Pooled(dim, output, config.pool, config.dropout)
        case c.PerWord():
            return heads.PerWord(output, config.dropout)
        case c.PerToken():
            raise AssertionError("`build_token_head` makes heads for tokens")
        case _:
            assert_never(config)


def build_token_head(config: c.PerToken, embedding: Embedding, dim: int) -> heads.PerToken:
    """The head of a masked language model; its output may be the embedding table."""
    width = dim if config.dense == "off" else embedding.embedding_dim
    output = Vocabulary(width, embedding.num_embeddings)
    if config.tied:
        output.weight = embedding.weight
    return heads.PerToken(dim, output, config.dense, config.norm_eps)


def build_pair_head(task: c.Pretrain, dim: int) -> tuple[heads.Pooled | None, float]:
    """BERT's next-sentence head, with its weight: that of the tokens predicted in a row."""
    if not isinstance(task.objective, c.Masked) or not task.objective.next_sentence:
        return None, 0.0
    head = heads.Pooled(dim, Linear(dim, 2), "first", 0.1, "tanh")
    return head, task.objective.share * task.context


def build_output(config: c.Output, dim: int, target: c.Reals) -> distributions.Distribution:
    match config:
        case c.Gaussian():
            return distributions.Gaussian(dim, target.size, target.binary, config.floor)
        case c.Mixture():
            components = config.components
            return distributions.Mixture(dim, target.size, components, target.binary, config.floor)
        case _:
            assert_never(config)


def build_word_dropout(ids: Inventory, share: float) -> WordDropout:
    return WordDropout(share, ids.unk, ids.special)


def build_last_norm(config: c.Transformer) -> nn.Module:
    if not config.norm_first:
        return nn.Identity()
    return build_norm(config.norm, config.dim, config.norm_eps)


def build_first_norm(config: c.Transformer) -> nn.Module | None:
    """The norm of the embeddings, if there is one."""
    return build_norm(config.norm, config.dim, config.norm_eps) if config.norm_embedding else None


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


def rotary_frequencies(config: c.Transformer) -> positions.RotaryFrequencies:
    """The frequencies of rotary positions."""
    match config.rotary_scaling:
        case None:
            return positions.RotaryFrequencies(config.rotary_theta)
        case c.RotaryScaling(kind="linear") as scaling:
            return positions.RotaryFrequencies(config.rotary_theta, scaling.factor)
        case scaling:
            limits = scaling.low, scaling.high, scaling.context
            return positions.RotaryFrequencies(config.rotary_theta, scaling.factor, *limits)


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
            rotary_frequencies=rotary_frequencies(config),
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            bias=config.bias,
            norm_eps=config.norm_eps,
        )
        for _ in range(config.num_layers)
    ]


def build_positions(config: c.Transformer | c.Convolution) -> nn.Module:
    match config.positions:
        case "sinusoidal":
            return positions.Sinusoidal(config.dim)
        case "sinusoidal_halves":
            return positions.Sinusoidal(config.dim, halves=True)
        case "learned":
            skipped = config.position_offset if isinstance(config, c.Transformer) else 0
            return positions.Learned(config.max_positions, config.dim, skipped)
        case "relative":
            assert isinstance(config, c.Transformer)
            buckets, farthest = config.relative_buckets, config.relative_distance
            both = isinstance(config, c.TransformerEncoder) and not config.causal
            return positions.Relative(config.num_heads, buckets, farthest, both)
        case "rotary" | "none":  # rotary positions are applied to queries and keys, in each layer
            return positions.Unmarked()


def allocate(network: nn.Module, device: torch.device) -> None:
    """Uninitialised storage for a network built on the meta device; tied weights stay tied.

    `nn.Module.to_empty` does the same by way of sympy, whose import takes half a second.
    """
    tensors: dict[int, Tensor] = {}
    parameters = network.named_parameters(remove_duplicate=False)
    for name, old in [*parameters, *network.named_buffers(remove_duplicate=False)]:
        if id(old) not in tensors:
            new = torch.empty(old.shape, dtype=old.dtype, device=device)
            is_parameter = isinstance(old, nn.Parameter)
            tensors[id(old)] = nn.Parameter(new, old.requires_grad) if is_parameter else new
        owner, _, leaf = name.rpartition(".")
        setattr(network.get_submodule(owner), leaf, tensors[id(old)])


def init_weights(network: nn.Module) -> None:
    """Fill every parameter: by the kind of layer, from torch's generator, in a fixed order."""
    tables = {id(m.weight) for m in network.modules() if isinstance(m, nn.Embedding)}
    for module in network.modules():
        match module:
            case Embedding():
                nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
            case horizon.Effects() | horizon.Shortcut() | horizon.ForecastScale() | LayerMix():
                module.reset_parameters()
            case nn.Embedding():
                nn.init.normal_(module.weight, std=0.02)
            case nn.RNNBase():
                _init_recurrent(module)
            case nn.Linear() | nn.Conv1d():
                if id(module.weight) not in tables:  # a tied output layer is an embedding
                    nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            case nn.Conv2d():  # ReLUs follow, which halve the variance
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            case nn.LayerNorm() | nn.RMSNorm() | nn.GroupNorm():
                module.reset_parameters()
    for module in network.modules():
        match module:
            case stems.NumberEmbedding():  # numbers of variance 1 give vectors of variance 1
                std = (module.linear.in_features / 2) ** -0.5
                nn.init.normal_(module.linear.weight, std=std)
            case distributions.Mixture():
                module.spread_means()
            case AdaptedLinear():
                module.init_adapter()
            case WordVectors():
                module.reset_parameters()


def _init_recurrent(layer: nn.RNNBase) -> None:
    for name, weight in layer.named_parameters():
        if "weight_ih" in name:
            nn.init.xavier_uniform_(weight)
        elif "weight_hh" in name:  # gate by gate: an orthogonal map keeps the norm of the state
            for gate in torch.split(weight, layer.hidden_size):
                nn.init.orthogonal_(gate)
        else:
            nn.init.zeros_(weight)
            if isinstance(layer, nn.LSTM) and "bias_ih" in name:
                weight.data[layer.hidden_size : 2 * layer.hidden_size] = 1.0  # the forget gate
