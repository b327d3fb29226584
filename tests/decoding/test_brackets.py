"""Trees in brackets, whatever a model says: by every search, and within the limit."""

import random
from pathlib import Path

import pytest
import torch

from saccade.decoding.sample import sample
from saccade.decoding.search import beam_search, greedy
from saccade.decoding.steps import Brackets, tree
from saccade.errors import ConfigError
from saccade.metrics.trees import parse_tree
from tests.small_runs import small_run

END, BOS = 1, 0
PIECES = ["<bos>", "<eos>", "(", ")", " ", "S", "NP", "a", "b ", "))", ") (", "(NP ", ")) ", " a)"]
WORDS = ["<bos>", "<eos>", *(" " + word for word in ("(", ")", "(S", "NP", "a", "b)", "b))"))]
VOCABULARIES = {"pieces": PIECES, "words": WORDS}


def noise(size: int, seed: int, sharp: float = 3.0):  # type: ignore[no-untyped-def]
    """A step whose log-probabilities are noise of the step and of what was said last."""

    def step(tokens: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = []
        for token, t in zip(tokens.tolist(), state.tolist(), strict=True):
            draws = torch.Generator().manual_seed(seed * 7919 + 131 * int(t) + token)
            rows.append(sharp * torch.randn(size, generator=draws))
        return torch.stack(rows).log_softmax(-1), state + 1

    return step


def begin(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(rows, dtype=torch.long), torch.full((rows,), BOS)


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("seed", range(12))
def test_every_search_says_trees_alone_and_within_the_limit(name: str, seed: int) -> None:
    texts = VOCABULARIES[name]
    limits = [6, 9, 25]
    step = tree(noise(len(texts), seed), Brackets(texts, END, [BOS]), limits)
    state, first = begin(3)
    found = [[one] for one in greedy(step, state, first, end=END, limits=limits)]
    found += beam_search(step, state, first, end=END, width=4, limits=limits)
    drawn = sample(step, state, first, end=END, limits=limits, seed=seed, keys=[0, 1, 2])
    found += [[one] for one in drawn]
    for n, hypotheses in enumerate(found):
        assert hypotheses
        for one in hypotheses:
            if one.score > -torch.inf:
                said = "".join(texts[i] for i in one.tokens)
                assert parse_tree(said) is not None, said
                assert len(one.tokens) <= limits[n % 3]
        assert hypotheses[0].score > -torch.inf


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("seed", range(12))
def test_a_tree_has_as_many_words_as_it_should(name: str, seed: int) -> None:
    texts, words = VOCABULARIES[name], [1, 4, 7]
    limits = [16, 30, 40]
    step = tree(noise(len(texts), seed), Brackets(texts, END, [BOS]), limits, words)
    state, first = begin(3)
    found = [[one] for one in greedy(step, state, first, end=END, limits=limits)]
    found += beam_search(step, state, first, end=END, width=4, limits=limits)
    drawn = sample(step, state, first, end=END, limits=limits, seed=seed, keys=[0, 1, 2])
    for n, hypotheses in enumerate([*found, *([one] for one in drawn)]):
        assert hypotheses[0].score > -torch.inf
        for one in hypotheses:
            if one.score > -torch.inf:
                made = parse_tree("".join(texts[i] for i in one.tokens))
                assert made is not None
                assert len(made.words) == words[n % 3]
                assert len(one.tokens) <= limits[n % 3]


def test_what_is_allowed_keeps_its_log_probability_and_every_tree_is_allowed() -> None:
    """Each tree of up to six words and three levels, in every way to write it with these pieces."""
    brackets, numbers = Brackets(PIECES, END, [BOS]), random.Random(1)
    plain = noise(len(PIECES), 3)

    def drawn_tree(depth: int) -> str:
        if depth == 0 or numbers.random() < 0.3:
            return f"({numbers.choice(['S', 'NP'])} a)"
        some = " ".join(drawn_tree(depth - 1) for _ in range(numbers.randint(1, 2)))
        return f"({numbers.choice(['S', 'NP'])} {some})"

    for _ in range(40):
        left, state, token = drawn_tree(3), torch.zeros(1, dtype=torch.long), BOS
        step, count = tree(plain, brackets, [200]), 0
        while True:
            own, _ = plain(torch.tensor([token]), torch.tensor([count]))
            log_probs, state = step(torch.tensor([token]), state)
            options = [i for i in range(2, len(PIECES)) if left.startswith(PIECES[i])]
            options = options if left else [END]
            for i in options:
                assert log_probs[0, i] == own[0, i]
            if not left:
                break
            assert log_probs[0, END] == -torch.inf
            token = numbers.choice(options)
            left, count = left[len(PIECES[token]) :], count + 1


def test_where_no_tree_fits_nothing_can_be_said() -> None:
    step = tree(noise(len(PIECES), 1), Brackets(PIECES, END, [BOS]), [1])
    log_probs, _ = step(torch.tensor([BOS]), torch.zeros(1, dtype=torch.long))
    assert (log_probs == -torch.inf).all()


def test_a_vocabulary_that_closes_no_single_bracket_is_known() -> None:
    assert Brackets(PIECES, END, [BOS]).closable
    assert not Brackets(["<bos>", "<eos>", " (S", " a))"], END, [BOS]).closable


def trees(folder: Path) -> Path:
    numbers, path = random.Random(1), folder / "trees.tsv"
    rows = []
    for _ in range(120):
        words = numbers.choices("abcd", k=numbers.randint(1, 3))
        rows.append((" ".join(words), f"(S {' '.join(f'(W {word})' for word in words)})"))
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    return path


@pytest.mark.parametrize("decoder", ["lstm_general_output", "transformer"])
def test_a_network_with_random_weights_says_trees(
    decoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.small_runs.corpus", lambda folder, kind: trees(folder))
    task = {"kind": "translate", "metric": "bracket_f1"}
    task |= {"source": {"kind": "char", "size": 50}, "target": {"kind": "char", "size": 50}}
    decode = {"kind": "beam", "width": 3, "tree": True, "max_len": 30, "max_ratio": 9.0}
    run = small_run(tmp_path / "run", decoder, task=task, decode=decode)
    sources = ["a b c", "d", "c c"]
    for more in ({}, {"width": 1}, {"kind": "sample", "seed": 3}):
        said = run.predict(sources, settings=more)
        assert all(parse_tree(one.text) is not None for one in said)
    assert run.evaluate(trees(tmp_path))["well_formed"] == 100.0
    for source, one in zip(sources, run.predict(sources, settings={"tree": "words"}), strict=True):
        made = parse_tree(one.text)
        assert made is not None
        assert len(made.words) == len(source.split())
    free = run.predict(sources, settings={"tree": False})
    assert not all(parse_tree(one.text) is not None for one in free)


def test_a_target_of_words_with_brackets_on_them_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.small_runs.corpus", lambda folder, kind: trees(folder))
    task = {"kind": "translate", "source": {"kind": "char"}, "target": {"kind": "word"}}
    run = small_run(tmp_path / "run", task=task)
    with pytest.raises(ConfigError, match=r"decode\.tree: no token"):
        run.predict("a b", settings={"tree": True})
