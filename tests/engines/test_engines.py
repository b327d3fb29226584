"""Where a prediction is computed: every engine says the same, and is chosen with a reason."""

import copy
import gc
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from saccade import config as c
from saccade.data.lines import Example
from saccade.engines.choose import Engines
from saccade.engines.local import LocalEngine
from saccade.engines.processes import ProcessEngine
from saccade.errors import ConfigError, SaccadeError
from saccade.nn.watch import watch
from saccade.runs.run import Run
from saccade.tasks.task import Member, Request
from saccade.text.tokenizers import Tokenizer
from tests.small_runs import TEXTS, TORCH, said, small_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return small_run(tmp_path)


FAST = [
    ("transformer", "transformer"),
    ("transformer_post", "transformer_post"),
    ("transformer_learned", "transformer_learned"),
    ("transformer", "transformer_none"),
    ("transformer", "transformer_rotary"),
]


def test_workers_find_what_one_process_finds(run: Run) -> None:
    for settings in ({}, {"sample": True}):
        here = run.predict(TEXTS, settings=TORCH | settings)
        there = run.predict(TEXTS, settings=TORCH | settings | {"workers": 2})
        assert said(here) == said(there)
        for one, other in zip(here, there, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)


def test_a_mistake_in_a_worker_is_the_users_to_read(run: Run) -> None:
    with pytest.raises(ConfigError, match="is not in the vocabulary"):
        run.predict(["abc"] * 3, settings=TORCH | {"workers": 2, "banned": ["日本"]})


@pytest.mark.parametrize(("encoder", "decoder"), FAST)
def test_ctranslate2_says_what_torch_says(encoder: str, decoder: str, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    run = small_run(tmp_path, decoder, encoder=encoder)
    for settings in ({}, {"width": 1}, {"length": "none"}, {"alpha": 0.6}, {"max_len": 6}):
        settings |= {"stop_after": 5}  # weights that have learned nothing are never sure
        ours = run.predict(TEXTS, settings=TORCH | settings)
        theirs = run.predict(TEXTS, settings={"engine": "ctranslate2"} | settings)
        same = [a.text == b.text for a, b in zip(ours, theirs, strict=True)]
        assert sum(same) >= 0.9 * len(same)
        for one, other in zip(ours, theirs, strict=True):
            if one.text == other.text:
                assert one.score == pytest.approx(other.score, abs=1e-3)


@pytest.mark.parametrize("decoder", ["transformer", "transformer_rotary", "transformer_post"])
def test_ctranslate2_completes_what_torch_completes(decoder: str, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    run = small_run(tmp_path, decoder, kind="language")
    texts = ["ab", "c", "abcda", "b d"] * 3
    for width in (1, 4):
        stop = {"stop_after": width, "max_len": 20}
        ours = run.predict(texts, width, settings=TORCH | stop)
        theirs = run.predict(texts, width, settings={"engine": "ctranslate2"} | stop)
        assert said(ours) == said(theirs)


def test_an_engine_that_cannot_serve_says_why(tmp_path: Path, run: Run) -> None:
    with pytest.raises(ConfigError, match="recurrent"):
        run.predict(["abc"], settings={"engine": "ctranslate2"})
    fast = small_run(tmp_path / "fast", encoder="transformer")
    with pytest.raises(ConfigError, match=r"decode\.kind = 'sample'"):
        fast.predict(["abc"], settings={"engine": "ctranslate2", "sample": True})
    with pytest.raises(ConfigError, match="details"):
        fast.predict(["abc"], settings={"engine": "ctranslate2"}, details=True)
    assert fast.predict(["abc"], settings={"sample": True})[0].text is not None


@pytest.mark.parametrize("decoder", ["transformer", "lstm_concat_cell", "gru_additive_cell"])
def test_eight_bits_are_near_the_whole(decoder: str, tmp_path: Path) -> None:
    from saccade.nn.packed import quantised

    run = small_run(tmp_path, decoder, encoder="transformer")
    small = quantised(run.network)
    rows = [Example((text,), "abca") for text in TEXTS[:5]]
    for (ours, _), (theirs, _) in zip(
        run.task.score(run.network, rows), run.task.score(small, rows), strict=True
    ):
        assert theirs == pytest.approx(ours, abs=0.05 * abs(ours) + 0.3)
        assert theirs != ours
    found = run.predict(TEXTS, settings=TORCH | {"int8": True})
    assert len(found) == len(TEXTS)
    assert isinstance(next(run.network.parameters()), torch.Tensor)


@pytest.mark.parametrize("decoder", ["transformer", "lstm_concat_cell", "gru_additive_cell"])
def test_packed_weights_say_the_same(decoder: str, tmp_path: Path) -> None:
    from saccade.nn.packed import packed

    run = small_run(tmp_path, decoder, encoder="transformer")
    rows = [Example((text,), "abca") for text in TEXTS]
    for count in (1, 2, 5):  # rows, and fewer or more than a kernel's
        theirs = run.task.score(packed(run.network), rows[:count])
        for (a, _), (b, _) in zip(run.task.score(run.network, rows[:count]), theirs, strict=True):
            assert b == pytest.approx(a, abs=1e-4)
    many = [text + "abc"[i % 3] for i in range(20) for text in TEXTS]
    alone = [run.predict([text], settings=TORCH)[0] for text in many[:15]]
    together = run.predict(many, settings=TORCH)[:15]
    for one, other in zip(alone, together, strict=True):
        assert other.score == pytest.approx(one.score, abs=1e-4)


@pytest.mark.parametrize("settings", [{}, {"coverage": 0.3}, {"workers": 2}], ids=str)
def test_a_watched_model_works_where_it_can_be_seen(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    run = small_run(tmp_path, encoder="transformer")
    plain = run.predict(TEXTS, settings=settings)
    with watch(run.network) as maps:
        found = run.predict(TEXTS, settings=settings)
    crosses = [path for path in maps if path.endswith(".cross")]
    assert len(crosses) == 2  # of every layer, not only of the one that coverage looks at
    assert said(found) == said(plain)


def test_a_watched_member_of_an_ensemble_works_where_it_can_be_seen(
    run: Run, tmp_path: Path
) -> None:
    other = small_run(tmp_path / "other", encoder="transformer")
    with watch(other.network) as maps:
        run.predict(TEXTS, settings={"workers": 2}, others=[other])
    assert any(path.endswith(".cross") for path in maps)


def test_eight_bits_are_not_watched_in_vain(run: Run, tmp_path: Path) -> None:
    with watch(run.network), pytest.raises(ConfigError, match="being recorded"):
        run.predict(["abc"], settings=TORCH | {"int8": True})
    other = small_run(tmp_path / "other")
    with watch(other.network):  # which has no part in it
        assert run.predict(["abc"], settings=TORCH | {"int8": True})[0].text


def test_a_model_that_is_not_on_a_cpu_is_neither_forked_nor_packed(
    run: Run, tmp_path: Path
) -> None:
    """The device `meta` stands for a CUDA device."""
    engines = Engines(run.task, copy.deepcopy(run.network).to("meta"), tmp_path)
    forks = Request(c.Beam(workers=2, engine="torch"))
    assert isinstance(engines.choose(forks, queries=100), LocalEngine)
    with pytest.raises(ConfigError, match="for a CPU, and the model is on 'meta'"):
        engines.choose(Request(c.Beam(int8=True)))
    here = Engines(run.task, run.network, tmp_path)
    assert isinstance(here.choose(forks, queries=100), ProcessEngine)
    elsewhere = replace(forks, others=(Member(run.task, engines.network),))
    assert isinstance(here.choose(elsewhere, queries=100), LocalEngine)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_processes_serve_one_request_after_the_other(run: Run, tmp_path: Path) -> None:
    def processes() -> set[int | None]:
        return {process.pid for process in multiprocessing.active_children()}

    other = small_run(tmp_path / "other", "lstm_additive_cell")
    two = TORCH | {"workers": 2}
    before = processes()
    with run:
        for settings in ({}, {"width": 2}, {"sample": True, "seed": 3}):
            plain = run.predict(TEXTS, settings=TORCH | settings)
            assert said(run.predict(TEXTS, settings=two | settings)) == said(plain)
            first = processes() - before if settings == {} else first
            assert processes() - before == first  # the same two
        assert len(first) == 2
        both = run.predict(TEXTS, settings=TORCH, others=[other])
        assert said(run.predict(TEXTS, settings=two, others=[other])) == said(both)
    deadline = time.monotonic() + 60
    while processes() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes() == before
    assert said(run.predict(TEXTS, settings=two)) == said(run.predict(TEXTS, settings=TORCH))
    run.close()


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_processes_end_with_a_run_that_nobody_has_any_more(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    before = set(multiprocessing.active_children())
    run.predict(TEXTS, settings=TORCH | {"workers": 2})
    mine = set(multiprocessing.active_children()) - before
    assert len(mine) == 2
    del run
    gc.collect()
    for process in mine:
        process.join(60)
    assert [process.is_alive() for process in mine] == [False, False]


def test_an_abandoned_stream_leaves_workers_that_serve_the_next(run: Run) -> None:
    request = run.request(settings=TORCH | {"workers": 2})
    answers = run.stream(TEXTS * 20, request, at_once=100)
    first = next(answers).text
    answers.close()
    assert said(list(run.stream(TEXTS, request)))[0] == first
    run.close()


def test_a_worker_that_was_killed_is_replaced_for_the_next_request(run: Run) -> None:
    two = TORCH | {"workers": 2}
    plain = said(run.predict(TEXTS, settings=two))
    for process in multiprocessing.active_children():
        process.kill()
        process.join()
    with suppress(SaccadeError):  # it may not be known yet that they are gone
        assert said(run.predict(TEXTS, settings=two)) == plain
    assert said(run.predict(TEXTS, settings=two)) == plain
    run.close()


def test_an_input_at_a_time_is_answered_before_the_next_is_read(run: Run) -> None:
    read = []

    def typed() -> Iterator[str]:
        for text in ("abc", "d"):
            read.append(text)
            yield text

    answers = run.stream(typed(), run.request(settings=TORCH), at_once=1)
    next(answers)
    assert read == ["abc"]


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_a_prediction_tokenises_its_input_once(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    run = small_run(tmp_path, encoder="transformer")
    encode, seen = Tokenizer.encode, Counter[str]()

    def counted(self: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        seen.update(texts)
        return encode(self, texts)

    monkeypatch.setattr(Tokenizer, "encode", counted)
    run.predict(["abc", "dab"], settings={"engine": engine, "workers": 1, "coverage": 0.0})
    assert seen == {"abc": 1, "dab": 1}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_file(run: Run) -> None:
    """A stream of lines is answered as it comes: what is held does not depend on how many."""
    request = run.request(settings=TORCH | {"width": 1, "max_len": 4, "workers": 1})
    sizes = []
    lines = (TEXTS[i % len(TEXTS)] for i in range(60_000))
    for i, one in enumerate(run.stream(lines, request)):
        assert not one.problem
        if i in (10_000, 59_999):
            sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
    assert sizes[1] - sizes[0] < 30_000_000
