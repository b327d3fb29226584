"""The tree of a beam search: which continuations were kept, which were dropped, and why."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

Fate = Literal["kept", "ended", "outside the beam", "could not win", "enough had ended"]


@dataclass(slots=True)
class Node:
    """A continuation that the search examined: a token after its parent, and log p up to it."""

    parent: int | None  # a place among the tree's nodes; None stands before the first token
    token: int
    score: float
    fate: Fate


@dataclass(slots=True)
class Tree:
    """The nodes in the order of the search, parents before children."""

    nodes: list[Node] = field(default_factory=list)
    beam: list[int | None] = field(default_factory=list)  # the node at each place of the beam
    next: list[int | None] = field(default_factory=list)  # the same after this step

    @classmethod
    def of_width(cls, width: int) -> "Tree":
        """A tree before the first token, for a beam of this width."""
        return cls([], [None] * width)

    def add_step(
        self,
        continuations: Sequence[tuple[int, int, float]],
        ended: Sequence[int],
        kept: Sequence[int],
    ) -> None:
        """Add what a step of a group examined: (place of the parent in the beam, token, score).

        `ended` are places in that list, and so are `kept`, one for each place of the new beam: -1
        for an empty one.
        """
        nodes_of: dict[int, int] = {}
        for i, (place, token, score) in enumerate(continuations):
            if score == -inf:
                continue
            nodes_of[i] = len(self.nodes)
            fate: Fate = "ended" if i in ended else "kept" if i in kept else "outside the beam"
            self.nodes.append(Node(self.beam[place], token, score, fate))
        self.next += [nodes_of.get(i) for i in kept]

    def advance(self) -> None:
        """The step is over: the new beam takes the place of the old one."""
        self.beam, self.next = self.next, []

    def stop(self, places: Sequence[int], fate: Fate) -> None:
        """The search is over, and with it these open places of the beam."""
        for place in places:
            node = self.beam[place]
            if node is not None:
                self.nodes[node].fate = fate

    def path(self, node: int) -> list[int]:
        """The tokens from the first to this node."""
        tokens: list[int] = []
        at: int | None = node
        while at is not None:
            tokens.append(self.nodes[at].token)
            at = self.nodes[at].parent
        return tokens[::-1]
