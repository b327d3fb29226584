"""How an output is found: the table `decode`."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from saccade.config.readers import NonNegative, Positive, PositiveFloat, Share, Strict, Tuple

# Upper limits on search settings, so that no request exhausts the machine.
MAX_HYPOTHESES = 1000  # of one input
MAX_SEARCH_TOKENS = 1 << 22  # of all hypotheses of one input
Hypotheses = Annotated[int, Field(gt=0, le=MAX_HYPOTHESES)]


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
    # every output is a tree in brackets, as in (S (NP he) (VP sits)); words: with as many words as
    # its source has
    tree: bool | Literal["words"] = False
    model: str = ""  # the run of a language model with the same vocabulary ...
    model_weight: NonNegative = 0.2  # ... whose log-probabilities are added with this weight
    # the share of the encoder's CTC in the score, beside the decoder's; None is train.ctc
    ctc: Share | None = None


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
    """Find the best of all, and prove it: for `saccade exact`, which compares beams with it."""

    kind: Literal["exact"] = "exact"
    budget: Positive = 20_000  # prefixes that a source may extend
    order: Literal["depth", "best"] = "depth"  # what is extended first


# How `predict` and `evaluate` search, unless told otherwise.
Decode = Annotated[Beam | Sample, Field(discriminator="kind")]
