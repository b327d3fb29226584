"""Where training begins: with the vocabulary and the weights of another run, and what of it learns.

All that is said of fine-tuning is in this one table, `[start]`.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag

from saccade.config.readers import Positive, PositiveFloat, Share, Strict

# The linear layers of a Transformer's block: attention's, and those of the feed-forward network.
Product = Literal["qkv", "query", "kv", "out", "up", "down"]
PRODUCTS: tuple[Product, ...] = get_args(Product)
LayerDecay = Annotated[float, Field(gt=0.0, le=1.0)]


class Begin(Strict):
    """A run to begin with. What has no weights there is new, and learns in any case."""

    run: str  # its folder, as the user wrote it; once the data is prepared nobody reads it again
    digest: str = ""  # SHA-256 of its weights; found, or if it is given, required


class Whole(Begin):
    """Everything learns."""

    kind: Literal["whole"] = "whole"
    layer_decay: LayerDecay = 1.0  # of the rate, for each layer further from the output


class Frozen(Begin):
    """Only what is new learns."""

    kind: Literal["frozen"] = "frozen"


class Gradual(Begin):
    """What is new learns first, then one layer more after the other, from the output down.

    Howard & Ruder 2018, arxiv.org/abs/1801.06146
    """

    kind: Literal["gradual"] = "gradual"
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5  # of training, after which all learn
    layer_decay: LayerDecay = 1.0


class LowRank(Begin):
    """Only what is new learns, and for some linear layers a product of two small matrices.

    Hu et al. 2022, arxiv.org/abs/2106.09685
    """

    kind: Literal["lora"] = "lora"
    rank: Positive = 8
    alpha: PositiveFloat = 16.0  # the product counts alpha / rank times
    dropout: Share = 0.0  # of what the product reads
    products: Annotated[tuple[Product, ...], Field(strict=False, min_length=1)] = (
        *("qkv", "query", "kv", "out"),
    )


def _kind(table: Any) -> Any:
    """What says which of them it is; without a word, the whole network learns."""
    return table.get("kind", "whole") if isinstance(table, dict) else getattr(table, "kind", None)


Start = Annotated[
    Annotated[Whole, Tag("whole")]
    | Annotated[Frozen, Tag("frozen")]
    | Annotated[Gradual, Tag("gradual")]
    | Annotated[LowRank, Tag("lora")],
    Discriminator(_kind),
]
