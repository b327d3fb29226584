"""Data augmentation for inflection: random letters in the stem that source and target share.

In few pairs a model sees how affixes change, but not that a stem may be any letters. The lengths of
rows stay the same, and so do the batches of an epoch.

Anastasopoulos & Neubig 2019, arxiv.org/abs/1908.05838
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

import numpy as np

from saccade.data.corpora import Array, Column, Corpus

MIN_STEM = 3  # consecutive letters that are the same on both sides
MIN_LONG_STEM = 6  # from here on the first and the last letter stay: affixes may depend on them
REPLACED_SHARE = 0.5  # of the letters of a stem


def hallucinated(
    corpus: Corpus, letters: Sequence[int], share: float, seed: int, epoch: int
) -> Corpus:
    """The corpus with random letters in the stems of a share of its pairs; both sides share ids.

    Each pair's letters are a function of (seed, epoch, its index). Ids that are not among `letters`
    are neither replaced nor drawn.
    """
    source, target = corpus.sources[0], corpus.tokens
    assert isinstance(source, Column)
    new_source, new_target = np.array(source.ids), np.array(target.ids)
    alphabet = np.array(letters)
    for row in range(len(corpus)):
        rng = np.random.default_rng([seed, epoch, row])
        if rng.random() >= share:
            continue
        src = slice(source.starts[row], source.starts[row + 1])
        tgt = slice(target.starts[row], target.starts[row + 1])
        for a, b in stem_of(source.ids[src], target.ids[tgt]):
            letter, draw = rng.choice(alphabet), rng.random()
            if draw < REPLACED_SHARE and new_source[src.start + a] in alphabet:
                new_source[src.start + a] = new_target[tgt.start + b] = letter
    sources = (replace(source, ids=new_source), *corpus.sources[1:])
    return Corpus(sources, replace(target, ids=new_target))


def stem_of(source: Array, target: Array) -> Iterator[tuple[int, int]]:
    """The pairs of positions in source and target that hold the same letter of a stem."""
    matcher = SequenceMatcher(None, source.tolist(), target.tolist(), autojunk=False)
    for a, b, size in matcher.get_matching_blocks():
        if size >= MIN_STEM:
            margin = int(size >= MIN_LONG_STEM)
            yield from ((a + i, b + i) for i in range(margin, size - margin))
