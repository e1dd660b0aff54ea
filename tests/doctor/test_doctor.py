"""The doctor finds every fault that was put into a training, and none in a clean one."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import doctor_sources as sources
import doctor_trainings as trainings
import pytest
import torch
from often import some
from torch import nn

from decrescendo.doctor import Certainty
from decrescendo.doctor.loops import epochs_asked
from decrescendo.doctor.moved_outputs import NOT_COMPARED
from decrescendo.doctor.rules import read_source
from decrescendo.doctor.watch_opacus import OpacusWatch

from .conftest import Observe


@pytest.mark.parametrize("name", some(trainings.CLEAN | trainings.CLEAN_BY_HAND, 3))
def test_nothing_is_found_in_a_clean_training(observed: Observe, tmp_path: Path, name: str) -> None:
    found = observed(tmp_path, (trainings.CLEAN | trainings.CLEAN_BY_HAND)[name])
    assert not found.findings, found.describe()
    assert not found.unseen, found.describe()


@pytest.mark.parametrize("name", some(trainings.FAULTY, 6))
def test_a_fault_with_opacus_is_found(observed: Observe, tmp_path: Path, name: str) -> None:
    check, text = trainings.FAULTY[name]
    found = observed(tmp_path, text)
    assert check in {finding.check for finding in found.findings}, found.describe()


@pytest.mark.parametrize("name", some(trainings.FAULTY_BY_HAND, 3))
def test_a_fault_of_a_loop_by_hand_is_found(observed: Observe, tmp_path: Path, name: str) -> None:
    check, text = trainings.FAULTY_BY_HAND[name]
    found = observed(tmp_path, text)
    assert check in {finding.check for finding in found.findings}, found.describe()
    if check in ("sensitivity", "noise"):
        assert any(f.check == check and f.certainty is Certainty.PROVEN for f in found.findings), found.describe()


@pytest.mark.parametrize("name", trainings.CLEAN_OF_PEERS)
def test_nothing_is_found_in_a_clean_training_of_another_library(observed: Observe, tmp_path: Path, name: str) -> None:
    found = observed(tmp_path, trainings.CLEAN_OF_PEERS[name])
    assert not found.findings, found.describe()
    assert set(found.unseen) <= {NOT_COMPARED}, found.describe()  # nothing can be put in the place of opake's sum
    assert any(fact.startswith("by how much the sum moved") for fact in found.facts)


@pytest.mark.parametrize("name", some(trainings.FAULTY_OF_PEERS, 4))
def test_a_fault_of_a_training_of_another_library_is_found(observed: Observe, tmp_path: Path, name: str) -> None:
    check, text = trainings.FAULTY_OF_PEERS[name]
    found = observed(tmp_path, text)
    assert {finding.check for finding in found.findings} >= {check}, found.describe()


@pytest.mark.parametrize("name", some(trainings.MISSED, 4))
def test_what_an_examination_found_to_be_missed_is_found(observed: Observe, tmp_path: Path, name: str) -> None:
    check, text = trainings.MISSED[name]
    found = observed(tmp_path, text)
    assert check in {finding.check for finding in found.findings}, found.describe()
    if name == "the clip norm follows the norms":
        assert any(finding.certainty is Certainty.PROVEN for finding in found.findings)
    if name == "a baseline first":
        assert any(fact.startswith("50 steps without privacy") for fact in found.facts)


@pytest.mark.parametrize("name", sources.SUSPECT)
def test_a_source_is_suspected_of_its_fault_alone(tmp_path: Path, name: str) -> None:
    check, text = sources.SUSPECT[name]
    script = tmp_path / "train.py"
    script.write_text(text)
    findings, _ = read_source(script)
    assert [finding.check for finding in findings] == [check], findings


@pytest.mark.parametrize("name", sources.INNOCENT)
def test_a_source_that_looks_like_a_fault_is_not_suspected(tmp_path: Path, name: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(sources.INNOCENT[name])
    findings, unseen = read_source(script)
    assert not findings, findings
    assert not unseen  # it is read as a private training


def test_another_batch_is_compared_where_no_record_of_the_first_has_a_gradient(
    observed: Observe, tmp_path: Path
) -> None:
    text = trainings.FAULTY_BY_HAND["noise over the batch"][1].replace(
        "batch_sampler=Poisson()", "batch_sampler=torch.arange(600).view(10, 60).tolist()"
    )
    text = text.replace("nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)", "nn.Linear(8, 2, bias=False)")
    found = observed(tmp_path, text.replace("x = torch.randn(600, 8)", "x = torch.randn(600, 8)\nx[:60] = 0"))
    assert any(f.check == "sensitivity" and f.certainty is Certainty.PROVEN for f in found.findings), found.describe()


def test_a_clipped_batch_is_found_where_large_records_have_no_gradient(observed: Observe, tmp_path: Path) -> None:
    """With these weights the model gets the first record right, and ever more so the larger it is, or its negative."""
    check, text = trainings.FAULTY_BY_HAND["the batch is clipped"]
    found = observed(tmp_path, text.replace("import torch\n", "import torch\ntorch.manual_seed(1032)\n", 1))
    assert check in {finding.check for finding in found.findings}, found.describe()


def test_rows_under_vmap_are_not_taken_for_one_record(observed: Observe, tmp_path: Path) -> None:
    """The model is called once for all records of a batch that no loader made, nor an index: nothing is changed, and it
    is said."""
    text = trainings.OWN_BATCHES_VMAP
    rows = "drawn.nonzero()[:, 0]"
    chosen = text.replace("x[drawn], y[drawn]", f"x.index_select(0, {rows}), y[{rows}.tolist()]")
    assert chosen != text
    found = observed(tmp_path, chosen)
    assert not found.findings, found.describe()
    assert any("no batch came from a loader" in why for why in found.unseen)


def test_one_record_of_a_batch_in_parts_is_made_long() -> None:
    """Of each part it would be several records, and a right training would be called wrong."""
    parts = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
    optimizer: Any = SimpleNamespace(params=parts)
    watch: Any = SimpleNamespace(_neighbours=SimpleNamespace(waiting=True, role="large"))
    for _ in range(3):
        for part in parts:
            cast("Any", part).grad_sample = torch.ones(4, 3)
        OpacusWatch._clipped(watch, lambda _: None, optimizer)
        long = [float(cast("Any", part).grad_sample[0, 0]) for part in parts]
    assert long == [1.0, 1.0]


def test_a_loop_counts_once_with_a_comprehension_inside(tmp_path: Path) -> None:
    script = tmp_path / "rounds.py"
    script.write_text("for turn in range(3):\n    asked = [ask() for _ in range(2)]\n")
    found: list[int | None] = []
    space = {"ask": lambda: found.append(epochs_asked(sys._getframe(1)))}
    exec(compile(script.read_text(), str(script), "exec"), space)
    assert set(found) == {3}


def test_a_loop_that_takes_batches_is_no_loop_of_epochs(tmp_path: Path) -> None:
    script = tmp_path / "rounds.py"
    script.write_text(
        "for epoch in range(3):\n    for step in range(20):\n        batch = next(batches)\n        ask()\n"
    )
    found: list[int | None] = []
    space = {"ask": lambda: found.append(epochs_asked(sys._getframe(1))), "batches": iter(range(60))}
    exec(compile(script.read_text(), str(script), "exec"), space)
    assert set(found) == {3}


def test_a_script_that_ends_itself_says_so(observed: Observe, tmp_path: Path) -> None:
    found = observed(tmp_path, "import sys\nsys.exit(2)\n")
    assert any("ended itself with 2" in why for why in found.unseen), found.describe()
