"""The tree of a beam search: every candidate continuation, and its fate."""

from typing import Any

from saccade import config as c
from saccade.decoding.tree import Fate, Tree
from saccade.errors import ConfigError
from saccade.inspect.opening import Item, Settings, searched
from saccade.inspect.packing import log_prob
from saccade.runs.run import Run
from saccade.tasks.generate import GeneratingTask

MAX_NODES = 20_000


def tree(run: Run, item: Item, settings: Settings = None, prefix: str = "") -> dict[str, Any]:
    """The view: nodes with token, log p of the prefix and fate, and the node of the answer."""
    task = run.task
    if not isinstance(task, GeneratingTask):
        raise ConfigError(f"a run of {run.config.task.title} does not search: it has no tree")
    answer = searched(run, item, settings, prefix, details=True)
    decode, grown = answer.request.decode, answer.found.tree
    if not isinstance(decode, c.Beam) or grown is None:
        raise ConfigError("samples have no tree: leave out the sampling, or set a width")
    if len(grown.nodes) > MAX_NODES:
        raise ConfigError(
            f"the tree has {len(grown.nodes):,} nodes, and the limit is {MAX_NODES:,}: "
            "set a smaller width"
        )
    best = node_of(grown, [*answer.found.hypotheses[0].tokens, task.output.specials.eos])
    names = task.output.tokens([node.token for node in grown.nodes])
    node_ranks = ranks(grown)
    return {
        "kind": "tree",
        "text": answer.text,
        "score": log_prob(answer.found.hypotheses[0].score),
        "width": decode.width,
        "best": best,
        "nodes": [
            {
                "parent": node.parent,
                "token": name,
                "score": log_prob(node.score),
                "fate": node.fate,
                "why": why(node.fate, rank, decode),
            }
            for node, name, rank in zip(grown.nodes, names, node_ranks, strict=True)
        ],
    }


def node_of(grown: Tree, tokens: list[int]) -> int | None:
    """The node at the end of these tokens."""
    at: int | None = None
    children: dict[int | None, list[int]] = {}
    for i, node in enumerate(grown.nodes):
        children.setdefault(node.parent, []).append(i)
    for token in tokens:
        same = [i for i in children.get(at, ()) if grown.nodes[i].token == token]
        if not same:
            return None
        at = next((i for i in same if grown.nodes[i].fate != "outside the beam"), same[0])
    return at


def ranks(grown: Tree) -> list[int]:
    """The rank of each node among the candidates of its step, from 1, by score."""
    depth: list[int] = []
    for node in grown.nodes:
        depth.append(0 if node.parent is None else depth[node.parent] + 1)
    order = sorted(range(len(depth)), key=lambda i: (depth[i], -grown.nodes[i].score))
    ranked, before, rank = [0] * len(depth), -1, 0
    for i in order:
        rank = 1 if depth[i] != before else rank + 1
        ranked[i], before = rank, depth[i]
    return ranked


def why(fate: Fate, rank: int, decode: c.Beam) -> str:
    """The reason of a node's fate, in words."""
    beam = f"a beam of width {decode.width}"
    match fate:
        case "kept":
            return f"number {rank} of its step: {beam} goes on with it"
        case "ended":
            return "the output ends here, and is set aside to be compared with others"
        case "outside the beam":
            reason = " or one that ends too low" if rank <= decode.width else ""
            return f"number {rank} of its step: outside of {beam}{reason}"
        case "could not win":
            return "whatever follows can only lower its score, and one that has ended is above it"
        case "enough had ended":
            return f"the search was over: {decode.stop_after} outputs had ended"
