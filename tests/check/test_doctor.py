"""What `saccade check` finds in the files of a configuration."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from saccade.check.characters import visible
from saccade.check.doctor import check
from saccade.check.findings import KEPT_PLACES, Finding, grouped, table
from saccade.config import Classify, Data, LanguageModel, Tag, Task, Tokenizer, Translate

TASKS: dict[str, Task] = {
    "language": LanguageModel(),
    "classify": Classify(),
    "tag": Tag(),
    "translate": Translate(),
}


def files(folder: Path, train: str, dev: str = "") -> Data:
    (folder / "train.tsv").write_text(train, encoding="utf-8")
    (folder / "dev.tsv").write_text(dev, encoding="utf-8")
    return Data(train=(str(folder / "train.tsv"),), dev=(str(folder / "dev.tsv"),) if dev else ())


def found(data: Data, kind: str) -> list[tuple[str, str]]:
    """The code and the first place of all that is wrong."""
    findings = [one for one in check(data, TASKS[kind]) if one.level != "info"]
    return [(one.code, Path(one.places[0].where).name) for one in findings]


def one_of(data: Data, kind: str, code: str) -> Finding:
    [finding] = [one for one in check(data, TASKS[kind]) if one.code == code]
    return finding


TRAIN = "good film\tpos\nbad film\tneg\nfine film\tpos\npoor film\tneg\n"


def test_clean_files_have_no_defects(tmp_path):
    assert found(files(tmp_path, TRAIN, "a new film\tpos\n"), "classify") == []
    assert found(files(tmp_path, TRAIN), "classify") == []


def test_broken_rows_of_both_files_are_told(tmp_path):
    data = files(tmp_path, TRAIN + "x\n", "a new film\tpos\n\tneg\n")
    assert found(data, "classify") == [("columns", "train.tsv:5"), ("blank-source", "dev.tsv:2")]


@pytest.mark.parametrize(
    ("form", "rows", "code", "text"),
    [
        ("tsv", "a film\tX Y\na long film\tX Y\n", "tags", "a long film\tX Y"),
        ("columns", "a\tX\n\tY\nfilm\tY\n\na\tX\n", "blank-source", "a  film"),
        ("columns", "a\tX\nfilm\t \n\na\tX\n", "blank-target", "a film"),
    ],
)
def test_words_that_do_not_go_with_their_tags_are_shown(form, rows, code, text, tmp_path):
    data = files(tmp_path, rows).model_copy(update={"format": form, "source": (1,), "target": 2})
    [place] = one_of(data, "tag", code).places
    assert place.text == visible(text)


def test_unseen_labels_are_told_for_labels_only(tmp_path):
    data = files(tmp_path, TRAIN, "a new film\tpso\nanother\tpos\n")
    assert found(data, "classify") == [("unseen-label", "dev.tsv:1")]
    assert found(data, "translate") == []


def test_sources_in_both_files_are_leaks(tmp_path):
    data = files(tmp_path, TRAIN, "a new film\tpos\nbad film\tpos\n")
    assert found(data, "classify") == [("leak", "dev.tsv:2")]
    [place] = one_of(data, "classify", "leak").places
    assert place.message.endswith("train.tsv:2")
    assert place.text == "bad film"


def test_train_decides_how_dev_is_read(tmp_path):
    train = "".join(f"{i % 2}\ttext {i}\n" for i in range(50))
    assert found(files(tmp_path, train, "1\tone more text\n0\tanother text\n"), "classify") == []


def test_missing_files_are_told(tmp_path):
    missing = Data(train=(str(tmp_path / "a.tsv"),), dev=(str(tmp_path / "b.tsv"),))
    assert found(missing, "classify") == [("missing-file", "a.tsv"), ("missing-file", "b.tsv")]
    assert found(Data(), "classify") == [("missing-file", "data")]


def test_lines_of_plain_text_may_repeat(tmp_path):
    assert found(files(tmp_path, "a\n\nb\n", "a\n\n"), "language") == []


def test_the_ceiling_is_what_the_most_frequent_labels_get_right(tmp_path):
    train = "same\ta\nsame\ta\nsame\tb\nother\tb\n"
    finding = one_of(files(tmp_path, train), "classify", "ceiling")
    assert finding.level == "info"
    assert "75.00 %" in finding.places[0].message
    assert one_of(files(tmp_path, train), "classify", "conflict").places[0].where.endswith(":3")


def test_a_text_with_many_translations_is_information_only(tmp_path):
    data = files(tmp_path, "Run!\tCours !\nRun!\tCourez !\nStop!\tArrête !\n")
    assert found(data, "translate") == []
    assert "66.66 %" in one_of(data, "translate", "ceiling").places[0].message


@pytest.mark.parametrize("kind", TASKS)
def test_five_lines_are_shown_in_pieces(kind, tmp_path):
    target = {"tag": "A B C", "translate": "eins zwei drei"}.get(kind, "good")
    rows = [f"one two x{i}" + ("" if kind == "language" else f"\t{target}") for i in range(50)]
    finding = one_of(files(tmp_path, "\n".join(rows) + "\n"), kind, "tokenizer")
    assert finding.level == "info"
    shown = {Path(place.where).name: place for place in finding.places}
    assert [shown.pop("train.tsv").message.split(" ")[-1]] == ["rows"]  # what the tokenizer is
    assert list(shown) == [f"train.tsv:{line}" for line in (6, 16, 26, 36, 46)]
    assert all("pieces" in place.message for place in shown.values())
    letters = {
        name: place.text.replace(" ", "").replace("</w>", "") for name, place in shown.items()
    }
    assert all(f"x{i}" in letters[f"train.tsv:{i + 1}"] for i in (5, 15, 25, 35, 45))


def test_words_that_only_dev_has_are_counted(tmp_path):
    data = files(tmp_path, TRAIN, "a rare film\tpos\nfine rare film\tpos\n")
    finding = one_of(data, "classify", "unseen-token")
    assert finding.level == "info"  # so few words say nothing
    assert finding.count == 2  # "rare" and "a"
    assert finding.places[0].where.endswith("dev.tsv:1")
    assert "50.00%" in finding.places[0].message
    assert "'rare' (2)" in finding.places[0].message


def test_a_million_alike_are_one_finding_with_a_few_places(tmp_path):
    data = files(tmp_path, TRAIN * 1000)
    finding = one_of(data, "classify", "duplicate")
    assert finding.count == 3996
    assert len(finding.places) == KEPT_PLACES
    assert len(list(table(grouped(check(data, TASKS["classify"]))))) < 30


def test_every_broken_row_is_a_finding_of_its_own(tmp_path):
    data = files(tmp_path, TRAIN * 300 + "x\n" * 500 + TRAIN)
    broken = [one for one in check(data, TASKS["classify"]) if one.level == "error"]
    assert [one.places[0].where.rpartition(":")[2] for one in broken] == [
        str(line) for line in range(1201, 1701)
    ]
    [told] = grouped(broken)
    assert (told.code, told.count, len(told.places)) == ("columns", 500, KEPT_PLACES)


def test_joiners_and_marks_are_spelling_in_the_scripts_that_have_them(tmp_path):
    rows = [
        "می\u200cخواهم این را",
        "क्\u200dष है",
        "שלום\u200f (test)",
        "👩\u200d🚀 flies",
        "ＡＢ社の本",
    ]
    assert found(files(tmp_path, "".join(f"{row}\n" for row in rows)), "language") == []


def test_greek_in_formulas_and_phonetic_letters_are_no_look_alikes(tmp_path):
    rows = ["TNFα and IL-1β", "θɪŋk χaʊs βeta", "IT-компания и USB-кабель", "5 µm, Δx, NF-κB"]
    assert found(files(tmp_path, "".join(f"{row}\n" for row in rows)), "language") == []


def test_of_two_forms_of_letters_the_rarer_is_told(tmp_path):
    composed, apart = "caf\u00e9", "cafe\u0301"
    rows = [f"{apart} {i}" for i in range(9)]
    assert found(files(tmp_path, "\n".join(rows)), "language") == []  # all alike
    rows[4] = f"{composed} 4"
    assert found(files(tmp_path, "\n".join(rows)), "language") == [("normalisation", "train.tsv:5")]


def test_a_language_of_its_own_by_design_is_not_told(tmp_path):
    rows = [f"the man with number {i} walks by the river" for i in range(100)]
    rows += [f"der Mann mit der Nummer {i} geht am Fluss entlang" for i in range(100)]
    assert found(files(tmp_path, "\n".join(rows)), "language") == []


MEASURE = """
import json, resource, sys
from saccade import cli
sys.argv = ["saccade", "check", *sys.argv[1:], "--json"]
try: cli.main()
except SystemExit: pass
used = resource.getrusage(resource.RUSAGE_SELF)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
peak = int(status["VmHWM"].split()[0]) / 1024  # ru_maxrss may be that of the parent
json.dump([used.ru_utime + used.ru_stime, peak], sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_million_pairs_take_a_minute_and_300_megabytes(tmp_path):
    from tests.faults.corpora import lines

    clean = lines(1700, 40)
    words = {side: [row.split() for row in clean[f"train.{side}"]] for side in ("de", "en")}
    for side, rows in words.items():
        with (tmp_path / f"train.{side}").open("w", encoding="utf-8") as file:
            for i in range(1_000_000):  # another number, another end: nearly no two are alike
                first, second = rows[i % len(rows)], rows[i * 7 // len(rows) % len(rows)]
                file.write(" ".join([*first, str(i % 9973), *second[-4:]]) + "\n")
    for side in ("de", "en"):
        (tmp_path / f"dev.{side}").write_text("\n".join(clean[f"dev.{side}"]), encoding="utf-8")
    train, dev = (
        [str(tmp_path / f"{part}.{s}") for s in ("de", "en")] for part in ("train", "dev")
    )
    command = [sys.executable, "-c", MEASURE, *train, "--dev", dev[0], "--dev", dev[1]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    seconds, megabytes = json.loads(done.stderr.splitlines()[-1])
    assert seconds < 60
    assert megabytes < 300


@pytest.mark.parametrize("kind", TASKS)
def test_the_advice_about_tokenizers_names_a_key_of_the_task(kind, tmp_path):
    data = files(tmp_path, "a b\tX Y\nc d\tX Y\nb a\tY X\n")
    text = one_of(data, kind, "tokenizer").advice
    key = text.removeprefix("another cut: --set task.").partition(".")[0]
    assert isinstance(getattr(TASKS[kind], key), Tokenizer)


def test_quotes_of_a_spreadsheet_far_down_are_told(tmp_path):
    rows = [f"film number {i}\t{'ab'[i % 2]}\n" for i in range(1100)]
    data = files(tmp_path, "".join(rows) + '"a ""good"" film"\ta\n')
    assert found(data, "classify") == [("quoted", "train.tsv:1101")]
    assert "data.format=csv" in one_of(data, "classify", "quoted").advice


def test_one_label_is_not_compared_with_itself(tmp_path):
    data = files(tmp_path, "".join(f"film {i}\tsame\n" for i in range(300)))
    [place] = one_of(data, "classify", "one-label").places
    assert place.message == "all 300 examples have the label 'same'"
    assert not [one for one in check(data, TASKS["classify"]) if one.code == "imbalance"]
