"""Corpora of many files, compressed or not, and parts of a file."""

import gzip
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from saccade import config as c
from saccade.check.doctor import check
from saccade.data.batches import sorted_by
from saccade.data.lines import Part, part_of_lines
from saccade.data.parallel import in_processes
from saccade.data.sources import examples, read
from saccade.errors import DataError
from saccade.plan.subject import subject_of
from saccade.setup import prepare as preparing
from saccade.setup.choose import fill_config, gather
from saccade.training import session
from saccade.training.events import Noticed
from saccade.training.launched import fingerprint

zstandard = pytest.importorskip("zstandard")
ROWS = [f"{'abcd'[i % 4] * (1 + i % 5)} ä{i}\t{i}" for i in range(100)]


def many(folder: Path) -> str:
    """A corpus in three files: plain, gzip, and zstd in two frames."""
    parts = ["\n".join(ROWS[a:b]) + "\n" for a, b in ((0, 30), (30, 60), (60, 80), (80, 100))]
    (folder / "a.tsv").write_text(parts[0], encoding="utf-8")
    (folder / "b.tsv.gz").write_bytes(gzip.compress(parts[1].encode()))
    press = zstandard.ZstdCompressor().compress
    (folder / "c.tsv.zst").write_bytes(press(parts[2].encode()) + press(parts[3].encode()))
    return str(folder / "*.tsv*")


def test_many_files_are_one_after_the_other_and_a_row_knows_its_own(tmp_path: Path) -> None:
    data = c.Data(format="tsv", source=(1,), target=2)
    rows = list(examples([many(tmp_path)], data, "translate"))
    assert ["\t".join([row.source[0], str(row.target)]) for row in rows] == ROWS
    assert rows[30].where == f"{tmp_path / 'b.tsv.gz'}:1"
    assert rows[99].where == f"{tmp_path / 'c.tsv.zst'}:40"


def test_patterns_of_unequal_numbers_and_of_nothing_are_refused(tmp_path: Path) -> None:
    pattern = many(tmp_path)
    (found,) = read([pattern, str(tmp_path / "a.*")], c.Data(), "translate")
    assert "3 for" in str(found)
    assert "1 for" in str(found)
    (found,) = read([str(tmp_path / "*.csv")], c.Data(), "translate")
    assert "no file has such a name" in str(found)


def test_what_is_said_of_a_pattern_names_its_files(tmp_path: Path) -> None:
    pattern = many(tmp_path)
    with (tmp_path / "a.tsv").open("a", encoding="utf-8") as file:
        file.write("one\todd \N{ZERO WIDTH SPACE}row\n")
    finding = next(
        one for one in check(c.Data(train=(pattern,)), c.Translate()) if one.code == "invisible"
    )
    assert finding.places[0].where == f"{tmp_path / 'a.tsv'}:31"
    for name, row in (("a", "x\tN"), ("b", "film\tV"), ("c", "y\tN")):
        (tmp_path / f"{name}.conll").write_text(f"{row}\n\nbad{name}\u200b\tV\n\n")
    data = c.Data(train=(str(tmp_path / "*.conll"),), format="columns")
    finding = next(one for one in check(data, c.Tag()) if one.code == "invisible")
    assert [Path(one.where).name for one in finding.places] == [f"{name}.conll:3" for name in "abc"]
    for name in "ab":
        (tmp_path / f"{name}.de").write_text("ein Satz\nein Wort\n")
        (tmp_path / f"{name}.en").write_text(f"one\u200b {name}\ntwo\n")
    data = c.Data(train=(str(tmp_path / "*.de"), str(tmp_path / "*.en")))
    finding = next(one for one in check(data, c.Translate()) if one.code == "invisible")
    assert [Path(one.where).name for one in finding.places] == ["a.en:1", "b.en:1"]


def test_whoever_asks_for_the_training_files_has_those_of_a_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "LARGE_FILES_BYTES", 0)
    monkeypatch.chdir(tmp_path)
    Path("words").mkdir()
    pattern = many(Path("words"))
    raw, where = gather(pattern, task="translate")
    raw |= {"encoder": {"kind": "recurrent", "dim": 8}, "decoder": {"kind": "recurrent", "dim": 8}}
    Path("config.toml").write_text(c.write_tables(raw))
    with closing(subject_of("config.toml")) as subject:
        assert "not there" not in " ".join(subject.notes)
    hashed = fingerprint(raw, raw["data"]["train"])["data"]
    config, _, seen = session.fill(raw, where)
    folder = session.new_folder(config, None)
    assert folder == Path("runs/words")
    with closing(session.start(config, folder, seen=seen)) as events:
        assert "reading 0 MB" in str(next(one for one in events if isinstance(one, Noticed)))
    ready = preparing.prepare(config, folder, seen)
    assert preparing.locate_examples(ready.task, [0]) == {0: "words/a.tsv:1"}
    with open("words/a.tsv", "a") as file:
        file.write("one\tmore\n")
    assert hashed != fingerprint(raw, raw["data"]["train"])["data"]


def test_a_damaged_zstd_file_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(b"a\tb\n" * 9)[:-6] + b"xxxxxx")
    with pytest.raises(DataError, match="damaged zstd file"):
        list(examples([path], c.Data(format="tsv", source=(1,), target=2), "translate"))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 150])
def test_the_parts_of_a_file_are_all_of_it(suffix: str, count: int, tmp_path: Path) -> None:
    path = tmp_path / f"lines.txt{suffix}"
    content = "\n".join(ROWS).encode()  # the last line has no end
    press = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}
    path.write_bytes(press[suffix](content))
    seen: list[str] = []
    for number in range(count):
        before, lines = part_of_lines(path, Part(number, count))
        assert before == len(seen)
        seen += lines
    assert seen == ROWS


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/0", ""])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="1/4"):
        Part.parse(text)


def test_work_by_processes_is_in_order_and_bounded() -> None:
    taken = 0

    def supply() -> Iterator[int]:
        nonlocal taken
        for i in range(40):
            taken = i + 1
            yield i

    done = []
    for number, (result, process) in enumerate(
        in_processes(lambda i: (i * i, os.getpid()), supply(), 2, after=3)
    ):
        assert result == number * number
        assert (process == os.getpid()) == (number < 3)
        assert taken <= number + 6
        done.append(process)
    assert len(done) == 40
    assert len(set(done)) > 1


def test_an_error_in_a_process_is_raised_here() -> None:
    def work(i: int) -> int:
        if i == 7:
            raise DataError("line 7")
        return i

    with pytest.raises(DataError, match="line 7"):
        list(in_processes(work, range(20), 2, after=1))


def test_data_prepared_by_processes_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{'abc'[i % 3]}{i % 11} b\t{i % 7} c" for i in range(400)]
    path = tmp_path / "data.tsv"
    path.write_text("\n".join(lines) + "\n")
    config, _ = fill_config(*gather(path, task="translate"))
    for name, alone in (("one", 1000), ("many", 1)):
        monkeypatch.setattr(preparing, "CHUNK_EXAMPLES", 20)
        monkeypatch.setattr(preparing, "CHUNKS_BEFORE_FORK", alone)
        (tmp_path / name).mkdir()
        preparing.prepare(config, tmp_path / name)
    for one in sorted((tmp_path / "one" / "data").iterdir()):
        assert one.read_bytes() == (tmp_path / "many" / "data" / one.name).read_bytes()


def test_sorting_by_lengths_is_lexsort() -> None:
    rng = np.random.default_rng(1)
    for most in (3, 70_000):
        keys = [rng.integers(0, most, 5000), rng.integers(0, 4, 5000), rng.integers(0, 9, 5000)]
        assert np.array_equal(sorted_by(keys), np.lexsort(keys[::-1]))


@pytest.mark.slow
def test_an_epoch_of_ten_million_begins_in_about_a_second() -> None:
    rng = np.random.default_rng(1)
    keys = [rng.integers(1, 40, 10_000_000), rng.integers(1, 40, 10_000_000)]
    began = time.process_time()
    sorted_by(keys)
    ours = time.process_time() - began
    began = time.process_time()
    np.lexsort(keys[::-1])
    assert ours < time.process_time() - began
