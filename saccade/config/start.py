"""Settings of fine-tuning, the table `[start]`: from which run to start, and what is trained."""

from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag

from saccade.config.readers import Positive, PositiveFloat, Share, Strict

# the linear layers of a Transformer block: those of attention, and of the feed-forward network
Product = Literal["qkv", "query", "kv", "out", "up", "down"]
PRODUCTS: tuple[Product, ...] = get_args(Product)
LayerDecay = Annotated[float, Field(gt=0.0, le=1.0)]


class Begin(Strict):
    """A run to start from. Parameters that it does not have are new, and are always trained."""

    run: str  # its folder, as the user wrote it; not read again once the data is prepared
    digest: str = ""  # SHA-256 of its weights; filled in, or, if it is given, verified


class Whole(Begin):
    """All parameters are trained."""

    kind: Literal["whole"] = "whole"
    layer_decay: LayerDecay = 1.0  # of the learning rate, per layer from the output down


class Frozen(Begin):
    """Only new parameters are trained."""

    kind: Literal["frozen"] = "frozen"


class Gradual(Begin):
    """Gradual unfreezing: new parameters first, then layer by layer, from the output down.

    Howard & Ruder 2018, arxiv.org/abs/1801.06146
    """

    kind: Literal["gradual"] = "gradual"
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5  # of training, until all are unfrozen
    layer_decay: LayerDecay = 1.0


class LowRank(Begin):
    """LoRA: new parameters are trained, and low-rank updates of some linear layers.

    Hu et al. 2022, arxiv.org/abs/2106.09685
    """

    kind: Literal["lora"] = "lora"
    rank: Positive = 8
    alpha: PositiveFloat = 16.0  # the update is scaled by alpha / rank
    dropout: Share = 0.0  # of the update's input
    products: Annotated[tuple[Product, ...], Field(strict=False, min_length=1)] = (
        *("qkv", "query", "kv", "out"),
    )


def _kind(table: Any) -> Any:
    """The tag of the union; the default is `whole`."""
    return table.get("kind", "whole") if isinstance(table, dict) else getattr(table, "kind", None)


Start = Annotated[
    Annotated[Whole, Tag("whole")]
    | Annotated[Frozen, Tag("frozen")]
    | Annotated[Gradual, Tag("gradual")]
    | Annotated[LowRank, Tag("lora")],
    Discriminator(_kind),
]
