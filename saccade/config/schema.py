"""Every choice a user can make, as frozen, strict models.

A configuration names a task, its data, the parts of a network, and how to train and decode.
Alternatives are tagged unions (`kind`), so the type is the registry.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from saccade.config.decoding import Beam, Decode
from saccade.config.networks import (
    Convolution,
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
    # the schedule spans whichever limit comes first
    minutes: PositiveFloat | None = None
    patience: Positive | None = None  # evaluations without improvement

    # padded source + target tokens in a batch (streams x context of a model)
    batch_tokens: Positive = 4096
    accumulate: Positive = 1  # batches per step
    # sparse: word2vec's, which updates only the embedding rows that were read
    optimizer: Literal["adamw", "sgd", "sparse"] = "adamw"
    rate: PositiveFloat = 1e-3
    schedule: Literal["constant", "noam", "cosine", "linear", "plateau"] = "cosine"
    warmup: Annotated[int, Field(ge=0)] = 200
    betas: Annotated[tuple[Share, Share], Field(strict=False)] = (0.9, 0.98)
    momentum: Share = 0.9  # of sgd
    weight_decay: NonNegative = 0.01
    clip: NonNegative = 1.0  # gradient norm; 0 is off
    label_smoothing: Share = 0.0
    # the weight of R-Drop's loss: the divergence of two passes with different dropout
    rdrop: NonNegative = 0.0
    word_dropout: Share = 0.0  # of input tokens, that become <unk>
    # the share of the decoder's inputs that are its own predictions at the end of training
    scheduled_sampling: Share = 0.0
    # the weight of a CTC loss on the encoder, against the decoder's loss: for sound
    ctc: Share = 0.0
    # the weight of a bag-of-words loss, where the encoder alone predicts the words: for pictures
    bag: Share = 0.0

    # decay of the moving average of weights; 0 is off
    average: Annotated[float, Field(ge=0, lt=1)] = 0.0
    average_checkpoints: Positive = 1  # the number that are averaged
    average_of: Literal["last", "best"] = "last"

    evaluate_every: Positive | None = None  # steps; None is every epoch
    # dev examples in evaluations while training; None is 2000, or fewer if these take too much of
    # the time; the last evaluation uses all
    evaluate_max: Positive | None = None
    save_every: Positive | None = None  # steps; None is at every evaluation
    keep: Positive = 2  # checkpoints
    workers: Annotated[int, Field(ge=0, le=64)] = 0  # threads that prefetch batches
    # members of an ensemble, each trained with the next seed
    seeds: Annotated[int, Field(ge=1, le=100)] = 1
    # that share each batch, with one thread each; 0: as many as are fastest on this machine
    processes: Annotated[int, Field(ge=0, le=64)] = 0
    # before a long run: try the largest batch, an evaluation and a checkpoint
    preflight: Literal["auto", "on", "off"] = "auto"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"

    @property
    def moments(self) -> int:
        """The optimiser's state, in numbers per weight."""
        return {"adamw": 2, "sgd": 1, "sparse": 0}[self.optimizer]


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
        """ValueError, with a line for each conflict between settings."""
        problems = list(_parts(self)) or [line for check in CHECKS for line in check(self)]
        if problems:
            raise ValueError("\n".join(problems))
        return self


# --- conflicts between settings: one message each, if the parts that a task needs are there -------


def _parts(config: Config) -> Iterator[str]:
    """The parts that a task needs, and no others, must be there."""
    task, permitted = config.task, (*config.task.parts, *config.task.optional)
    for part in ("encoder", "decoder", "head", "output"):
        present = getattr(config, part) is not None
        if part in task.parts and not present:
            yield f"{task.title} needs a table [{part}]"
        if part not in permitted and present:
            yield f"{task.title} has no {part}: remove the table [{part}]"
    if config.head and "head" in permitted and config.head.kind != (kind := task.head_kind):
        yield f"head: the task '{task.kind}' needs kind = '{kind}'"


def _forecast(config: Config) -> Iterator[str]:
    task, head, decoder = config.task, config.head, config.decoder
    if not isinstance(task, Forecast):
        return
    if config.train.word_dropout:
        yield "train: word_dropout: the task 'forecast' has no words"
    if (head is None) == (decoder is None):
        yield "the task 'forecast' needs a table [head] or a table [decoder]"
    elif decoder is not None and (config.encoder is None or config.output is None):
        yield "a forecast by a [decoder] needs [encoder] and [output], too"
    elif head is not None and config.output is not None:
        yield "output: a [head] always predicts Gaussians: remove the table [output]"
    if isinstance(head, Horizon) and not (head.shortcut or config.encoder):
        yield "head: without shortcut it needs a table [encoder]"
    if task.frame.cycle and task.season == 1:
        yield "task: frame.cycle needs a season of more than one step"


def _start(config: Config) -> Iterator[str]:
    if config.start is None:
        return
    if isinstance(config.task, Forecast):
        yield "start: fine-tuning is not supported for the task 'forecast': remove [start]"
    if config.data.vectors:
        yield "data: vectors: the embeddings come from start.run: leave one of the two out"
    parts = (config.encoder, config.decoder)
    if isinstance(config.start, LowRank) and not any(isinstance(p, Transformer) for p in parts):
        yield (
            "start: kind 'lora' is for the linear layers of a Transformer, and this network "
            "has none: use frozen, gradual or whole"
        )


def _objective(config: Config) -> Iterator[str]:
    task, encoder, head = config.task, config.encoder, config.head
    if not isinstance(task, Pretrain):
        return
    if task.objective.needs_view and not isinstance(encoder, TransformerEncoder):
        yield (
            f"encoder: {task.title} needs an attention mask for each row: set "
            "encoder.kind = 'transformer', or use the objective 'masked'"
        )
    elif isinstance(encoder, Pyramid):
        yield "encoder: a pyramid shortens the sequence and cannot predict each token"
    if isinstance(task.objective, Bidirectional):
        separate = isinstance(encoder, RecurrentEncoder) and encoder.separate
        if not separate or getattr(encoder, "mix", False):
            yield (
                f"encoder: {task.title} needs two directions that never see each other: set "
                "encoder.kind = 'recurrent', encoder.separate = true and encoder.mix = false"
            )
        if isinstance(head, PerToken) and head.dense == "off" and head.tied:
            yield "head: a direction has half of the width: set head.dense, or head.tied = false"
    if encoder and config.decoder and encoder.dim != config.decoder.dim:
        yield (
            f"{task.title} shares one embedding table: make encoder.dim ({encoder.dim}) "
            f"and decoder.dim ({config.decoder.dim}) equal"
        )


def _word2vec(config: Config) -> Iterator[str]:
    objective = config.task.objective if isinstance(config.task, Pretrain) else None
    if not isinstance(objective, Word2Vec):
        if config.train.optimizer == "sparse":
            yield "train: optimizer 'sparse' is for the objectives 'skipgram' and 'cbow': use 'sgd'"
        return
    if not isinstance(config.encoder, NoBody):
        yield (
            f"encoder: the objective '{objective.kind}' learns a vector for each "
            "word and nothing else: set kind = 'none', and dim"
        )
    fixed = {"optimizer": "sparse", "processes": 1, "accumulate": 1, "average": 0.0}
    fixed |= {"clip": 0.0, "weight_decay": 0.0, "word_dropout": 0.0}
    for key, value in fixed.items():
        if getattr(config.train, key) != value:
            yield f"train: {key}: the objective '{objective.kind}' needs {key} = {value!r}"
    if config.train.precision not in ("auto", "fp32"):
        yield "train: precision: word vectors are trained in 'fp32'"


def _copies(config: Config) -> Iterator[str]:
    task = config.task
    if config.decoder is None or not config.decoder.copies:
        return
    if not isinstance(task, Translate) or not task.joint:
        yield (
            "decoder: copy: source and target need one vocabulary: use the task "
            "'translate' with task.joint = true, or remove it"
        )
    elif task.target.kind == "word":
        yield (
            "decoder: copy: a word that is not in the vocabulary is <unk>, and cannot be "
            "copied: set task.source.kind and task.target.kind to 'bpe' (or 'char')"
        )


def _losses(config: Config) -> Iterator[str]:
    """Losses and other settings of training that only some tasks support."""
    kind, train = config.task.kind, config.train
    if train.rdrop and kind not in ("translate", "classify", "tag", "language"):
        yield (
            "train: rdrop is supported for the tasks translate, classify, tag and language "
            f"only; this is '{kind}'"
        )
    if train.seeds > 1 and kind not in ("translate", "classify", "tag"):
        yield (
            "train: seeds: an ensemble is for the tasks translate, classify and tag; this is "
            f"'{kind}'"
        )
    for key in ("scheduled_sampling", "ctc", "bag"):
        if getattr(train, key) and kind != "translate":
            yield f"train: {key} is for the task 'translate' alone"
    if isinstance(config.task, NumberTask | Forecast) and train.label_smoothing:
        yield f"train: label_smoothing: the task '{kind}' has no labels"
    if config.decode.ctc and not train.ctc:
        yield "decode: ctc requires train.ctc above 0"


def _head(config: Config) -> Iterator[str]:
    head, encoder = config.head, config.encoder
    pooled = head.pool if isinstance(head, Pooled | Horizon) else ""
    recurrent = encoder is None or isinstance(encoder, RecurrentEncoder | Pyramid)
    if pooled == "last" and not recurrent:
        yield "head: pool 'last' is a recurrent encoder's last state; use mean, max or attention"
    if isinstance(head, PerWord) and isinstance(encoder, Pyramid):
        targets = "labels" if isinstance(config.task, Tag) else "numbers"
        yield f"encoder: a pyramid shortens the sequence, and {targets} need every position"


def _decoder(config: Config) -> Iterator[str]:
    task, encoder, decoder = config.task, config.encoder, config.decoder
    if isinstance(task, Series | Forecast) and decoder is not None and decoder.tied:
        yield "decoder: tied needs an embedding table, and numbers have none: set tied = false"
    if isinstance(decoder, EditDecoder) and not isinstance(task, Translate):
        yield (
            "decoder: kind 'edit' edits a source into a text, and is for the task 'translate'; "
            f"this is '{task.kind}'"
        )
    if isinstance(decoder, RecurrentDecoder) and encoder is None and decoder.attention != "off":
        yield "decoder: a language model has no source to attend to: set attention = 'off'"
    free = getattr(decoder, "attention", "") == "parameter_free"
    if free and encoder is not None and decoder is not None and encoder.dim != decoder.dim:
        yield (
            "decoder: parameter-free attention compares encoder and decoder as they are: "
            f"make encoder.dim ({encoder.dim}) and decoder.dim ({decoder.dim}) "
            "equal, or use 'dot'"
        )
    stepwise = isinstance(decoder, RecurrentDecoder) and decoder.weight_dropout > 0.0
    attends = encoder is not None and getattr(decoder, "attention", "off") != "off"
    if stepwise and attends and getattr(decoder, "context", "") == "cell":
        yield (
            "decoder: weight_dropout is one choice for all steps, and with attention in "
            "the cell each step is run by itself: set context = 'output'"
        )
    copied = getattr(decoder, "first_state", "") == "copied"
    if copied and (encoder is None or encoder.dim != getattr(decoder, "dim", 0)):
        yield "decoder: first_state 'copied' needs an encoder of the same dim"


def _lengths(config: Config) -> Iterator[str]:
    task = config.task
    longest, limit = config.data.max_len, "data.max_len"
    if isinstance(task, LanguageModel | Pretrain):
        longest, limit = task.context, "task.context"
    if isinstance(task, Forecast):
        longest, limit = max(task.lookback or 1, task.horizon or 1), "task.lookback"
    for name, part in (("encoder", config.encoder), ("decoder", config.decoder)):
        known = part if isinstance(part, Transformer | Convolution) else None
        if known and known.positions == "learned" and known.max_positions < longest:
            yield (
                f"{name}: {known.max_positions} learned positions are fewer than "
                f"{limit} ({longest})"
            )


def _columns(config: Config) -> Iterator[str]:
    task, columns = config.task, {str(name) for name in config.data.source}
    kind = task.tokenizer.kind if isinstance(task, Tag) else ""
    if kind in ("char", "bytes") and config.data.units == "characters":
        yield (
            f"task: tokenizer.kind '{kind}' cuts words; where data.units = 'characters' each "
            "character is a word: set tokenizer.kind = 'word'"
        )
    if columns and (unknown := sorted(task.own.keys() - columns)):
        yield (
            f"task: columns has '{unknown[0]}', which is not among data.source "
            f"({', '.join(sorted(columns))})"
        )


def _words(config: Config) -> Iterator[str]:
    """`spelled` is for taggers, and `ordered = false` for columns of tags."""
    task = config.task
    spelled = any(getattr(one, "spelled", False) for one in task.own.values())
    for name in ("source", "target", "tokenizer"):
        reader = getattr(task, name, None)
        spelled |= getattr(reader, "spelled", False) and not isinstance(task, Tag)
        if not getattr(reader, "ordered", True):
            yield (
                f"task: {name}.ordered = false is for tags, which are a source of their own: "
                "set it in task.columns.NAME"
            )
    if spelled:
        yield "task: spelled = true is for task.tokenizer of the task 'tag' alone"
    words = isinstance(task, Tag) and task.tokenizer.kind == "word" and task.tokenizer.spelled
    if words and config.data.units == "characters":
        yield (
            "task: tokenizer.spelled: where data.units = 'characters' a word is one character: "
            "set it to false"
        )


def _joint(config: Config) -> Iterator[str]:
    task, encoder, decoder = config.task, config.encoder, config.decoder
    if not isinstance(task, Translate) or not task.joint:
        return
    columns = {str(name) for name in config.data.source}
    if columns and columns <= task.own.keys():
        yield (
            "task: joint: each source column has a table of its own in task.columns, and none "
            "is left to share the target's vocabulary: remove one, or joint"
        )
    if encoder and decoder and encoder.dim != decoder.dim:
        yield (
            "task: joint shares one embedding table: "
            f"make encoder.dim ({encoder.dim}) and decoder.dim ({decoder.dim}) "
            "equal, or set task.joint = false"
        )
    if task.source != task.target:
        yield "task: joint needs the same settings in task.source and task.target"


CHECKS: tuple[Callable[[Config], Iterator[str]], ...] = (
    _forecast,
    _start,
    _objective,
    _word2vec,
    _copies,
    _losses,
    _head,
    _decoder,
    _lengths,
    _columns,
    _words,
    _joint,
)
