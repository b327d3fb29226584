"""The package itself: nothing in it unpickles, evaluates, unpacks or calls a shell."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import saccade

PACKAGE = sorted(Path(saccade.__file__).parent.rglob("*.py"))
MODULES = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml",
    "torch.package", "torch.hub", "runpy",
}  # fmt: skip
NAMES = {
    "eval", "exec", "compile", "__import__", "torch.load", "torch.jit.load", "torch.export.load",
    "torch.serialization.load", "torch.jit.script", "numpy.load", "os.system", "os.popen",
    "pandas.read_pickle", "shutil.unpack_archive", "subprocess.getoutput",
    "subprocess.getstatusoutput", "asyncio.create_subprocess_shell",
}  # fmt: skip
METHODS = {"extractall", "load_module", "exec_module"}  # of whatever
WORDS = {"shell", "allow_pickle"}  # may be False


def sins(source: str) -> Iterator[str]:
    """Whatever is forbidden in a source, by whichever name it is called."""
    tree = ast.parse(source)
    known: dict[str, str] = {}  # what a name stands for
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                known[alias.asname or first] = alias.name if alias.asname else first
                yield from (name for name in parts(alias.name) if name in MODULES)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                known[alias.asname or alias.name] = whole
                yield from (name for name in parts(whole) if name in MODULES | NAMES)
                if alias.name == "*":
                    yield whole
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):  # called, or only taken
            name, last = meant(node, known), node.attr if isinstance(node, ast.Attribute) else ""
            yield from (part for part in parts(name) if part in MODULES)
            if name.removeprefix("builtins.") in NAMES or last in METHODS:
                yield name or last
        if isinstance(node, ast.Call):
            for word in node.keywords:
                if word.arg in WORDS and ast.unparse(word.value) != "False":
                    yield f"{word.arg}={ast.unparse(word.value)}"
            if ast.unparse(node.func) == "getattr" and isinstance(node.args[1], ast.Constant):
                name = f"{meant(node.args[0], known)}.{node.args[1].value}"
                if name.removeprefix("builtins.") in NAMES or node.args[1].value in METHODS:
                    yield name


def meant(node: ast.AST, known: dict[str, str]) -> str:
    """The full name of what an expression stands for; nothing if it has none."""
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (owner := meant(node.value, known)):
        return f"{owner}.{node.attr}"
    return ""


def parts(name: str) -> Iterator[str]:
    """a, a.b and a.b.c of a.b.c."""
    words = name.split(".")
    return (".".join(words[:i]) for i in range(1, len(words) + 1))


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: path.name)
def test_nothing_is_unpickled_evaluated_or_given_to_a_shell(path: Path) -> None:
    assert not list(sins(path.read_text(encoding="utf-8")))


SINS = """
import pickle
import _pickle as p
from pickle import loads
from torch import load
from torch import load as read; read(x)
import torch; torch.load(x)
import torch as t; t.load(x)
import torch as t; read = t.load
import torch; torch.jit.load(x)
from torch import jit; jit.load(x)
import torch.jit as j; j.load(x)
import torch.serialization as s; s.load(x)
from torch import *
import torch; torch.hub.load(x)
import torch; getattr(torch, 'load')(x)
import numpy as np; np.load(x)
import numpy; numpy.fromfile(x, allow_pickle=True)
import yaml; yaml.load(x)
from yaml import safe_load
eval(x)
run = exec
import builtins; builtins.eval(x)
from builtins import eval as e; e(x)
import tarfile; tarfile.open(x).extractall()
import subprocess; subprocess.run(x, shell=True)
import subprocess as s; s.run(x, shell=y)
from os import system
import os as o; o.popen(x)
"""
NO_SINS = """
network.eval()
import re; re.compile(x)
import json; json.load(x)
import tomllib; tomllib.load(x)
import subprocess; subprocess.run(x, shell=False)
from saccade.runs.run import load; load(x)
"""


@pytest.mark.parametrize("source", SINS.strip().splitlines())
def test_every_way_of_calling_them_is_seen(source: str) -> None:
    assert list(sins(source))


@pytest.mark.parametrize("source", NO_SINS.strip().splitlines())
def test_what_only_looks_like_them_is_not(source: str) -> None:
    assert not list(sins(source))
