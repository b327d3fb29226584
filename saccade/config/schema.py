"""Every choice a user can make, as frozen, strict models.

A configuration names a task, its data, the parts of a network, and how to train and decode.
Alternatives are tagged unions (`kind`), so the type is the registry.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import Field, model_validator

from saccade.config.readers import (
    NonNegative,
    Numbers,
    Positive,
    PositiveFloat,
    Reader,
    Share,
    Strict,
    Tokenizer,
)

Layers = Annotated[int, Field(gt=0, le=256)]  # so that even a network on the meta device has an end
# Bounds of what a search may take, so that no setting is the end of a machine.
MAX_HYPOTHESES = 1000  # of one input
MAX_SEARCH_TOKENS = 1 << 22  # of all hypotheses of one input
Hypotheses = Annotated[int, Field(gt=0, le=MAX_HYPOTHESES)]
Tuple = Annotated[tuple[str, ...], Field(strict=False)]  # TOML has lists, frozen models want tuples
Column = int | str


# --- tasks ----------------------------------------------------------------------------------------

Part = Literal["encoder", "decoder", "head"]
TargetType = Literal["none", "text", "label", "labels"]  # labels: one for each word of the source


class Source(NamedTuple):
    """A source of a task: its reader, and which of an example's columns it reads, from 0."""

    reader: Reader
    columns: tuple[int, ...]


class TaskSettings(Strict):
    """What a task tells the rest of the toolkit about itself."""

    tables: ClassVar[tuple[Part, ...]]  # the parts of its network
    target_type: ClassVar[TargetType]  # what an example has beside its source

    @property
    def reader(self) -> Tokenizer:
        """The tokenizer of every source column that has none of its own."""
        found: Tokenizer = getattr(self, "source" if hasattr(self, "source") else "tokenizer")
        return found

    @property
    def early(self) -> bool:
        """Whether several sources are read as one sequence."""
        return bool(self.own) and getattr(self, "fusion", "") == "early"

    @property
    def own(self) -> dict[str, Reader]:
        """The readers of the source columns that are sources of their own."""
        return getattr(self, "columns", {})

    def sources(self, names: Sequence[Column]) -> list[Source]:
        """The sources that these columns make: those without a table of their own are one."""
        apart = [i for i, name in enumerate(names) if str(name) in self.own]
        rest = tuple(i for i in range(len(names)) if i not in apart)
        joined = [Source(self.reader, rest)] if rest or not apart else []
        return joined + [Source(self.own[str(names[i])], (i,)) for i in apart]

    def texts(self, names: Sequence[Column]) -> list[Source]:
        """The same, and with what a target that is text is read: the column after the last."""
        return self.sources(names)


class LanguageModel(TaskSettings):
    """Plain text; the next token. Perplexity and bits per character; completes a prefix."""

    tables = ("decoder",)
    target_type = "none"

    kind: Literal["language"] = "language"
    tokenizer: Tokenizer = Tokenizer(kind="char")
    # another run's target.json or tokenizer.json, so that the two can speak together
    vocabulary: str = ""
    # the window of a Transformer, the length of truncated back-propagation of an RNN
    context: Annotated[int, Field(gt=0, le=1 << 20)] = 128


class Classify(TaskSettings):
    """A source to a label; several text columns are read one after the other."""

    tables = ("encoder", "head")
    target_type = "label"

    kind: Literal["classify"] = "classify"
    tokenizer: Tokenizer = Tokenizer(kind="word", size=30000, split_punctuation=True)
    columns: dict[str, Reader] = Field(default={})  # of data.source, each a source of its own
    # early: one body reads all sources end to end; late: each has its own, and memories are joined
    fusion: Literal["early", "late"] = "early"


class Tag(TaskSettings):
    """A label for every word, or for every step of a series of numbers."""

    tables = ("encoder", "head")
    target_type = "labels"

    kind: Literal["tag"] = "tag"
    tokenizer: Tokenizer = Tokenizer(kind="bpe", size=4000)
    columns: dict[str, Reader] = Field(default={})  # the source, where it is a series of numbers

    @model_validator(mode="after")
    def steps(self) -> Self:
        for name, reader in self.columns.items():
            if not isinstance(reader, Numbers) or reader.stride > 1 or len(self.columns) > 1:
                raise ValueError(
                    f"columns.{name}: a label stands at each word, or at each step of one series "
                    "of numbers with stride = 1"
                )
        return self


class Translate(TaskSettings):
    """Any source to text, whatever the two are."""

    tables = ("encoder", "decoder")
    target_type = "text"

    kind: Literal["translate"] = "translate"
    source: Tokenizer = Tokenizer()
    target: Tokenizer = Tokenizer()
    columns: dict[str, Reader] = Field(default={})  # of data.source, each a source of its own
    # early: one body reads all sources end to end; late: each has its own, and memories are joined
    fusion: Literal["early", "late"] = "early"
    joint: bool = False  # one vocabulary, trained on both sides, and one embedding table
    # the best model is by this
    metric: Literal["bleu", "chrf", "sequence_error", "token_error"] = "bleu"

    def texts(self, names: Sequence[Column]) -> list[Source]:
        if self.joint:
            return [Source(self.source, tuple(range(len(names) + 1)))]
        return [*self.sources(names), Source(self.target, (len(names),))]


Task = Annotated[LanguageModel | Classify | Tag | Translate, Field(discriminator="kind")]

TASKS: dict[str, type[TaskSettings]] = {
    task.model_fields["kind"].default: task for task in get_args(get_args(Task)[0])
}
TABLES = {kind: task.tables for kind, task in TASKS.items()}


class Data(Strict):
    """Where the examples are: one file, or two that are aligned line by line."""

    train: Tuple = ()
    dev: Tuple = ()
    format: Literal["auto", "tsv", "csv", "lines", "jsonl", "conllu", "columns", "text"] = "auto"
    source: Annotated[
        tuple[Column, ...], Field(strict=False)
    ] = ()  # columns (from 1) or keys; () is all but target
    # column (from 1), key, or CoNLL-U field; None is the format's usual one
    target: Column | None = None
    header: bool | None = None  # whether the first row of a table names its columns; None: by look
    # of a table whose columns are numbered, or files aligned by line; None: as many as there are
    columns: Annotated[int, Field(gt=0, le=10_000)] | None = None
    # cut off, by source, when no dev file is given
    dev_share: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.05
    dev_max: Positive = 2000
    max_len: Positive = 1024  # longer examples are left out of training, and counted
    # paths to media stay in the folder of the file that names them, or else in this one
    root: str = ""
    # of media as vectors, at most, that a run keeps; more are made anew for every batch
    cache_mb: Annotated[int, Field(ge=0)] = 2000


# --- networks -------------------------------------------------------------------------------------


class Recurrent(Strict):
    """What a recurrent encoder and a recurrent decoder have in common."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["elman", "elman_relu", "gru", "lstm"] = "lstm"
    dim: Positive = 256
    num_layers: Layers = 1
    dropout: Share = 0.2
    residual: bool = False  # around every layer but the first


class RecurrentEncoder(Recurrent):
    bidirectional: bool = True  # each direction has half the width

    @model_validator(mode="after")
    def halves(self) -> Self:
        if self.bidirectional and self.dim % 2:
            raise ValueError(
                f"dim ({self.dim}) must be even when bidirectional: each direction has half"
            )
        return self


class RecurrentDecoder(Recurrent):
    attention: Literal[
        "off", "parameter_free", "dot", "scaled_dot", "general", "concat", "additive"
    ] = "additive"
    # where the context enters: Bahdanau 2015, or Luong 2015
    context: Literal["cell", "output"] = "cell"
    tied: bool = True  # the output layer is the embedding table

    @model_validator(mode="after")
    def enters(self) -> Self:
        if self.attention == "off" and self.context == "output":
            raise ValueError("without attention the context enters the cell: remove 'context'")
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
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    positions: Literal["sinusoidal", "learned", "rotary", "none"] = "sinusoidal"
    max_positions: Positive = 1024  # of learned positions; the others have no end
    scale_embedding: bool = True  # by sqrt(dim)

    @model_validator(mode="after")
    def divides(self) -> Self:
        if self.dim % self.num_heads:
            raise ValueError(f"dim ({self.dim}) must be divisible by num_heads ({self.num_heads})")
        if self.positions == "rotary" and self.dim // self.num_heads % 2:
            raise ValueError(
                "rotary positions need an even head width; "
                f"dim / num_heads is {self.dim // self.num_heads}"
            )
        if self.positions == "sinusoidal" and self.dim % 2:
            raise ValueError(f"sinusoidal positions need an even dim, not {self.dim}")
        return self


class TransformerEncoder(Transformer):
    pass


class TransformerDecoder(Transformer):
    tied: bool = True  # the output layer is the embedding table


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
    """Recurrent layers, each of which but the first reads its input two steps at a time.

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
    """What the stem makes of a source is the memory, as in Show, Attend and Tell."""

    kind: Literal["none"] = "none"
    dim: Positive = 256
    dropout: Share = 0.1


Encoder = Annotated[
    RecurrentEncoder | TransformerEncoder | Convolution | Pyramid | NoBody,
    Field(discriminator="kind"),
]
Decoder = Annotated[RecurrentDecoder | TransformerDecoder, Field(discriminator="kind")]


class Pooled(Strict):
    """One label for the whole: the memory is first pooled into one vector."""

    kind: Literal["pooled"] = "pooled"
    pool: Literal["last", "mean", "max", "attention"] = "attention"
    dropout: Share = 0.2


class PerWord(Strict):
    """A label for each word."""

    kind: Literal["per_word"] = "per_word"
    dropout: Share = 0.2


Head = Annotated[Pooled | PerWord, Field(discriminator="kind")]
HEADS = {"label": "pooled", "labels": "per_word"}  # which head writes which type of target


# --- training and decoding ------------------------------------------------------------------------


class Train(Strict):
    """How to train, and when to stop: at the first of steps, epochs, minutes, or patience."""

    steps: Positive | None = None
    epochs: Positive | None = None
    # the schedule is fitted to whichever ends first
    minutes: PositiveFloat | None = None
    patience: Positive | None = None  # evaluations without a better one

    # padded source + target tokens in a batch (streams x context of a model)
    batch_tokens: Positive = 4096
    accumulate: Positive = 1  # batches to a step
    optimizer: Literal["adamw", "sgd"] = "adamw"
    rate: PositiveFloat = 1e-3
    schedule: Literal["constant", "noam", "cosine", "plateau"] = "cosine"
    warmup: Annotated[int, Field(ge=0)] = 200
    betas: Annotated[tuple[Share, Share], Field(strict=False)] = (0.9, 0.98)
    momentum: Share = 0.9  # of sgd
    weight_decay: NonNegative = 0.01
    clip: NonNegative = 1.0  # gradient norm; 0 is off
    label_smoothing: Share = 0.0
    word_dropout: Share = 0.0  # a share of input tokens becomes <unk>
    # a share of the decoder's inputs is its own guess, at the end of training
    scheduled_sampling: Share = 0.0
    # the weight of a CTC loss of the encoder beside the decoder's: for sound, of which little is
    ctc: Share = 0.0

    # decay of the moving average of weights; 0 is off
    average: Annotated[float, Field(ge=0, lt=1)] = 0.0
    average_checkpoints: Positive = 1  # the mean of so many
    average_of: Literal["last", "best"] = "last"

    evaluate_every: Positive | None = None  # steps; None is every epoch
    # dev examples looked at while training; None is 2000, or fewer if that takes too much of the
    # time; the end looks at all
    evaluate_max: Positive | None = None
    save_every: Positive | None = None  # steps; None is at every evaluation
    keep: Positive = 2  # checkpoints
    workers: Annotated[int, Field(ge=0, le=64)] = 0  # threads that make batches ahead of time
    # that share each batch, with a thread each; 0 is as many as are fastest here
    processes: Annotated[int, Field(ge=0, le=64)] = 0
    # before a long run: try its largest batch, an evaluation and a checkpoint
    preflight: Literal["auto", "on", "off"] = "auto"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"


class Compute(Strict):
    """How a prediction is computed."""

    batch_tokens: Annotated[int, Field(gt=0, le=1 << 20)] = 4096
    engine: Literal["auto", "torch", "ctranslate2"] = "auto"
    int8: bool = False  # weights as whole numbers of 8 bits, on a CPU
    # processes; 0 is one for each core where that is fast
    workers: Annotated[int, Field(ge=0, le=256)] = 0


class Limits(Strict):
    """How long an output may be, in tokens."""

    max_len: Annotated[int, Field(gt=0, le=100_000)] = 200
    # and at most so many for a token of the source, and 10
    max_ratio: Annotated[float, Field(gt=0, le=10_000)] = 3.0


class Rules(Limits):
    """What may be said, whatever the search."""

    min_len: Annotated[int, Field(ge=0)] = 0  # of an output, in tokens
    no_repeat: Annotated[int, Field(ge=0)] = 0  # no n-gram of this length comes twice; 0 is off
    repetition: Annotated[float, Field(ge=1.0)] = 1.0  # log p of what was said before, times this
    banned: Tuple = ()  # words or phrases that never come
    only: str = ""  # a file of permitted outputs, one a line
    model: str = ""  # the run of a language model with the same vocabulary ...
    model_weight: NonNegative = 0.2  # ... whose log-probabilities are added with this weight


class Ranking(Strict):
    """How finished hypotheses of different lengths are compared."""

    # the best is by log p / |y|^alpha (power), log p / ((5 + |y|) / 6)^alpha (gnmt), or log p
    length: Literal["power", "gnmt", "none"] = "power"
    alpha: Annotated[float, Field(ge=0, le=100)] = 1.0


class Risk(Strict):
    """Minimum Bayes risk: of several candidates the one nearest to the others."""

    risk: Literal["off", "metric", "chrf", "bleu"] = "off"  # nearest by this
    candidates: Hypotheses = 16  # samples, or the beam's best


class PlainBeam(Ranking, Limits, Compute):
    """What every engine can do with a beam."""

    width: Hypotheses = 5
    # also stop when so many have ended; None is when no open one can still win
    stop_after: Annotated[int, Field(gt=0, le=MAX_SEARCH_TOKENS)] | None = None


class Beam(PlainBeam, Risk, Rules):
    """Search for the best, with a beam; a width of 1 is greedy."""

    kind: Literal["beam"] = "beam"
    groups: Positive = 1  # of the beam, that keep away from each other's words ...
    diversity: NonNegative = 0.5  # ... by so much log-probability
    coverage: NonNegative = 0.0  # weight of the penalty on source positions not attended to

    @model_validator(mode="after")
    def shares(self) -> Self:
        if self.width % self.groups:
            raise ValueError(f"groups ({self.groups}) must share the width ({self.width}) evenly")
        _require_end(self, "width", self.width)
        return self


class Sample(Risk, Rules, Compute):
    """Draw each token by its probability."""

    kind: Literal["sample"] = "sample"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    temperature: PositiveFloat = 1.0
    top_k: Positive | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    min_p: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    typical: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0

    @model_validator(mode="after")
    def ends(self) -> Self:
        _require_end(self, "candidates", self.candidates)
        return self


def _require_end(limits: Limits, name: str, hypotheses: int) -> None:
    if hypotheses * limits.max_len > MAX_SEARCH_TOKENS:
        raise ValueError(
            f"{name} ({hypotheses:,}) times max_len ({limits.max_len:,}) is more than the "
            f"{MAX_SEARCH_TOKENS:,} tokens that a search may hold: lower one of them"
        )


class Exact(Ranking, Rules, Compute):
    """Find the best of all, and prove it: for `saccade exact`, which compares beams with it."""

    kind: Literal["exact"] = "exact"
    budget: Positive = 20_000  # prefixes that a source may extend
    order: Literal["depth", "best"] = "depth"  # what is extended first


# How `predict` and `evaluate` search, unless told otherwise.
Decode = Annotated[Beam | Sample, Field(discriminator="kind")]


class Config(Strict):
    task: Task
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    data: Data = Data()
    encoder: Encoder | None = None
    decoder: Decoder | None = None
    head: Head | None = None
    train: Train = Train()
    decode: Decode = Beam()

    @model_validator(mode="after")
    def fits(self) -> Self:
        """A task says which parts a network has."""
        wanted = self.task.tables
        for part in ("encoder", "decoder", "head"):
            if part in wanted and getattr(self, part) is None:
                raise ValueError(f"the task '{self.task.kind}' needs a table [{part}]")
            if part not in wanted and getattr(self, part) is not None:
                raise ValueError(
                    f"the task '{self.task.kind}' has no {part}: remove the table [{part}]"
                )
        if self.head and self.head.kind != (kind := HEADS[self.task.target_type]):
            raise ValueError(f"head: the task '{self.task.kind}' needs kind = '{kind}'")
        if self.train.scheduled_sampling and self.task.kind != "translate":
            raise ValueError("train: scheduled_sampling is for the task 'translate' alone")
        if self.train.ctc and self.task.kind != "translate":
            raise ValueError("train: ctc is for the task 'translate' alone")
        pooled = self.head.pool if isinstance(self.head, Pooled) else ""
        if pooled == "last" and not isinstance(self.encoder, RecurrentEncoder | Pyramid):
            raise ValueError(
                "head: pool 'last' is a recurrent encoder's last state; use mean, max or attention"
            )
        if isinstance(self.task, Tag) and isinstance(self.encoder, Pyramid):
            raise ValueError("encoder: a pyramid has fewer positions than there are labels")
        longest = self.task.context if isinstance(self.task, LanguageModel) else self.data.max_len
        for name in ("encoder", "decoder"):
            part = getattr(self, name)
            if getattr(part, "positions", "") == "learned" and part.max_positions < longest:
                limit = "task.context" if self.task.kind == "language" else "data.max_len"
                raise ValueError(
                    f"{name}: {part.max_positions} learned positions are fewer than "
                    f"{limit} ({longest})"
                )
        alone = self.encoder is None and isinstance(self.decoder, RecurrentDecoder)
        if alone and getattr(self.decoder, "attention", "off") != "off":
            raise ValueError(
                "decoder: a language model has no source to attend to: set attention = 'off'"
            )
        if isinstance(self.decoder, RecurrentDecoder) and self.encoder is not None:
            free = self.decoder.attention == "parameter_free"
            if free and self.encoder.dim != self.decoder.dim:
                raise ValueError(
                    "decoder: parameter-free attention compares encoder and decoder as they are: "
                    f"make encoder.dim ({self.encoder.dim}) and decoder.dim ({self.decoder.dim}) "
                    "equal, or use 'dot'"
                )
        columns = {str(name) for name in self.data.source}
        if columns and (strangers := sorted(self.task.own.keys() - columns)):
            raise ValueError(
                f"task: columns has '{strangers[0]}', which is not among data.source "
                f"({', '.join(sorted(columns))})"
            )
        if isinstance(self.task, Translate) and self.task.joint and self.task.columns:
            raise ValueError("task: joint is for one source; remove task.columns, or joint")
        if isinstance(self.task, Translate) and self.task.joint and self.encoder and self.decoder:
            if self.encoder.dim != self.decoder.dim:
                raise ValueError(
                    "task: joint shares one embedding table: "
                    f"make encoder.dim ({self.encoder.dim}) and decoder.dim ({self.decoder.dim}) "
                    "equal, or set task.joint = false"
                )
            if self.task.source != self.task.target:
                raise ValueError(
                    "task: joint needs the same settings in task.source and task.target"
                )
        return self
