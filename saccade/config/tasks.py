"""Tasks and their data: the tables `task` and `data`."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import Field, model_validator

from saccade.config.networks import HEADS, Frame
from saccade.config.objectives import OBJECTIVES, Masked, Objective, Part, Spans
from saccade.config.readers import Label, Numbers, Positive, Reader, Share, Strict, Tokenizer, Tuple

Column = int | str
VECTOR = "vector"  # the name of the source that is made of the columns in data.vector
# labels: one for each word of the source; future: the continuation of a series
TargetType = Literal["none", "text", "label", "labels", "numbers", "future"]


class Source(NamedTuple):
    """A source of a task: its reader, and the indices of an example's columns that it reads."""

    reader: Reader
    columns: tuple[int, ...]


class TaskSettings(Strict):
    """The properties of a task."""

    tables: ClassVar[tuple[Part, ...]]  # the parts of its network
    optional: ClassVar[tuple[Part, ...]] = ()  # and those that it may have
    target_type: ClassVar[TargetType]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that its network must have."""
        return self.tables

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"the task '{self.family}'"

    @property
    def family(self) -> str:
        """The kind of task that its runs perform: its own, except for causal pre-training."""
        kind: str = getattr(self, "kind", "")
        return kind

    @property
    def reader(self) -> Tokenizer:
        """The tokenizer of the source columns without a reader of their own."""
        reader: Tokenizer = getattr(self, "source" if hasattr(self, "source") else "tokenizer")
        return reader

    @property
    def head_kind(self) -> str:
        """The kind of head that predicts the target."""
        return HEADS[self.target_type]

    @property
    def early(self) -> bool:
        """Whether several sources are concatenated to one sequence (early fusion)."""
        return bool(self.own) and getattr(self, "fusion", "") == "early"

    @property
    def own(self) -> dict[str, Reader]:
        """The readers of the source columns that are separate sources."""
        return getattr(self, "columns", {})

    def sources(self, names: Sequence[Column]) -> list[Source]:
        """The sources made of these columns: those without a reader of their own form one."""
        separate = [i for i, name in enumerate(names) if str(name) in self.own]
        rest = tuple(i for i in range(len(names)) if i not in separate)
        joined = [Source(self.reader, rest)] if rest or not separate else []
        return joined + [Source(self.own[str(names[i])], (i,)) for i in separate]

    def only_labels(self, names: Sequence[Column]) -> bool:
        """Whether all sources are labels, so that many examples have the same sources."""
        return all(isinstance(source.reader, Label) for source in self.sources(names))

    def texts(self, names: Sequence[Column]) -> list[Source]:
        """The sources, and the reader of a target that is text, as the column after the last."""
        return self.sources(names)


class LanguageModel(TaskSettings):
    """Language modelling on plain text: perplexity and bits per character; completes a prefix."""

    tables = ("decoder",)
    target_type = "none"

    kind: Literal["language"] = "language"
    tokenizer: Tokenizer = Tokenizer(kind="char")
    # another run's target.json or tokenizer.json, to share its vocabulary, as fusion requires
    vocabulary: str = ""
    # the window of a Transformer, the length of truncated back-propagation of an RNN
    context: Annotated[int, Field(gt=0, le=1 << 20)] = 128


class Pretrain(TaskSettings):
    """Pre-training on plain text by an objective, for other tasks to start from."""

    tables = ()  # those of its objective
    target_type = "none"

    kind: Literal["pretrain"] = "pretrain"
    tokenizer: Tokenizer = Tokenizer(mask=True)
    vocabulary: str = ""  # another run's tokenizer.json, in place of training one
    context: Annotated[int, Field(ge=8, le=1 << 20)] = 128  # the tokens of a row, at most
    objective: Objective = Masked()

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.objective.parts

    @property
    def title(self) -> str:
        return f"the objective '{self.objective.kind}'"

    @property
    def family(self) -> str:
        return "language" if self.objective.parts == ("decoder",) else self.kind

    @property
    def head_kind(self) -> str:
        return "per_token"

    @model_validator(mode="after")
    def marks(self) -> Self:
        if self.objective.needs_mask and not (self.tokenizer.mask or self.vocabulary):
            raise ValueError(
                f"the objective '{self.objective.kind}' needs a tokenizer that has <mask>: set "
                "task.tokenizer.mask = true"
            )
        if isinstance(self.objective, Spans) and not self.vocabulary:
            spans = self.objective.most_spans(self.context)
            if self.tokenizer.sentinels < spans:
                raise ValueError(
                    f"a context of {self.context} tokens has {spans} spans, which need a sentinel "
                    f"each: set task.tokenizer.sentinels = {spans}, or a shorter context"
                )
        return self


class Classify(TaskSettings):
    """A source to a label; several text columns are concatenated."""

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
    # labels mark spans as BIO, and so do predictions: an I-x follows B-x or I-x
    spans: bool = False

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
    """Any source to text."""

    tables = ("encoder", "decoder")
    target_type = "text"

    kind: Literal["translate"] = "translate"
    source: Tokenizer = Tokenizer()
    target: Tokenizer = Tokenizer()
    columns: dict[str, Reader] = Field(default={})  # of data.source, each a source of its own
    # early: one body reads all sources end to end; late: each has its own, and memories are joined
    fusion: Literal["early", "late"] = "early"
    joint: bool = False  # one vocabulary, trained on both sides, and one embedding table
    # the share of training pairs whose stem, which both sides share, is of random letters
    hallucinate: Share = 0.0
    # the best model is by this
    metric: Literal[
        "bleu", "chrf", "cider", "rouge", "token_f1", "exact_match", "bracket_f1", "perplexity",
        "sequence_error", "token_error", "word_error", "char_error"
    ] = "bleu"  # fmt: skip

    @model_validator(mode="after")
    def shares_letters(self) -> Self:
        if self.hallucinate and not (self.joint and self.source.kind == "char"):
            raise ValueError(
                "hallucinate puts other letters into both sides of a pair: set joint = true and "
                "source.kind = 'char'"
            )
        return self

    def texts(self, names: Sequence[Column]) -> list[Source]:
        sources = self.sources(names)
        if not self.joint:
            return [*sources, Source(self.target, (len(names),))]
        own = {(i,) for i, name in enumerate(names) if str(name) in self.own}
        joined = tuple(i for source in sources if source.columns not in own for i in source.columns)
        separate = [source for source in sources if source.columns in own]
        return [Source(self.source, (*joined, len(names))), *separate]


class NumberTask(TaskSettings):
    """A source to numbers."""

    target_type = "numbers"

    tokenizer: Tokenizer = Tokenizer(kind="word", size=30000, split_punctuation=True)
    columns: dict[str, Reader] = Field(default={})  # of data.source, each a source of its own
    # early: one body reads all sources end to end; late: each has its own, and memories are joined
    fusion: Literal["early", "late"] = "early"
    target: Numbers = Numbers()
    # numbers that are only ever 0 or 1 in the training data are Bernoulli variables
    binary: bool = True

    @model_validator(mode="after")
    def whole(self) -> Self:
        if self.target.stride > 1:
            raise ValueError("target.stride is for sources: remove it")
        return self


class Regress(NumberTask):
    """A source to a vector of numbers, or to one for each word or step."""

    tables = ("encoder", "head", "output")

    kind: Literal["regress"] = "regress"
    # a vector for each word of a text (with a char tokenizer, each character), or for each step of
    # a series of numbers
    per_position: bool = False

    @property
    def head_kind(self) -> str:
        return "per_word" if self.per_position else "pooled"

    @model_validator(mode="after")
    def positions(self) -> Self:
        for name, reader in self.columns.items() if self.per_position else ():
            if not isinstance(reader, Numbers) or reader.stride > 1 or len(self.columns) > 1:
                raise ValueError(
                    f"columns.{name}: with per_position numbers stand at each word, or at each "
                    "step of one series of numbers with stride = 1"
                )
        return self


class Series(NumberTask):
    """A source to a series of vectors of numbers, of any length."""

    tables = ("encoder", "decoder", "output")

    kind: Literal["series"] = "series"


class Forecast(TaskSettings):
    """Time series: the continuation of each series of a table."""

    tables = ()
    optional = ("encoder", "decoder", "head", "output")
    target_type = "future"

    kind: Literal["forecast"] = "forecast"
    time: str = ""  # the column of times; "" is detected, or rows are one step apart
    id: str = ""  # in long format, the column that identifies the series
    series: Tuple = ()  # the columns to forecast; () is all numbers
    past: Tuple = ()  # covariates of the past
    known: Tuple = ()  # covariates that are also known for the future
    horizon: Annotated[int, Field(gt=0, le=10_000)] | None = None  # steps to forecast
    lookback: Annotated[int, Field(gt=0, le=100_000)] | None = None  # steps of input
    season: Annotated[int, Field(gt=0, le=100_000)] | None = None  # steps; 1 is none
    # independent: each series is an example, with shared weights; joint: all series are one example
    channels: Literal["independent", "joint"] = "independent"
    metric: Literal["mse", "mae", "mase", "crps"] = "crps"  # the best model is by this
    frame: Frame = Frame()
    # of errors: the file's, or each series' deviation in the training rows
    units: Literal["file", "standard"] | None = None

    def sources(self, names: Sequence[Column]) -> list[Source]:
        return []


def covariate_sets(task: Forecast, series: int) -> int:
    """The number of sets of covariates in a window: one, or one for each series."""
    return series if task.id and task.channels == "joint" else 1


Task = Annotated[
    LanguageModel | Pretrain | Classify | Tag | Translate | Regress | Series | Forecast,
    Field(discriminator="kind"),
]

TASKS: dict[str, type[TaskSettings]] = {
    task.model_fields["kind"].default: task for task in get_args(get_args(Task)[0])
}
TABLES = {kind: task.tables for kind, task in TASKS.items()}


def parts_of(table: Mapping[str, Any]) -> tuple[Part, ...]:
    """The parts of a task's network, by the task's table as a user wrote it."""
    if table.get("kind") != "pretrain":
        return TASKS[table["kind"]].tables
    objective = table.get("objective", {})
    kind = objective.get("kind", "masked") if isinstance(objective, Mapping) else "masked"
    return OBJECTIVES.get(kind, Masked).parts


class Data(Strict):
    """The data files: one, or two that are aligned by line, and how they are read."""

    train: Tuple = ()
    dev: Tuple = ()
    format: Literal["auto", "tsv", "csv", "lines", "jsonl", "conllu", "columns", "text"] = "auto"
    source: Annotated[
        tuple[Column, ...], Field(strict=False)
    ] = ()  # columns (from 1) or keys; () is all but target
    # column (from 1), key, or CoNLL-U field; None is the format's default
    target: Column | None = None
    header: bool | None = None  # whether a table's first row is a header; None: detected
    # word vectors that initialise the embeddings: a file, or a run of word2vec
    vectors: str = ""
    # columns of numbers that are one source, called "vector" in `source`
    vector: Annotated[tuple[Column, ...], Field(strict=False)] = ()
    # of tag: the units that are labelled, words or characters; None: detected
    units: Literal["words", "characters"] | None = None
    ignore: str = ""  # of tag: a label that is neither learned nor scored
    mask: Column | None = None  # of tag: a column of 0 and 1, where 0 is neither learned nor scored
    # the number of numbered columns, or of files aligned by line; None: detected
    columns: Annotated[int, Field(gt=0, le=10_000)] | None = None
    # the dev split, by source, if no dev file is given
    dev_share: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.05
    dev_max: Positive = 2000
    max_len: Positive = 1024  # longer examples are left out of training, and counted
    # the folder that paths to media must not leave; "": that of the file that names them
    root: str = ""
    # the largest cache of media as vectors in a run; beyond it they are decoded for every batch
    cache_mb: Annotated[int, Field(ge=0)] = 2000
