"""Numbers in views: plain JSON with five digits, large matrices as bytes."""

from base64 import b64decode, b64encode
from collections.abc import Iterable
from math import isfinite, nan
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

MAX_LISTED_CELLS = 16_384  # of a matrix as lists
DIGITS = 5


def number(value: float) -> float | None:
    """A number with five significant digits; None if it is not finite, which JSON lacks."""
    value = float(value)
    return float(f"{value:.{DIGITS}g}") if isfinite(value) else None


def log_prob(value: float) -> float | None:
    """A log-probability with five decimals; None if it is not finite."""
    return round(float(value), DIGITS) if isfinite(value) else None


def or_nan(value: float | None) -> float:
    """A number of a view, which is None where it was not finite."""
    return nan if value is None else value


def numbers(values: Tensor | Iterable[float]) -> list[float | None]:
    return [number(value) for value in (values.tolist() if isinstance(values, Tensor) else values)]


def matrix(values: Float[Tensor, "T S"]) -> Any:
    """A matrix as lists of numbers, or a large one as bytes."""
    if values.numel() <= MAX_LISTED_CELLS:
        return [numbers(row) for row in values.float()]
    return bytes_of(values)


def bytes_of(values: Float[Tensor, "T S"]) -> dict[str, Any]:
    """A matrix as {"shape", "u8", "max"}: value = u8 / 255 * max.

    With negative numbers it has also a "min": value = min + u8 / 255 * (max - min).
    """
    values = values.float().cpu().nan_to_num(0.0)
    least, most = min(0.0, float(values.min())), float(values.max())
    scaled = (values - least) * (255.0 / max(most - least, 1e-30))
    data = scaled.round().clamp(0, 255).to(torch.uint8).contiguous().numpy().tobytes()
    packed = {"shape": list(values.shape), "u8": b64encode(data).decode(), "max": number(most)}
    return packed | ({"min": number(least)} if least < 0 else {})


def unpacked(packed: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The numbers of a matrix in either format."""
    if isinstance(packed, list):
        return np.array(
            [[np.nan if x is None else x for x in row] for row in packed], dtype=np.float64
        )
    least = packed.get("min", 0.0)
    flat = np.frombuffer(b64decode(packed["u8"]), np.uint8).astype(np.float64)
    return np.asarray(flat.reshape(packed["shape"]) / 255 * (packed["max"] - least) + least)


# --- shared by all drawings of a view -------------------------------------------------------------


def axis_names(view: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The names of the rows and the columns of an attention map; of one layer, its own."""
    names = {"source": view["source"], "target": view["target"], "read": view["read"]}
    rows, columns = names.get(view["rows"], [view["text"]]), names[view["columns"]]
    if view["layer"] is None:
        return rows, columns
    module = view["modules"][view["layer"]]
    if view["rows"] == "source":
        rows = rows[module["row_start"] :][: module["shape"][0]]
    return rows, columns[module["column_start"] :][: module["shape"][1]]


AXES = {"source": "input", "target": "output", "read": "what was read before", "output": "output"}


def axis_titles(view: dict[str, Any]) -> tuple[str, str]:
    """The titles of the axes of an attention map."""
    return AXES[view["rows"]], AXES[view["columns"]]


def map_title(view: dict[str, Any]) -> str:
    """The title of an attention map: its module and head, or the mean over cross-attention."""
    if view["layer"] is not None:
        path = str(view["modules"][view["layer"]]["path"])
        return path if view["head"] is None else f"{path}, head {view['head']}"
    shown = [one for one in view["modules"] if one["type"] in ("cross", "recurrent")]
    shown = shown or view["modules"][-1:]
    heads = sum(len(one["entropy"]) for one in shown)
    return "attention" if heads == 1 else f"attention, mean of {heads} heads"


def children(view: dict[str, Any]) -> dict[int | None, list[int]]:
    """The children of each node of a tree; those of None are the first tokens."""
    found: dict[int | None, list[int]] = {}
    for i, node in enumerate(view["nodes"]):
        found.setdefault(node["parent"], []).append(i)
    return found


def best_path(view: dict[str, Any]) -> set[int]:
    """The nodes of a tree on the path of the answer."""
    found, at = set(), view["best"]
    while at is not None:
        found.add(at)
        at = view["nodes"][at]["parent"]
    return found
