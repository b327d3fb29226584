"""One input and one output of a run's network, which views are computed from.

Whatever the task, a case has input positions and output parts, and a score of each part (its log p;
for numbers the predicted mean) as a function of the vectors of the positions. Gradients, occlusion
and ablation need nothing else.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from math import ceil
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import DataError
from saccade.models.encoders import EarlyFusion, Encoder, LateFusion
from saccade.models.forecaster import AnyForecaster, Forecaster
from saccade.models.networks import Classifier, Generator, Regressor, Tagger, TokenPredictor
from saccade.nn.distributions import Distribution
from saccade.nn.padded import UNSCORED_ID, Padded
from saccade.nn.stems import Embedding, TextStem
from saccade.tasks.task import device_of

Vectors = tuple[Float[Tensor, "K S D"], ...]  # of each source
MAX_POSITIONS = 8192  # of input and output in one pass
GREY = 127  # of a blank picture

# of whoever waits for a view, as a server's client; None where nobody can go away
stopped: ContextVar[Callable[[], bool] | None] = ContextVar("stopped", default=None)
max_outputs: ContextVar[int | None] = ContextVar("max_outputs", default=None)  # of a case


class StoppedError(Exception):
    """Nobody waits for the view any more."""


class TooLargeError(DataError):
    """An output with more parts than may be looked into."""


def go_on() -> None:
    """StoppedError if nobody waits any more: asked between the passes of a view that takes many."""
    cancelled = stopped.get()
    if cancelled is not None and cancelled():
        raise StoppedError


@contextmanager
def stopped_by(cancelled: Callable[[], bool]) -> Iterator[None]:
    """While the block runs, views and their searches end when this is true."""
    token = stopped.set(cancelled)
    try:
        yield
    finally:
        stopped.reset(token)


@contextmanager
def at_most(outputs: int) -> Iterator[None]:
    """While the block runs, no case has more outputs."""
    token = max_outputs.set(outputs)
    try:
        yield
    finally:
        max_outputs.reset(token)


class Case(ABC):
    """An input, the model's output, and the output's scores."""

    unit = "log p"

    def __init__(
        self,
        network: nn.Module,
        sources: tuple[Padded, ...],
        names: Sequence[list[str] | None],
        outputs: list[str],
        text: str,
        read: Sequence[str] = (),
    ):
        """`names` are those of each source's positions, None where they are numbered.

        `outputs` are the names of the output's parts, `read` those of a decoder's inputs.
        """
        most = max_outputs.get()
        if most is not None and len(outputs) > most:
            raise TooLargeError(
                f"the output has {len(outputs):,} tokens: views are of {most:,} at most; shorten "
                "the input or the target, or set max_len"
            )
        self.network = network
        self.sources = sources  # one row
        self.outputs = outputs
        self.text = text
        self.read = list(read)
        self._names = names

    # --- what differs between networks ------------------------------------------------------------

    @abstractmethod
    def forward(self, rows: int) -> Float[Tensor, "K T"]:
        """The score of each part, for so many rows of the same input."""

    @property
    def stems(self) -> list[nn.Module]:
        """The modules whose outputs are the vectors of positions."""
        return stems_of(self.network.encoder)  # type: ignore[arg-type]

    @property
    def tokens(self) -> list[Tensor | None]:
        """The ids of each source; None if it has real vectors."""
        return [None if s.values.is_floating_point() else s.values for s in self.sources]

    # --- what all share ---------------------------------------------------------------------------

    def repeated(self, rows: int) -> tuple[Padded, ...]:
        index = torch.zeros(rows, dtype=torch.long)
        return tuple(source.rows(index) for source in self.sources)

    @cached_property
    def vectors(self) -> Vectors:
        """The vectors of each source's positions: (1, S, D)."""
        recorded: dict[int, Tensor] = {}

        def record(number: int, module: nn.Module, inputs: Any, output: Any) -> None:
            recorded[number] = (output.values if isinstance(output, Padded) else output).detach()

        with ExitStack() as stack, torch.no_grad():
            for i, stem in enumerate(self.stems):
                stack.callback(stem.register_forward_hook(partial(record, i)).remove)
            self.forward(1)
        return tuple(recorded[i] for i in range(len(recorded)))

    @cached_property
    def names(self) -> list[str]:
        """The names of the positions of all sources, concatenated."""
        return [
            name
            for names, vectors in zip(self._names, self.vectors, strict=True)
            for name in grouped(names, vectors.size(1))
        ]

    @property
    def spans(self) -> list[range]:
        """The positions of each source."""
        ends = [0, *accumulate(v.size(1) for v in self.vectors)]
        return [range(*pair) for pair in pairwise(ends)]

    @cached_property
    def baseline(self) -> Vectors:
        """Vectors without information: for tokens the mean embedding, else those of a blank input.

        A blank picture is grey, blank numbers are their means.
        """
        found = []
        with torch.no_grad():
            for stem, ids, own, source in zip(
                self.stems, self.tokens, self.vectors, self._padded, strict=True
            ):
                table = stem.embedding if isinstance(stem, TextStem) else stem
                if isinstance(table, Embedding) and ids is not None:
                    mean = table.weight.mean(0) * table.scale
                    found.append(own - table(ids) + mean.to(own.dtype))
                    continue
                fill = GREY if source.values.dtype == torch.uint8 else 0
                blank = replace(source, values=torch.full_like(source.values, fill))
                found.append(stem(blank).values)
        return tuple(found)

    @property
    def _padded(self) -> Sequence[Padded]:
        return self.sources

    def scores(self, vectors: Vectors | None = None) -> Float[Tensor, "K T"]:
        """The score of each part, with these vectors for the positions, or the input's own."""
        if vectors is None:
            return self.forward(1)
        with replaced(self.stems, vectors), differentiable():
            return self.forward(vectors[0].size(0))

    @property
    def rows_at_once(self) -> int:
        """The number of rows of this input in one pass."""
        positions = sum(v.size(1) for v in self.vectors) + len(self.outputs)
        return max(1, min(64, MAX_POSITIONS // max(positions, 1)))


def grouped(names: list[str] | None, positions: int) -> list[str]:
    """A name for each position; where a network pools positions, their names are joined."""
    if names is None:
        return [str(i) for i in range(positions)]
    if len(names) <= positions:
        return names + [str(i) for i in range(len(names), positions)]
    each = ceil(len(names) / positions)
    return ["".join(names[i * each : (i + 1) * each]) for i in range(positions)]


def stems_of(encoder: nn.Module) -> list[nn.Module]:
    match encoder:
        case Encoder():
            return [encoder.stem]
        case EarlyFusion():
            return list(encoder.stems)
        case LateFusion():
            return [stem for inner in encoder.encoders for stem in stems_of(inner)]
        case _:
            raise AssertionError(f"no stems in {type(encoder).__name__}")


@contextmanager
def replaced(modules: Sequence[nn.Module], vectors: Vectors) -> Iterator[None]:
    """While the block runs, these modules return these vectors."""

    def put(new: Tensor, module: nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, Padded):
            return replace(output, values=new.to(output.values.dtype))
        return new.to(output.dtype)

    with ExitStack() as stack:
        for module, new in zip(modules, vectors, strict=True):
            stack.callback(module.register_forward_hook(partial(put, new)).remove)
        yield


@contextmanager
def differentiable() -> Iterator[None]:
    """While the block runs, kernels without a backward pass in evaluation mode are not used."""
    with torch.backends.cudnn.flags(enabled=False):  # its recurrent layers
        yield


class GeneratedCase(Case):
    """A decoder after an encoder: translations, captions, restored texts."""

    def __init__(self, *args: Any, marks: Sequence[int], ids: Sequence[int], **more: Any):
        super().__init__(*args, **more)
        device = device_of(self.network)
        self.inputs = torch.tensor([[*marks, *ids[:-1]]], device=device)
        self.ids = torch.tensor([ids], device=device)

    def logits(self, rows: int) -> Float[Tensor, "K T V"]:
        assert isinstance(self.network, Generator)
        decoder = self.network.decoder
        state = decoder.start(self.network.encode(self.repeated(rows)), rows)
        logits: Tensor = decoder(self.inputs.expand(rows, -1), state)[0]
        return logits[:, -self.ids.size(1) :].float()

    def forward(self, rows: int) -> Float[Tensor, "K T"]:
        log_probs = self.logits(rows).log_softmax(-1)
        return log_probs.gather(-1, self.ids.expand(rows, -1)[..., None]).squeeze(-1)


class LanguageModelCase(GeneratedCase):
    """A language model, whose input positions are its own tokens."""

    @property
    def stems(self) -> list[nn.Module]:
        return [self.network.decoder.embedding]  # type: ignore[list-item, union-attr]

    @property
    def tokens(self) -> list[Tensor | None]:
        return [self.inputs]

    @property
    def _padded(self) -> Sequence[Padded]:
        return [Padded(self.inputs, torch.tensor([self.inputs.size(1)]))]


class LabelCase(Case):
    """A label for an input, or one for each of its words."""

    def __init__(self, *args: Any, ids: Sequence[int], **more: Any):
        super().__init__(*args, **more)
        self.ids = torch.tensor([ids], device=device_of(self.network))

    def logits(self, rows: int) -> Float[Tensor, "K T V"]:
        assert isinstance(self.network, Classifier | Tagger)
        logits = self.network.logits(self.repeated(rows)).float()
        return logits[:, None] if logits.dim() == 2 else logits[:, : self.ids.size(1)]

    def forward(self, rows: int) -> Float[Tensor, "K T"]:
        log_probs = self.logits(rows).log_softmax(-1)
        return log_probs.gather(-1, self.ids.expand(rows, -1)[..., None]).squeeze(-1)


class MaskedCase(Case):
    """The tokens at the masks of a text, by a bidirectional encoder."""

    def __init__(self, *args: Any, target: Padded, banned: Sequence[int], **more: Any):
        super().__init__(*args, **more)
        self.target, self.banned = target, list(banned)
        self.ids = target.values[target.values != UNSCORED_ID][None]

    def logits(self, rows: int) -> Float[Tensor, "K T V"]:
        assert isinstance(self.network, TokenPredictor)
        target = self.target.rows(torch.zeros(rows, dtype=torch.long))
        logits = self.network.logits(self.repeated(rows), target).float()
        logits = logits.index_fill(
            -1, torch.tensor(self.banned, device=logits.device), float("-inf")
        )
        return logits.view(rows, -1, logits.size(-1))

    def forward(self, rows: int) -> Float[Tensor, "K T"]:
        log_probs = self.logits(rows).log_softmax(-1)
        return log_probs.gather(-1, self.ids.expand(rows, -1)[..., None]).squeeze(-1)


class NumbersCase(Case):
    """The means of numbers that a head predicts for an input, or for each of its positions."""

    unit = "mean"

    def forward(self, rows: int) -> Float[Tensor, "K T"]:
        assert isinstance(self.network, Regressor)
        raw = self.network.raw(self.repeated(rows))
        mean = self.network.distribution.mean(raw)
        mean = mean.sum(-1) if mean.dim() == 3 else mean  # the sum of a position's numbers
        return mean[:, : len(self.outputs)]


class SeriesCase(Case):
    """The means of the rows of a series, which a decoder predicts autoregressively."""

    unit = "mean"

    def __init__(self, *args: Any, inputs: Tensor, **more: Any):
        super().__init__(*args, **more)
        self.inputs = inputs

    def forward(self, rows: int) -> Float[Tensor, "K T"]:
        assert isinstance(self.network, Generator)
        decoder, distribution = self.network.decoder, self.network.decoder.output
        assert isinstance(distribution, Distribution)
        state = decoder.start(self.network.encode(self.repeated(rows)), rows)
        raw, _ = decoder(self.inputs.expand(rows, -1, -1), state)
        return distribution.mean(raw).sum(-1)


class ForecastCase(Case):
    """The means of the steps of a forecast; the positions are those of the lookback.

    Their vectors are the values themselves, as a forecaster has a linear path beside its stem.
    """

    unit = "mean"

    def __init__(self, *args: Any, inputs: Tensor | None, **more: Any):
        super().__init__(*args, **more)
        self.inputs = inputs  # of a decoder, scaled

    @property
    def stems(self) -> list[nn.Module]:
        return []

    @cached_property
    def vectors(self) -> Vectors:
        return (self.sources[0].values,)

    @cached_property
    def baseline(self) -> Vectors:
        """A window that is constant at its mean."""
        values = self.sources[0].values
        return (values.mean(1, keepdim=True).expand_as(values),)

    def forward(self, rows: int) -> Float[Tensor, "K T"]:
        return self._means(self.repeated(rows))

    def scores(self, vectors: Vectors | None = None) -> Float[Tensor, "K T"]:
        if vectors is None:
            return self.forward(1)
        window, *others = self.repeated(vectors[0].size(0))
        with differentiable():
            return self._means((replace(window, values=vectors[0]), *others))

    def _means(self, sources: Sequence[Padded]) -> Float[Tensor, "K T"]:
        network = self.network
        assert isinstance(network, AnyForecaster)
        if isinstance(network, Forecaster):
            return network.normal(sources).mean.sum(-1)
        window, state = network.start(sources)
        assert self.inputs is not None
        more = self.inputs.expand(window.own.size(0), -1, -1)
        raw, _ = network.decoder(torch.cat([window.own[:, -1:], more], 1), state)
        return window.unframe(network.distribution.mean(raw)).sum(-1)
