"""The corpus: a hostile program gets nothing past the engine, and a benign one is exact, at every batch size.

Hostile: at some batch size an example's part depends on other examples, on its place, on how many there are or on
earlier batches, or data gets into what is published. Benign: none of this, and the engine may not refuse it.
"""

import signal
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from corpus.judge import Truth, clipped, count, exact, gradient, harm, judge, rows
from corpus.program import Program, programs
from often import some
from torch import Tensor, nn

from decrescendo.clipping import Engine
from decrescendo.errors import DecrescendoError

HOSTILE_PROGRAMS, BENIGN_PROGRAMS = programs("hostile"), programs("benign")
BY_NAME = {p.name: p for families in (HOSTILE_PROGRAMS, BENIGN_PROGRAMS) for f in families.values() for p in f}


@cache
def _truth(name: str, afresh: bool) -> Truth:
    return Truth(BY_NAME[name], afresh)


@pytest.fixture(autouse=True)
def _no_program_runs_for_ever() -> Iterator[None]:
    """A pass that hangs is a failure of one test, not of the whole run."""

    def late(*unused: Any) -> None:
        pytest.fail("a program of the corpus ran for 20 seconds")  # no Exception, so that nobody catches it

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 20)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def _engine(model: nn.Module, loss: Any) -> Any:
    engine = Engine(model, loss)

    def run(batch: Any, limit: float) -> Mapping[str, Tensor]:
        return engine.clipped_sum(batch, limit).gradients

    return run


def _each(families: Mapping[str, list[Program]]) -> list[Any]:
    return [pytest.param(p, id=f"{p.family}: {p.name}") for programs in families.values() for p in programs]


def test_no_two_programs_have_one_name_and_there_are_many() -> None:
    hostile, benign = sum(map(len, HOSTILE_PROGRAMS.values())), sum(map(len, BENIGN_PROGRAMS.values()))
    assert len(BY_NAME) == hostile + benign
    assert hostile >= 1150
    assert benign >= 490
    assert all(len(programs) >= 15 for programs in HOSTILE_PROGRAMS.values())


@pytest.mark.parametrize("program", some(_each(HOSTILE_PROGRAMS), 120))
def test_a_hostile_program_is_refused_or_does_no_harm(program: Program) -> None:
    right, verdict = judge(program, _truth(program.name, True), _engine, DecrescendoError)
    assert right, verdict


@pytest.mark.parametrize("program", some(_each(BENIGN_PROGRAMS), 20))
def test_a_benign_program_is_taken_and_exact(program: Program) -> None:
    known = _truth(program.name, False)
    if program.conditional:
        right, verdict = judge(program, known, _engine, DecrescendoError)
    else:
        right, verdict = exact(program, known, _engine)
    assert right, verdict


@pytest.mark.slow
@pytest.mark.parametrize("program", _each(HOSTILE_PROGRAMS))
def test_a_hostile_program_is_hostile_in_plain_pytorch(program: Program) -> None:
    """About the corpus, not about the engine: what changes with a program or with torch only."""
    assert program.conditional or harm(program, _truth(program.name, True)) is not None


@pytest.mark.slow
@pytest.mark.parametrize("program", _each(BENIGN_PROGRAMS))
def test_a_benign_program_is_benign_in_plain_pytorch(program: Program) -> None:
    assert (reason := harm(program, _truth(program.name, False))) is None, reason


def _by_name(model: nn.Module, total: Tensor) -> Mapping[str, Tensor]:
    """The parts of a vector in the order of the parameters' names."""
    found, at = {}, 0
    for name, p in sorted(model.named_parameters()):
        found[name] = total[at : at + p.numel()].view_as(p)
        at += p.numel()
    return found


class _Slow:
    """The right answer at every size but one: what the judge must not let past."""

    def __init__(self, wrong_at: int) -> None:
        self.wrong_at = wrong_at

    def __call__(self, model: nn.Module, loss: Any) -> Any:
        def run(batch: Any, limit: float) -> Mapping[str, Tensor]:
            n = count(batch)
            parts = torch.stack([gradient(model, loss(model, rows(batch, slice(i, i + 1)))) for i in range(n)])
            total = clipped(parts, limit) * (1.01 if n == self.wrong_at else 1.0)
            return _by_name(model, total)

        return run


@pytest.mark.parametrize("name", ["two layers", "GRU, packed", "layer norm in columns", "next token, tied"])
def test_the_judge_takes_a_right_engine_and_no_wrong_one(name: str) -> None:
    program = BY_NAME[name]
    known = _truth(name, False)
    assert exact(program, known, _Slow(wrong_at=0)) == (True, "exact")
    for n in program.sizes:
        assert not exact(program, known, _Slow(wrong_at=n))[0]


@pytest.mark.parametrize(
    "name", ["centring", "division by the greatest entry", "place times features", "divided by len"]
)
def test_the_judge_lets_no_hostile_program_past_that_is_summed_as_it_is(name: str) -> None:
    """An engine that differentiates losses in their batch believes every program."""

    def believing(model: nn.Module, loss: Any) -> Any:
        def run(batch: Any, limit: float) -> Mapping[str, Tensor]:
            losses = loss(model, batch)
            parts = torch.stack([gradient(model, one, keep=True) for one in losses])
            return _by_name(model, clipped(parts, limit))

        return run

    assert not judge(BY_NAME[name], _truth(name, True), believing, DecrescendoError)[0]
