"""Views as one self-contained HTML file: no script, no network, light and dark.

All content of a model or its data is text, escaped here and nowhere else (`show`). The content
security policy in the file's head forbids scripts and all URLs but data: ones.
"""

import json
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from saccade.inspect.packing import (
    axis_names,
    axis_titles,
    best_path,
    children,
    map_title,
    or_nan,
    unpacked,
)

View = dict[str, Any]
MAX_CELLS = 4096  # of a matrix whose cells have tooltips; a larger one is a picture
MAX_NODES = 3000
MAX_SURPRISAL = 10.0  # nats: tokens above it are equally dark
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
LEGEND = (
    "<p class=faint>Each node is a token, log p (nats) of all up to it, and what became of it. "
    "<span class=best>Blue</span>: the answer. <b>kept</b>: the beam goes on with it. "
    "<b>ended</b>: an output ends here, and is compared with others. <b>outside the beam</b>: "
    "others of its step are likelier. <b>could not win</b>: whatever follows, one that has ended "
    "is better.</p>"
)
STYLE = Path(__file__).with_name("page.css")


def page(view: View | Sequence[View], title: str = "") -> str:
    """One or several views as an HTML file."""
    views = [view] if isinstance(view, dict) else list(view)
    title = title or " · ".join(dict.fromkeys(heading(one["kind"]) for one in views))
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{show(title)}</title><style>{STYLE.read_text(encoding='utf-8')}</style></head><body>",
        f"<h1>{show(title)}</h1>",
    ]
    for one in views:
        parts.append(
            f"<section><h2>{heading(one['kind'])}</h2>{body(one)}{_note(one)}{download(one)}</section>"
        )
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def heading(kind: str) -> str:
    return kind.replace("_", " ").capitalize()


def download(view: View) -> str:
    """A link that downloads a view as JSON."""
    data = b64encode(json.dumps(view, ensure_ascii=True, allow_nan=False).encode()).decode()
    href = f"data:application/json;base64,{data}"
    return f'<p><a class="faint" download="{view["kind"]}.json" href="{href}">JSON</a></p>'


def show(text: str) -> str:
    """Text for HTML, escaped, and isolated from the text direction around it.

    Characters that HTML cannot hold are replaced by a symbol, or their code.
    """
    return f"<bdi>{escaped(text) or '␣'}</bdi>"


def escaped(text: str) -> str:
    """Text for an attribute, or where no tag is allowed."""
    return escape("".join(map(_visible, str(text))))


def _visible(char: str) -> str:
    code = ord(char)
    if code < 32 and char not in "\n\t":
        return chr(0x2400 + code)
    if code == 127:
        return "␡"
    if 0x80 <= code < 0xA0 or 0xD800 <= code < 0xE000 or (code & 0xFFFE) == 0xFFFE:
        return f"\\u{code:04x}"
    return char


def token(text: str) -> str:
    """A token; blanks alone are made visible."""
    return show("␣" * len(text) if text and not text.strip(" ") else text)


def body(view: View) -> str:
    match view["kind"]:
        case "attention":
            return _attention(view)
        case "tree":
            return _tree(view)
        case "tokens":
            return _tokens(view)
        case "saliency":
            return _saliency(view)
        case "labels":
            return _labels(view)
        case "flow":
            return _flow(view)
        case "positions":
            return _positions(view)
        case "embeddings":
            return _embeddings(view)
        case "caption_path":
            return _caption(view)
        case "speech":
            return _speech(view)
        case "forecast":
            return "".join(_series(one) for one in view["series"])
        case "curves":
            return _curves(view)
        case "confusion":
            counts = np.array(view["counts"], float)
            shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
            return "<p>Rows: gold; columns: predicted.</p>" + heat(
                shares, view["labels"], view["labels"]
            )
        case _:
            return _records(view)


# --- parts ----------------------------------------------------------------------------------------


def heat(
    values: Any, rows: Sequence[str], columns: Sequence[str], most: float | None = None
) -> str:
    """A matrix as a table with tooltips, or a large one as a picture."""
    values = np.nan_to_num(np.asarray(values, float))
    top = most or float(np.abs(values).max(initial=0.0)) or 1.0
    if values.size > MAX_CELLS:
        return f'<div class="wide">{picture(values, top, 2)}</div>'
    head = "".join(f'<th class="column" scope="col">{token(name)}</th>' for name in columns)
    lines = [f"<tr><th></th>{head}</tr>"]
    for i, row in enumerate(values):
        name = token(rows[i]) if i < len(rows) else ""
        cells = "".join(
            f'<td style="--w:{abs(x) / top:.3f}" title="{x:.4g}"{_minus(x)}></td>' for x in row
        )
        lines.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    return f'<div class="wide"><table class="heat">{"".join(lines)}</table></div>'


def picture(values: Any, top: float, scale: int) -> str:
    """A matrix as a picture whose cells are more or less opaque."""
    values = np.asarray(values, float)
    height, width = values.shape
    colour = np.where(values[..., None] < 0, (252, 90, 90), (66, 140, 220))
    alpha = np.clip(np.abs(values) / top * 255, 0, 255)[..., None]
    url = png(np.concatenate([colour, alpha], -1).round().astype(np.uint8))
    size = f'width="{width * scale}" height="{height * scale}"'
    return f'<img class="map" alt="{height} by {width} numbers" {size} src="{url}">'


def png(pixels: Any) -> str:
    """Pixels (rows, columns, 4) as a data: URL."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + pixels[i].tobytes() for i in range(height))

    def chunk(name: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows, 6)), chunk(b"IEND", b"")
    data = b64encode(b"".join([b"\x89PNG\r\n\x1a\n", *parts])).decode()
    return f"data:image/png;base64,{data}"


def _minus(value: float) -> str:
    return ' class="minus"' if value < 0 else ""


def coloured(names: Iterable[str], values: Iterable[float], titles: Iterable[str]) -> str:
    """Tokens in a line, darker where their number is larger."""
    values = list(values)
    most = max(map(abs, values), default=0.0) or 1.0
    spans = (
        f'<span style="--w:{0.85 * abs(value) / most:.3f}" title="{escaped(title)}"'
        f"{_minus(value)}>{token(name)}</span>"
        for name, value, title in zip(names, values, titles, strict=True)
    )
    return f'<p class="words">{" ".join(spans)}</p>'


def bars(rows: Iterable[tuple[str, float]], most: float | None = None) -> str:
    """A name, a number and a bar in each row."""
    rows = list(rows)
    top = most or max((abs(value) for _, value in rows), default=0.0) or 1.0
    lines = []
    for name, value in rows:
        kind, width = "bar minus" if value < 0 else "bar", 14 * abs(value) / top
        bar = f'<span class="{kind}" style="width:{width:.2f}rem"></span>'
        lines.append(f"<tr><td>{token(name)}</td><td>{value:.4f}</td><td>{bar}</td></tr>")
    return f"<table>{''.join(lines)}</table>"


def lines_of(
    curves: Mapping[str, Sequence[tuple[float, Any]]], label: str, band: Sequence[Any] = ()
) -> str:
    """Curves in one drawing; `band` are (x, low, high)."""
    points = [point for curve in curves.values() for point in curve if point[1] is not None]
    points += [(x, y) for x, low, high in band for y in (low, high)]
    if not points:
        return '<p class="faint">nothing yet</p>'
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    (left, right), (low, high) = (min(xs), max(xs)), (min(ys), max(ys))
    wide, tall = 560, 180

    def at(x: float, y: float) -> str:
        across = 40 + (x - left) / ((right - left) or 1) * (wide - 50)
        down = 10 + (high - y) / ((high - low) or 1) * (tall - 30)
        return f"{across:.1f},{down:.1f}"

    drawn = []
    if band:
        edge = [at(x, b) for x, b, _ in band] + [at(x, t) for x, _, t in reversed(band)]
        drawn.append(f'<polygon points="{" ".join(edge)}" fill="rgb(66 140 220 / .25)"/>')
    for number, (name, curve) in enumerate(curves.items()):
        there = [at(x, y) for x, y in curve if y is not None]
        colour = f"hsl({(210 + 137 * number) % 360} 65% 50%)"
        drawn.append(
            f'<polyline points="{" ".join(there)}" fill="none" stroke="{colour}">'
            f"<title>{escaped(name)}</title></polyline>"
        )
        if len(curves) > 1:
            drawn.append(
                f'<text x="{wide + 6}" y="{20 + 14 * number}" style="fill:{colour}">'
                f"{escaped(name[:24])}</text>"
            )
    axis = f'<text x="0" y="16">{high:.4g}</text><text x="0" y="{tall - 18}">{low:.4g}</text>'
    axis += f'<text x="40" y="{tall - 2}">{left:g}</text>'
    axis += f'<text x="{wide - 10}" y="{tall - 2}" text-anchor="end">{right:g}</text>'
    size = f'viewBox="0 0 {wide + 160} {tall}" width="{wide + 160}"'
    return f'<p>{escaped(label)}</p><svg {size} role="img">{axis}{"".join(drawn)}</svg>'


# --- views ----------------------------------------------------------------------------------------


def _attention(view: View) -> str:
    rows, columns = axis_names(view)
    down, across = axis_titles(view)
    parts = [f"<p>{show(view['text'])} <span class=faint>{escaped(map_title(view))}</span></p>"]
    parts.append(f"<p class=faint>Rows: {down}; columns: {across}.</p>")
    parts.append(heat(unpacked(view["map"]), rows, columns))
    parts.append("<p>Coverage: how much attention each column gets.</p>")
    given = [x or 0.0 for x in view["coverage"]]
    parts.append(coloured(columns, given, (f"{x:.3f}" for x in given)))
    for number, one in enumerate(view["modules"]):
        parts.append(
            f"<p>{number}: {escaped(one['path'])} <span class=faint>{one['type']}, "
            f"{one['rows']} to {one['columns']}</span></p>"
        )
        cards = []
        for h, thumb in enumerate(one["thumbs"]):
            worth = ""
            if "importance" in one:
                worth = f", worth {or_nan(one['importance'][h]):.3f} nats"
            small = picture(unpacked(thumb), thumb["max"] or 1.0, 4)
            text = f"head {h}: entropy {or_nan(one['entropy'][h]):.2f} nats{worth}"
            cards.append(f"<figure>{small}<figcaption>{text}</figcaption></figure>")
        parts.append(f'<div class="heads">{"".join(cards)}</div>')
    return "".join(parts)


def _tree(view: View) -> str:
    nodes = view["nodes"]
    below_each, best = children(view), best_path(view)
    parts, written = [f"<p>{show(view['text'])}</p>{LEGEND}"], 0
    todo: list[Any] = below_each.get(None, [])[::-1]  # nodes, and what closes them
    while todo:
        i = todo.pop()
        if isinstance(i, str):
            parts.append(i)
            continue
        node, below = nodes[i], below_each.get(i, [])
        pruned = node["fate"] in ("outside the beam", "could not win", "enough had ended")
        kind = "best" if i in best else "pruned" if pruned else ""
        score = "" if node["score"] is None else f"{node['score']:.4f}"
        text = f"{token(node['token'])} {score} <span class=faint>{escaped(node['fate'])}</span>"
        title = escaped(node["why"])
        written += 1
        if written > MAX_NODES:
            parts.append(f"<p class=faint>{len(nodes) - MAX_NODES:,} more nodes</p>")
            parts += [part for part in reversed(todo) if isinstance(part, str)]
            break
        if not below:
            parts.append(f'<div class="leaf {kind}" title="{title}">{text}</div>')
            continue
        opened = " open" if i in best else ""
        parts.append(
            f'<details{opened}><summary class="{kind}" title="{title}">{text}</summary><div>'
        )
        todo.append("</div></details>")
        todo += reversed(below)
    return "".join(parts)


def _tokens(view: View) -> str:
    said = view["tokens"]
    values = [-(one["log_p"] or 0.0) for one in said]
    titles = [f"surprisal {value:.3f} nats" for value in values]
    parts = [f"<p>log p {view['score']:.4f} nats; darker tokens surprise the model more.</p>"]
    shades = [min(value, MAX_SURPRISAL) for value in values]
    parts.append(coloured((one["text"] for one in said), shades, titles))
    rows = []
    for one in said:
        others = " ".join(
            f"{token(o['text'])} <span class=faint>{o['log_p']:.2f}</span>"
            for o in one["alternatives"]
        )
        log_p = "" if one["log_p"] is None else f"{one['log_p']:.4f}"
        rows.append(f"<tr><td>{token(one['text'])}</td><td>{log_p}</td><td>{others}</td></tr>")
    head = "<tr><th>token</th><th>log p (nats)</th><th>likeliest here</th></tr>"
    return "".join([*parts, f'<div class="wide"><table>{head}{"".join(rows)}</table></div>'])


def _note(view: View) -> str:
    return f"<p class=faint>{escaped(view['network'])}</p>" if "network" in view else ""


def _saliency(view: View) -> str:
    scores = [x or 0.0 for x in view["scores"]]
    said = view["text"] if view["position"] is None else view["target"][view["position"]]
    error = view.get("completeness_error")
    note = "" if error is None else f"; completeness error {error:.2g}"
    head = f"<p>{escaped(view['method'])}, for {show(said)}: {escaped(view['explains'])} "
    head += f"{or_nan(view['value']):.4g}{note}. Blue speaks for it, red against.</p>"
    titles = [f"{x:.4f}" for x in scores]
    rows = zip(view["tokens"], scores, strict=True)
    return head + coloured(view["tokens"], scores, titles) + bars(rows)


def _labels(view: View) -> str:
    if "words" not in view:
        return bars(((one["text"], one["p"]) for one in view["labels"]), 1.0)
    rows = []
    for one in view["labels"]:
        some = " ".join(
            f"{show(label['text'])} <span class=faint>{label['p']:.3f}</span>"
            for label in one["labels"][:4]
        )
        rows.append(f"<tr><td>{token(one['word'])}</td><td>{some}</td></tr>")
    return f"<table>{''.join(rows)}</table>"


def _flow(view: View) -> str:
    sizes = [x or 0.0 for x in view["inputs"]]
    parts = ["<p>|dL/dx<sub>i</sub>| of each position</p>"]
    parts.append(coloured(view["tokens"], sizes, (f"{x:.3g}" for x in sizes)))
    if view["states"] is not None:
        logs = np.log10(np.maximum(unpacked(view["states"]), 1e-6)) + 6
        names = [view["steps"][t] for t in view["rows"]]
        parts.append("<p>|dh<sub>t</sub>/dh<sub>i</sub>|, on a logarithmic scale from 10⁻⁶</p>")
        parts.append(heat(np.where(unpacked(view["states"]) > 0, logs, 0.0), names, view["steps"]))
        curve = [
            (i, float(np.log10(max(x or 0.0, 1e-12)))) for i, x in enumerate(view["by_distance"])
        ]
        parts.append(lines_of({"": curve}, "log10 |dh_t/dh_i| by distance t - i"))
    return "".join(parts)


def _positions(view: View) -> str:
    parts = [f"<p>{escaped(view['type'])} positions, {escaped(view['module'])}</p>"]
    for name in ("matrix", "gram"):
        values = unpacked(view[name])
        top = float(np.abs(values).max()) or 1.0
        parts.append(f"<p>{name}</p>{picture(values, top, max(2, 360 // max(values.shape)))}")
    return "".join(parts)


def _embeddings(view: View) -> str:
    near = bars((one["text"], one["similarity"]) for one in view["neighbours"])
    points = view["points"]
    xs, ys = [p["x"] for p in points], [p["y"] for p in points]
    wide = (max(xs) - min(xs)) or 1.0
    tall = (max(ys) - min(ys)) or 1.0
    texts = []
    for p in points:
        x, y = 10 + (p["x"] - min(xs)) / wide * 700, 12 + (p["y"] - min(ys)) / tall * 500
        name = escaped(p["text"])
        texts.append(f'<text x="{x:.1f}" y="{y:.1f}">{name}</text>')
    return near + f'<svg viewBox="0 0 780 525" width="780" role="img">{"".join(texts)}</svg>'


def _caption(view: View) -> str:
    size = view["picture"]
    found = []
    for word, weights in zip(view["words"], view["weights"], strict=True):
        values = unpacked(weights)
        dark = 1.0 - values / (values.max() or 1.0)
        pixels = np.zeros((*values.shape, 4), np.uint8)
        pixels[..., 3] = (dark * 200).round()
        found.append(
            f'<figure><div class="caption"><img alt="" src="{escaped(size["url"])}">'
            f'<img class="light" alt="" src="{png(pixels)}"></div>'
            f"<figcaption>{show(word)}</figcaption></figure>"
        )
    return f'<p>{show(view["text"])}</p><div class="heads">{"".join(found)}</div>'


def _speech(view: View) -> str:
    parts = [f"<p>{show(view['text'])}, {view['length']:.2f} s</p>"]
    if view["wave"]:
        band = [(i, low, high) for i, (low, high) in enumerate(view["wave"])]
        parts.append(lines_of({}, "wave", band))
    weights = unpacked(view["weights"])
    columns = [f"{i * view['seconds']:.2f}" if i % 5 == 0 else "" for i in range(weights.shape[1])]
    return "".join([*parts, heat(weights, view["tokens"], columns)])


def _series(series: View) -> str:
    past, mean = series["history"], series["mean"]
    steps = range(len(past), len(past) + len(mean))
    low, high = series["quantiles"]["0.1"], series["quantiles"]["0.9"]
    curves = {"history": list(enumerate(past)), "forecast": list(zip(steps, mean, strict=True))}
    band = list(zip(steps, low, high, strict=True))
    return lines_of(curves, f"{series['name']} (band: 80 %)", band)


def _curves(view: View) -> str:
    losses = {
        run["name"]: list(zip(run["steps"], run["loss"], strict=True)) for run in view["runs"]
    }
    parts = [lines_of(losses, "loss in training, by step")]
    names = dict.fromkeys(n for run in view["runs"] for one in run["dev"] for n in one["scores"])
    for name in names:
        curves = {
            run["name"]: [(one["step"], one["scores"].get(name)) for one in run["dev"]]
            for run in view["runs"]
        }
        parts.append(lines_of(curves, f"{name} on dev, by step"))
    return "".join(parts)


def _records(view: View) -> str:
    """Any other view: its numbers, and its lists of records as tables."""
    parts = []
    for name, value in view.items():
        if name == "kind":
            continue
        if isinstance(value, list) and value and isinstance(value[0], dict):
            keys = list(dict.fromkeys(key for row in value for key in row))
            head = "".join(f"<th>{show(key)}</th>" for key in keys)
            rows = "".join(
                "<tr>"
                + "".join(f"<td>{show(_plain(row.get(key, '')))}</td>" for key in keys)
                + "</tr>"
                for row in value
            )
            table = f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'
            parts.append(f"<p>{show(name)}</p>{table}")
        else:
            parts.append(f"<p>{show(name)}: {show(_plain(value))}</p>")
    return "".join(parts)


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " | ".join(map(_plain, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(one)}" for key, one in value.items())
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)
