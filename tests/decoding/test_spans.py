"""Labels of spans: what is likeliest of all that is well-formed."""

from itertools import product

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.decoding.spans import likeliest
from saccade.metrics.labels import may_follow, well_formed

LABELS = ["O", "B-x", "I-x", "I-y", "B-y"]
FOLLOWING = torch.tensor([[may_follow(one, label) for label in LABELS] for one in LABELS])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(0, 10_000))
def test_the_likeliest_well_formed_labels_are_found(n: int, seed: int) -> None:
    scores = torch.randn(n, len(LABELS), generator=torch.Generator().manual_seed(seed)) * 2
    log_probs = scores.log_softmax(-1)
    found = likeliest(log_probs, FOLLOWING, FOLLOWING[0]).tolist()  # the first is as after O
    ways = [
        ids
        for ids in product(range(len(LABELS)), repeat=n)
        if well_formed([LABELS[i] for i in ids])
    ]
    best = max(ways, key=lambda ids: sum(float(log_probs[k, i]) for k, i in enumerate(ids)))
    assert tuple(found) == best


def test_what_goes_on_with_a_span_follows_it() -> None:
    assert well_formed(["O", "B-x", "I-x", "I-x", "B-x"])
    assert well_formed([])
    for broken in (["I-x"], ["O", "I-x"], ["B-y", "I-x"], ["B-x", "O", "I-x"]):
        assert not well_formed(broken)


def test_no_words_have_no_labels() -> None:
    assert likeliest(torch.zeros(0, len(LABELS)), FOLLOWING, FOLLOWING[0]).tolist() == []
