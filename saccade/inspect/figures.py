"""Views as pictures, drawn by matplotlib (extra `plot`): .png, .svg or .pdf."""

from base64 import b64decode
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade.data.pictures import pillow
from saccade.errors import ConfigError
from saccade.inspect.attention import new_figure, save
from saccade.inspect.captions import CaptionPath, draw_path
from saccade.inspect.forecast import MAX_PANELS
from saccade.inspect.packing import (
    axis_names,
    axis_titles,
    best_path,
    children,
    map_title,
    or_nan,
    unpacked,
)
from saccade.inspect.speech import SpeechAlignment, draw_speech

View = dict[str, Any]
MAX_NAMED = 90  # rows or columns with names
MAX_TREE_NODES = 400
BLUE, RED, GREY, INK = "#2b6cb0", "#c53030", "#a0aec0", "#1a202c"


def draw(view: View, out: str | Path) -> None:
    """Draw a view into a picture file."""
    match view["kind"]:
        case "caption_path":
            return draw_path(_path(view), out)
        case "speech":
            weights = torch.from_numpy(unpacked(view["weights"])).float()
            spoken = view["spoken"] and [tuple(pair) for pair in view["spoken"]]
            alignment = SpeechAlignment(view["tokens"], weights, view["seconds"], spoken)
            return draw_speech(alignment, out, view["text"])
        case "attention":
            figure = _attention(view)
        case "tree":
            figure = _tree(view)
        case "tokens":
            figure = _tokens(view)
        case "saliency":
            figure = _saliency(view)
        case "labels":
            figure = _labels(view)
        case "flow":
            figure = _flow([view])
        case "positions":
            figure = _positions(view)
        case "embeddings":
            figure = _embeddings(view)
        case "forecast":
            figure = _forecast(view)
        case "curves":
            figure = _curves(view)
        case "confusion":
            figure = _confusion(view)
        case kind:
            raise ConfigError(f"the view '{kind}' is a table: name a .html or a .json to write")
    return save(figure, out, dpi=130)


def draw_flows(views: list[View], titles: list[str], out: str | Path) -> None:
    """Gradient flow of several networks, or of one before and after training, side by side."""
    save(_flow(views, titles), out, dpi=130)


def _path(view: View) -> CaptionPath:
    data = b64decode(view["picture"]["url"].partition(",")[2])
    picture = np.asarray(pillow()[0].open(BytesIO(data)).convert("RGB"))
    maps = torch.from_numpy(np.stack([unpacked(one) for one in view["weights"]])).float()
    return CaptionPath(picture, view["words"], maps)


def visible(token: str) -> str:
    """A token as drawn by matplotlib: with visible blanks, and $ escaped."""
    return (token.replace(" ", "␣") or "␣").replace("$", r"\$")


def heat_map(axes: Any, values: Any, rows: list[str], columns: list[str], **more: Any) -> Any:
    """A matrix with the names of its rows and columns, thinned out if there are many."""
    image = axes.imshow(values, aspect="auto", interpolation="nearest", **more)
    for names, where, set_ticks in (
        (columns, "x", axes.set_xticks),
        (rows, "y", axes.set_yticks),
    ):
        if not names:
            continue
        every = max(1, -(-len(names) // MAX_NAMED))
        shown = [visible(name)[:16] for name in names[::every]]
        upright = where == "x" and max(map(len, shown), default=0) > 2
        set_ticks(range(0, len(names), every), shown, rotation=90 if upright else 0)
    axes.tick_params(length=0, labelsize="small")
    axes.xaxis.tick_top()
    return image


def _attention(view: View) -> Any:
    rows, columns = axis_names(view)
    width = min(20.0, 1.8 + 0.3 * len(columns))
    height = min(20.0, 1.4 + 0.28 * len(rows))
    figure = new_figure(max(width, 4.0), max(height, 2.0))
    axes = figure.add_subplot()
    image = heat_map(axes, unpacked(view["map"]), rows, columns, cmap="Blues", vmin=0.0)
    figure.colorbar(image, ax=axes, shrink=0.8, label="weight")
    down, across = axis_titles(view)
    axes.set_ylabel(down, fontsize="small")
    axes.set_xlabel(across, fontsize="small")
    axes.set_title(map_title(view), fontsize="small")
    return figure


def layout(view: View) -> tuple[list[int], list[float]]:
    """The coordinates of a tree's nodes: depth, and height, parents centred on their children."""
    nodes = view["nodes"]
    depth: list[int] = []
    for node in nodes:
        parent = node["parent"]
        depth.append(0 if parent is None else depth[parent] + 1)
    below_each = children(view)
    place, row = [0.0] * len(nodes), 0
    order = [*reversed(below_each.get(None, []))]  # without recursion: a tree may be deep
    visited: list[int] = []
    while order:
        i = order.pop()
        visited.append(i)
        below = below_each.get(i, [])
        if not below:
            place[i], row = float(row), row + 1
        order += reversed(below)
    for i in reversed(visited):
        if below := below_each.get(i, []):
            place[i] = sum(place[j] for j in below) / len(below)
    return depth, place


def _tree(view: View) -> Any:
    nodes = view["nodes"]
    if len(nodes) > MAX_TREE_NODES:
        raise ConfigError(
            f"the tree has {len(nodes):,} nodes, and a picture shows {MAX_TREE_NODES}: write a "
            ".html, or search with a smaller width"
        )
    depth, place = layout(view)
    best = best_path(view)
    figure = new_figure(min(24.0, 2.0 + 1.1 * (max(depth) + 1)), 1.0 + 0.2 * (max(place) + 1))
    axes = figure.add_subplot()
    for i, node in enumerate(nodes):
        parent, pruned = node["parent"], node["fate"] in ("outside the beam", "could not win")
        colour = BLUE if i in best else GREY if pruned else INK
        if parent is not None:
            axes.plot(
                [depth[parent], depth[i]], [place[parent], place[i]], color=colour, linewidth=0.7
            )
        axes.text(
            depth[i], place[i], f"{visible(node['token'])} {or_nan(node['score']):.2f}",
            color=colour, fontsize=6, va="center", fontweight="bold" if i in best else "normal",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip
    axes.set_xlim(-0.2, max(depth) + 1.0)
    axes.set_ylim(max(place) + 0.8, -0.8)
    axes.axis("off")
    axes.set_title("blue: the answer; grey: pruned; numbers: log p so far", fontsize="small")
    return figure


def _bars(names: list[str], values: list[float], label: str, signed: bool) -> Any:
    figure = new_figure(min(24.0, 2.0 + 0.34 * len(names)), 3.0)
    axes = figure.add_subplot()
    colours = [RED if value < 0 else BLUE for value in values] if signed else BLUE
    axes.bar(range(len(values)), values, color=colours)
    every = max(1, -(-len(names) // MAX_NAMED))
    shown = [visible(name)[:16] for name in names[::every]]
    axes.set_xticks(range(0, len(names), every), shown, rotation=90, fontsize="small")
    axes.axhline(0.0, color=INK, linewidth=0.6)
    axes.set_ylabel(label)
    axes.margins(x=0.01)
    return figure


def _tokens(view: View) -> Any:
    names = [one["text"] for one in view["tokens"]]
    return _bars(
        names, [-(one["log_p"] or 0.0) for one in view["tokens"]], "surprisal, nats", False
    )


def _saliency(view: View) -> Any:
    output = view["text"] if view["position"] is None else view["target"][view["position"]]
    figure = _bars(
        view["tokens"],
        [or_nan(x) for x in view["scores"]],
        f"{view['method']}, {view['explains']}",
        True,
    )
    error = view.get("completeness_error")
    more = "" if error is None else f"; completeness error {error:.2g}"
    figure.axes[0].set_title(f"for: {visible(output)[:60]}{more}", fontsize="small")
    return figure


def _labels(view: View) -> Any:
    if "words" not in view:
        best = view["labels"][:20]
        figure = new_figure(5.0, 0.8 + 0.28 * len(best))
        axes = figure.add_subplot()
        names = [visible(label["text"])[:30] for label in best]
        axes.barh(names, [label["p"] for label in best], color=BLUE)
        axes.set_xlim(0, 1)
        axes.invert_yaxis()
        axes.set_xlabel("probability")
        return figure
    names = sorted({label["text"] for word in view["labels"] for label in word["labels"]})
    table = [
        [next(o["p"] for o in word["labels"] if o["text"] == name) for word in view["labels"]]
        for name in names
    ]
    figure = new_figure(min(24.0, 2.0 + 0.45 * len(view["words"])), 1.2 + 0.25 * len(names))
    heat_map(figure.add_subplot(), table, names, view["words"], cmap="Blues", vmin=0.0, vmax=1.0)
    return figure


def _flow(views: list[View], titles: list[str] | None = None) -> Any:
    from matplotlib.colors import LogNorm

    titles = titles or ["" for _ in views]
    maps = [view for view in views if view["states"] is not None]
    rows = 2 if maps else 1
    figure = new_figure(max(7.0, 2.9 * len(views)), 2.6 * rows)
    every = [max(x or 0.0, 1e-12) for view in views for x in view["inputs"]]
    grid = figure.add_gridspec(rows, 2 * len(views))
    for i, (view, title) in enumerate(zip(views, titles, strict=True)):
        axes = figure.add_subplot(grid[0, 2 * i : 2 * i + 2])
        inputs = np.array(view["inputs"], float)
        axes.semilogy(range(len(inputs)), np.maximum(inputs, 1e-12), color=BLUE)
        axes.set_ylim(min(every) / 2, max(every) * 2)
        axes.set_xlabel("position i", fontsize="small")
        axes.set_ylabel("|dL/dx_i|", fontsize="small")
        axes.set_title(title, fontsize="medium")
        axes.tick_params(labelsize="small")
        if view["states"] is None:
            continue
        left, right = (figure.add_subplot(grid[1, 2 * i + k]) for k in range(2))
        states = unpacked(view["states"])
        shown = np.where(states > 0, states, np.nan)
        left.imshow(
            shown, aspect="auto", cmap="viridis", interpolation="nearest",
            norm=LogNorm(1e-4, max(1.0, float(np.nanmax(shown)))),
        )  # fmt: skip
        left.set_xlabel("i", fontsize="small")
        left.set_ylabel("t", fontsize="small")
        left.set_title("|dh_t/dh_i|", fontsize="small")
        curve = np.maximum(np.array(view["by_distance"], float), 1e-12)
        right.semilogy(curve, color=BLUE)
        right.set_ylim(1e-6, max(10.0, float(curve.max())))
        right.set_xlabel("t - i", fontsize="small")
        for axes in (left, right):
            axes.tick_params(labelsize="x-small")
    return figure


def _positions(view: View) -> Any:
    figure = new_figure(9.0, 4.0)
    left, right = figure.subplots(1, 2)
    for axes, name in ((left, "matrix"), (right, "gram")):
        values = unpacked(view[name])
        most = float(np.abs(values).max()) or 1.0
        image = axes.imshow(values, aspect="auto", cmap="RdBu", vmin=-most, vmax=most)
        figure.colorbar(image, ax=axes, shrink=0.8)
    rows, columns = (
        ("head", "position") if view["type"] == "relative" else ("position", "dimension")
    )
    left.set_ylabel(rows)
    left.set_xlabel(columns)
    right.set_xlabel("position")
    left.set_title(f"{view['type']} positions", fontsize="small")
    right.set_title(
        "added to scores" if view["type"] == "relative" else "products", fontsize="small"
    )
    return figure


def _embeddings(view: View) -> Any:
    figure = new_figure(8.0, 7.0)
    axes = figure.add_subplot()
    points = view["points"]
    axes.scatter([p["x"] for p in points], [p["y"] for p in points], s=4, color=GREY)
    near = {one["text"] for one in view["neighbours"]} | {view["word"]}
    for point in points:
        colour = BLUE if point["text"] in near else INK
        axes.annotate(
            visible(point["text"]), (point["x"], point["y"]), fontsize=6, color=colour, clip_on=True
        )
    shares = view["explained"]
    axes.set_xlabel(f"first component, {shares[0]:.0%} of the variance")
    axes.set_ylabel(f"second, {shares[1]:.0%}" if len(shares) > 1 else "")
    return figure


def _forecast(view: View) -> Any:
    shown = view["series"][:MAX_PANELS]
    figure = new_figure(8.0, 1.2 + 2.0 * len(shown))
    for i, series in enumerate(shown):
        axes = figure.add_subplot(len(shown), 1, i + 1)
        past = [np.nan if x is None else x for x in series["history"]]
        ahead = range(len(past) - 1, len(past) + len(series["mean"]))
        last = past[-1]
        axes.plot(past, color=INK, linewidth=1)
        axes.plot(ahead, [last, *series["mean"]], color=BLUE, linewidth=1.5)
        low, high = ([last, *series["quantiles"][level]] for level in ("0.1", "0.9"))
        axes.fill_between(ahead, low, high, color=BLUE, alpha=0.25)
        axes.set_title(series["name"], fontsize=9, loc="left")
        axes.tick_params(labelsize=7)
    return figure


def main_score(view: View) -> str:
    """The first dev score that all runs of a view have, other than the loss if possible."""
    sets = [set(one["scores"]) for run in view["runs"] for one in run["dev"]]
    shared = set.intersection(*sets) if sets else set()
    order = [name for run in view["runs"] for one in run["dev"] for name in one["scores"]]
    return next((name for name in order if name in shared and name != "loss"), "loss")


def _curves(view: View) -> Any:
    figure = new_figure(10.0, 3.6)
    axes = figure.subplots(1, 3)
    score = main_score(view)
    for run in view["runs"]:
        name = visible(run["name"])
        losses = [np.nan if x is None else x for x in run["loss"]]
        axes[0].plot(run["steps"], losses, label=name, linewidth=1)
        steps = [evaluation["step"] for evaluation in run["dev"]]
        for panel, key in ((axes[1], "loss"), (axes[2], score)):
            values = [evaluation["scores"].get(key) for evaluation in run["dev"]]
            panel.plot(steps, [np.nan if x is None else x for x in values], marker=".", label=name)
    for panel, title in zip(
        axes, ("loss in training", "loss on dev", f"{score} on dev"), strict=True
    ):
        panel.set_title(title, fontsize="small")
        panel.set_xlabel("step", fontsize="small")
        panel.tick_params(labelsize="small")
    axes[0].legend(fontsize="x-small")
    return figure


def _confusion(view: View) -> Any:
    names = view["labels"]
    figure = new_figure(2.4 + 0.42 * len(names), 1.6 + 0.36 * len(names))
    axes = figure.add_subplot()
    counts = np.array(view["counts"], float)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    heat_map(axes, shares, names, names, cmap="Blues", vmin=0.0, vmax=1.0)
    if len(names) <= 30:
        for i, row in enumerate(view["counts"]):
            for j, value in enumerate(row):
                colour = "white" if shares[i, j] > 0.6 else INK
                if value:
                    axes.text(j, i, str(value), ha="center", va="center", fontsize=7, color=colour)
    axes.set_ylabel("gold")
    axes.set_title("predicted", fontsize="small")
    return figure
