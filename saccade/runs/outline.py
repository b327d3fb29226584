"""How many parameters a network has, without any memory for them."""

from pathlib import Path

from torch import nn

from saccade import config as c
from saccade.errors import ConfigError
from saccade.models.build import build_meta
from saccade.models.presets import PUBLISHED, SIZES, preset
from saccade.runs.folder import read_config
from saccade.tasks.registry import load_task
from saccade.text.vocab import Inventory


def outline_of(model: str) -> dict[str, int]:
    """The parameters of a published size or of a run: of each part, and together."""
    if model in PUBLISHED:
        return counted(published_network(model))
    folder = Path(model)
    if not folder.exists():
        raise ConfigError(
            f"{model}: no run, and no published size; these are {', '.join(PUBLISHED)} "
            f"(and of any network {', '.join(SIZES)}, which depend on the vocabulary)"
        )
    return counted(load_task(read_config(folder), folder).build_meta())


def published_network(name: str) -> nn.Module:
    """The network of a published size on the meta device."""
    made = preset(name)
    masked = made.kind == "masked"
    task: dict[str, object] = {"kind": "pretrain" if masked else made.kind}
    if made.kind == "translate":
        task["joint"] = True
    if made.kind == "language":
        task["context"] = 8
    config = c.parse({"task": task, "data": {"max_len": 8}, **made.tables}, name)
    ids = Inventory(made.rows, (0, 1, 2, 3, 4))
    return build_meta(config, [] if made.kind == "language" else [ids], ids)


def counted(network: nn.Module) -> dict[str, int]:
    """The parameters of each part, in the part that has them first, and of all."""
    found: dict[str, int] = {}
    for name, parameter in network.named_parameters():
        path = name.split(".")
        part = ".".join(path[:2]) if path[0] != "head" else "head"
        found[part] = found.get(part, 0) + parameter.numel()
    return found | {"parameters": sum(found.values())}
