"""Settings of decoding: the table `decode`."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from saccade.config.readers import NonNegative, Positive, PositiveFloat, Share, Strict, Tuple

# upper limits, so that no request exhausts the memory
MAX_HYPOTHESES = 1000  # per input
MAX_SEARCH_TOKENS = 1 << 22  # of all hypotheses of an input
Hypotheses = Annotated[int, Field(gt=0, le=MAX_HYPOTHESES)]


class Compute(Strict):
    """Settings of how predictions are computed."""

    batch_tokens: Annotated[int, Field(gt=0, le=1 << 20)] = 4096
    engine: Literal["auto", "torch", "ctranslate2"] = "auto"
    int8: bool = False  # weights quantised to 8 bits, on a CPU
    # processes; 0: one for each core, where that is fast
    workers: Annotated[int, Field(ge=0, le=256)] = 0


class Limits(Strict):
    """How long an output may be, in tokens."""

    max_len: Annotated[int, Field(gt=0, le=100_000)] = 200
    # and at most max_ratio * source length + 10
    max_ratio: Annotated[float, Field(gt=0, le=10_000)] = 3.0


class Rules(Limits):
    """Constraints on outputs, for every kind of search."""

    min_len: Annotated[int, Field(ge=0)] = 0  # of an output, in tokens
    no_repeat: Annotated[int, Field(ge=0)] = 0  # no n-gram of this length is repeated; 0 is off
    repetition: Annotated[float, Field(ge=1.0)] = 1.0  # penalty: log p of repeated tokens * this
    banned: Tuple = ()  # words or phrases that are never generated
    only: str = ""  # a file of permitted outputs, one per line
    # every output is a bracketed tree, as in (S (NP he) (VP sits)); words: with as many words as
    # the source
    tree: bool | Literal["words"] = False
    model: str = ""  # the run of a language model with the same vocabulary ...
    model_weight: NonNegative = 0.2  # ... whose log-probabilities are added with this weight
    # the weight of the encoder's CTC score, against the decoder's; None: train.ctc
    ctc: Share | None = None


class Ranking(Strict):
    """How finished hypotheses of different lengths are compared."""

    # the best is by log p / |y|^alpha (power), log p / ((5 + |y|) / 6)^alpha (gnmt), or log p
    length: Literal["power", "gnmt", "none"] = "power"
    alpha: Annotated[float, Field(ge=0, le=100)] = 1.0


class Risk(Strict):
    """Minimum Bayes risk decoding: of several candidates the one most similar to the others."""

    risk: Literal["off", "metric", "chrf", "bleu"] = "off"  # the similarity
    candidates: Hypotheses = 16  # samples, or the beam's best


class PlainBeam(Ranking, Limits, Compute):
    """The settings of beam search that every engine supports."""

    width: Hypotheses = 5
    # also stop once so many hypotheses are finished; None: only when no other can win any more
    stop_after: Annotated[int, Field(gt=0, le=MAX_SEARCH_TOKENS)] | None = None


class Beam(PlainBeam, Risk, Rules):
    """Search for the best, with a beam; a width of 1 is greedy."""

    kind: Literal["beam"] = "beam"
    groups: Positive = 1  # of diverse beam search ...
    diversity: NonNegative = 0.5  # ... and its penalty, as a log-probability
    coverage: NonNegative = 0.0  # weight of the penalty on source positions not attended to

    @model_validator(mode="after")
    def shares(self) -> Self:
        if self.width % self.groups:
            raise ValueError(f"width ({self.width}) must be divisible by groups ({self.groups})")
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
            f"{name} ({hypotheses:,}) x max_len ({limits.max_len:,}) exceeds the limit of "
            f"{MAX_SEARCH_TOKENS:,} tokens per search: lower one of them"
        )


class Exact(Ranking, Rules, Compute):
    """Exact search, which proves its optimum: for `saccade exact`, which compares beams with it."""

    kind: Literal["exact"] = "exact"
    budget: Positive = 20_000  # prefixes that may be expanded per source
    order: Literal["depth", "best"] = "depth"  # depth-first or best-first


# the default search of `predict` and `evaluate`
Decode = Annotated[Beam | Sample, Field(discriminator="kind")]
