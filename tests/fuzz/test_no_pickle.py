"""Reading a file never runs code that is in it: nothing here that unpickles, evaluates, or unpacks to a path."""

import ast
from pathlib import Path

import pytest
from nodes import nodes

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for folder in ("src", "papers/src") for path in (ROOT / folder).rglob("*.py"))
FORBIDDEN_MODULES = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml", "jsonpickle",
    "pandas", "h5py", "copyreg",
}  # fmt: skip
# Of joblib: functions sent to processes of its own, through pipes; its files are pickles. Of pickle: torch's error.
HARMLESS = {"joblib": {"Parallel", "cpu_count", "delayed"}, "pickle": {"UnpicklingError"}}
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__"}
# Code of a recorded pass: numbers, and names of arguments of torch's operations.
GENERATED = {"src/decrescendo/clipping/tape_steps.py": ["exec", "compile"]}
# Of an archive, writes where the archive says.
FORBIDDEN_METHODS = {
    "extractall",
    "unpack_archive",
    "_unpickle",
    "Unpickler",
    "fromfile",
    "loadtxt",
    "genfromtxt",
}


def dangers(text: str) -> list[str]:
    """What a source does that could run, or place, what a file says."""
    found: list[str] = []
    for node in nodes(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            names = [module or ""] if module else [alias.name for alias in node.names]
            if {alias.name for alias in node.names} <= HARMLESS.get(module or "", set()):
                continue
            found += [name for name in names if name.split(".")[0] in FORBIDDEN_MODULES]
        if not isinstance(node, ast.Call):
            continue
        function, keywords = node.func, {word.arg: word.value for word in node.keywords}
        if isinstance(function, ast.Name) and function.id in FORBIDDEN_NAMES:
            found.append(function.id)
        if isinstance(function, ast.Attribute):
            whole = ast.unparse(function)
            if function.attr in FORBIDDEN_METHODS:
                found.append(whole)
            if whole in ("torch.load", "torch.jit.load") and not _is(keywords.get("weights_only"), True):
                found.append(whole)
            if whole in ("np.load", "numpy.load") and not _is(keywords.get("allow_pickle"), False):
                found.append(whole)
        if _is(keywords.get("allow_pickle"), True) or _is(keywords.get("shell"), True):
            found.append(ast.unparse(node))
    return found


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_no_source_can_run_what_a_file_says() -> None:
    assert len(SOURCES) > 500
    found = {str(path.relative_to(ROOT)): dangers(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {name: lines for name, lines in found.items() if lines} == GENERATED


DANGEROUS = (
    "import pickle", "from pickle import loads", "import torch\ntorch.load('x')", "import yaml", "import joblib",
    "from joblib import delayed, load",
    "torch.load('x', weights_only=False)", "np.load('x')", "np.load('x', allow_pickle=True)", "import shelve as s",
    "eval('1')", "archive.extractall('.')", "subprocess.run('x', shell=True)",
    "np.lib.format.read_array(f, allow_pickle=True)",
)  # fmt: skip


@pytest.mark.parametrize("text", DANGEROUS)
def test_each_of_them_would_be_found(text: str) -> None:
    assert dangers(text)


def test_what_is_safe_is_let_through() -> None:
    assert dangers("torch.load('x', weights_only=True)\nnp.load(f, allow_pickle=False)\nre.compile('a')") == []
