"""The attention of every layer and head: maps, how sharp they are, and what each head is worth."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.inspect.case import Case, LanguageModelCase, grouped
from saccade.inspect.packing import bytes_of, matrix, number, numbers
from saccade.models.decoders import Decoder
from saccade.models.heads import Pooled
from saccade.nn.attention import Attention, CrossAttention, SelfAttention
from saccade.nn.edits import Edits
from saccade.nn.watch import over_time, watch

Type = Literal["self", "cross", "recurrent", "pool"]
THUMB = 24  # cells of a small picture of a map, each way
MAX_FLOAT_CELLS = 1 << 24  # of all maps of an input; more are kept in half precision


@dataclass(frozen=True)
class Module:
    """An attention of a network: what attends to what, and each head's map."""

    path: str
    type: Type
    rows: str  # source, target, or output: one row for the whole
    columns: str  # source, or read: what a decoder was given before it said each target
    row_start: int  # the first of its rows among those of the source
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
    """All attention of a case. Made once; `view` then takes no time for another layer or head."""

    source: list[str]
    target: list[str]
    read: list[str]
    text: str
    modules: list[Module]
    summary: list[dict[str, Any]]  # for JSON

    def view(
        self, layer: int | None = None, head: int | None = None, thumbs: bool = True
    ) -> dict[str, Any]:
        """One map: of a module and a head; without, the mean of those to the source, or the last.

        Coverage is how much attention each column has got, of all rows. Without `thumbs` the small
        pictures of all heads are left out.
        """
        modules = self.summary
        if not thumbs:
            modules = [{k: v for k, v in one.items() if k != "thumbs"} for one in modules]
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
        found = [m for m in self.modules if m.type in ("cross", "recurrent")]
        return found or self.modules[-1:]

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
    """The maps of all attention of a case; ConfigError where there is none.

    With `ablate` also what each head is worth: how much less likely the output is without it.
    """
    network = case.network
    with torch.inference_mode(), watch(network) as found:
        case.forward(1)
    if not found:
        raise ConfigError("this network has no attention: there is nothing to draw")
    cells = sum(call.numel() for calls in found.values() for call in calls)
    dtype = torch.float32 if cells <= MAX_FLOAT_CELLS else torch.float16
    modules: list[Module] = []
    summary: list[dict[str, Any]] = []
    while found:
        path = next(iter(found))
        weights = over_time(found.pop(path))[0].float().cpu()  # (T, S) or (H, T, S)
        weights = weights if weights.dim() == 3 else weights[None]
        module = placed(case, path, weights.to(dtype))
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
    target = case.said if any(m.rows in ("target", "output") for m in modules) else []
    return AttentionMaps(source, target, case.read, case.text, modules, summary)


def placed(case: Case, path: str, maps: Float[Tensor, "H T S"]) -> Module:
    """A module with what its rows and columns are."""
    module = case.network.get_submodule(path)
    start = 0
    if ".encoders." in f".{path}":  # of several sources each has its own
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
    over = [m.maps.size(2) + m.column_start for m in modules if m.columns == "source"]
    if not over:
        return case.names
    return case.names if max(over) == len(case.names) else grouped(case.names, max(over))


def entropy(maps: Float[Tensor, "H T S"]) -> Float[Tensor, "H"]:
    """How spread out a head's attention is, the mean over its rows, in nats: 0 is on one column."""
    logs = maps.clamp(min=1e-30).log_()
    return -torch.einsum("hts,hts->h", maps, logs) / maps.size(1)


def thumbs(maps: Float[Tensor, "H T S"]) -> Float[Tensor, "H t s"]:
    """The maps made small, by means."""
    T, S = maps.shape[1:]
    size = min(T, THUMB), min(S, THUMB)
    return F.adaptive_avg_pool2d(maps[None], size)[0]


# --- ablation -------------------------------------------------------------------------------------


def importance(case: Case, module: Module) -> list[float | None]:
    """For each head log p of the output less log p without the head.

    Michel et al. 2019, arxiv.org/abs/1905.10650. A head's values are taken as zeros; where a pool
    has but one head, its weights are taken as equal.
    """
    heads, rows, found = len(module.maps), case.rows_at_once, []
    attention = case.network.get_submodule(module.path)
    with torch.inference_mode():
        whole = float(case.forward(1).sum())
        for start in range(0, heads, rows):
            some = list(range(start, min(start + rows, heads)))
            with without(attention, some, heads):
                left = case.forward(len(some)).sum(-1)
            found += [whole - float(log_p) for log_p in left]
    return [number(value) for value in found]


@contextmanager
def without(attention: nn.Module, heads: list[int], of: int) -> Iterator[None]:
    """While the block runs, row i of a batch is computed without head i of these."""

    def muted(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        (mixed,) = inputs  # (B, T, H * K)
        mixed = mixed.unflatten(-1, (of, -1)).clone()
        mixed[torch.arange(len(heads)), :, heads] = 0.0
        return (mixed.flatten(-2),)

    def nothing(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return torch.zeros_like(output)

    with ExitStack() as stack:
        match attention:
            case SelfAttention() | CrossAttention():
                stack.callback(attention.out.register_forward_pre_hook(muted).remove)
            case Pooled():
                stack.callback(attention.score.register_forward_hook(nothing).remove)
            case Edits():  # which passes over the source all the same, and sees nothing there
                stack.callback(attention.key.register_forward_hook(nothing).remove)
            case _:
                stack.callback(attention.register_forward_hook(nothing).remove)
        yield
