"""The page's files as they are shipped: small, self-contained, and no text becomes markup."""

import re
from pathlib import Path

import saccade

STUDIO = Path(saccade.__file__).parent / "serve" / "studio"
FILES = sorted(STUDIO.iterdir())
# by which a text could become markup, or code
FORBIDDEN = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc"
KB = 1024


def test_the_page_has_at_most_300_kb() -> None:
    assert 50 * KB < sum(path.stat().st_size for path in FILES) <= 300 * KB


def test_no_text_becomes_markup_or_code() -> None:
    for path in FILES:
        found = re.findall(FORBIDDEN, path.read_text(encoding="utf-8"))
        assert not found, f"{path.name}: {found}"


def test_nothing_comes_from_elsewhere() -> None:
    for path in FILES:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.findall(r"https?://|@import|url\(|src=\"//", text), path.name


def test_there_is_no_inline_script_or_style() -> None:
    html = (STUDIO / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r"<script(?![^>]*src=)|<style| style=| on\w+=", html)


def test_every_module_that_is_imported_is_there() -> None:
    for path in STUDIO.glob("*.js"):
        for name in re.findall(r'from "\./([\w.]+)"', path.read_text(encoding="utf-8")):
            assert (STUDIO / name).is_file(), f"{path.name} imports {name}"
