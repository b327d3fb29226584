"""Objectives of pre-training on plain text.

The type is the registry: a new objective is added to `Objective`, and the type checker names the
places that must handle it.
"""

from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from saccade.config.readers import Share, Strict

Part = Literal["encoder", "decoder", "head", "output"]
Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]


class ObjectiveSettings(Strict):
    """The properties of an objective."""

    parts: ClassVar[tuple[Part, ...]]  # of its network
    needs_mask: ClassVar[bool] = False  # whether its tokenizer must have <mask>
    needs_view: ClassVar[bool] = False  # whether it needs an attention mask per row


class Hidden(ObjectiveSettings):
    """Some tokens are to be predicted, most of them masked.

    Devlin et al. 2019, arxiv.org/abs/1810.04805
    """

    parts = ("encoder", "head")
    needs_mask = True

    share: Fraction = 0.15  # of the tokens, that are predicted; of these:
    mask: Annotated[float, Field(ge=0.0, le=1.0)] = 0.8  # become <mask>
    random: Share = 0.1  # become a random token; the rest are unchanged
    whole_words: bool = False  # all pieces of a word, or none

    @model_validator(mode="after")
    def shares(self) -> Self:
        if self.mask + self.random > 1.0:
            raise ValueError(f"mask ({self.mask}) + random ({self.random}) must not exceed 1")
        return self


class Masked(Hidden):
    """Masked language modelling, with context from both sides: BERT, RoBERTa."""

    kind: Literal["masked"] = "masked"
    # masks are drawn again in every epoch (Liu et al. 2019); False: only once
    dynamic: bool = True
    # a row is two texts, and it is to be predicted whether the second follows the first
    next_sentence: bool = False


class Causal(ObjectiveSettings):
    """The next token: a language model.     Radford et al. 2018"""

    parts = ("decoder",)

    kind: Literal["causal"] = "causal"


class Bidirectional(ObjectiveSettings):
    """A forward and a backward language model, which share only embeddings and output layer.

    Peters et al. 2018, arxiv.org/abs/1802.05365
    """

    parts = ("encoder", "head")
    needs_mask = True  # for prediction: <mask> does not occur in training

    kind: Literal["bidirectional"] = "bidirectional"


class Unilm(Hidden):
    """Masked tokens with one of three attention masks per row: bidirectional, causal, or prefix.

    Dong et al. 2019, arxiv.org/abs/1905.03197
    """

    needs_view = True

    kind: Literal["unilm"] = "unilm"


class Permuted(ObjectiveSettings):
    """XLNet: tokens are predicted in random order, after all tokens that are not predicted.

    Yang et al. 2019, arxiv.org/abs/1906.08237
    """

    parts = ("encoder", "head")
    needs_mask = True  # its embedding initialises the query stream
    needs_view = True

    kind: Literal["permuted"] = "permuted"
    share: Fraction = 0.167  # of the tokens, that are predicted
    whole_words: bool = False  # all pieces of a word, or none


class Spans(ObjectiveSettings):
    """T5's span corruption: each span is replaced by a sentinel; the decoder generates the spans.

    Raffel et al. 2020, arxiv.org/abs/1910.10683
    """

    parts = ("encoder", "decoder")

    kind: Literal["spans"] = "spans"
    share: Fraction = 0.15  # of the tokens, that are masked
    length: Annotated[float, Field(ge=1.0, le=1000.0)] = 3.0  # mean of a span

    def most_spans(self, tokens: int) -> int:
        """The number of spans in a row of so many tokens."""
        masked = min(max(1, round(tokens * self.share)), tokens - 1)
        return max(1, min(round(masked / self.length), tokens - masked))


class Denoising(ObjectiveSettings):
    """BART: a text is corrupted; the decoder reconstructs the original.

    Lewis et al. 2020, arxiv.org/abs/1910.13461
    """

    parts = ("encoder", "decoder")
    needs_mask = True

    kind: Literal["denoising"] = "denoising"
    share: Share = 0.3  # of the tokens, that are masked in spans, each by one <mask>
    length: Annotated[float, Field(gt=0.0, le=1000.0)] = 3.0  # mean of a span (Poisson)
    delete: Share = 0.0  # of the tokens, that are deleted
    shuffle: bool = True  # the lines of a row are permuted


class Word2Vec(ObjectiveSettings):
    """word2vec with negative sampling.

    Mikolov et al. 2013, arxiv.org/abs/1310.4546
    """

    parts = ("encoder",)

    window: Annotated[int, Field(gt=0, le=100)] = 5  # words on either side, at most
    negatives: Annotated[int, Field(gt=0, le=1000)] = 5  # drawn for each pair
    # threshold of relative frequency above which words are subsampled; 0 is off
    sample: Share = 1e-3
    power: Annotated[float, Field(ge=0.0, le=2.0)] = 0.75  # of counts, in the noise distribution


class SkipGram(Word2Vec):
    """A word predicts each of the words around it."""

    kind: Literal["skipgram"] = "skipgram"


class Cbow(Word2Vec):
    """The mean of the words around it predicts a word."""

    kind: Literal["cbow"] = "cbow"


Objective = Annotated[
    Masked | Causal | Bidirectional | Unilm | Permuted | Spans | Denoising | SkipGram | Cbow,
    Field(discriminator="kind"),
]

OBJECTIVES: dict[str, type[ObjectiveSettings]] = {
    kind.model_fields["kind"].default: kind for kind in get_args(get_args(Objective)[0])
}
