"""The training benchmark, on its smallest workload and for a few steps, so that it never rots."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import saccade
from saccade.config import parse

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SMALLEST = "g2p"
DISTURBED = 1.0  # tokens a second, of a round that does not count


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_every_workload_is_a_configuration_and_has_a_network_of_plain_torch(tmp_path: Path) -> None:
    from torch_networks import network_of
    from workloads import WORKLOADS, settings

    for name, work in WORKLOADS.items():
        assert parse(settings(name, tmp_path, 1), name).train.evaluate_every
        tokens = torch.randint(5, 30, (2, 6))
        inputs = (tokens,) if work.streams else (tokens, torch.tensor([6, 6]), tokens)
        assert network_of(work)(*inputs).shape == (2, 6, work.vocab), name


def test_our_loop_is_measured(tmp_path: Path) -> None:
    from train_speed import measure_ours
    from workloads import write_files

    write_files(SMALLEST, tmp_path)
    found = measure_ours(SMALLEST, "fp32", tmp_path, seed=1, seconds=0.2)
    assert found["tokens_per_second"] > 0
    assert found["steps"] > 2
    assert found["peak_mb"] > 50
    assert (found["precision"], found["processes"]) == ("fp32", 1)


def test_our_tokens_are_those_of_the_batches_that_the_peers_get(tmp_path: Path) -> None:
    from train_peers import read_batches, said
    from train_speed import VARIANTS, our_steps
    from workloads import PAD, batches_file, save_batches, settings, write_files

    write_files(SMALLEST, tmp_path)
    save_batches(SMALLEST, tmp_path, [1])
    counts = [int((said(batch) != PAD).sum()) for batch in read_batches(batches_file(tmp_path, 1))]
    raw = settings(SMALLEST, tmp_path, 1)
    raw["train"] |= VARIANTS["fp32"]
    work = our_steps(raw, tmp_path / "run", {})
    first, _ = next(work)  # the time before it is no training
    steps, tokens = next(work)
    work.close()
    assert tokens == pytest.approx(sum(counts[first : first + steps]), rel=0.1)


def test_a_peer_takes_the_batches_of_our_loader(tmp_path: Path) -> None:
    from train_peers import fast_torch, read_batches, said, steps
    from workloads import PAD, WORKLOADS, batches_file, files, save_batches, write_files

    write_files(SMALLEST, tmp_path)
    assert 1e6 < save_batches(SMALLEST, tmp_path, [7]) < 1e7
    batches = read_batches(batches_file(tmp_path, 7))
    lines = files(SMALLEST, tmp_path)[0].read_text().splitlines()
    phones = sum(len(line.split("\t")[1].split()) + 1 for line in lines)  # and the end
    assert sum(int((said(batch) != PAD).sum()) for batch in batches) == phones
    network, forward = fast_torch(WORKLOADS[SMALLEST])
    done = list(islice(steps(network, forward, batches, bf16=False), 2))
    assert done == [(1, int((said(batch) != PAD).sum())) for batch in batches[:2]]


def test_disturbed_segments_are_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import measuring

    clock, foreign = 0.0, 0.0
    disturbed = {4, 5}  # the steps in which somebody else takes a core, and ours is slow

    def work() -> Any:
        nonlocal clock, foreign
        for step in range(1, 100):
            clock += 4.0 if step in disturbed else 1.0
            foreign += 2.0 if step in disturbed else 0.01
            yield 1, 100

    monkeypatch.setattr(measuring, "perf_counter", lambda: clock)
    monkeypatch.setattr(measuring, "foreign_seconds", lambda: foreign)
    found = measuring.measure(work(), 5.0)
    assert found["tokens_per_second"] == 100
    assert (found["clean_seconds"], found["disturbed_seconds"]) == (5.0, 8.0)
    assert not found["disturbed"]


def test_ratios_are_to_the_best_peer_in_undisturbed_rounds() -> None:
    from train_speed import Contestant, summary

    def entrant(name: str, ours: bool, speeds: list[float], peak: float) -> Contestant:
        rounds = [
            {"tokens_per_second": speed, "peak_mb": peak, "disturbed": speed == DISTURBED}
            for speed in speeds
        ]
        return Contestant(name, [], ours, "fp32", rounds)

    entrants = [
        entrant("fp32", True, [300, 200, 100], 50),
        entrant("slow", False, [50], 10),
        entrant("fast", False, [DISTURBED, DISTURBED, DISTURBED, 100], 100),
    ]
    found = summary(entrants, 1e6, {"fp32": 1.0})
    ours = found["contestants"]["fp32"]
    assert found["best_peer"] == "fast"
    assert (ours["speed_ratio"], ours["memory_ratio"]) == (2.0, 0.5)
    assert ours["ceiling_share"] == pytest.approx(0.2)


# --- media ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_mb", [100, 0])
@pytest.mark.parametrize("kind", ["speech", "pictures"])
def test_the_wait_for_media_is_a_share_of_the_time(
    kind: str, cache_mb: int, tmp_path: Path
) -> None:
    from media_speed import picture_file, settings, speech_file, waiting

    write = speech_file if kind == "speech" else picture_file
    path = write(tmp_path / "nothing", tmp_path, 60)
    found = waiting(settings(path, cache_mb), tmp_path, 0.3)
    assert 0.0 < found["waiting"] < 1.0
    assert found["steps_per_second"] > 0


def test_slow_data_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from media_speed import settings, speech_file, waiting

    from saccade.data.sounds import SoundField

    plain = SoundField.collate

    def slow(self: Any, rows: Any, keys: Any) -> Any:
        time.sleep(0.2)
        return plain(self, rows, keys)

    monkeypatch.setattr(SoundField, "collate", slow)
    path = speech_file(tmp_path / "nothing", tmp_path, 60)
    assert waiting(settings(path, 100), tmp_path, 0.5)["waiting"] > 0.5


def test_the_cnn_of_plain_torch_is_ours() -> None:
    """The same layers: with our weights it says what ours says."""
    from media_speed import TorchClassifier, as_cells, our_classifier, pictures

    from saccade.nn.padded import Padded

    ours, theirs = our_classifier().network, TorchClassifier()
    mine, wanted = list(ours.parameters()), list(theirs.parameters())
    assert sum(p.numel() for p in mine) == sum(p.numel() for p in wanted)
    stem = ours.encoder.stem
    names = {"first": "first", "stages": "blocks", "norm": "norm", "last": "project"}
    for old, new in names.items():
        getattr(theirs, new).load_state_dict(getattr(stem, old).state_dict())
    for axis in ("rows", "columns"):
        getattr(theirs, axis).load_state_dict(getattr(stem.positions, axis).state_dict())
    for layer in ("score", "output"):
        getattr(theirs, layer).load_state_dict(getattr(ours.head, layer).state_dict())
    values, _ = pictures(torch.Generator().manual_seed(1))
    with torch.inference_mode():
        source = Padded(as_cells(values[:4]), torch.full((4,), 16))
        said = ours.eval().logits((source,))
        assert torch.allclose(theirs(values[:4]), said, atol=1e-4)


def test_a_large_corpus_is_read_as_it_was_written(tmp_path: Path) -> None:
    from data_speed import epoch_seconds, large_corpus

    corpus = large_corpus(tmp_path, 2000)
    assert len(corpus) == 2000
    assert 4 <= corpus.target.lengths.min() <= corpus.target.lengths.max() <= 60
    order, batch, batches = epoch_seconds(corpus, 4096)
    assert order > 0
    assert batch > 0
    assert batches > 2000 * 8 / 4096


def test_a_recipe_leaves_a_result_and_results_make_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    import results

    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(results, "README", tmp_path / "README.md")
    rows = [f"{'abcde'[i % 5]}{'xyz'[i % 3]}\t{'abcde'[i % 5].upper()}\n" for i in range(40)]
    (tmp_path / "words.tsv").write_text("".join(rows))
    recipe = tmp_path / "recipes" / "tiny" / "tiny.toml"
    recipe.parent.mkdir(parents=True)
    (recipe.parent / "README.md").write_text("# A few words\n")
    (tmp_path / "README.md").write_text(f"above\n{results.BEGIN}old\n{results.END}below\n")
    recipe.write_text(
        f'[task]\nkind = "translate"\n[data]\ntrain = ["{tmp_path / "words.tsv"}"]\n'
        "[train]\nsteps = 3\nprocesses = 1\n"
    )

    def call(*words: str) -> dict[str, Any]:
        monkeypatch.setattr("sys.argv", ["results.py", *words])
        results.main()
        found: dict[str, Any] = json.loads((tmp_path / "results" / "tiny.json").read_text())
        return found

    found = call("run", str(recipe), "--seeds", "2", "--test", str(tmp_path / "words.tsv"))
    assert len(found["each"]) == 2
    assert found["versions"]["torch"] == str(torch.__version__)
    assert found["seconds"] > 0
    call("table", "--write")
    readme = (tmp_path / "README.md").read_text()
    assert f"sequence_error {found['test']['sequence_error']:.4g} together" in readme
    assert "[A few words](recipes/tiny)" in readme
    assert readme.startswith("above\n")
    assert readme.endswith("below\n")
    assert "old" not in readme

    other = saccade.train(str(recipe), out=str(tmp_path / "o"), settings={"train.steps": 2})
    kept = call("keep", str(recipe), str(tmp_path / "o"))
    assert kept["command"].endswith("tiny.toml --set train.steps=2")
    assert kept["dev"]["sequence_error"] == other.evaluate()["sequence_error"]


def test_the_table_in_the_readme_is_made_from_the_results() -> None:
    import results

    readme = results.README.read_text(encoding="utf-8")
    assert results.written(readme, results.table(results.RESULTS)) == readme


def test_n_grams_are_probabilities_and_the_longer_fit_better() -> None:
    from ngram import KneserNey

    rows = [(5, 6, 7, 8, 3), (5, 6, 8, 3), (6, 7, 8, 3)] * 3
    fits = []
    for order in (1, 2, 3):
        model = KneserNey(rows, order, 10, 2)
        for history in ((2, 2), (2, 5), (5, 6), (9, 9)):
            total = sum(model.probability(history[3 - order :], word) for word in range(10))
            assert total == pytest.approx(1.0)
        fits.append(model.nll(rows))
    assert fits == sorted(fits, reverse=True)


def test_a_sweep_trains_what_it_has_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sweep

    lines = "".join(f"{word}\t{word[::-1]}\n" for word in ("ab", "abc", "cab", "bca", "bb", "ca"))
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text(lines)
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    monkeypatch.setattr(sweep, "RECORDS", tmp_path / "sweep.jsonl")
    monkeypatch.setattr(sweep, "GROUPS", {"tiny": [sweep.DataSet("x", "train.tsv", "dev.tsv")]})
    candidate = "train.steps=2 encoder.dim=16 decoder.dim=16"
    for _ in range(2):
        sweep.run_all(["tiny"], [candidate], seeds=1, sets="")
    (record,) = sweep.records()
    assert (record["set"], record["changes"], record["seed"]) == ("x", candidate, 1)
    assert 0 <= record["error"] <= 100


def test_a_set_is_judged_by_what_was_best_on_the_others() -> None:
    import sweep

    errors = {"": (5, 30, 20), "a": (10, 20, 25), "b": (30, 25, 15)}
    found = [
        {"group": "g", "set": name, "changes": changes, "seed": 1, "error": float(error)}
        for changes, row in errors.items()
        for name, error in zip("xyz", row, strict=True)
    ]
    lines = sweep.table(found).splitlines()
    assert lines[2] == "| defaults | 5.0 | 30.0 | 20.0 | 18.33 |"
    # without x b is best (40), without y defaults (25), without z a (30)
    assert lines[-1] == "| chosen on the others | 30.0 | 30.0 | 25.0 | 28.33 |"
