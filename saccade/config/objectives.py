"""What a network learns from plain text alone: an objective, of which there are several kinds.

The type is the registry: whoever adds an objective adds it to `Objective`, and the type checker
names the places that have to know.
"""

from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from saccade.config.readers import Share, Strict

Part = Literal["encoder", "decoder", "head", "output"]
Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]


class Masked(Strict):
    """Some tokens are hidden; the network says what they were.

    Devlin et al. 2019, arxiv.org/abs/1810.04805
    """

    parts: ClassVar[tuple[Part, ...]] = ("encoder", "head")
    needs_mask: ClassVar[bool] = True

    kind: Literal["masked"] = "masked"
    share: Fraction = 0.15  # of the tokens, that are to be said; of these:
    mask: Annotated[float, Field(ge=0.0, le=1.0)] = 0.8  # become <mask>
    random: Share = 0.1  # become a token drawn from the vocabulary; the rest stay as they are
    whole_words: bool = False  # all pieces of a word, or none
    # masks are drawn anew in every epoch (Liu et al. 2019); False is once for all
    dynamic: bool = True

    @model_validator(mode="after")
    def shares(self) -> Self:
        if self.mask + self.random > 1.0:
            raise ValueError(f"mask ({self.mask}) and random ({self.random}) are more than 1")
        return self


class Causal(Strict):
    """The next token: a language model.     Radford et al. 2018"""

    parts: ClassVar[tuple[Part, ...]] = ("decoder",)
    needs_mask: ClassVar[bool] = False

    kind: Literal["causal"] = "causal"


Objective = Annotated[Masked | Causal, Field(discriminator="kind")]

OBJECTIVES: dict[str, type[Masked | Causal]] = {
    one.model_fields["kind"].default: one for one in get_args(get_args(Objective)[0])
}
