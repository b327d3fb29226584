"""The likeliest labels of a sentence of which each may follow the one before: Viterbi 1967."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def likeliest(
    log_probs: Float[Tensor, "n L"], following: Bool[Tensor, "L L"], first: Bool[Tensor, "L"]
) -> Int[Tensor, "n"]:
    """The labels with the largest sum of log-probabilities, of those that may follow each other."""
    best = log_probs.argmax(-1)
    if len(best) == 0 or (first[best[0]] and following[best[:-1], best[1:]].all()):
        return best
    forbidden = torch.zeros(following.shape).masked_fill(~following, -torch.inf)
    score, came_from = log_probs[0].masked_fill(~first, -torch.inf), []
    for row in log_probs[1:]:
        score, source = (score[:, None] + forbidden).max(0)
        score = score + row
        came_from.append(source)
    label = score.argmax()
    path = [label]
    for source in reversed(came_from):
        label = source[label]
        path.append(label)
    return torch.stack(path[::-1])
