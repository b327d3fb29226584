"""What `saccade check` finds in the files of a configuration."""

from pathlib import Path

from saccade.config import Data
from saccade.data.check import check


def files(folder: Path, train: str, dev: str = "") -> Data:
    (folder / "train.tsv").write_text(train, encoding="utf-8")
    (folder / "dev.tsv").write_text(dev, encoding="utf-8")
    return Data(train=(str(folder / "train.tsv"),), dev=(str(folder / "dev.tsv"),) if dev else ())


def found(data: Data, kind: str) -> list[tuple[str, str]]:
    return [(defect.code, Path(defect.where).name) for defect in check(data, kind)]


TRAIN = "good film\tpos\nbad film\tneg\nfine film\tpos\npoor film\tneg\n"


def test_clean_files_have_no_defects(tmp_path):
    assert found(files(tmp_path, TRAIN, "a new film\tpos\n"), "classify") == []
    assert found(files(tmp_path, TRAIN), "classify") == []


def test_broken_rows_of_both_files_are_told(tmp_path):
    data = files(tmp_path, TRAIN + "x\n", "a new film\tpos\n\tneg\n")
    assert found(data, "classify") == [("columns", "train.tsv:5"), ("blank-source", "dev.tsv:2")]


def test_unseen_labels_are_told_for_labels_only(tmp_path):
    data = files(tmp_path, TRAIN, "a new film\tpso\nanother\tpos\n")
    assert found(data, "classify") == [("unseen-label", "dev.tsv:1")]
    assert found(data, "translate") == []


def test_sources_in_both_files_are_leaks(tmp_path):
    data = files(tmp_path, TRAIN, "a new film\tpos\nbad film\tpos\n")
    [defect] = check(data, "classify")
    assert (defect.code, Path(defect.where).name) == ("leak", "dev.tsv:2")
    assert defect.message.endswith("train.tsv:2")


def test_train_decides_how_dev_is_read(tmp_path):
    train = "".join(f"{i % 2}\ttext {i}\n" for i in range(50))
    assert found(files(tmp_path, train, "1\tone more text\n0\tanother text\n"), "classify") == []


def test_missing_files_are_told(tmp_path):
    missing = Data(train=(str(tmp_path / "a.tsv"),), dev=(str(tmp_path / "b.tsv"),))
    assert found(missing, "classify") == [("missing-file", "a.tsv"), ("missing-file", "b.tsv")]
    assert found(Data(), "classify") == [("missing-file", "data")]


def test_lines_of_plain_text_may_repeat(tmp_path):
    assert found(files(tmp_path, "a\n\nb\n", "a\n\n"), "model") == []
