"""Pages: one file, no script, no address; tokens are shown as they are. Pictures are drawn."""

import json
import random
import re
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from saccade.errors import ConfigError
from saccade.inspect import figures
from saccade.inspect.figures import draw, draw_flows
from saccade.inspect.page import page, png, show
from saccade.inspect.terminal import text_of
from saccade.inspect.view import kinds, view
from tests.inspect.test_views import labelling
from tests.small_runs import small_run

HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", '"><svg onload=alert(1)>',
    "</bdi>", "</title></style>", "&lt;b&gt;", "{{7*7}}", "${7*7}", "<!--", "-->", "]]>",
    "\u202eabc\u202c",
    "\u200b", "\u200d", "\ufeff", "\x00", "\x07", "\x1b[31m", "\x7f", "\x85", "\ud800", "\ufffe",
    "'", '"', "`", "javascript:alert(1)", " ", "  ", "\n", "\t", "\\u003c", "𝕏", "é", "ا", "\u2028",
]  # fmt: skip
FLAGGED = {"script", "iframe", "object", "embed", "link", "base", "form", "input", "audio", "video"}


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.inside = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside += tag == "bdi"

    def handle_endtag(self, tag: str) -> None:
        self.inside -= tag == "bdi"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    for tag, attrs in reader.tags:
        assert tag not in FLAGGED
        assert not any(name.startswith("on") for name in attrs)
        for name in ("src", "href"):
            assert (attrs.get(name) or "data:").startswith("data:")
    text.encode("utf-8")
    return reader


def strings(count: int) -> list[str]:
    numbers = random.Random(6)
    return [
        "".join(numbers.choices(HOSTILE, k=numbers.randint(1, 4))) for _ in range(count)
    ]  # fmt: skip


def views_of(tokens: list[str]) -> list[dict[str, Any]]:
    """Views whose tokens are these."""
    n = len(tokens)
    row = [
        {"text": one, "log_p": -1.0, "alternatives": [{"text": one, "log_p": -2.0}]}
        for one in tokens
    ]
    nodes = [
        {"parent": i - 1 if i else None, "token": one, "score": -1.0, "fate": one, "why": one}
        for i, one in enumerate(tokens)
    ]
    curve = {"steps": [1], "loss": [1.0], "dev": []}
    series = {"history": [1.0], "mean": [1.0], "quantiles": {"0.1": [0.5], "0.9": [1.5]}}
    about = {"method": "gradient", "explains": "log p", "value": 0.0, "position": 0}
    return [
        {"kind": "tokens", "text": tokens[0], "score": -1.0, "tokens": row},
        {"kind": "tree", "text": tokens[0], "nodes": nodes, "best": 0},
        about
        | {"kind": "saliency", "tokens": tokens, "scores": [1.0] * n}
        | {"text": tokens[0], "target": tokens},
        {"kind": "labels", "labels": [{"text": one, "p": 0.5} for one in tokens]},
        {"kind": "probes", "file": tokens[0], "pairs": [{"better": one} for one in tokens]},
        {"kind": "embeddings", "neighbours": [], "word": "", "explained": []}
        | {"points": [{"text": one, "x": 0.0, "y": 1.0} for one in tokens]},
        {"kind": "curves", "runs": [{"name": one} | curve for one in tokens]},
        {"kind": "forecast", "series": [{"name": one} | series for one in tokens]},
    ]


def test_hostile_tokens_are_shown_as_they_are() -> None:
    tokens = strings(500)
    for some in views_of(tokens):
        reader = read(page(some))
        if some["kind"] == "labels":
            assert len(reader.texts) >= 500
    plain = ["<b>bold</b>", "a&b", "x\u202ey", "\u200b"]
    reader = read(page({"kind": "labels", "labels": [{"text": t, "p": 0.1} for t in plain]}))
    assert [text for text in reader.texts if text in plain] == plain


def test_what_no_page_can_hold_is_named() -> None:
    assert show("\x00") == "<bdi>␀</bdi>"
    assert show("\ud800") == "<bdi>\\ud800</bdi>"
    assert show("") == "<bdi>␣</bdi>"


def test_a_page_needs_nothing_else(tmp_path: Path) -> None:
    run = small_run(tmp_path, encoder="transformer")
    views = [view(run, "abcd", kind) for kind in kinds(run)]
    views += [view(run, "abcd", "saliency", method="integrated")]
    text = page(views, "a <title>")
    reader = read(text)
    assert "default-src 'none'" in text
    assert "http" not in re.sub(r'"[^"]*base64,[^"]*"|http-equiv', "", text)
    assert "prefers-color-scheme: dark" in text
    links = [a["href"] for tag, a in reader.tags if tag == "a"]
    assert len(links) == len(views)
    for link, one in zip(links, views, strict=True):
        assert json.loads(b64decode((link or "").partition(",")[2])) == one


@pytest.mark.parametrize(
    ("decoder", "title"),
    [("lstm_additive_cell", "attention"), ("transformer", r"attention, mean of \d+ heads")],
)
def test_a_map_and_a_tree_say_what_they_show(decoder: str, title: str, tmp_path: Path) -> None:
    run = small_run(tmp_path, decoder=decoder)
    seen = view(run, "abcd", "attention")
    text = page(seen)
    assert "Rows: output; columns: input." in text
    assert re.search(rf">{title}</span>", text)
    axes, bar = figures._attention(seen).axes
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("output", "input")
    assert re.fullmatch(title, axes.get_title())
    assert bar.get_ylabel() == "weight"
    tree = page(view(run, "abcd", "tree", width=2))
    for fate in ("kept", "ended", "outside the beam", "could not win"):
        assert f"<b>{fate}</b>" in tree


@pytest.mark.parametrize("decoder", ["transformer", "lstm_additive_cell", "gru_off"])
def test_every_view_is_drawn_and_written(decoder: str, tmp_path: Path) -> None:
    run = small_run(tmp_path, decoder=decoder)
    for kind in kinds(run):
        options = {"max_len": 5, "width": 2} if kind == "tree" else {}
        seen = view(run, "abcd", kind, **options)
        draw(seen, tmp_path / f"{kind}.png")
        assert (tmp_path / f"{kind}.png").read_bytes()[:4] == b"\x89PNG"
        assert text_of(seen).strip()
        read(page(seen))
    draw(view(run, "abcd", "tokens"), tmp_path / "tokens.svg")
    assert "<svg" in (tmp_path / "tokens.svg").read_text()


@pytest.mark.parametrize(("kind", "item"), [("classify", "abc x1"), ("tag", "a b c")])
def test_views_of_labels_are_drawn(kind: str, item: str, tmp_path: Path) -> None:
    run = labelling(kind, tmp_path, "lstm")
    for name in kinds(run):
        seen = view(run, item, name)
        draw(seen, tmp_path / f"{name}.png")
        assert text_of(seen).strip()
        read(page(seen))
    flows = [view(run, item, "flow"), view(run, item, "flow", untrained=True)]
    assert flows[0]["inputs"] != flows[1]["inputs"]
    draw_flows(flows, ["before", "after"], tmp_path / "flows.png")


def test_a_table_is_no_picture(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a table"):
        draw({"kind": "worst", "examples": []}, tmp_path / "x.png")


def test_numbers_that_are_not_finite_are_shown_as_nan(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    common = {"tokens": ["a", "b"], "target": ["x"], "text": "x", "position": None}
    flow = {"kind": "flow", **common, "inputs": [None, 1.0], "module": None, "states": None}
    saliency = {
        "kind": "saliency", **common, "method": "gradient", "scores": [None, -1.0],
        "explains": "log p", "value": None,
    }  # fmt: skip
    node = {"parent": None, "token": "x", "score": None, "fate": "kept", "why": ""}
    tree = {"kind": "tree", "text": "x", "score": None, "width": 1, "best": 0, "nodes": [node]}
    for seen in (flow, saliency, tree):
        assert "nan" in text_of(seen)
        assert "</html>" in page(seen)
        draw(seen, tmp_path / "picture.png")


def test_a_deep_tree_is_drawn() -> None:
    nodes = [
        {"parent": i - 1 if i else None, "token": "a", "score": -1.0, "fate": "kept", "why": ""}
        for i in range(2500)
    ]
    deep = {"kind": "tree", "text": "", "nodes": nodes, "best": 2499, "score": -1.0}
    assert page(deep).count("<details") == page(deep).count("</details>") == 2499
    assert text_of(deep).count("\n") == 2500
    wide = {"kind": "tree", "text": "", "nodes": nodes * 2, "best": None, "score": -1.0}
    assert page(wide).count("<details") == page(wide).count("</details>")


def test_pixels_are_a_picture() -> None:
    from io import BytesIO

    import numpy as np
    from PIL import Image

    pixels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    data = b64decode(png(pixels).partition(",")[2])
    assert np.array_equal(np.asarray(Image.open(BytesIO(data))), pixels)
