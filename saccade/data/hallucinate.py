"""Pairs that never were: what a source and its target share, of other letters.

Where most of a word goes over into its form, few pairs show how it changes, but not that the rest
may be anything. The lengths of rows stay as they are, and so do the batches of an epoch.

Anastasopoulos & Neubig 2019, arxiv.org/abs/1908.05838
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

import numpy as np

from saccade.data.corpora import Array, Column, Corpus

MIN_STEM = 3  # letters in a row that are the same on both sides
MIN_LONG_STEM = 6  # from here on the letters at its ends stay: what stands beside them needs them
REPLACED_SHARE = 0.5  # of the letters of a stem


def hallucinated(
    corpus: Corpus, letters: Sequence[int], share: float, seed: int, epoch: int
) -> Corpus:
    """The corpus with other letters in the stems of a share of its pairs; both sides share ids.

    What becomes of a pair is a function of (seed, epoch, its index). Ids that are not among
    `letters` are neither replaced nor drawn.
    """
    source, target = corpus.sources[0], corpus.tokens
    assert isinstance(source, Column)
    read, said, drawn = np.array(source.ids), np.array(target.ids), np.array(letters)
    for row in range(len(corpus)):
        rng = np.random.default_rng([seed, epoch, row])
        if rng.random() >= share:
            continue
        one = slice(source.starts[row], source.starts[row + 1])
        other = slice(target.starts[row], target.starts[row + 1])
        for a, b in stem_of(source.ids[one], target.ids[other]):
            new, chance = rng.choice(drawn), rng.random()
            if chance < REPLACED_SHARE and read[one.start + a] in drawn:
                read[one.start + a] = said[other.start + b] = new
    sources = (replace(source, ids=read), *corpus.sources[1:])
    return Corpus(sources, replace(target, ids=said))


def stem_of(source: Array, target: Array) -> Iterator[tuple[int, int]]:
    """The positions of a source and of its target that hold the same letters of a stem."""
    matcher = SequenceMatcher(None, source.tolist(), target.tolist(), autojunk=False)
    for a, b, size in matcher.get_matching_blocks():
        if size >= MIN_STEM:
            kept = int(size >= MIN_LONG_STEM)
            yield from ((a + i, b + i) for i in range(kept, size - kept))
