"""Every choice a user can make, as frozen, strict models.

A configuration names a task, its data, the parts of a network, and how to train and decode.
Alternatives are tagged unions (`kind`), so the type is the registry.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from saccade.config.decoding import Beam, Decode
from saccade.config.networks import (
    Decoder,
    EditDecoder,
    Encoder,
    Head,
    Horizon,
    NoBody,
    Output,
    PerToken,
    PerWord,
    Pooled,
    Pyramid,
    RecurrentDecoder,
    RecurrentEncoder,
    Transformer,
    TransformerEncoder,
)
from saccade.config.objectives import Bidirectional, Word2Vec
from saccade.config.parallel import Parallel
from saccade.config.readers import NonNegative, Positive, PositiveFloat, Share, Strict
from saccade.config.start import LowRank, Start
from saccade.config.tasks import (
    Data,
    Forecast,
    LanguageModel,
    NumberTask,
    Pretrain,
    Series,
    Tag,
    Task,
    Translate,
)


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
    # sparse: word2vec's own, which sums slopes into the rows that were read
    optimizer: Literal["adamw", "sgd", "sparse"] = "adamw"
    rate: PositiveFloat = 1e-3
    schedule: Literal["constant", "noam", "cosine", "linear", "plateau"] = "cosine"
    warmup: Annotated[int, Field(ge=0)] = 200
    betas: Annotated[tuple[Share, Share], Field(strict=False)] = (0.9, 0.98)
    momentum: Share = 0.9  # of sgd
    weight_decay: NonNegative = 0.01
    clip: NonNegative = 1.0  # gradient norm; 0 is off
    label_smoothing: Share = 0.0
    # the weight of how far two passes with other dropout are apart (R-Drop)
    rdrop: NonNegative = 0.0
    word_dropout: Share = 0.0  # a share of input tokens becomes <unk>
    # a share of the decoder's inputs is its own guess, at the end of training
    scheduled_sampling: Share = 0.0
    # the weight of a CTC loss of the encoder beside the decoder's: for sound
    ctc: Share = 0.0
    # the weight of what the encoder alone says of a target's words, in no order: for pictures
    bag: Share = 0.0

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
    # so many runs, each with the next seed, which predict together
    seeds: Annotated[int, Field(ge=1, le=100)] = 1
    # that share each batch, with a thread each; 0 is as many as are fastest here
    processes: Annotated[int, Field(ge=0, le=64)] = 0
    # before a long run: try its largest batch, an evaluation and a checkpoint
    preflight: Literal["auto", "on", "off"] = "auto"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"


class Config(Strict):
    task: Task
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    data: Data = Data()
    start: Start | None = None
    encoder: Encoder | None = None
    decoder: Decoder | None = None
    head: Head | None = None
    output: Output | None = None
    train: Train = Train()
    parallel: Parallel = Parallel()
    decode: Decode = Beam()

    @model_validator(mode="after")
    def fits(self) -> Self:
        """A task says which parts a network has."""
        wanted, optional = self.task.parts, self.task.optional
        for part in ("encoder", "decoder", "head", "output"):
            if part in wanted and getattr(self, part) is None:
                raise ValueError(f"{self.task.title} needs a table [{part}]")
            if part not in (*wanted, *optional) and getattr(self, part) is not None:
                raise ValueError(f"{self.task.title} has no {part}: remove the table [{part}]")
        if self.head and self.head.kind != (kind := self.task.head_kind):
            raise ValueError(f"head: the task '{self.task.kind}' needs kind = '{kind}'")
        if isinstance(self.task, Forecast):
            if self.train.word_dropout:
                raise ValueError("train: word_dropout: the task 'forecast' has no words")
            if (self.head is None) == (self.decoder is None):
                raise ValueError("the task 'forecast' needs a table [head] or a table [decoder]")
            if self.decoder is not None and (self.encoder is None or self.output is None):
                raise ValueError("a forecast by a [decoder] needs [encoder] and [output], too")
            if self.output is not None and self.decoder is None:
                raise ValueError("output: a head says Gaussians: remove the table [output]")
            if isinstance(self.head, Horizon) and not (self.head.shortcut or self.encoder):
                raise ValueError("head: without shortcut it needs a table [encoder]")
            if self.task.frame.cycle and self.task.season == 1:
                raise ValueError("task: frame.cycle needs a season of more than one step")
        if self.start is not None and isinstance(self.task, Forecast):
            raise ValueError("start: a forecast begins with nothing: remove the table [start]")
        if self.start is not None and self.data.vectors:
            raise ValueError(
                "data: vectors: the embeddings come from start.run: leave one of the two out"
            )
        parts = (self.encoder, self.decoder)
        if isinstance(self.start, LowRank) and not any(isinstance(p, Transformer) for p in parts):
            raise ValueError(
                "start: kind 'lora' is for the linear layers of a Transformer, and this network "
                "has none: use frozen, gradual or whole"
            )
        if self.start is not None and self.data.vectors:
            raise ValueError("data: vectors: a network that has a [start] has its own: remove it")
        if isinstance(self.task, Pretrain):
            self._fits_objective(self.task)
        if isinstance(self.task, Pretrain) and isinstance(self.task.objective, Word2Vec):
            if not isinstance(self.encoder, NoBody):
                raise ValueError(
                    f"encoder: the objective '{self.task.objective.kind}' learns a vector for each "
                    "word and nothing else: set kind = 'none', and dim"
                )
            fixed = {"optimizer": "sparse", "processes": 1, "accumulate": 1, "average": 0.0}
            fixed |= {"clip": 0.0, "weight_decay": 0.0, "word_dropout": 0.0}
            for key, value in fixed.items():
                if getattr(self.train, key) != value:
                    raise ValueError(
                        f"train: {key}: the objective '{self.task.objective.kind}' needs "
                        f"{key} = {value!r}"
                    )
            if self.train.precision not in ("auto", "fp32"):
                raise ValueError("train: precision: word vectors are trained in 'fp32'")
        elif self.train.optimizer == "sparse":
            raise ValueError(
                "train: optimizer 'sparse' is for the objectives 'skipgram' and 'cbow': use 'sgd'"
            )
        if self.decoder is not None and self.decoder.copies:
            if not isinstance(self.task, Translate) or not self.task.joint:
                raise ValueError(
                    "decoder: copy: source and target need one vocabulary: use the task "
                    "'translate' with task.joint = true, or remove it"
                )
            if self.task.target.kind == "word":
                raise ValueError(
                    "decoder: copy: a word that is not in the vocabulary is <unk>, and cannot be "
                    "copied: set task.source.kind and task.target.kind to 'bpe' (or 'char')"
                )
        if self.train.rdrop and self.task.kind not in ("translate", "classify", "tag", "language"):
            raise ValueError(
                "train: rdrop compares what two passes say of tokens or labels, and is for the "
                f"tasks translate, classify, tag and language; this is '{self.task.kind}'"
            )
        if self.train.seeds > 1 and self.task.kind not in ("translate", "classify", "tag"):
            raise ValueError(
                "train: seeds: an ensemble is for the tasks translate, classify and tag; this is "
                f"'{self.task.kind}'"
            )
        if self.train.scheduled_sampling and self.task.kind != "translate":
            raise ValueError("train: scheduled_sampling is for the task 'translate' alone")
        for key in ("ctc", "bag"):
            if getattr(self.train, key) and self.task.kind != "translate":
                raise ValueError(f"train: {key} is for the task 'translate' alone")
        if self.decode.ctc and not self.train.ctc:
            raise ValueError("decode: ctc is for a network that has CTC: set train.ctc, too")
        pooled = self.head.pool if isinstance(self.head, Pooled | Horizon) else ""
        recurrent = self.encoder is None or isinstance(self.encoder, RecurrentEncoder | Pyramid)
        if pooled == "last" and not recurrent:
            raise ValueError(
                "head: pool 'last' is a recurrent encoder's last state; use mean, max or attention"
            )
        if isinstance(self.head, PerWord) and isinstance(self.encoder, Pyramid):
            said = "labels" if isinstance(self.task, Tag) else "numbers"
            raise ValueError(f"encoder: a pyramid has fewer positions than there are {said}")
        if isinstance(self.task, NumberTask | Forecast) and self.train.label_smoothing:
            raise ValueError(f"train: label_smoothing: the task '{self.task.kind}' has no labels")
        numbers = isinstance(self.task, Series | Forecast)
        if numbers and self.decoder is not None and self.decoder.tied:
            raise ValueError("decoder: numbers have no table of embeddings: set tied = false")
        cut = self.task.tokenizer.kind if isinstance(self.task, Tag) else ""
        if cut in ("char", "bytes") and self.data.units == "characters":
            raise ValueError(
                f"task: tokenizer.kind '{cut}' cuts words; where data.units = 'characters' each "
                "character is a word: set tokenizer.kind = 'word'"
            )
        longest, limit = self.data.max_len, "data.max_len"
        if isinstance(self.task, LanguageModel | Pretrain):
            longest, limit = self.task.context, "task.context"
        if isinstance(self.task, Forecast):
            longest, limit = max(self.task.lookback or 1, self.task.horizon or 1), "task.lookback"
        for name in ("encoder", "decoder"):
            part = getattr(self, name)
            if getattr(part, "positions", "") == "learned" and part.max_positions < longest:
                raise ValueError(
                    f"{name}: {part.max_positions} learned positions are fewer than "
                    f"{limit} ({longest})"
                )
        if isinstance(self.decoder, EditDecoder) and not isinstance(self.task, Translate):
            raise ValueError(
                "decoder: kind 'edit' edits a source into a text, and is for the task 'translate'; "
                f"this is '{self.task.kind}'"
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
            stepwise = self.decoder.attention != "off" and self.decoder.context == "cell"
            if stepwise and self.decoder.weight_dropout:
                raise ValueError(
                    "decoder: weight_dropout is one choice for all steps, and with attention in "
                    "the cell each step is run by itself: set context = 'output'"
                )
        copied = getattr(self.decoder, "first_state", "") == "copied"
        if copied and (self.encoder is None or self.encoder.dim != getattr(self.decoder, "dim", 0)):
            raise ValueError("decoder: first_state 'copied' needs an encoder of the same dim")
        spelled = any(getattr(one, "spelled", False) for one in self.task.own.values())
        for name in ("source", "target", "tokenizer"):
            reader = getattr(self.task, name, None)
            spelled |= getattr(reader, "spelled", False) and not isinstance(self.task, Tag)
            if not getattr(getattr(self.task, name, None), "ordered", True):
                raise ValueError(
                    f"task: {name}.ordered = false is for tags, which are a source of their own: "
                    "set it in task.columns.NAME"
                )
        if spelled:
            raise ValueError("task: spelled = true is for task.tokenizer of the task 'tag' alone")
        if cut == "word" and self.task.reader.spelled and self.data.units == "characters":
            raise ValueError(
                "task: tokenizer.spelled: where data.units = 'characters' a word is one character: "
                "set it to false"
            )
        columns = {str(name) for name in self.data.source}
        if columns and (strangers := sorted(self.task.own.keys() - columns)):
            raise ValueError(
                f"task: columns has '{strangers[0]}', which is not among data.source "
                f"({', '.join(sorted(columns))})"
            )
        joint = isinstance(self.task, Translate) and self.task.joint
        if joint and columns and columns <= self.task.own.keys():
            raise ValueError(
                "task: joint: each source column has a table of its own in task.columns, and none "
                "is left to share the target's vocabulary: remove one, or joint"
            )
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

    def _fits_objective(self, task: Pretrain) -> None:
        """ValueError where an objective asks for what the network cannot do."""
        if task.objective.needs_view and not isinstance(self.encoder, TransformerEncoder):
            raise ValueError(
                f"encoder: {task.title} needs positions that see only some others: set "
                "encoder.kind = 'transformer', or use the objective 'masked'"
            )
        if isinstance(self.encoder, Pyramid):
            raise ValueError("encoder: a pyramid has fewer positions than there are tokens")
        if isinstance(task.objective, Bidirectional):
            apart = isinstance(self.encoder, RecurrentEncoder) and self.encoder.separate
            if not apart or getattr(self.encoder, "mix", False):
                raise ValueError(
                    f"encoder: {task.title} needs two directions that never see each other: set "
                    "encoder.kind = 'recurrent', encoder.separate = true and encoder.mix = false"
                )
            if isinstance(self.head, PerToken) and self.head.dense == "off" and self.head.tied:
                raise ValueError(
                    "head: a direction has half of the width: set head.dense, or head.tied = false"
                )
        if self.encoder and self.decoder and self.encoder.dim != self.decoder.dim:
            raise ValueError(
                f"{task.title} shares one embedding table: make encoder.dim ({self.encoder.dim}) "
                f"and decoder.dim ({self.decoder.dim}) equal"
            )
