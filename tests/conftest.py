"""What every test shares: one torch thread, so that parallel test processes do not fight over the cores (unless
``OMP_NUM_THREADS`` says otherwise)."""

import os
import random
import zlib
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.mark.expression import Expression

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))

# Of one test with many like cases so many run every time, spread evenly, and all in `make test-slow`: where each case
# says the same of another layer, law, budget or program. Not in the corpus, where each is a way past the proof, nor
# where cases are files, pages and names.
CASES = 2
# Of cases of these, which train or pass whole models, one.
DEAR = ("clipping", "contracts", "federated", "training")
ALIKE = (
    "accounting",
    "audit",
    "clipping",
    "contracts",
    "federated",
    "optim",
    "plans",
    "rng",
    "store",
    "training",
)
ELSE = ("slow", "paper", "gpu", "browser")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", metavar="K/N", default="1/1", help="the K-th of N parts of the tests, spread evenly: a whole of "
        "`make test-slow` takes ten hours of one core"
    )  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None]:
    """Cases that ``-m`` leaves out are not made either: there are twice as many slow ones as run, and each process
    makes all (ten seconds of two cores)."""
    yield
    calls, asked = metafunc._calls, metafunc.config.getoption("markexpr")
    if len(calls) > 1 and asked:
        definition, wanted = metafunc.definition, Expression.compile(asked)
        marks = [{mark.name for mark in (*definition.iter_markers(), *one.marks)} for one in calls]
        if _are_alike(definition.path):
            quick = [of for of in marks if not of & {*ELSE}]
            kept = {id(of) for of in _spread(quick, definition.path)}
            for of in quick:
                of |= set() if id(of) in kept else {"slow"}
        metafunc._calls = [
            one for one, of in zip(calls, marks, strict=True) if wanted.evaluate(lambda name, of=of, **_: name in of)
        ] or calls[:1]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The cases beyond `CASES` are slow tests, and those of other parts than ``--part`` are none."""
    cases: dict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if _are_alike(item.path) and not any(map(item.get_closest_marker, ELSE)):
            cases[item.path, item.nodeid.partition("[")[0]].append(item)
    for (path, _), alike in cases.items():
        kept = _spread(alike, path)
        for item in alike:
            if item not in kept:
                item.add_marker(pytest.mark.slow)
    part, parts = map(int, config.getoption("part").split("/"))
    others = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts != part - 1]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts == part - 1]


def _are_alike(path: Path) -> bool:
    return path.parent.name in ALIKE and path.name != "test_corpus.py"


def _spread(cases: list[Any], path: Path) -> list[Any]:
    """`CASES` of them, or all where there are no more; one in the middle where each is dear."""
    if path.parent.name in DEAR and cases:
        return [cases[len(cases) // 2]]
    number = min(CASES, len(cases))
    return [cases[at * len(cases) // number] for at in range(number)]


def pytest_runtest_setup() -> None:
    """Every test starts from the same random state: its verdict is the same alone, in any order and in any process."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
