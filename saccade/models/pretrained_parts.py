"""Parts of the maps of published architectures: weights by two names, a checked config.json."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from saccade.errors import CheckpointError
from saccade.models.layouts import Layout, Same, Transposed

MAX_SIZE = 1 << 24  # of any number in a config.json


class Weight(NamedTuple):
    """One of our parameters, the tensors that it is made of, and how."""

    ours: str
    theirs: tuple[str, ...]
    layout: Layout = Same()
    missing: float | None = None  # the fill value where theirs are missing


@dataclass
class Published:
    """A published architecture as our configuration."""

    model_type: str
    kind: str  # of the task: language, translate, classify, tag, masked
    tables: dict[str, dict[str, Any]]  # encoder, decoder, head
    rows: int  # of the vocabulary
    longest: int | None = None  # positions, where they are limited
    weights: list[Weight] = field(default_factory=list)
    prefix: str = ""  # of names, which a file may have or not
    joint: bool = False  # encoder and decoder share the embedding
    unused: tuple[str, ...] = ()  # prefixes of names that need not be read

    def add(self, ours: str, *theirs: str, layout: Layout | None = None) -> None:
        """A linear layer or a norm with a bias, if theirs ends in `.*`; else one tensor."""
        if not ours.endswith(".*"):
            self.weights.append(Weight(ours, theirs, layout or Same()))
            return
        for leaf in ("weight", "bias"):
            bias = leaf == "bias" and isinstance(layout, Transposed)
            names = tuple(name[:-1] + leaf for name in theirs)
            how = Same() if bias or layout is None else layout
            self.weights.append(Weight(ours[:-1] + leaf, names, how))


class Values:
    """The numbers of a config.json, each checked where it is read."""

    def __init__(self, found: Mapping[str, Any], where: str, tensors: Container[str] = ()):
        self.found, self.where, self.tensors = found, where, tensors

    def size(self, *names: str, default: int | None = None) -> int:
        """A whole number above 0, under the first of these names that is there."""
        value = next((self.found[n] for n in names if self.found.get(n) is not None), default)
        if type(value) is not int or not 0 < value <= MAX_SIZE:
            raise CheckpointError(f"{self.where}: {names[0]}: {value!r:.40} is not a size")
        return value

    def number(self, *names: str, default: float) -> float:
        value = next((self.found[n] for n in names if self.found.get(n) is not None), default)
        if type(value) not in (int, float) or not 0.0 <= value < 1e12:
            raise CheckpointError(f"{self.where}: {names[0]}: {value!r:.40} is not a number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.found.get(name)
        return default if value is None else bool(value)

    def text(self, *names: str, default: str) -> str:
        return str(next((self.found[n] for n in names if self.found.get(n) is not None), default))

    def token(self, name: str, default: int | None = None) -> int | None:
        """The id of a special token; of several the first."""
        value = self.found.get(name, default)
        value = value[0] if isinstance(value, list) and value else value
        return value if type(value) is int and 0 <= value < MAX_SIZE else default

    def require(self, name: str, *permitted: Any) -> None:
        """CheckpointError if a setting has an unsupported value."""
        if (value := self.found.get(name)) is not None and value not in permitted:
            raise CheckpointError(f"{self.where}: {name} = {value!r:.60} is not supported")

    def activation(self, *names: str, default: str) -> str:
        name = self.text(*names, default=default)
        if name not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise CheckpointError(
                f"{self.where}: {names[0]} = {name!r:.40}: there is no such activation; "
                f"known are {known}"
            )
        return ACTIVATIONS[name]


ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


def require_no_head(values: Values, head: str) -> None:
    if head != "none":
        raise CheckpointError(
            f"{values.where}: architectures: of {values.text('model_type', default='')} the "
            "language model can be imported, and no other head"
        )
