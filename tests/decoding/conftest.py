"""What the tests of decoding share: steps that are tables."""

import torch

from saccade.decoding.search import LOG_P, Length, Step

LENGTHS = [LOG_P, Length("power", 0.6), Length("power", 1.0), Length("gnmt", 0.8)]


def chain(seed: int, size: int = 6) -> Step:
    """A step that is a random table: what comes next depends on the last token alone."""
    numbers = torch.Generator("cpu").manual_seed(seed)
    table = (3 * torch.randn(size, size, generator=numbers, device="cpu")).log_softmax(-1)
    return lambda tokens, state: (table[tokens], state)
