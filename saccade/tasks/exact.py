"""Search error and model error: the optimum of exact search beside the results of beam search."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from saccade import config as c
from saccade.data.lines import Example
from saccade.decoding.exact import exact_search
from saccade.decoding.search import Hypothesis, Length, beam_search
from saccade.models.networks import Generator
from saccade.tasks.generate import NO_OUTPUT, GeneratingTask
from saccade.tasks.task import Query, Request

WIDTHS = (1, 2, 5, 10, 50)
SCORE_TOLERANCE = 1e-4  # scores that differ by less are the same


@dataclass(frozen=True, slots=True)
class Comparison:
    """A line: its optimum, whether that is proved, and the results of beams of several widths."""

    references: tuple[str, ...]
    text: str
    score: float
    value: float  # the score for its length
    proved: bool
    steps: int
    beams: dict[int, tuple[str, float, float]]  # width -> text, score, value
    problem: str = ""  # why nothing was found

    def missed(self, width: int) -> bool:
        """Whether a beam of this width found something worse: a search error."""
        return self.beams[width][2] < self.value - SCORE_TOLERANCE

    @property
    def wrong(self) -> bool:
        """Whether the optimum is no reference: a model error, which no search can fix."""
        return bool(self.references) and self.text not in self.references


def compare(
    task: GeneratingTask,
    network: Generator,
    examples: Sequence[Example],
    request: Request,
    widths: Sequence[int] = WIDTHS,
) -> Iterator[Comparison]:
    """Each line's optimum beside the beams', one at a time; a source given twice counts once.

    The search of the request is `exact`.
    """
    request, decode = task.with_permitted(request), request.decode
    assert isinstance(decode, c.Exact)
    references: dict[tuple[str, ...], list[str]] = {}
    for example in examples:
        references.setdefault(example.source, []).extend(map(str, example.references))
    length = Length(decode.length, decode.alpha)
    for number, (source, accepted) in enumerate(references.items()):
        (query,) = task.encode_queries([Query(source, number)], request)
        if query.problem:
            yield _skipped(accepted, query.problem)
            continue
        prepared, limit = task.prepare_search(network, [query], request), query.limit
        common: dict[str, Any] = {"end": task.output.specials.eos, "length": length}
        beams: dict[int, Hypothesis] = {}
        for width in widths:
            (found,) = beam_search(
                prepared.step, prepared.state, prepared.first, width=width, limits=[limit], **common
            )
            if found:
                beams[width] = found[0]
        if len(beams) < len(widths):
            yield _skipped(accepted, NO_OUTPUT)
            continue
        optimum = exact_search(
            prepared.step,
            prepared.state,
            prepared.first,
            limit=limit,
            budget=decode.budget,
            order=decode.order,
            incumbent=max(beams.values(), key=lambda one: one.value),
            **common,
        )
        best = optimum.best
        assert best is not None
        tokens = [task.full_output(query.sources[0], one.tokens) for one in (best, *beams.values())]
        texts = [task.display_text(query, text) for text in task.output.decode(tokens)]
        yield Comparison(
            tuple(accepted),
            texts[0],
            best.score,
            best.value,
            optimum.proved,
            optimum.steps,
            {
                width: (text, one.score, one.value)
                for text, (width, one) in zip(texts[1:], beams.items(), strict=True)
            },
        )


def _skipped(references: Sequence[str], problem: str) -> Comparison:
    return Comparison(tuple(references), "", 0.0, 0.0, False, 0, {}, problem)


def summary(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The shares in percent: of all lines, and of the proved ones where only proof can tell."""
    lines = [line for line in comparisons if not line.problem]
    proved = [line for line in lines if line.proved]

    def share(count: int, of: int) -> float:
        return 100 * count / max(of, 1)

    widths = list(lines[0].beams) if lines else []
    return {
        "lines": len(lines),
        "skipped": len(comparisons) - len(lines),
        "proved": share(len(proved), len(lines)),
        "model_error": share(sum(line.wrong for line in proved), len(proved)),
        "empty_optimum": share(sum(not line.text for line in proved), len(proved)),
        "steps": sum(line.steps for line in lines) / max(len(lines), 1),
        "widths": {
            width: {
                "search_error": share(sum(line.missed(width) for line in proved), len(proved)),
                "wrong": share(
                    sum(
                        bool(line.references) and line.beams[width][0] not in line.references
                        for line in proved
                    ),
                    len(proved),
                ),
                "empty": share(sum(not line.beams[width][0] for line in proved), len(proved)),
            }
            for width in widths
        },
    }
