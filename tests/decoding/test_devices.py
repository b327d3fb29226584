"""Every tensor that a search makes is on the device of what it was given."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from saccade.decoding import ctc, steps
from saccade.decoding.exact import exact_search, exhaustive
from saccade.decoding.sample import sample
from saccade.decoding.search import Step, beam_search, greedy, token_log_probs, top_alternatives
from saccade.decoding.tree import Tree
from saccade.nn.state import Fixed
from tests.decoding.conftest import chain

FIRST = torch.tensor([1, 1])
STATE = (torch.zeros(2, 1, dtype=torch.long), Fixed(torch.zeros(2, 3)))
TEXTS = torch.tensor([[2, 3, 0], [4, 4, 0]])
BEAM = {"end": 0, "width": 4, "limits": [5, 3]}


def one(state: Any) -> Any:
    return state[0][:1], Fixed(state[1].tree[:1])


def remembering(seed: int) -> Step:
    """A table in which what comes next depends on all tokens so far, by way of the state."""
    table = chain(seed)

    def step(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        total = state[0] + tokens[:, None]
        log_probs, _ = table(total[:, 0].remainder(6), None)
        return log_probs, (total, state[1])

    return step


SEARCHES: dict[str, Callable[[Step], Any]] = {
    "greedy": lambda step: greedy(step, STATE, FIRST, end=0, limits=[5, 3]),
    "beam": lambda step: beam_search(step, STATE, FIRST, **BEAM, nbest=2, stop_after=3),
    "groups": lambda step: beam_search(step, STATE, FIRST, **BEAM, groups=2, diversity=0.5),
    "tree": lambda step: beam_search(step, STATE, FIRST, **BEAM, trees=list[Tree]()),
    "sample": lambda step: sample(step, STATE, FIRST, end=0, limits=[5, 3], seed=1, keys=[0, 1]),
    "exact": lambda step: exact_search(step, one(STATE), FIRST[:1], end=0, limit=4, budget=300),
    "exhaustive": lambda step: exhaustive(step, one(STATE), FIRST[:1], end=0, limit=3),
    "forced": lambda step: token_log_probs(step, STATE, TEXTS, FIRST).tolist(),
    "preferred": lambda step: [x.tolist() for x in top_alternatives(step, STATE, TEXTS, FIRST, 2)],
}
STEPS: dict[str, Callable[[Step], Step]] = {
    "plain": lambda step: step,
    "ban": lambda step: steps.ban(step, [5]),
    "filters": lambda step: steps.top_p(steps.top_k(steps.tempered(step, 0.7), 4), 0.9),
    "typical": lambda step: steps.min_p(steps.typical(step, 0.9), 0.01),
    "at_least": lambda step: steps.at_least(step, 0, 2),
    "no_repeat": lambda step: steps.no_repeat(step, 1),
    "avoid": lambda step: steps.avoid(step, [[2, 3], [5]]),
    "repetition": lambda step: steps.repetition(step, 1.5),
    "only": lambda step: steps.only(step, 0, [[2, 3], [4], [4, 4]]),
}


@pytest.mark.parametrize("change", STEPS)
@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_stays_on_its_device(search: str, change: str) -> None:
    """What is made without a device is on `meta` here, which nothing on a CPU can be mixed with."""
    plain = SEARCHES[search](STEPS[change](remembering(3)))
    with torch.device("meta"):
        assert SEARCHES[search](STEPS[change](remembering(3))) == plain


def test_prefixes_stay_on_their_device() -> None:
    def found() -> Any:
        step = steps.prompted(remembering(3), [[2], [3, 4]])
        return beam_search(step, STATE, FIRST, **BEAM)

    plain = found()
    with torch.device("meta"):
        assert found() == plain


def test_ctc_stays_on_its_device() -> None:
    log_probs = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    keep = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])

    def found() -> Any:
        step = ctc.joint(remembering(3), ctc.ctc_step(5, 0), 0.4)
        state = (STATE, ctc.start(log_probs, keep, 5))
        spans = ctc.forced_alignment(log_probs[0], [2, 2, 3], 5)
        return beam_search(step, state, FIRST, **BEAM), spans

    plain = found()
    with torch.device("meta"):
        assert found() == plain
