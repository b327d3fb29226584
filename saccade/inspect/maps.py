"""The attention of every layer and head: maps, their entropy, and the importance of each head."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.inspect.case import Case, LanguageModelCase, go_on, grouped
from saccade.inspect.packing import bytes_of, matrix, number, numbers
from saccade.models.decoders import Decoder
from saccade.models.heads import Pooled
from saccade.nn.attention import Attention, CrossAttention, SelfAttention
from saccade.nn.edits import Edits
from saccade.nn.pointer import Pointer
from saccade.nn.watch import over_time, watch

Type = Literal["self", "cross", "recurrent", "pool", "copy"]
THUMB_SIZE = 24  # rows and columns of a thumbnail of a map
CLOSED = -1e4  # log-odds of copying at which nothing is copied
MAX_FLOAT_CELLS = 1 << 24  # of all maps of an input; more are stored in half precision


@dataclass(frozen=True)
class Module:
    """An attention module: what attends to what, and each head's map."""

    path: str
    type: Type
    rows: str  # source, target, or output (a single row)
    columns: str  # source, or read: the inputs of a decoder
    row_start: int  # the first of its rows among the positions of all sources
    column_start: int
    maps: Float[Tensor, "H T S"]

    def map(self, head: int | None) -> Float[Tensor, "T S"]:
        """The map of a head, or the mean over all."""
        if head is None:
            return self.maps.float().mean(0)
        if not 0 <= head < len(self.maps):
            raise ConfigError(
                f"head {head}: {self.path} has {len(self.maps)}, from 0 to {len(self.maps) - 1}"
            )
        return self.maps[head].float()


@dataclass(frozen=True)
class AttentionMaps:
    """All attention of a case, computed once for the views of any layer and head."""

    source: list[str]
    target: list[str]
    read: list[str]
    text: str
    modules: list[Module]
    summary: list[dict[str, Any]]  # for JSON

    def view(
        self, layer: int | None = None, head: int | None = None, thumbs: bool = True
    ) -> dict[str, Any]:
        """One map, of a layer and a head; by default the mean of cross-attention or the last one.

        Coverage is the sum of attention to each column. Without `thumbs` there are no thumbnails of
        all heads.
        """
        modules = self.summary
        if not thumbs:
            modules = [{k: v for k, v in module.items() if k != "thumbs"} for module in modules]
        shown = self.map(layer, head)
        return {
            "kind": "attention",
            "source": self.source,
            "target": self.target,
            "read": self.read,
            "text": self.text,
            "modules": modules,
            "layer": layer,
            "head": head,
            "rows": self._shown(layer).rows,
            "columns": self._shown(layer).columns,
            "map": matrix(shown),
            "coverage": numbers(shown.sum(0)),
        }

    def _to_source(self) -> list[Module]:
        to_source = [m for m in self.modules if m.type in ("cross", "recurrent")]
        return to_source or self.modules[-1:]

    def _shown(self, layer: int | None) -> Module:
        return self._to_source()[0] if layer is None else self.modules[layer]

    def map(self, layer: int | None = None, head: int | None = None) -> Float[Tensor, "T S"]:
        count = len(self.modules)
        if layer is not None and not 0 <= layer < count:
            raise ConfigError(f"layer {layer}: there are {count}, from 0 to {count - 1}")
        if layer is not None:
            return self.modules[layer].map(head)
        return torch.stack([module.map(head) for module in self._to_source()]).mean(0)


def attention_maps(case: Case, ablate: bool = False) -> AttentionMaps:
    """The maps of all attention of a case; ConfigError if there is none.

    With `ablate` also the importance of each head: how much less likely the output is without it.
    """
    network = case.network
    with torch.inference_mode(), watch(network) as recorded:
        case.forward(1)
    if not recorded:
        raise ConfigError("this network has no attention: there is nothing to draw")
    cells = sum(call.numel() for calls in recorded.values() for call in calls)
    dtype = torch.float32 if cells <= MAX_FLOAT_CELLS else torch.float16
    modules: list[Module] = []
    summary: list[dict[str, Any]] = []
    while recorded:
        path = next(iter(recorded))
        weights = over_time(recorded.pop(path))[0].float().cpu()  # (T, S) or (H, T, S)
        weights = weights if weights.dim() == 3 else weights[None]
        module = describe(case, path, weights.to(dtype))
        modules.append(module)
        summary.append(
            {
                "path": module.path,
                "type": module.type,
                "rows": module.rows,
                "columns": module.columns,
                "row_start": module.row_start,
                "column_start": module.column_start,
                "shape": list(module.maps.shape[1:]),
                "heads": len(module.maps),
                "entropy": numbers(entropy(weights)),
                "thumbs": [bytes_of(thumb) for thumb in thumbs(weights)],
            }
        )
        if ablate:
            summary[-1]["importance"] = importance(case, module)
    source = source_names(case, modules)
    target = case.outputs if any(m.rows in ("target", "output") for m in modules) else []
    return AttentionMaps(source, target, case.read, case.text, modules, summary)


def describe(case: Case, path: str, maps: Float[Tensor, "H T S"]) -> Module:
    """The module at a path, with the meaning of its rows and columns."""
    module = case.network.get_submodule(path)
    start = 0
    if ".encoders." in f".{path}":  # one for each of several sources
        start = case.spans[int(path.split("encoders.")[1].partition(".")[0])].start
    match module:
        case CrossAttention():
            return Module(path, "cross", "target", "source", 0, 0, maps)
        case Attention() | Edits():
            return Module(path, "recurrent", "target", "source", 0, 0, maps)
        case SelfAttention() if in_decoder(case.network, path):
            return Module(path, "self", "target", "read", 0, 0, maps)
        case SelfAttention():
            return Module(path, "self", "source", "source", start, start, maps)
        case Pooled():
            return Module(path, "pool", "output", "source", 0, 0, maps)
        case Pointer():
            return Module(path, "copy", "target", "source", 0, 0, maps)
        case _:
            raise AssertionError(f"no attention in {path}")


def in_decoder(network: nn.Module, path: str) -> bool:
    parts = path.split(".")
    parents = (".".join(parts[:i]) for i in range(1, len(parts)))
    return any(isinstance(network.get_submodule(parent), Decoder) for parent in parents)


def source_names(case: Case, modules: list[Module]) -> list[str]:
    """The names of the source's positions, as many as are attended to."""
    if isinstance(case, LanguageModelCase):
        return []
    ends = [m.maps.size(2) + m.column_start for m in modules if m.columns == "source"]
    if not ends:
        return case.names
    return case.names if max(ends) == len(case.names) else grouped(case.names, max(ends))


def entropy(maps: Float[Tensor, "H T S"]) -> Float[Tensor, "H"]:
    """The entropy of each head's attention, the mean over its rows, in nats."""
    logs = maps.clamp(min=1e-30).log_()
    return -torch.einsum("hts,hts->h", maps, logs) / maps.size(1)


def thumbs(maps: Float[Tensor, "H T S"]) -> Float[Tensor, "H t s"]:
    """Thumbnails of the maps, by mean pooling."""
    T, S = maps.shape[1:]
    size = min(T, THUMB_SIZE), min(S, THUMB_SIZE)
    return F.adaptive_avg_pool2d(maps[None], size)[0]


# --- ablation -------------------------------------------------------------------------------------


def importance(case: Case, module: Module) -> list[float | None]:
    """For each head log p of the output minus log p without the head.

    Michel et al. 2019, arxiv.org/abs/1905.10650. The output of a head is replaced by zeros; a
    pool's only head is replaced by uniform weights, and a pointer copies nothing.
    """
    heads, rows, drops = len(module.maps), case.rows_at_once, []
    attention = case.network.get_submodule(module.path)
    with torch.inference_mode():
        full = float(case.forward(1).sum())
        for start in range(0, heads, rows):
            go_on()
            chunk = list(range(start, min(start + rows, heads)))
            with without(attention, chunk, heads):
                ablated = case.forward(len(chunk)).sum(-1)
            drops += [full - float(log_p) for log_p in ablated]
    return [number(value) for value in drops]


@contextmanager
def without(attention: nn.Module, heads: list[int], of: int) -> Iterator[None]:
    """While the block runs, row i of a batch is computed without the i-th of these heads."""

    def zero_heads(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        (mixed,) = inputs  # (B, T, H * K)
        mixed = mixed.unflatten(-1, (of, -1)).clone()
        mixed[torch.arange(len(heads)), :, heads] = 0.0
        return (mixed.flatten(-2),)

    def zero(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return torch.zeros_like(output)

    def close(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return torch.full_like(output, CLOSED)

    with ExitStack() as stack:
        match attention:
            case SelfAttention() | CrossAttention():
                stack.callback(attention.out.register_forward_pre_hook(zero_heads).remove)
            case Pooled():
                stack.callback(attention.score.register_forward_hook(zero).remove)
            case Edits():  # it still moves over the source, with keys of zeros
                stack.callback(attention.key.register_forward_hook(zero).remove)
            case Pointer():  # all is generated
                stack.callback(attention.gate.register_forward_hook(close).remove)
            case _:
                stack.callback(attention.register_forward_hook(zero).remove)
        yield
