"""What a hostile run may take: of weights, 1.5 times the file; of JSON and TOML, a constant.

A value of JSON takes many times the memory of its two or three bytes, so no multiple of the file
bounds it. What bounds it are the limits on bytes and values, which every file here is just below.
Each case is a process of its own, and its memory is what the system says.
"""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from saccade.tasks.prepare import load_task
from saccade.training import checkpoint as disk
from saccade.training.folder import read_config
from tests.faults.processes import Server
from tests.faults.test_hostile import GOLDEN, sealed, the_checkpoint

MB = 1 << 20
MOST = 512 * MB  # for what is no weight; a vocabulary of half a million words takes most


def crowd(size: int) -> str:
    """Values, as many as are not refused unread, in at most so many bytes."""
    return "[" + "[]," * min(disk.VALUES // 2 - 8, (size - 8) // 3) + "[]]"


def wide(size: int) -> str:
    """A text that takes four bytes in memory for each byte of the file."""
    return "x" * (size - 64) + "\N{GRINNING FACE}"


def config(run: Path) -> None:
    text = (run / "config.toml").read_text()
    room = disk.LARGEST["config.toml"] - len(text) - 64
    (run / "config.toml").write_text(f"x = {crowd(room)}\n{text}")


def manifest(run: Path) -> None:
    (the_checkpoint(run) / disk.MANIFEST).write_text(crowd(disk.LARGEST[disk.MANIFEST]))


def state(run: Path) -> None:
    folder = the_checkpoint(run)
    (folder / "state.json").write_text('{"config": ' + crowd(disk.LARGEST["state.json"]) + "}")
    sealed(folder, 150)


def wide_state(run: Path) -> None:
    folder = the_checkpoint(run)
    text = json.dumps({"config": wide(disk.LARGEST["state.json"] - 64)}, ensure_ascii=False)
    (folder / "state.json").write_text(text)
    sealed(folder, 150)


def vocabulary(run: Path) -> None:
    (run / "tokenizer.json").write_text('{"saccade": ' + crowd(disk.VOCABULARY) + "}")


def wide_vocabulary(run: Path) -> None:
    text = json.dumps({"saccade": wide(disk.VOCABULARY - 64)}, ensure_ascii=False)
    (run / "tokenizer.json").write_text(text)


def many_words(run: Path) -> None:
    """A vocabulary that is one, of half a million words: the embedding is another's."""
    content = json.loads((run / "tokenizer.json").read_text())
    vocab = content["tokenizer"]["model"]["vocab"]
    vocab |= {f"{i:x}": i for i in range(len(vocab), 500_000)}
    (run / "tokenizer.json").write_text(json.dumps(content))


def many_layers(run: Path) -> None:
    """As many layers as a header can pretend to."""
    entry = '"{:x}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    count = disk.HEADER // len(entry.format(1 << 16))
    text = "{" + ",".join(entry.format(i) for i in range(count)) + "}"
    (run / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text.encode())
    text = (run / "config.toml").read_text().replace("dim = 16", "dim = 1")
    text = text.replace("num_layers = 1", f"num_layers = {count // 4}")
    (run / "config.toml").write_text(text)


def header(run: Path) -> None:
    text = b'{"a":' * ((disk.HEADER - 8) // 5)
    (run / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


def holes(run: Path) -> None:
    text = json.dumps({"a": {"dtype": "F32", "shape": [2**36], "data_offsets": [0, 2**38]}})
    with (run / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text.encode())
        file.truncate(8 + len(text) + 2**38)  # 256 GB of nothing


def memory_of(server: Server, run: Path, command: str) -> int:
    """How many bytes a command takes to refuse a run."""
    nowhere = server.run(command, run.parent / "nowhere")
    assert nowhere.code == 2, nowhere.said
    done = server.run(command, run)
    assert done.code == 2, done.said
    assert "Traceback" not in done.said
    assert len(done.said.splitlines()) <= 12
    return done.memory - nowhere.memory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / "language-model", tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    "harm",
    [vocabulary, wide_vocabulary, many_words, many_layers, header, holes, config],
    ids=lambda harm: harm.__name__,
)
def test_what_is_no_weight_takes_a_bounded_memory(
    harm: Callable[[Path], None], run: Path, server: Server
) -> None:
    harm(run)
    assert memory_of(server, run, "evaluate") < MOST


@pytest.mark.parametrize("harm", [manifest, state, wide_state], ids=lambda harm: harm.__name__)
def test_what_is_no_weight_takes_a_bounded_memory_on_resume(
    harm: Callable[[Path], None], run: Path, server: Server
) -> None:
    harm(run)
    assert memory_of(server, run, "resume") < MOST


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("transformer", "ff_dim = 32", "ff_dim = {}"),
        ("transformer", "dim = 16", "dim = {}"),
        ("classifier", "kernel = 3", "kernel = {}1"),
        ("classifier", "max_positions = 1024", "max_positions = {}"),
        ("language-model", "dim = 16", "dim = {}"),
        ("attention", "num_layers = 1", "num_layers = {}"),
    ],
    ids=lambda word: word,
)
def test_a_network_larger_than_its_weights_takes_no_memory(
    name: str, old: str, new: str, tmp_path: Path, server: Server
) -> None:
    for number in (10**5, 10**9, 10**18, 10**40):  # some are no number of bytes at all
        run = tmp_path / str(number)
        shutil.copytree(GOLDEN / name, run)
        text = (run / "config.toml").read_text()
        assert old in text
        (run / "config.toml").write_text(text.replace(old, new.format(number)))
        assert memory_of(server, run, "evaluate") < 30 * MB


def test_nor_does_one_that_is_larger_than_its_checkpoint(run: Path, server: Server) -> None:
    folder = the_checkpoint(run)
    for path in (run / "config.toml", folder / "state.json"):
        text = path.read_text().replace("dim = 16", "dim = 100000")
        path.write_text(text.replace('"dim": 16', '"dim": 100000'))
    sealed(folder, 150)
    assert memory_of(server, run, "resume") < 50 * MB


def test_damaged_weights_take_at_most_one_and_a_half_times_their_file(
    run: Path, server: Server
) -> None:
    """Their shapes fit; only the hash, which comes last, tells."""
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("dim = 16", "dim = 1200"))
    path, task = run / "model.safetensors", load_task(read_config(run), run)
    disk.save_weights(path, disk.weights_of(task.build()))
    size = path.stat().st_size
    assert size > 40 * MB
    with path.open("r+b") as file:
        file.seek(-2, 2)
        file.write(b"\1")
    assert memory_of(server, run, "evaluate") < 1.5 * size
