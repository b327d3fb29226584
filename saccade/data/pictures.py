"""Pictures: files of common formats, scaled to one size, as grids of cells; extra `image`."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from saccade import config as c
from saccade.data.corpora import Array
from saccade.data.media import Cell, Fitting, MediaField, generator, required
from saccade.errors import ConfigError, DataError
from saccade.nn.padded import Padded

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # no other decoder is run
MAX_PIXELS = 1 << 26  # of a file, checked before it is decoded
BENDS = 4  # control points along a side of a bent picture


class PictureField(MediaField):
    """Pictures as bytes (H, W, C); in a batch a row is the cells of the grid, (S, side*side*C)."""

    dtype = np.uint8
    reader: c.Picture

    def __init__(self, reader: c.Picture, stored: bool = True):
        super().__init__(reader, reader.cell**2 * reader.colours, stored)
        self.cells = reader.grid[0] * reader.grid[1]

    def make(self, cell: Cell) -> Array:
        return decoded(cell, self.reader)

    def measure(self, cell: Cell) -> int:
        required(cell)
        return self.cells

    def shaped(self, flat: Array) -> Array:
        return flat.reshape(self.reader.height, self.reader.width, self.reader.colours)

    def length(self, numbers: Array) -> Array:
        size = self.reader.height * self.reader.width * self.reader.colours
        return np.where(numbers == size, self.cells, 0)

    def collate(self, rows: Sequence[Array], keys: Sequence[Any] | None) -> Padded:
        reader, side = self.reader, self.reader.cell
        if keys is not None and reader.augments:
            rows = [augmented(row, reader, key) for row, key in zip(rows, keys, strict=True)]
        pictures = np.stack(rows)
        high, wide = reader.grid
        cells = pictures.reshape(len(rows), high, side, wide, side, reader.colours)
        values = cells.swapaxes(2, 3).reshape(len(rows), self.cells, self.size_of_vector)
        return Padded(torch.from_numpy(values), torch.full((len(rows),), self.cells))

    @classmethod
    def load(cls, path: Path) -> Self:
        record = cls.read_record(path, c.Picture)
        return cls(record["reader"], record["stored"])


class PictureFitting(Fitting):
    def __init__(self, reader: c.Picture, cache_bytes: int):
        super().__init__(cache_bytes)
        self.reader = reader
        pillow()

    def add(self, cell: Cell) -> int:
        required(cell)
        return self.reader.height * self.reader.width * self.reader.colours

    def field(self) -> PictureField:
        return PictureField(self.reader, self.stored)


# --- reading --------------------------------------------------------------------------------------


def pillow() -> Any:
    """Pillow's modules Image and ImageOps; ConfigError where they are not installed."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ConfigError("pictures need pillow: pip install 'saccade[image]'") from None
    return Image, ImageOps


def opened(cell: Cell) -> Any:
    """A picture of which only the header was read; DataError if it is invalid or too large."""
    image_module, _ = pillow()
    path = required(cell)
    bombs = image_module.DecompressionBombError, image_module.DecompressionBombWarning
    try:
        image = image_module.open(path, formats=FORMATS)
        size = image.width * image.height
    except bombs as error:
        raise DataError(f"{cell.lead}: {_too_large(str(error))}") from None
    except (OSError, ValueError, SyntaxError, TypeError, OverflowError, EOFError) as error:
        what = "not a readable image" if "identify" in str(error) else str(error)
        raise DataError(f"{cell.lead}: {what}; save it as PNG or JPEG") from None
    if size > MAX_PIXELS:
        image.close()
        raise DataError(f"{cell.lead}: {_too_large(f'{image.width} x {image.height} pixels')}")
    return image


def _too_large(what: str) -> str:
    return f"{what}: larger than the limit of {MAX_PIXELS:,} pixels; scale it down"


def decoded(cell: Cell, reader: c.Picture) -> Array:
    """A picture as bytes (H, W, C), scaled to the reader's size and turned as its EXIF tag says.

    Transparency becomes white. The centre of the wanted aspect ratio is cropped.
    """
    image_module, operations = pillow()
    try:
        with opened(cell) as image:
            if image.format == "JPEG":  # faster: decode at about the wanted size
                image.draft("L" if reader.grey else "RGB", (2 * reader.width, 2 * reader.height))
            turned = operations.exif_transpose(image)
            plain = _eight_bit(turned, image_module, "L" if reader.grey else "RGB")
            fitted = operations.fit(
                plain, (reader.width, reader.height), image_module.Resampling.BILINEAR
            )
    except DataError:
        raise
    except MemoryError:
        raise DataError(f"{cell.lead}: {_too_large('not enough memory')}") from None
    except Exception as error:  # whatever a format's library raises
        raise DataError(f"{cell.lead}: damaged: {error}; copy or save it again") from None
    return np.asarray(fitted, np.uint8).reshape(reader.height, reader.width, reader.colours)


def _eight_bit(image: Any, image_module: Any, mode: str) -> Any:
    """Any image as 8-bit grey or RGB."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):  # 16 bits to 8
        numbers = np.asarray(image, np.float64)
        scale = 257.0 if numbers.max(initial=0) > 255 else 1.0
        image = image_module.fromarray(np.clip(numbers / scale, 0, 255).astype(np.uint8))
    if "transparency" in image.info or image.mode in ("LA", "PA", "RGBA", "La", "RGBa"):
        layers = image.convert("RGBA")
        white = image_module.new("RGBA", layers.size, "white")
        image = image_module.alpha_composite(white, layers)
    return image.convert(mode)


# --- augmentation ---------------------------------------------------------------------------------


def augmented(picture: Array, reader: c.Picture, key: Any) -> Array:
    """A picture with the reader's random augmentations, seeded by the key."""
    draw = generator(key)
    down, right, mirror, light, contrast, saturation, *zooms = draw.uniform(-1.0, 1.0, 8)
    if reader.turn or reader.shear or reader.bend:
        angle, slant = draw.uniform(-1.0, 1.0, 2) * (np.deg2rad(reader.turn), reader.shear)
        scale = 1.0 + reader.zoom * np.array(zooms)
        move = reader.crop * np.array([down, right]) * picture.shape[:2]
        bends = reader.bend * draw.uniform(-1.0, 1.0, (2, BENDS, BENDS)) if reader.bend else None
        picture = _warped(picture, angle, slant, scale, move, bends)
    elif reader.crop or reader.zoom:
        places = zip((down, right), zooms, picture.shape[:2], strict=True)
        rows, columns = (_moved(n, a * reader.crop, b * reader.zoom) for a, b, n in places)
        picture = picture[rows[:, None], columns]
    if reader.flip and mirror > 0:
        picture = picture[:, ::-1]
    if reader.colour or reader.tint:
        x = picture.astype(np.float32)
        x = x + 128.0 * reader.colour * light
        x = x.mean() + (x - x.mean()) * (1.0 + reader.colour * contrast)
        grey = x.mean(-1, keepdims=True)
        x = grey + (x - grey) * (1.0 + reader.colour * saturation)
        if reader.tint:
            mixed = np.eye(reader.colours) + reader.tint * draw.normal(size=(reader.colours,) * 2)
            x = (x - 128.0) @ mixed.T.astype(np.float32) + 128.0
        picture = np.clip(x, 0.0, 255.0).astype(np.uint8)
    if reader.filter:
        share = reader.filter * max(0.0, draw.uniform(-1.0, 1.0))  # half stay as they are
        weights = draw.normal(size=(3, 3, reader.colours, reader.colours))
        weights /= np.sqrt(9 * reader.colours)
        picture = _filtered(picture, share, weights.astype(np.float32))
    if reader.erase:
        sides = draw.uniform(0.0, reader.erase, 2) * picture.shape[:2]
        first = draw.uniform(0.0, 1.0, 2) * (picture.shape[:2] - sides)
        (top, left), (bottom, end) = first.astype(int), (first + sides).astype(int)
        picture = picture.copy()
        picture[top:bottom, left:end] = draw.integers(0, 256, reader.colours)
    return picture


def _filtered(picture: Array, share: float, weights: Array) -> Array:
    """A picture blended with its convolution by a random filter; edges are replicated.

    Random filters keep shapes and change textures: Xu et al. 2021, arxiv.org/abs/2007.13003.
    """
    high, wide = picture.shape[:2]
    x = picture.astype(np.float32) - 128.0
    edged = np.pad(x, ((1, 1), (1, 1), (0, 0)), "edge")
    offsets = ((row, column) for row in range(3) for column in range(3))
    convolved = sum(edged[r : r + high, c : c + wide] @ weights[r, c] for r, c in offsets)
    mixed = (1.0 - share) * x + share * convolved + 128.0
    return np.clip(mixed, 0.0, 255.0).astype(np.uint8)  # type: ignore[no-any-return]


def _warped(
    picture: Array, angle: float, slant: float, scale: Array, move: Array, bends: Array | None
) -> Array:
    """A picture turned, sheared and scaled about its centre, and moved; interpolated bilinearly.

    `bends` displace a grid of control points down and right, by shares of the sides, and the pixels
    between them by interpolation. Edges are replicated.
    """
    high, wide = picture.shape[:2]
    turned = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    seen = (turned @ [[1.0, 0.0], [slant, 1.0]]) * scale
    down, right = np.arange(high) - (high - 1) / 2, np.arange(wide) - (wide - 1) / 2
    parts = []
    for row, side in zip((0, 1), (high, wide), strict=True):
        places = seen[row, 0] * down[:, None] + seen[row, 1] * right + (side - 1) / 2 + move[row]
        if bends is not None:
            places = places + side * (_between(high) @ bends[row] @ _between(wide).T)
        places = np.clip(places, 0.0, side - 1.0).astype(np.float32)
        before = np.minimum(places.astype(np.int64), max(side - 2, 0))
        parts.append((before, np.minimum(before + 1, side - 1), (places - before)[..., None]))
    (top, bottom, below), (left, end, beside) = parts
    above = picture[top, left] * (1 - beside) + picture[top, end] * beside
    under = picture[bottom, left] * (1 - beside) + picture[bottom, end] * beside
    return np.rint(above * (1 - below) + under * below).astype(np.uint8)  # type: ignore[no-any-return]


@cache
def _between(side: int) -> Array:
    """The weight of each of BENDS control points along a side for each pixel, (side, BENDS)."""
    places = np.linspace(0.0, BENDS - 1.0, side)
    return np.maximum(0.0, 1.0 - np.abs(places[:, None] - np.arange(BENDS)))


def _moved(side: int, move: float, zoom: float) -> Array:
    """The indices of the pixels along a side after it is moved and scaled by shares of it.

    Edges are replicated.
    """
    middle = (side - 1) / 2
    places = (np.arange(side) - middle) * (1.0 + zoom) + middle
    seen: Array = np.clip(np.rint(places).astype(np.int64) + round(move * side), 0, side - 1)
    return seen
