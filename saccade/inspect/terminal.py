"""Views as plain text, for a terminal."""

from collections.abc import Sequence
from typing import Any

from saccade.inspect import probes, strange
from saccade.inspect.packing import axis_names, best_path, children, or_nan, unpacked
from saccade.runs.printing import one_line

View = dict[str, Any]
SHADES = " ·░▒▓█"
MAX_COLUMNS = 40  # of a matrix
BARS = "▁▂▃▄▅▆▇█"
MAX_ROWS = 60


def text_of(view: View) -> str:
    """A view as lines of text."""
    note = [view["network"]] if "network" in view else []
    return "\n".join([*_lines(view), *note])


def _lines(view: View) -> list[str]:
    match view["kind"]:
        case "attention":
            return _attention(view)
        case "tree":
            return _tree(view)
        case "tokens":
            return _tokens(view)
        case "saliency":
            rows = list(zip(view["tokens"], view["scores"], strict=True))
            lines = signed_bars(rows)
            if (error := view.get("completeness_error")) is not None:
                lines.append(f"completeness error {error:.2g}")
            return [f"{view['method']} for: {one_line(view['text'])}", *lines]
        case "labels":
            return _labels(view)
        case "flow":
            return _flow(view)
        case "positions":
            return [
                f"{view['type']} positions in {view['module']}",
                *shaded(unpacked(view["gram"])),
            ]
        case "embeddings":
            near = [f"{one['similarity']:.3f}\t{one['text']}" for one in view["neighbours"]]
            return near or ["name a token with --word to see its neighbours"]
        case "caption_path":
            return [" ".join(view["words"])]
        case "speech":
            return _speech(view)
        case "forecast":
            return [
                f"{one['name']}\t{sparkline(one['history'])} | {sparkline(one['mean'])}"
                for one in view["series"]
            ]
        case "curves":
            return _curves(view)
        case "worst":
            return [
                f"{one['per_token']:.3f}\t{one_line(' | '.join(one['source']))}\t"
                f"{one_line(one['target'])}\t{one_line(one['said'])}"
                for one in view["examples"]
            ]
        case "probes":
            return probes.text_of(view)
        case "strange":
            return strange.text_of(view)
        case kind:
            raise AssertionError(f"no text of {kind}")


def shaded(
    values: Any, rows: Sequence[str] = (), columns: Sequence[str] = (), most: float | None = None
) -> list[str]:
    """A matrix as shades, with names if it has some; of a large one the first rows and columns."""
    values = values[:MAX_ROWS, :MAX_COLUMNS]
    rows, columns = rows[:MAX_ROWS], columns[:MAX_COLUMNS]
    top = most or float(abs(values).max()) or 1.0
    left = max((len(name) for name in rows), default=0)
    cell = min(10, max((len(name) for name in columns), default=1))
    lines = []
    if columns:
        lines.append(" " * left + "  " + " ".join(one_line(c)[:cell].center(cell) for c in columns))
    for i, row in enumerate(values):
        name = one_line(rows[i]) if i < len(rows) else ""
        shades = [SHADES[min(len(SHADES) - 1, int(abs(w) / top * len(SHADES)))] for w in row]
        lines.append(f"{name:>{left}}  {(' ' if columns else '').join(s * cell for s in shades)}")
    return [line.rstrip() for line in lines]


def _attention(view: View) -> list[str]:
    lines = [one_line(view["text"]), *shaded(unpacked(view["map"]), *axis_names(view)), ""]
    for number, module in enumerate(view["modules"]):
        entropy = " ".join(f"{or_nan(x):.2f}" for x in module["entropy"])
        line = f"{number}\t{module['path']}\t{module['type']}\tentropy {entropy}"
        if "importance" in module:
            line += "\timportance " + " ".join(f"{or_nan(x):.3f}" for x in module["importance"])
        lines.append(line)
    return lines


def _tree(view: View) -> list[str]:
    nodes = view["nodes"]
    below, best = children(view), best_path(view)
    lines = [one_line(view["text"])]
    stack = [(i, 0) for i in reversed(below.get(None, []))]
    while stack:
        i, depth = stack.pop()
        node, mark = nodes[i], "*" if i in best else " "
        token, score = one_line(node["token"]), or_nan(node["score"])
        lines.append(f"{mark}{'  ' * depth}{token}  {score:.4f}  {node['fate']}")
        stack += [(j, depth + 1) for j in reversed(below.get(i, []))]
    return lines


def _tokens(view: View) -> list[str]:
    lines = [f"{one_line(view['text'])}\t{view['score']:.4f}"]
    for one in view["tokens"]:
        others = "  ".join(
            f"{one_line(other['text'])} {other['log_p']:.2f}" for other in one["alternatives"]
        )
        given = " (given)" if one.get("given") else ""
        log_p = "-inf" if one["log_p"] is None else f"{one['log_p']:.4f}"
        lines.append(f"{one_line(one['text'])}\t{log_p}{given}\t{others}")
    return lines


def signed_bars(rows: Sequence[tuple[str, float | None]], width: int = 20) -> list[str]:
    """A bar for each number, to the left or the right of an axis; none for what is not finite."""
    most = max((abs(value) for _, value in rows if value is not None), default=0.0) or 1.0
    left = max((len(name) for name, _ in rows), default=0)
    lines = []
    for name, value in rows:
        size = value or 0.0
        bar = "█" * round(abs(size) / most * width)
        sides = (f"{bar:>{width}}", "") if size < 0 else (" " * width, bar)
        lines.append(
            f"{one_line(name):>{left}} {or_nan(value):9.4f} {sides[0]}|{sides[1]}".rstrip()
        )
    return lines


def _labels(view: View) -> list[str]:
    if "words" not in view:
        return [f"{one['p']:.4f}\t{one['text']}" for one in view["labels"]]
    return [
        f"{one_line(one['word'])}\t"
        + "  ".join(f"{label['text']} {label['p']:.3f}" for label in one["labels"][:3])
        for one in view["labels"]
    ]


def _flow(view: View) -> list[str]:
    rows = list(zip(view["tokens"], view["inputs"], strict=True))
    lines = ["|dL/dx_i| of each position", *signed_bars(rows)]
    if view["states"] is not None:
        lines += ["", f"|dh_t/dh_i| in {view['module']}, by distance"]
        distances = enumerate(view["by_distance"])
        lines += [f"{i}\t{or_nan(x):.3g}" for i, x in distances if i & (i - 1) == 0]
    return lines


def _speech(view: View) -> list[str]:
    spoken = view["spoken"] or []
    lines = [one_line(view["text"])]
    weights = unpacked(view["weights"])
    for i, token in enumerate(view["tokens"]):
        time = float(weights[i].argmax()) * view["seconds"]
        times = f"\t{spoken[i][0]:.2f}-{spoken[i][1]:.2f} s by CTC" if i < len(spoken) else ""
        lines.append(f"{one_line(token)}\t{time:.2f} s{times}")
    return lines


def sparkline(values: Sequence[float | None], width: int = 60) -> str:
    """Numbers as a line of small bars; means, if there are many."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    size = max(1, -(-len(known) // width))
    means = [
        sum(known[i : i + size]) / len(known[i : i + size]) for i in range(0, len(known), size)
    ]
    low, high = min(means), max(means)
    step = (high - low) / (len(BARS) - 1) or 1.0
    return "".join(BARS[round((value - low) / step)] for value in means)


def _curves(view: View) -> list[str]:
    lines = []
    for run in view["runs"]:
        state = run["finished"] or "in training"
        lines.append(f"{run['name']}: {run['steps'][-1] if run['steps'] else 0:,} steps, {state}")
        curves = {"loss": run["loss"]}
        for one in run["dev"]:
            for name, value in one["scores"].items():
                curves.setdefault(f"dev {name}", []).append(value)
        left = max(map(len, curves))
        for name, values in curves.items():
            known = [value for value in values if value is not None]
            if known:
                ends = f"{known[0]:.4g} to {known[-1]:.4g}"
                best = f", least {min(known):.4g}, most {max(known):.4g}"
                lines.append(f"  {name:<{left}}  {sparkline(values)}  {ends}{best}")
    return lines
