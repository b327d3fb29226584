"""Readers of columns: a tokenizer for text, and others for labels, numbers, pictures and sound.

The type is the registry: a new kind is added to `Reader`, and the type checker names the places
that must handle it.
"""

from difflib import get_close_matches
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Pixels = Annotated[int, Field(gt=0, le=4096)]
Stride = Annotated[int, Field(gt=0, le=64)]
Tuple = Annotated[tuple[str, ...], Field(strict=False)]  # not strict: TOML has only lists


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Tokenizer(Strict):
    """How text becomes ids: trained on the training file, saved in the run."""

    # imported: that of a published model, from `saccade import`
    kind: Literal["word", "char", "bpe", "bytes", "unigram", "imported"] = "bpe"
    size: Positive = 8000  # the largest vocabulary, specials included
    min_count: Positive = 1  # rarer words or characters become <unk>
    lowercase: bool = False
    # NFD: letters and their accents are separate characters, as are the letters of Hangul syllables
    decompose: bool = False
    split_punctuation: bool = False  # "end." is two words; its blanks are not restored exactly
    separator: str = ""  # between words, as ";" in V;IND;PST; "": whitespace
    # False: an unordered set, as tags are; for a table of task.columns
    ordered: bool = True
    # kind word, task tag: each word is followed by its characters, from which it is embedded, too
    spelled: bool = False
    mask: bool = False  # whether there is <mask>, which replaces a masked token
    # <0>, <1> ..., each of which replaces a masked span
    sentinels: Annotated[int, Field(ge=0, le=1000)] = 0

    @model_validator(mode="after")
    def words(self) -> Self:
        if self.separator and self.kind != "word":
            raise ValueError(f"separator stands between words; the kind is '{self.kind}'")
        if self.spelled and self.kind != "word":
            raise ValueError(f"spelled is about whole words; '{self.kind}' cuts them already")
        if self.split_punctuation and self.kind in ("char", "bytes"):
            raise ValueError(f"split_punctuation is about words; '{self.kind}' has none")
        if self.decompose and self.kind != "char":
            raise ValueError(f"decompose is about single characters; the kind is '{self.kind}'")
        return self


class Label(Strict):
    """A label as a source, one of those of the training file: "a review with five stars"."""

    kind: Literal["label"] = "label"


class Numbers(Strict):
    """A vector, or a series of them: a JSON list, or a .npy or .npz file."""

    kind: Literal["numbers"] = "numbers"
    # each number is an angle, which the network reads as its sine and cosine
    angles: Literal["off", "degrees", "radians"] = "off"
    normalise: bool = True  # each feature to mean 0 and variance 1 in the training data
    centre: bool = False  # before that, subtract each series' own mean
    # the total stride of the stem's convolutions; 1: a linear layer
    stride: Stride = 1

    @model_validator(mode="after")
    def halvings(self) -> Self:
        _require_power_of_two("stride", self.stride)
        return self


class Picture(Strict):
    """A picture file, scaled to one size, as a grid of square cells."""

    kind: Literal["picture"] = "picture"
    height: Pixels = 64
    width: Pixels = 64
    grey: bool = False
    # residual: a small residual CNN whose output is the grid; patches: a linear layer for each cell
    stem: Literal["residual", "patches"] = "residual"
    cell: Stride = 16  # the side of a grid's cell, in pixels
    channels: Annotated[int, Field(gt=0, le=1024)] = 32  # of the first layer of the CNN
    blocks: Annotated[int, Field(gt=0, le=16)] = 1  # of the CNN at each resolution
    standardised: bool = False  # filters of the CNN have mean 0 and norm 1: better from scratch
    # augmentation, only in training
    crop: Annotated[float, Field(ge=0.0, le=0.5)] = 0.0  # moved by up to this share of its sides
    zoom: Annotated[float, Field(ge=0.0, le=0.5)] = 0.0  # each side scaled by up to this share
    turn: Annotated[float, Field(ge=0.0, le=180.0)] = 0.0  # turned by up to so many degrees
    # each row is moved by up to this share of its distance from the centre
    shear: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    bend: Annotated[float, Field(ge=0.0, le=0.5)] = 0.0  # bent, by up to this share of its sides
    flip: bool = False  # half of the pictures are mirrored
    colour: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0  # brightness, contrast and saturation
    tint: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0  # strength of random mixing of channels
    filter: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0  # half are blended with a random filter
    # a rectangle with sides of up to this share is erased
    erase: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0

    @model_validator(mode="after")
    def whole_cells(self) -> Self:
        if self.height % self.cell or self.width % self.cell:
            raise ValueError(
                f"height ({self.height}) and width ({self.width}) must be divisible by "
                f"cell ({self.cell})"
            )
        if self.stem == "residual":
            _require_power_of_two("cell", self.cell)
        return self

    @property
    def augments(self) -> bool:
        moves = self.crop or self.zoom or self.turn or self.shear or self.bend or self.flip
        return bool(moves or self.colour or self.tint or self.filter or self.erase)

    @property
    def colours(self) -> int:
        return 1 if self.grey else 3

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        return self.height // self.cell, self.width // self.cell


class Sound(Strict):
    """A sound file as log-mel frames; or precomputed frames, in a .npy or .npz file."""

    kind: Literal["sound"] = "sound"
    rate: Annotated[int, Field(ge=1000, le=192_000)] = 16_000  # samples a second; others resampled
    bands: Annotated[int, Field(gt=0, le=512)] = 80
    window_ms: Annotated[float, Field(gt=0, le=1000)] = 25.0
    hop_ms: Annotated[float, Field(gt=0, le=1000)] = 10.0
    centre: bool = False  # subtract each sound's own mean, an effect of microphone and room
    # the total stride of the stem's convolutions; 1: a linear layer
    stride: Stride = 4
    # augmentation, only in training: SpecAugment's masks of bands and times, speed perturbation
    band_masks: Annotated[int, Field(ge=0, le=16)] = 0
    band_width: Positive = 15  # of a mask, at most
    time_masks: Annotated[int, Field(ge=0, le=16)] = 0
    time_share: Share = 0.1  # of the frames, at most, in one mask
    speed: Annotated[float, Field(ge=0.0, le=0.5)] = 0.0  # also this much faster and slower

    @model_validator(mode="after")
    def frames(self) -> Self:
        _require_power_of_two("stride", self.stride)
        if self.window_ms * self.rate < 2000:
            raise ValueError(f"a window of {self.window_ms} ms has no two samples at this rate")
        return self

    @property
    def window(self) -> int:
        """Samples in a frame."""
        return round(self.rate * self.window_ms / 1000)

    @property
    def hop(self) -> int:
        """Samples between two frames."""
        return max(1, round(self.rate * self.hop_ms / 1000))


def _require_power_of_two(name: str, value: int) -> None:
    if value & (value - 1):
        raise ValueError(f"{name} ({value}) must be a power of two: each layer halves")


Media: TypeAlias = Numbers | Picture | Sound  # read as vectors


OTHERS = ("label", "numbers", "picture", "sound")  # than a tokenizer's


def _tag(value: Any) -> str:
    """The tag of a table in `Reader`: a tokenizer, unless its kind is close to another's."""
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return str(kind) if get_close_matches(str(kind), OTHERS, cutoff=0.7) else "text"


Reader = Annotated[
    Annotated[Tokenizer, Tag("text")]
    | Annotated[Label, Tag("label")]
    | Annotated[Numbers, Tag("numbers")]
    | Annotated[Picture, Tag("picture")]
    | Annotated[Sound, Tag("sound")],
    Discriminator(_tag),
]


class Vectors(NamedTuple):
    """What a network must know of a source of vectors: its reader, and their size."""

    reader: Media
    size: int
