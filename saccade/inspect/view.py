"""Views of a run: `view(run, item, kind)` is all there is to see of an input, as plain JSON."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

from torch import nn

from saccade.errors import ConfigError
from saccade.inspect.beams import tree
from saccade.inspect.maps import attention_maps
from saccade.inspect.opening import Item, open_case
from saccade.inspect.saliency import saliency
from saccade.inspect.tokens import labels, tokens
from saccade.models.heads import Pooled
from saccade.nn.attention import Attention, CrossAttention, SelfAttention
from saccade.runs.run import Run
from saccade.tasks.generate import GeneratingTask
from saccade.tasks.labels import LabelTask
from saccade.tasks.pretrain import Fill
from saccade.tasks.vectors import WordVectors

Kind = Literal["attention", "tree", "tokens", "saliency", "labels"]
View = dict[str, Any]
OPTIONS: dict[str, set[str]] = {
    "attention": {"target", "layer", "head", "ablate", "prefix"},
    "tree": {"prefix"},
    "tokens": {"target", "prefix", "complete", "alternatives"},
    "saliency": {"method", "target", "position", "prefix"},
    "labels": set(),
}
SEARCHED = ("attention", "tree", "tokens", "saliency")  # whose output may be searched for


def kinds(run: Run) -> list[str]:
    """The kinds of views that there are of a run."""
    task, modules = run.task, list(run.network.modules())
    attentions = (SelfAttention, CrossAttention, Attention)
    found = []
    pools = (m for m in modules if isinstance(m, Pooled))
    if any(isinstance(m, attentions) for m in modules) or any(m.pool == "attention" for m in pools):
        found.append("attention")
    if isinstance(task, GeneratingTask):
        found.append("tree")
    if isinstance(task, GeneratingTask | Fill):
        found.append("tokens")
    if not isinstance(task, WordVectors):
        found.append("saliency")
    if isinstance(task, LabelTask):
        found.append("labels")
    return found


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """While the block runs, a network is not in training; then it is as it was."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def view(run: Run, item: Item, kind: str, **options: Any) -> View:
    """One view of an input, as plain JSON.

    What is no option of the view is a setting of the search, as in width=3, where an output is
    searched for; settings={...} are some more.
    """
    if kind not in OPTIONS:
        raise ConfigError(f"no view {kind!r}: choose one of {', '.join(get_args(Kind))}")
    options = dict(options.pop("settings", None) or {}) | options
    own = {name: value for name, value in options.items() if name in OPTIONS[kind]}
    settings = {name: value for name, value in options.items() if name not in OPTIONS[kind]}
    searches = kind in SEARCHED and isinstance(run.task, GeneratingTask)
    if settings and not searches:
        known = ", ".join(sorted(OPTIONS[kind])) or "none"
        raise ConfigError(f"{min(settings)}: no option of the view '{kind}'; its options: {known}")
    with evaluating(run.network):
        return _made(run, item, kind, own, settings)


def _made(run: Run, item: Item, kind: str, own: View, settings: View) -> View:
    match kind:
        case "tree":
            return tree(run, item, settings, **own)
        case "tokens":
            return tokens(run, item, settings=settings, **own)
        case "labels":
            return labels(run, item)
    case = open_case(run, item, own.pop("target", ""), settings, own.pop("prefix", ""))
    if kind == "attention":
        maps = attention_maps(case, own.pop("ablate", False))
        return maps.view(**own)
    return saliency(case, **own)
