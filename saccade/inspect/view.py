"""Views of a run: `view(run, item, kind)` is a view of an input, as plain JSON."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

from torch import nn

from saccade.data.pictures import PictureField
from saccade.data.sounds import SoundField
from saccade.errors import ConfigError
from saccade.inspect.beams import tree
from saccade.inspect.case import Case
from saccade.inspect.flow import flow
from saccade.inspect.maps import attention_maps
from saccade.inspect.media import caption_view, forecast_view, speech_view
from saccade.inspect.opening import Item, open_case
from saccade.inspect.saliency import saliency
from saccade.inspect.tables import embeddings, encodings, positions
from saccade.inspect.tokens import labels, tokens
from saccade.models.decoders import RecurrentDecoder
from saccade.models.ensembles import ClassifierEnsemble, GeneratorEnsemble, TaggerEnsemble
from saccade.models.heads import Pooled
from saccade.models.networks import Generator
from saccade.nn.attention import Attention, CrossAttention, SelfAttention
from saccade.nn.edits import Edits
from saccade.nn.pointer import Pointer
from saccade.nn.stems import Embedding
from saccade.runs.run import Run
from saccade.tasks.forecast import Forecast
from saccade.tasks.generate import GeneratingTask
from saccade.tasks.labels import LabelTask
from saccade.tasks.pretrain import Fill
from saccade.tasks.translate import Translate
from saccade.tasks.vectors import WordVectors

Kind = Literal[
    "attention",
    "tree",
    "tokens",
    "saliency",
    "labels",
    "flow",
    "caption_path",
    "speech",
    "forecast",
    "positions",
    "embeddings",
]
View = dict[str, Any]
OPTIONS: dict[str, set[str]] = {
    "attention": {"target", "layer", "head", "ablate", "prefix", "thumbs"},
    "tree": {"prefix"},
    "tokens": {"target", "prefix", "complete", "alternatives"},
    "saliency": {"method", "target", "position", "prefix"},
    "labels": set(),
    "flow": {"target", "position", "prefix", "untrained"},
    "caption_path": {"target", "layer"},
    "speech": {"target", "layer"},
    "forecast": {"samples", "seed"},
    "positions": {"length", "part"},
    "embeddings": {"word", "n", "points"},
}
SHARED = {"seed", "length"}  # names of settings of the search, too
SEARCHED = (
    "attention",
    "tree",
    "tokens",
    "saliency",
    "flow",
)  # that may have to search for an output
WITHOUT_INPUT = ("positions", "embeddings")  # views of the run itself


def kinds(run: Run) -> list[str]:
    """The kinds of views of a run, the most informative first."""
    task, network, found = run.task, run.network, []
    pictures = any(isinstance(field, PictureField) for field in task.sources)
    if isinstance(task, Translate) and isinstance(network, Generator):
        if attends(network.decoder) and pictures:
            found.append("caption_path")
        if attends(network.decoder) and [type(f) for f in task.sources] == [SoundField]:
            found.append("speech")
    if isinstance(task, Forecast):
        found.append("forecast")
    if isinstance(task, LabelTask):
        found.append("labels")
    if attends(network):
        found.append("attention")
    if isinstance(task, GeneratingTask):
        found.append("tree")
    if isinstance(task, GeneratingTask | Fill):
        found.append("tokens")
    if not isinstance(task, WordVectors):
        found += ["saliency", "flow"]
    if next(encodings(network, 1), None) is not None:
        found.append("positions")
    if any(isinstance(module, Embedding) for module in network.modules()):
        found.append("embeddings")
    return found


def attends(network: nn.Module) -> bool:
    """Whether a network has attention; for a recurrent decoder, to its source."""
    if isinstance(network, RecurrentDecoder):
        return network.attention is not None
    return any(
        isinstance(module, SelfAttention | CrossAttention | Attention | Edits | Pointer)
        or (isinstance(module, Pooled) and module.pool == "attention")
        for module in network.modules()
    )


def view(run: Run, item: Item, kind: str, /, **options: Any) -> View:
    """One view of an input, as plain JSON; some kinds do not need the input.

    Options that are not the view's are settings of the search, as in width=3, if it searches for an
    output; settings={...} are more of these.
    """
    if kind not in OPTIONS:
        raise ConfigError(f"no view {kind!r}: choose one of {', '.join(get_args(Kind))}")
    own, settings = sorted_options(run, kind, dict(options.pop("settings", None) or {}) | options)
    with evaluating(run.network):
        return _computed(run, item, kind, own, settings)


def sorted_options(run: Run, kind: str, options: View) -> tuple[View, View]:
    """The options of a kind of view, and those of its search; ConfigError for what is neither."""
    own = {name: value for name, value in options.items() if name in OPTIONS[kind]}
    settings = {name: value for name, value in options.items() if name not in OPTIONS[kind]}
    searches = kind in SEARCHED and isinstance(run.task, GeneratingTask)
    foreign = (set().union(*OPTIONS.values()) - SHARED) & set(settings)
    if foreign or (settings and not searches):
        known = ", ".join(sorted(OPTIONS[kind])) or "none"
        raise ConfigError(
            f"{min(foreign or settings)}: no option of the view '{kind}'; its options: {known}"
        )
    if settings:
        run.request(settings=settings)
    return own, settings


def _computed(run: Run, item: Item, kind: str, own: View, settings: View) -> View:
    match kind:
        case "tree":
            return tree(run, item, settings, **own)
        case "tokens":
            return tokens(run, item, settings=settings, **own)
        case "labels":
            return labels(run, item)
        case "caption_path":
            return caption_view(run, item, **own)
        case "speech":
            return speech_view(run, item, **own)
        case "forecast":
            return forecast_view(run, item, **own)
        case "positions":
            return positions(run, **own)
        case "embeddings":
            return embeddings(run, **own)
    case = open_case(run, item, own.pop("target", ""), settings, own.pop("prefix", ""))
    match kind:
        case "attention":
            maps = attention_maps(case, own.pop("ablate", False))
            return maps.view(**own)
        case "saliency":
            note = use_one_network(case)
            return saliency(case, **own) | note
        case _:
            if own.pop("untrained", False):
                case.network = run.task.build().to(next(run.network.parameters()).device).eval()
            note = use_one_network(case)
            return flow(case, **own) | note


def use_one_network(case: Case) -> View:
    """Of an ensemble only the first member scores the case, which the returned note says.

    Each member has vectors of its own for the positions: there is none that stands for all.
    """
    match case.network:
        case GeneratorEnsemble(members=members) | ClassifierEnsemble(members=members):
            case.network = members[0]
        case TaggerEnsemble(members=members):
            case.network = members[0]
        case _:
            return {}
    return {"network": f"by the first of the {len(members)} networks of the ensemble"}


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """While the block runs, a network is in evaluation mode."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
