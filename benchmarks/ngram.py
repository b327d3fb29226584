"""What n-grams of the targets alone would say: perplexity and distinct-1/2 beside those of a run.

    python benchmarks/ngram.py RUN TRAIN DEV [--order 3]

Interpolated Kneser-Ney (Kneser & Ney 1995) with one discount, over the tokens of the run's own
target vocabulary, so that its perplexities are comparable to the run's; <eos> counts as a token,
as it does there. What it says is drawn, as many texts as DEV has.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import exp, log

import numpy as np

import saccade
from saccade.data.sources import examples
from saccade.metrics.text import distinct

DISCOUNT = 0.75
MAX_LENGTH = 100  # of a text that is drawn
Row = tuple[int, ...]


class KneserNey:
    """p(w | h) = max(c(h w) - d, 0) / c(h) + d n(h) / c(h) p(w | h'), down to 1 / V.

    h' is h without its first word, n(h) how many different words follow h; c counts occurrences in
    the highest order, and different words before in all others.
    """

    def __init__(self, rows: Sequence[Row], order: int, size: int, bos: int):
        self.order, self.size, self.bos = order, size, bos
        highest = Counter(gram for row in rows for gram in self.grams(row))
        self.next: list[dict[Row, Counter[int]]] = []
        for n in range(order, 0, -1):
            follow: dict[Row, Counter[int]] = defaultdict(Counter)
            for gram, count in highest.items():
                follow[gram[:-1]][gram[-1]] += count
            self.next.insert(0, dict(follow))
            highest = Counter(gram[1:] for gram in highest) if n > 1 else Counter()
        self.sums = [{h: words.total() for h, words in level.items()} for level in self.next]

    def grams(self, row: Row) -> list[Row]:
        padded = (self.bos,) * (self.order - 1) + row
        return [padded[i : i + self.order] for i in range(len(row))]

    def probability(self, history: Row, word: int) -> float:
        found = 1.0 / self.size
        for n, (level, sums) in enumerate(zip(self.next, self.sums, strict=True)):
            short = history[len(history) - n :]
            if short in sums:
                words, total = level[short], sums[short]
                found *= DISCOUNT * len(words) / total
                found += max(words[word] - DISCOUNT, 0.0) / total
        return found

    def nll(self, rows: Sequence[Row]) -> float:
        return -sum(log(self.probability(g[:-1], g[-1])) for row in rows for g in self.grams(row))

    def draw(self, numbers: np.random.Generator, eos: int) -> Row:
        """A text: at each place as long a history as is not discounted away."""
        row: Row = ()
        while len(row) < MAX_LENGTH:
            history = ((self.bos,) * (self.order - 1) + row)[len(row) :]
            word = self._next(history, numbers)
            if word == eos:
                break
            row += (word,)
        return row

    def _next(self, history: Row, numbers: np.random.Generator) -> int:
        for n in range(self.order - 1, -1, -1):
            short = history[len(history) - n :]
            if short not in self.sums[n]:
                continue
            words, total = self.next[n][short], self.sums[n][short]
            place = numbers.random() * total
            for word, count in words.items():
                place -= max(count - DISCOUNT, 0.0)
                if place < 0:
                    return word
        return int(numbers.integers(self.size))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("run")
    parser.add_argument("train")
    parser.add_argument("dev")
    parser.add_argument("--order", type=int, default=3)
    asked = parser.parse_args()
    run = saccade.load(asked.run)
    output, data, kind = run.task.output, run.config.data, run.config.task.kind
    eos, bos = output.specials.eos, output.specials.bos
    texts = [
        [str(text) for row in examples([path], data, kind) for text in row.references]
        for path in (asked.train, asked.dev)
    ]
    learned, measured = ([(*ids, eos) for ids in output.encode(some)] for some in texts)
    tokens, words = sum(map(len, measured)), sum(len(text.split()) + 1 for text in texts[1])
    print(f"{len(learned):,} texts to count, {len(measured):,} to measure on: {tokens:,} tokens")
    print(f"{'order':>8} {'perplexity':>12} {'by word':>10} {'distinct-1':>11} {'distinct-2':>11}")
    for order in range(1, asked.order + 1):
        model = KneserNey(learned, order, len(output), bos)
        nll, numbers = model.nll(measured), np.random.default_rng(1)
        said = output.decode([model.draw(numbers, eos) for _ in measured])
        scores = [distinct(said, n) for n in (1, 2)]
        print(
            f"{order:8} {exp(nll / tokens):12.1f} {exp(nll / words):10.1f} "
            f"{scores[0]:11.2f} {scores[1]:11.2f}"
        )
    own = [distinct(texts[1], n) for n in (1, 2)]
    print(f"{'people':>8} {'':12} {'':10} {own[0]:11.2f} {own[1]:11.2f}")


if __name__ == "__main__":
    main()
