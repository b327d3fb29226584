"""The parts of a network: encoders, decoders, heads."""

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import ConfigDict, Field, model_validator

from saccade.config.readers import Positive, PositiveFloat, Share, Strict

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"]
# limited, since modules take memory on the meta device, too
Layers = Annotated[int, Field(gt=0, le=256)]


class Recurrent(Strict):
    """What a recurrent encoder and a recurrent decoder have in common."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["elman", "elman_relu", "gru", "lstm"] = "lstm"
    dim: Positive = 256
    num_layers: Layers = 1
    dropout: Share = 0.2
    # DropConnect on the recurrent weights
    weight_dropout: Share = 0.0
    residual: bool = False  # around every layer but the first


class RecurrentEncoder(Recurrent):
    bidirectional: bool = True  # each direction has half the width
    # each direction has its own layers, which never read the other's, as in ELMo
    separate: bool = False
    mix: bool = False  # the memory is a learned mix of the embeddings and all layers, as in ELMo

    @model_validator(mode="after")
    def halves(self) -> Self:
        if self.separate and not self.bidirectional:
            raise ValueError("separate requires bidirectional = true")
        if self.mix and self.num_layers == 1:
            raise ValueError("mix requires num_layers of at least 2")
        if self.bidirectional and self.dim % 2:
            raise ValueError(
                f"dim ({self.dim}) must be even when bidirectional: each direction has half of it"
            )
        return self


class RecurrentDecoder(Recurrent):
    model_config = ConfigDict(serialize_by_alias=True)

    attention: Literal[
        "off", "parameter_free", "dot", "scaled_dot", "general", "concat", "additive"
    ] = "additive"
    # where the context vector is used: Bahdanau 2015, or Luong 2015
    context: Literal["cell", "output"] = "cell"
    # without attention: a linear map of the encoder's last state, which is also an input at every
    # step, or only that state unchanged (Sutskever et al. 2014)
    first_state: Literal["learned", "copied"] = "learned"
    tied: bool = True  # the output layer is the embedding table
    # tokens of the source may be copied (See et al. 2017); BaseModel has a `copy` of its own
    copies: bool = Field(default=False, alias="copy")

    @model_validator(mode="after")
    def enters(self) -> Self:
        single_vector = self.attention == "off" and self.num_layers == 1 and self.cell != "lstm"
        if self.first_state == "copied" and not single_vector:
            raise ValueError(
                "first_state 'copied' is for one layer without attention whose state is one "
                "vector: set attention = 'off', num_layers = 1 and cell = 'gru'"
            )
        if self.attention == "off" and self.context == "output":
            raise ValueError("context = 'output' requires attention: remove 'context'")
        return self


class RotaryScaling(Strict):
    """Scaling of rotary positions for longer contexts than in pre-training."""

    kind: Literal["linear", "llama3"] = "llama3"
    factor: Annotated[float, Field(ge=1.0)] = 8.0  # by which frequencies are divided
    # llama3: frequencies with less than `low` turns in `context` tokens are divided, those with
    # more than `high` are not, those between are interpolated
    low: PositiveFloat = 1.0
    high: PositiveFloat = 4.0
    context: Positive = 8192

    @model_validator(mode="after")
    def ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) must be less than high ({self.high})")
        return self


class Transformer(Strict):
    """What a Transformer encoder and a Transformer decoder have in common."""

    kind: Literal["transformer"] = "transformer"
    dim: Positive = 256
    num_layers: Layers = 3
    num_heads: Positive = 4
    ff_dim: Positive = 1024
    dropout: Share = 0.1
    attention_dropout: Share = 0.0
    norm_first: bool = True  # pre-norm; False is the original's post-norm
    norm: Literal["layer", "rms"] = "layer"
    # gelu_tanh: the approximation of GPT-2; swiglu and geglu are gated, geglu with gelu_tanh
    activation: Activation = "relu"
    # sinusoidal_halves: all sines, then all cosines, as in Marian; relative: biases on scores by
    # distance, as in T5
    positions: Literal[
        "sinusoidal", "sinusoidal_halves", "learned", "rotary", "relative", "none"
    ] = "sinusoidal"
    max_positions: Positive = 1024  # of learned positions; the others are unlimited
    scale_embedding: bool = True  # by sqrt(dim)
    # variants of published networks
    head_dim: Positive | None = None  # None: dim / num_heads
    num_kv_heads: Positive | None = None  # grouped-query attention; None: num_heads
    bias: bool = True  # of the linear layers of blocks
    norm_eps: PositiveFloat | None = None  # None: 1e-5, with rms 1e-6
    norm_embedding: bool = False  # a norm before the first block, as in BERT and BART
    position_offset: Annotated[int, Field(ge=0, le=64)] = 0  # unused rows of learned positions
    rotary_theta: PositiveFloat = 10000.0
    rotary_scaling: RotaryScaling | None = None
    relative_buckets: Annotated[int, Field(ge=4, le=4096)] = 32
    relative_distance: Positive = 128  # all larger ones share the last bucket

    @model_validator(mode="after")
    def divides(self) -> Self:
        if self.head_dim is None and self.dim % self.num_heads:
            raise ValueError(f"dim ({self.dim}) must be divisible by num_heads ({self.num_heads})")
        if self.num_heads % (self.num_kv_heads or 1):
            raise ValueError(
                f"num_heads ({self.num_heads}) must be divisible by "
                f"num_kv_heads ({self.num_kv_heads})"
            )
        width = self.head_dim or self.dim // self.num_heads
        if self.positions == "rotary" and width % 2:
            key = "dim / num_heads" if self.head_dim is None else "head_dim"
            raise ValueError(f"rotary positions need an even head width; {key} is {width}")
        if self.positions.startswith("sinusoidal") and self.dim % 2:
            raise ValueError(f"sinusoidal positions need an even dim, not {self.dim}")
        near = self.relative_buckets // (4 if isinstance(self, TransformerEncoder) else 2)
        if self.relative_distance <= near:
            raise ValueError(
                f"relative_distance ({self.relative_distance}) must be above {near}, the distances "
                f"that have one of the {self.relative_buckets} relative_buckets each"
            )
        return self


class TransformerEncoder(Transformer):
    causal: bool = False  # causal attention, as in a language model
    # segment embeddings, of texts that are divided by separators; 0 is none
    segments: Annotated[int, Field(ge=0, le=1024)] = 0


class TransformerDecoder(Transformer):
    model_config = ConfigDict(serialize_by_alias=True)

    tied: bool = True  # the output layer is the embedding table
    # tokens of the source may be copied (See et al. 2017); BaseModel has a `copy` of its own
    copies: bool = Field(default=False, alias="copy")
    output_bias: bool = True


class EditDecoder(Strict):
    """A transducer that edits the source: copies, substitutes, deletes and inserts."""

    model_config = ConfigDict(serialize_by_alias=True)

    kind: Literal["edit"] = "edit"
    cell: Literal["elman", "elman_relu", "gru", "lstm"] = "lstm"
    dim: Positive = 256
    num_layers: Layers = 1
    dropout: Share = 0.2
    tied: bool = True  # the output layer of substitutions is the embedding table
    # tokens of the source may be copied unchanged; BaseModel has a `copy` of its own
    copies: bool = Field(default=False, alias="copy")


class Convolution(Strict):
    """A stack of gated, residual 1-d convolutions (Gehring et al. 2017)."""

    kind: Literal["convolution"] = "convolution"
    dim: Positive = 256
    num_layers: Layers = 4
    kernel: Positive = 3
    dropout: Share = 0.1
    positions: Literal["sinusoidal", "learned", "none"] = "learned"
    max_positions: Positive = 1024

    @model_validator(mode="after")
    def odd(self) -> Self:
        if self.kernel % 2 == 0:
            raise ValueError(
                f"kernel ({self.kernel}) must be odd, so that the output has the input's length"
            )
        if self.positions == "sinusoidal" and self.dim % 2:
            raise ValueError(f"sinusoidal positions need an even dim, not {self.dim}")
        return self


class Pyramid(Strict):
    """Recurrent layers, each but the first of which halves the length.

    Chan et al. 2016, arxiv.org/abs/1508.01211
    """

    kind: Literal["pyramid"] = "pyramid"
    cell: Literal["elman", "elman_relu", "gru", "lstm"] = "lstm"
    dim: Positive = 256
    num_layers: Layers = 3
    dropout: Share = 0.2

    @model_validator(mode="after")
    def halves(self) -> Self:
        if self.dim % 2:
            raise ValueError(f"dim ({self.dim}) must be even: each direction has half")
        return self


class NoBody(Strict):
    """The stem's vectors are the memory, as in Show, Attend and Tell."""

    kind: Literal["none"] = "none"
    dim: Positive = 256
    dropout: Share = 0.1


Encoder = Annotated[
    RecurrentEncoder | TransformerEncoder | Convolution | Pyramid | NoBody,
    Field(discriminator="kind"),
]
Decoder = Annotated[
    RecurrentDecoder | TransformerDecoder | EditDecoder, Field(discriminator="kind")
]


class Pooled(Strict):
    """One label, or one vector of numbers: the memory is pooled into one vector."""

    kind: Literal["pooled"] = "pooled"
    pool: Literal["last", "first", "mean", "max", "attention"] = "attention"
    # a linear layer with this activation after pooling: BERT's pooler is first and tanh
    dense: Literal["off", "tanh", "relu"] = "off"
    dropout: Share = 0.2


class PerWord(Strict):
    """A label, or numbers, for each word."""

    kind: Literal["per_word"] = "per_word"
    dropout: Share = 0.2


class PerToken(Strict):
    """A token of the vocabulary for each position, as in a masked language model."""

    kind: Literal["per_token"] = "per_token"
    # a linear layer with this activation and a norm before the output, as in BERT
    dense: Literal["off", "relu", "gelu", "gelu_tanh"] = "gelu"
    norm_eps: PositiveFloat = 1e-5
    tied: bool = True  # the output layer is the embedding table


class Horizon(Strict):
    """All steps of a forecast at once; without an encoder, a linear map of the look-back."""

    kind: Literal["horizon"] = "horizon"
    # a linear map of each series' look-back, shared by all series (Zeng et al. 2023)
    shortcut: bool = True
    pool: Literal["last", "mean", "max", "attention"] = "mean"  # of the encoder's memory
    dropout: Share = 0.0
    # of the beta-NLL loss: 0 is the likelihood, with 1 means are trained by squared error (Seitzer
    # et al. 2022)
    beta: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0


HEADS = {  # type of target -> kind of head, unless the task overrides it
    "label": "pooled",
    "labels": "per_word",
    "numbers": "pooled",
    "future": "horizon",
}
Head = Annotated[Pooled | PerWord | PerToken | Horizon, Field(discriminator="kind")]


class Frame(Strict):
    """Normalisation of a window, which is undone in its forecast."""

    # subtracted from a window: its last value (NLinear), its mean (RevIN), or nothing
    centre: Literal["last", "mean", "none"] = "last"
    scale: bool = True  # divided by the window's deviation
    cycle: bool = False  # a learned cycle of task.season steps for each series (CycleNet)


class Gaussian(Strict):
    """Independent Gaussians, each with a mean and a deviation."""

    kind: Literal["gaussian"] = "gaussian"
    floor: PositiveFloat = 1e-3  # of a deviation, in units of the training data's


class Mixture(Strict):
    """A mixture of Gaussians over all numbers jointly, for multimodal targets."""

    kind: Literal["mixture"] = "mixture"
    components: Annotated[int, Field(gt=0, le=1024)] = 20
    floor: PositiveFloat = 1e-3  # of a deviation, in units of the training data's


Output = Annotated[Gaussian | Mixture, Field(discriminator="kind")]


class Reals(NamedTuple):
    """What a network must know of a target of numbers: how many, and which are 0 or 1."""

    size: int
    binary: tuple[int, ...] = ()
