"""One table of hostile edits: everything an attacker does to a run directory, a row each.

A row names the edit, the work that has to refuse the run, and the run it is made from: a golden
run, any of those ("any"), or a sound run with files of tens of megabytes ("large").
"""

import json
import os
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from saccade.data.corpora import MAX_EXAMPLE_BYTES
from saccade.data.digest import digest
from saccade.runs import checkpoints, files, guard
from saccade.runs.files import FORMAT
from saccade.runs.folder import read_config
from saccade.setup.prepare import load_task
from tests.faults.processes import MB, PYTHON
from tests.helpers import GOLDEN

Apply = Callable[[Path], Any]  # what is done to a run
Find = Callable[[Path], Path]  # a file of it
DEEP = "[" * 200_000
NAN = float("nan")
LM = "language-model"  # the golden run that has checkpoints and data
DIM = 500  # of the large run: 8 MB of weights, and a checkpoint of 32
COUNT = 10 * MB  # ids, or lines


class Edit(NamedTuple):
    name: str
    work: str  # load, or what is done with the run: a key of WORKS
    base: str
    apply: Apply  # the run
    allowance: int = PYTHON  # bytes of memory beside 1.5 times the files
    says: str = ""  # a part of the message


class UnchangedError(Exception):
    """The edit finds nothing to change in this run."""


# --- how files are edited -------------------------------------------------------------------------


def at(name: str) -> Find:
    return lambda run: run / name


def newest(name: str) -> Find:
    """A file of the newest checkpoint."""
    return lambda run: checkpoint_of(run) / name


def checkpoint_of(run: Path) -> Path:
    return checkpoints.paths(run / "checkpoints")[-1]


MODEL = "model.safetensors"
WEIGHTS, CONFIG, STATE, MANIFEST = (
    at(MODEL), at("config.toml"), newest("state.json"), newest("manifest.json"),
)  # fmt: skip
VOCABULARY: Find = lambda run: min(set(run.glob("*.json")) - {run / "expected.json"})  # noqa: E731
ROLES = {"weights": WEIGHTS, "config": CONFIG, "vocabulary": VOCABULARY}


def seal(folder: Path, step: int) -> None:
    """An attacker can hash, too: a manifest that fits what was changed."""
    entries = {p.name: (p.stat().st_size, digest(p))
               for p in folder.iterdir() if p.name != files.MANIFEST}  # fmt: skip
    files.write_manifest(folder, entries, step)


def sealed(apply: Apply) -> Apply:
    """An edit of the newest checkpoint, with a manifest that fits."""
    return lambda run: (apply(run), seal(checkpoint_of(run), 150))


def edited(file: Find, change: Callable[[bytes], bytes]) -> Apply:
    def apply(run: Path) -> None:
        data = change(before := file(run).read_bytes())
        if data == before:
            raise UnchangedError
        file(run).write_bytes(data)

    return apply


def written(file: Find, text: Callable[[], str]) -> Apply:
    return edited(file, lambda data: text().encode("utf-8", "surrogatepass"))


def replaced(old: str, new: str) -> Apply:
    """Another text in config.toml."""
    return edited(CONFIG, lambda data: data.replace(old.encode(), new.encode()))


def turned(file: Find, kind: str) -> Apply:
    """Another kind of file in the place of one."""

    def apply(run: Path) -> None:
        path, outside = file(run), run.parent / "outside"
        if kind == "a link to the right one":
            shutil.move(path, outside / path.name)
        else:
            path.unlink(missing_ok=True)
        match kind:
            case "a pipe":
                os.mkfifo(path)
            case "a folder":
                path.mkdir()
            case "a socket":
                here = os.getcwd()
                os.chdir(path.parent)  # the name of a socket is short
                with socket.socket(socket.AF_UNIX) as plug:
                    plug.bind(path.name)
                os.chdir(here)
            case _:
                targets = {"a link to itself": path.name, "a link outside": outside / "secret.txt"}
                path.symlink_to(targets.get(kind, outside / path.name))

    return apply


KINDS = ["a pipe", "a folder", "a socket", "a link to itself", "a link outside",
         "a link to the right one"]  # fmt: skip


# --- files that a prediction reads ----------------------------------------------------------------

ODD_JSON = [
    DEEP, '{"a":' * 100_000, "NaN", "[]", "{}", '{"saccade": {}}', "9" * 5000, "\udcff", "\0", "",
    '{"a": NaN}', '{"a": 1e999}', '{"saccade": null, "tokenizer": null}',
]  # fmt: skip
MARK = f"format = {FORMAT}"
ODD_TOML = [
    ("seed =", f"x = {DEEP}\nseed ="), ("dim = 16", "dim = -16"), ("dim = 16", "dim = 1000000000"),
    ("dim = 16", "dim = 1e3"), ("dim = 16", "dim = nan"), ("dim = 16", "dim = 18"),
    ("context = 128", f"context = {10**23}"),
    ("num_layers = 1", "num_layers = 100000000"), ("ff_dim = 32", "ff_dim = 1000000000"),
    ("kernel = 3", "kernel = 1000000001"), ("size = 5000", "size = 1" + "0" * 5000),
    (MARK, "format = 99"), (MARK, "format = true"), (MARK, "format = 'x'"),
    ("prepared = true", "prepared = 1"), ("\nkind =", "\nkinds ="), ("[run]", "[run]\n[run]"),
    (f"[run]\n{MARK}\n", ""), ("seed", "\0seed"), ("[task]", "[task]\nmodule = 'os'"),
    ('kind = "', "kind = \"__import__('os')"),
]  # fmt: skip


def header(change: Callable[[dict[str, Any], str], Any]) -> Callable[[bytes], bytes]:
    """A safetensors file with another header; what the change returns stands for the body."""

    def edit(data: bytes) -> bytes:
        size = int.from_bytes(data[:8], "little")
        found, body = json.loads(data[8 : 8 + size]), data[8 + size :]
        more = change(found, min(key for key in found if key != "__metadata__"))
        body = more(body) if callable(more) else body
        text = json.dumps(found).encode()
        return struct.pack("<Q", len(text)) + text + body

    return edit


NOTHING = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
ODD_TENSORS: list[Callable[[bytes], bytes]] = [  # no library reads such a file
    *(lambda data, n=n: struct.pack("<Q", n) + data[8:] for n in (2**63, 2**40, 2**64 - 1, 0)),
    lambda data: struct.pack("<Q", len(data)) + data[8:],
    lambda data: struct.pack("<Q", len(DEEP)) + DEEP.encode() + data[8:],
    *(header(lambda h, name, new=new: h[name].update(dtype=new))
      for new in ("F8", "object", "I64", "BOOL", None, 7)),
    *(header(lambda h, name, new=new: h[name].update(shape=new))
      for new in ([2**40, 2**40], [-1], [0], "x", [1e9], [2**62])),
    *(header(lambda h, name, new=new: h.update(__metadata__=new))
      for new in ({"format": 1}, [], "x")),
    header(lambda h, name: h[name].update(data_offsets=[0, 2**60])),
    header(lambda h, name: h[name]["data_offsets"].reverse()),
    header(lambda h, name: lambda body: body + bytes(8)),
    header(lambda h, name: lambda body: body[:-4]),
    header(lambda h, name: (h.pop(name), None)[1]),
]  # fmt: skip
ODD_WEIGHTS = [  # it is read, but it is not the file of these weights
    header(lambda h, name: h.update(__metadata__={"format": "99"})),
    header(lambda h, name: h.update(__metadata__={"sha256": "0" * 64})),
    header(lambda h, name: h.update({"../../outside/secret.txt": h.pop(name)})),
    header(lambda h, name: h.update(__reduce__=NOTHING)),
    header(lambda h, name: lambda body: bytes([body[0] ^ 1]) + body[1:]),
]  # fmt: skip


NO_MEMORY = dict.fromkeys((10**9, 10**18, 10**40), "no machine has memory") | {
    10**6: "8,000,018,000,010 parameters: to train them takes 160,000.4 GB",
    10**7: "parameters: to train them takes",
}


def no_weights(size: int) -> Apply:
    """Nothing but a configuration, of a network that no machine holds."""

    def apply(run: Path) -> None:
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
        WEIGHTS(run).unlink()
        replaced("dim = 16", f"dim = {size}")(run)

    return apply


def cut_at(share: float) -> Callable[[bytes], bytes]:
    return lambda data: data.rstrip(b"\n}")[: int(share * (len(data) - 8))]


def files_of(work: str, base: str) -> Iterator[Edit]:
    """What is wrong with the files that every work reads."""
    for role, file in ROLES.items():
        for kind in KINDS:
            yield Edit(f"{role}: {kind}", work, base, turned(file, kind))
    for old, new in ODD_TOML:
        if base == "any" or old in CONFIG(GOLDEN / base).read_text():
            yield Edit(f"config: {new[:40]!r}", work, base, replaced(old, new))
    for size, resumed in NO_MEMORY.items():
        says = "no such file" if work == "load" else resumed
        yield Edit(f"only a config of {size:.0e}", work, base, no_weights(size), says=says)


def loaded() -> Iterator[Edit]:
    yield from files_of("load", "any")
    unprepared = replaced("prepared = true", "prepared = false")
    yield Edit("config: not prepared", "load", "any", unprepared)
    for share in (0.0, 0.3, 0.7, 0.99):
        for role, file in ROLES.items():
            yield Edit(f"{role} cut at {share}", "load", "any", edited(file, cut_at(share)))
    for text in ODD_JSON:
        apply = written(VOCABULARY, lambda text=text: text)
        yield Edit(f"vocabulary: {text[:20]!r}", "load", "any", apply)
    for i, change in enumerate([*ODD_TENSORS, *ODD_WEIGHTS]):
        yield Edit(f"weights: {i}", "load", "any", edited(WEIGHTS, change))
    for base, old, new in SIZES:
        for number in (10**5, 10**9, 10**18, 10**40):  # some are no number of bytes at all
            text = new.format(number)
            yield Edit(f"a network of {text[:30]}", "load", base, replaced(old, text))


SIZES = [
    ("transformer", "ff_dim = 32", "ff_dim = {}"), ("transformer", "dim = 16", "dim = {}"),
    ("classifier", "kernel = 3", "kernel = {}1"), (LM, "dim = 16", "dim = {}"),
    ("classifier", "max_positions = 1024", "max_positions = {}"),
    ("attention", "num_layers = 1", "num_layers = {}"),
]  # fmt: skip


# --- files that training goes on from -------------------------------------------------------------

PARTS = [MODEL, "raw.safetensors", "training.safetensors"]
ODD_MANIFEST: list[tuple[tuple[Any, ...], Any]] = [
    *((("files", MODEL, 0), value) for value in (NAN, -1, 2**70, "12", None, [], True)),
    *((("files", MODEL, 1), value) for value in ("", None, "0" * 64, 7)),
    *((("files", name), [1, "0" * 64]) for name in ("../../config.toml", "/etc/passwd", "..", "",
      ".", "a\0b", "x/../y", "manifest.json")),
    *((("format",), value) for value in (0, -1, 99, "1", None, True, 1.5, NAN)),
    *((("step",), value) for value in (151, "150", None, NAN)),
    *((("files",), value) for value in ([], None, "x", 7, {MODEL: 1}, {})),
    (("files", MODEL), [1, "0" * 64] * 2),
]  # fmt: skip
ODD_STATE: list[tuple[str, Any]] = [
    ("step", "x"), ("step", -1), ("step", 2**80), ("step", None), ("epoch", [1]), ("epoch", -3),
    ("index", 10**6), ("index", "0x"), ("seconds", NAN), ("best", [1]), ("best", "x"),
    ("ranked", 5), ("ranked", [[1]]), ("saved", {"a": 1}), ("saved", [-1]), ("plateau", 7),
    ("slow", -1), ("slow", NAN), ("pending", "perhaps"), ("scaler", 5), ("bad", -1),
    ("config", {"task": {"kind": "tag"}}), ("config", 5), ("config", {"seed": 77}),
    ("config", [[]]), ("config", "x"),
]  # fmt: skip
ODD_TRAINING: dict[str, Callable[[dict[str, Any]], Any]] = {
    "of no parameter": lambda t: t.update({"optimizer.999.exp_avg": torch.ones(3)}),
    "with a path": lambda t: t.update({"../x": torch.ones(3)}),
    "without a number": lambda t: t.update({"optimizer.x.exp_avg": torch.ones(3)}),
    "of another shape": lambda t: t.update({"optimizer.0.exp_avg": torch.ones(3, 5, 7)}),
    "without a moment": lambda t: t.pop("optimizer.0.exp_avg"),
    "of another width": lambda t: t.update({"carry.0": torch.ones(2, 99)}),
    "with half a state": lambda t: t.update({"carry.1": torch.ones(2, 16)}) or t.pop("carry.0"),
}


def in_json(file: Find, path: tuple[Any, ...], value: Any) -> Apply:
    def change(data: bytes) -> bytes:
        table = found = json.loads(data)
        for name in path[:-1]:
            table = table[name]
        table[path[-1]] = value
        return json.dumps(found).encode()

    return edited(file, change)


def tensors(change: Callable[[dict[str, Any]], Any], name: str = "training") -> Apply:
    def apply(run: Path) -> None:
        path = checkpoint_of(run) / f"{name}.safetensors"
        change(found := files.read_tensors(path))
        files.write_tensors(path, found)

    return sealed(apply)


def enlarged(run: Path, dim: int = 100_000) -> None:
    """Another width, in the configuration and in the checkpoint's copy of it."""
    for path in (CONFIG(run), STATE(run)):
        text = path.read_text().replace("dim = 16", f"dim = {dim}")
        path.write_text(text.replace('"dim": 16', f'"dim": {dim}'))


def resumed(every: bool = False) -> Iterator[Edit]:
    def row(name: str, apply: Apply) -> Edit:
        return Edit(name, "resume", LM, apply)

    yield from files_of("resume", LM)
    for path, value in ODD_MANIFEST:
        yield row(f"manifest: {path} = {str(value)[:20]}", in_json(MANIFEST, path, value))
    for text in (DEEP, "", "{", "null", "[1]", '"x"', "NaN", "{}"):
        yield row(f"manifest: {text[:9]!r}", written(MANIFEST, lambda text=text: text))
    for key, value in ODD_STATE:
        yield row(f"state: {key} = {value}", sealed(in_json(STATE, (key,), value)))
    for text in ("[]", DEEP):
        yield row(f"state: {text[:9]!r}", sealed(written(STATE, lambda text=text: text)))
    for name, change in ODD_TRAINING.items():
        yield row(f"training {name}", tensors(change))
    for name in PARTS:
        yield row(f"checkpoint's {name}: a pipe", turned(newest(name), "a pipe"))
    for i, odd in enumerate(ODD_TENSORS):
        for part in PARTS if every else [PARTS[i % 3]]:
            yield row(f"checkpoint's {part}: {i}", sealed(edited(newest(part), odd)))
    for name in ("metrics.jsonl", ".lock", f"{MODEL}.aside", "config.toml.aside", "tensorboard"):
        yield row(f"{name}: a link outside", turned(at(name), "a link outside"))
    for name in ("metrics.jsonl", ".lock", f"{MODEL}.aside"):
        yield row(f"{name}: a folder", turned(at(name), "a folder"))
    for name, place in (("all", at("checkpoints")), ("data", at("data")), ("one", checkpoint_of)):
        yield row(f"{name}: a link", turned(place, "a link to the right one"))
    misfit = "does not fit config.toml"
    yield Edit("a checkpoint of a smaller network", "resume", LM, sealed(enlarged), says=misfit)
    elsewhere = at("checkpoints/step-99999999")
    yield row("another name", lambda run: checkpoint_of(run).rename(elsewhere(run)))


# --- the data -------------------------------------------------------------------------------------

ODD_LINES = ["[]", "null", "[1, 2]", '[["a"]]', "[[1], 5]", DEEP, '{"a": 1}']


def data(name: str, change: Callable[[Any], Any], kind: Any = np.uint8) -> Apply:
    """Other numbers in a file of the data, and a manifest that vouches for them."""

    def apply(run: Path) -> None:
        path = run / "data" / name
        change(np.fromfile(path, kind)).tofile(path)
        seal(run / "data", 0)

    return apply


def text_of(content: bytes) -> Callable[[Any], Any]:
    return lambda old: np.frombuffer(content, np.uint8)


def far(table: Any) -> Any:
    table[3] = 10**12
    return table


def data_rows() -> Iterator[Edit]:
    ids, starts = ("train.target.ids", np.int32), ("train.target.starts", np.int64)
    rows = {
        "large ids": data(ids[0], lambda old: np.full_like(old, 10**6), ids[1]),
        "negative ids": data(ids[0], lambda old: np.full_like(old, -5), ids[1]),
        "a start far away": data(starts[0], far, starts[1]),
        "starts backwards": data(starts[0], lambda old: old[:-1][::-1], starts[1]),
        "no starts": data(starts[0], lambda old: old[:0], starts[1]),
        "three bytes of ids": data("dev.target.ids", text_of(b"123")),
    } | {f"dev {t[:9]!r}": data("dev.jsonl", text_of(f"{t}\n".encode())) for t in ODD_LINES}
    yield from (Edit(f"data: {name}", "resume", LM, apply) for name, apply in rows.items())
    for work in ("load", "evaluate", "verify", "resume"):
        for i, kind in enumerate(("a pipe", "a link to the right one") * 3):
            apply = turned(lambda run, i=i: sorted((run / "data").iterdir())[i % 5], kind)
            if i >= 3:  # and nothing says what the files are
                apply = lambda run, then=apply: (at("data/manifest.json")(run).unlink(), then(run))  # noqa: E731
            yield Edit(f"data: file {i}: {kind}", work, LM, apply)


# --- large files ----------------------------------------------------------------------------------


def make_large(run: Path) -> None:
    """A run that is sound, with a network of tens of megabytes, and so its checkpoint."""
    shutil.copytree(GOLDEN / "language-model", run)
    step = checkpoint_of(run)
    enlarged(run, DIM)
    network = load_task(read_config(run), run).build_meta()
    weights = {name: torch.full(p.shape, 0.01) for name, p in network.named_parameters()}
    order = sorted(weights.values(), key=lambda weight: weight.dim() <= 1)  # as the optimiser has
    moments = {f"optimizer.{i}.{name}": weight for i, weight in enumerate(order)
               for name in ("exp_avg", "exp_avg_sq")}  # fmt: skip
    moments |= {f"optimizer.{i}.step": torch.tensor(150.0) for i in range(len(order))}
    files.save_weights(WEIGHTS(run), weights)
    for name, found in (("model", weights), ("raw", weights), ("training", moments)):
        files.write_tensors(step / f"{name}.safetensors", found)
    seal(step, 150)


def crowd(size: int) -> str:
    """As many JSON values as go into so many bytes."""
    return "[" + "[]," * ((size - 8) // 3) + "[]]"


def wide(size: int) -> str:
    """A text that takes four bytes in memory for each byte of the file."""
    return "x" * (size - 64) + "\N{GRINNING FACE}"


def only_header(text: Callable[[], str], body: int = 0) -> Apply:
    def change(data: bytes) -> bytes:
        head = text().encode()
        return struct.pack("<Q", len(head)) + head + bytes(body)

    return edited(WEIGHTS, change)


def holes(run: Path) -> None:
    entry = {"dtype": "F32", "shape": [2**36], "data_offsets": [0, 2**38]}
    only_header(lambda: json.dumps({"a": entry}))(run)
    os.truncate(WEIGHTS(run), WEIGHTS(run).stat().st_size + 2**38)  # 256 GB of nothing


def saved(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Apply:
    def apply(run: Path) -> None:
        files.save_weights(WEIGHTS(run), change(files.read_tensors(WEIGHTS(run))))

    return apply


def words(count: int) -> Apply:
    """A vocabulary that is one: the embedding is another's."""

    def apply(run: Path) -> None:
        content = json.loads((run / "tokenizer.json").read_text())
        vocab = content["tokenizer"]["model"]["vocab"]
        vocab |= {f"{i:x}h": i for i in range(len(vocab), count)}
        (run / "tokenizer.json").write_text(json.dumps(content))

    return apply


def wrong_hash(run: Path) -> None:
    path = checkpoint_of(run) / MODEL
    files.write_tensors(path, files.read_tensors(path), {"sha256": "0" * 64})


def strange_id(run: Path) -> None:
    ids = np.full(COUNT, 6, np.int32)
    ids[-1] = 10**6
    np.array([0, 99, COUNT]).tofile(run / "data" / "train.target.starts")
    data("train.target.ids", lambda old: ids)(run)


def odd_starts(run: Path) -> None:
    starts = np.zeros(COUNT // 2, np.int64)
    starts[-2:] = 10**6, (run / "data" / "train.target.ids").stat().st_size // 4
    data("train.target.starts", lambda old: starts)(run)


def long_lines() -> bytes:
    line = json.dumps([[wide(MAX_EXAMPLE_BYTES - 99)], None], ensure_ascii=False)
    return f"{line}\n".encode() * 10 + b"[]\n"


def dev_set(lines: Callable[[], bytes]) -> Apply:
    return data("dev.jsonl", lambda old: np.frombuffer(lines(), np.uint8))


def values(file: Find, key: str, size: int) -> Apply:
    return written(file, lambda: f'{{"{key}": {crowd(size)}}}')


def one_text(file: Find, key: str, size: int) -> Apply:
    return written(file, lambda: json.dumps({key: wide(size)}, ensure_ascii=False))


LINE = b'[["a line of a text, no more"],null]\n'
MANIFEST_BYTES, STATE_BYTES = guard.MAX_BYTES["manifest.json"], guard.MAX_BYTES["state.json"]
VOCABULARY_BYTES, HEADER_BYTES = guard.MAX_VOCABULARY_BYTES, guard.MAX_HEADER_BYTES
LARGE_LOADED: dict[str, Apply] = {
    "weights with a wrong hash": edited(WEIGHTS, lambda old: old[:-2] + b"\1" + old[-1:]),
    "weights cut short": edited(WEIGHTS, lambda old: old[:-99]),
    "weights in half precision": saved(lambda old: {name: t.half() for name, t in old.items()}),
    "weights with one too many": saved(lambda old: old | {"more": torch.ones(5 * MB)}),
    "weights of holes": holes,
    "a config of megabytes": edited(CONFIG, lambda old: old + b"# " + b"x" * 40 * MB),
    "a vocabulary of megabytes": values(VOCABULARY, "saccade", VOCABULARY_BYTES),
    "a vocabulary of values": values(VOCABULARY, "saccade", 4 * MB),
    "a vocabulary of one text": one_text(VOCABULARY, "saccade", VOCABULARY_BYTES - 64),
    "a vocabulary of many words": words(300_000),
}
LARGE_RESUMED: dict[str, Apply] = {
    "training without its last": tensors(lambda t: t.pop("optimizer.0.step")),
    "training of a wrong shape": tensors(
        lambda t: t.update({"optimizer.0.exp_avg": torch.ones(COUNT)})
    ),
    "training of many rows": tensors(lambda t: t.update({"carry.0": torch.ones(10**9, 0)})),
    "training with odd streams": tensors(
        lambda t: t.update({"carry.0": torch.ones(4000, DIM), "carry.1": torch.ones(4001, DIM)})
    ),
    "training in double precision": tensors(lambda t: t.update({k: t[k].double() for k in t})),
    "a checkpoint with a wrong hash": sealed(wrong_hash),
    "a checkpoint with one too many": tensors(
        lambda t: t.update({"more": torch.ones(10 * MB)}), "raw"
    ),
    "a manifest of many values": written(MANIFEST, lambda: crowd(MANIFEST_BYTES)),
    "a state of megabytes": sealed(values(STATE, "config", 20 * MB)),
    "data with a strange id": strange_id,
    "data with odd starts": odd_starts,
    "a dev set wrong at its end": dev_set(lambda: LINE * (COUNT // 80) + b"[[7],null]\n"),
    "a dev set of one line": dev_set(lambda: b'[["' + b"x" * 40 * MB + b'"],null]\n'),
}
# What just keeps the limits of text: no multiple of a small run bounds it, but a constant does.
FULL: dict[tuple[str, str], Apply] = {
    ("load", "a deep header"): only_header(lambda: '{"a":' * ((HEADER_BYTES - 8) // 5), 20 * MB),
    ("load", "a wide header"): only_header(
        lambda: json.dumps({"__metadata__": {"a": wide(HEADER_BYTES - 99)}}, ensure_ascii=False)
    ),
    ("load", "many names"): only_header(
        lambda: json.dumps(dict.fromkeys(map(hex, range(guard.MAX_TENSORS)), NOTHING))
    ),
    ("load", "a config of many values"): edited(
        CONFIG,
        lambda old: f"x = {crowd(guard.MAX_BYTES['config.toml'] - len(old) - 64)}\n".encode() + old,
    ),
    ("load", "as many words as are allowed"): words(80_000),
    ("resume", "a state of many values"): sealed(values(STATE, "config", STATE_BYTES - 64)),
    ("resume", "a state of one text"): sealed(one_text(STATE, "config", STATE_BYTES - 64)),
    ("resume", "a dev set of long lines"): dev_set(long_lines),
    ("resume", "a dev set of values"): dev_set(
        lambda: f"[[{crowd(MAX_EXAMPLE_BYTES - 99)}],null]\n".encode() * 10
    ),
}


def large_rows() -> Iterator[Edit]:
    for work, rows in (("load", LARGE_LOADED), ("resume", LARGE_RESUMED)):
        yield from (Edit(f"large: {name}", work, "large", rows[name]) for name in rows)
    for (work, name), apply in FULL.items():
        yield Edit(f"full: {name}", work, LM, apply, guard.JSON_MEMORY_BYTES)


EDITS = [*loaded(), *resumed(), *data_rows(), *large_rows()]
