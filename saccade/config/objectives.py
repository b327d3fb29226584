"""What a network learns from plain text alone: an objective, of which there are several kinds.

The type is the registry: whoever adds an objective adds it to `Objective`, and the type checker
names the places that have to know.
"""

from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from saccade.config.readers import Share, Strict

Part = Literal["encoder", "decoder", "head", "output"]
Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]


class ObjectiveSettings(Strict):
    """What an objective tells the rest of the toolkit about itself."""

    parts: ClassVar[tuple[Part, ...]]  # of its network
    needs_mask: ClassVar[bool] = False  # whether its tokenizer has to have <mask>
    needs_view: ClassVar[bool] = False  # whether positions see only some others


class Hidden(ObjectiveSettings):
    """Some tokens are asked for, of which most are hidden.

    Devlin et al. 2019, arxiv.org/abs/1810.04805
    """

    parts = ("encoder", "head")
    needs_mask = True

    share: Fraction = 0.15  # of the tokens, that are to be said; of these:
    mask: Annotated[float, Field(ge=0.0, le=1.0)] = 0.8  # become <mask>
    random: Share = 0.1  # become a token drawn from the vocabulary; the rest stay as they are
    whole_words: bool = False  # all pieces of a word, or none

    @model_validator(mode="after")
    def shares(self) -> Self:
        if self.mask + self.random > 1.0:
            raise ValueError(f"mask ({self.mask}) + random ({self.random}) must not exceed 1")
        return self


class Masked(Hidden):
    """Hidden tokens, from all that is left on both sides: BERT, RoBERTa."""

    kind: Literal["masked"] = "masked"
    # masks are drawn anew in every epoch (Liu et al. 2019); False is once for all
    dynamic: bool = True
    # a row is two texts, and it is to be said whether the second follows the first or is another
    next_sentence: bool = False


class Causal(ObjectiveSettings):
    """The next token: a language model.     Radford et al. 2018"""

    parts = ("decoder",)

    kind: Literal["causal"] = "causal"


class Bidirectional(ObjectiveSettings):
    """The next token and the one before: two language models, one from each end.

    They share embeddings and output, and nothing else. Peters et al. 2018, arxiv.org/abs/1802.05365
    """

    parts = ("encoder", "head")
    needs_mask = True  # for what a user asks for: it is never read in training

    kind: Literal["bidirectional"] = "bidirectional"


class Unilm(Hidden):
    """Hidden tokens under three masks, one for each row: both ways, left to right, or a prefix.

    Dong et al. 2019, arxiv.org/abs/1905.03197
    """

    needs_view = True

    kind: Literal["unilm"] = "unilm"


class Permuted(ObjectiveSettings):
    """Tokens one after the other in an order that is drawn, each after all that are not asked for.

    Yang et al. 2019, arxiv.org/abs/1906.08237
    """

    parts = ("encoder", "head")
    needs_mask = True  # whose vector is what a query begins with
    needs_view = True

    kind: Literal["permuted"] = "permuted"
    share: Fraction = 0.167  # of the tokens, that are to be said
    whole_words: bool = False  # all pieces of a word, or none


class Spans(ObjectiveSettings):
    """Spans of tokens, each hidden behind a sentinel; the decoder says them.

    Raffel et al. 2020, arxiv.org/abs/1910.10683
    """

    parts = ("encoder", "decoder")

    kind: Literal["spans"] = "spans"
    share: Fraction = 0.15  # of the tokens, that are hidden
    length: Annotated[float, Field(ge=1.0, le=1000.0)] = 3.0  # of a span, on the average

    def most_spans(self, tokens: int) -> int:
        """How many spans a row of so many tokens has."""
        hidden = min(max(1, round(tokens * self.share)), tokens - 1)
        return max(1, min(round(hidden / self.length), tokens - hidden))


class Denoising(ObjectiveSettings):
    """A corrupted text; the decoder reconstructs the original.

    Lewis et al. 2020, arxiv.org/abs/1910.13461
    """

    parts = ("encoder", "decoder")
    needs_mask = True

    kind: Literal["denoising"] = "denoising"
    share: Share = 0.3  # of the tokens, that are hidden in spans, each behind one <mask>
    length: Annotated[float, Field(gt=0.0, le=1000.0)] = 3.0  # of a span, on the average (Poisson)
    delete: Share = 0.0  # of the tokens, that are left out without a trace
    shuffle: bool = True  # lines of a row in another order


class Word2Vec(ObjectiveSettings):
    """Vectors that tell the words around a word from words drawn at random.

    Mikolov et al. 2013, arxiv.org/abs/1310.4546
    """

    parts = ("encoder",)

    window: Annotated[int, Field(gt=0, le=100)] = 5  # words on either side, at most
    negatives: Annotated[int, Field(gt=0, le=1000)] = 5  # drawn at random for each pair
    # a word that is more frequent is thinned out; 0 reads all
    sample: Share = 1e-3
    power: Annotated[float, Field(ge=0.0, le=2.0)] = 0.75  # of a count: how often it is drawn


class SkipGram(Word2Vec):
    """A word says each of the words around it."""

    kind: Literal["skipgram"] = "skipgram"


class Cbow(Word2Vec):
    """The mean of the words around it says a word."""

    kind: Literal["cbow"] = "cbow"


Objective = Annotated[
    Masked | Causal | Bidirectional | Unilm | Permuted | Spans | Denoising | SkipGram | Cbow,
    Field(discriminator="kind"),
]

OBJECTIVES: dict[str, type[ObjectiveSettings]] = {
    one.model_fields["kind"].default: one for one in get_args(get_args(Objective)[0])
}
