"""Specs and results: names that follow from settings, files that are whole or not believed."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decrescendo.errors import FileRefused, InvalidValue
from decrescendo_papers.experiments.perform import commit
from decrescendo_papers.experiments.results import Result, find, line_of, path_of, read_all, read_line, save
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.table import base_spec

SPEC = base_spec("digits", epsilon=2.0, accountant="pld", settings={"method": "dynamic", "rho_mu": 1.25, "rho_c": 3.3})
RESULT = Result(
    SPEC, {"test_accuracy": 0.9}, claimed=2.0, certified=(1.99, 2.0), clt=1.9, noise_multiplier=(3.0, 2.0),
    clip_norm=(1.0, 0.3), trace={"step": [1.0, 2.0]}, seconds=1.5, machine={"device": "cpu"},
)  # fmt: skip


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    path = save(tmp_path, RESULT)
    assert path == path_of(tmp_path, SPEC)
    assert read_all(path) == ([RESULT], [])
    assert find(tmp_path, SPEC) == RESULT
    assert find(tmp_path, SPEC.seeded(1)) is None
    # Nothing half-written beside it.
    assert [item.name for item in path.parent.iterdir() if item.suffix != ".lock"] == [path.name]


def test_results_of_a_task_are_one_file_sorted_by_their_hashes(tmp_path: Path) -> None:
    made = [dataclasses.replace(RESULT, spec=SPEC.seeded(seed)) for seed in (3, 0, 2, 1)]
    for result in made:
        save(tmp_path, result)
    changed = dataclasses.replace(made[0], seconds=7.0)
    path = save(tmp_path, changed)
    found, wrong = read_all(path)
    assert wrong == []
    assert [result.spec.hash for result in found] == sorted(result.spec.hash for result in made)
    assert find(tmp_path, made[0].spec) == changed
    again = save(tmp_path / "other", found[2])
    for result in (found[0], found[3], found[1]):
        save(tmp_path / "other", result)
    assert again.read_bytes() == path.read_bytes()  # whatever the order


def test_a_damaged_line_leaves_the_others(tmp_path: Path) -> None:
    for seed in range(3):
        path = save(tmp_path, dataclasses.replace(RESULT, spec=SPEC.seeded(seed)))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:-9], "no JSON at all", lines[2]]) + "\n")
    found, wrong = read_all(path)
    assert len(found) == 2
    assert [f"line {number}" in reason for number, reason in zip((2, 3), wrong, strict=True)] == [True, True]
    save(tmp_path, dataclasses.replace(RESULT, spec=SPEC.seeded(9)))
    assert len(path.read_text().splitlines()) == 4 - 2 + 1


CHANGES = {
    "task": "mnist", "method": "constant", "accountant": "clt", "epsilon": 2.5, "delta": 1e-5, "steps": 7, "batch": 8.5,
    "seed": 3, "clip": 0.5, "learning_rate": 0.1, "rho_mu": 1.5, "rho_c": 2.0, "optimizer": "adam", "momentum": 0.5,
    "lr_decay": "linear", "averaging": 0.9, "model": "tanh", "trace": 4, "stand_in": "mnist",
    "start": "enlarged-digits", "rows": 250, "records": 5, "noise": 10.0, "noise_decay": 0.0138,
}  # fmt: skip


def test_every_setting_changes_the_name() -> None:
    assert CHANGES.keys() == {field.name for field in dataclasses.fields(Spec)}  # a new setting must be added here
    names = {dataclasses.replace(SPEC, **{name: value}).name for name, value in CHANGES.items()}
    assert len(names | {SPEC.name}) == len(CHANGES) + 1


@given(changed=st.sets(st.sampled_from(sorted(CHANGES))))
def test_settings_make_the_same_spec_again(changed: set[str]) -> None:
    spec = dataclasses.replace(SPEC, **{name: CHANGES[name] for name in changed})
    assert Spec.of(json.loads(json.dumps(spec.settings()))) == spec


def test_a_default_is_not_in_the_settings_so_that_new_settings_keep_old_names() -> None:
    assert "momentum" not in SPEC.settings()
    assert "momentum" in dataclasses.replace(SPEC, momentum=0.5).settings()


@given(at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_damaged_file_is_never_taken_for_a_result(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int
) -> None:
    folder = tmp_path_factory.mktemp("results")
    path = save(folder, RESULT)
    content = bytearray(path.read_bytes())
    at %= len(content)
    before, content[at] = content[at], byte
    path.write_bytes(bytes(content))
    found = find(folder, SPEC)
    assert found == RESULT if before == byte else found is None or found == RESULT  # white space may differ
    content[at] = before
    path.write_bytes(bytes(content[:at]))
    assert find(folder, SPEC) is None or not content[at:].strip()  # but for the end of the line


@pytest.mark.parametrize(
    "edit",
    [
        lambda facts: facts["metrics"].update(test_accuracy=0.99),
        lambda facts: facts["spec"].update(seed=1),
        lambda facts: facts.pop("sha256"),
        lambda facts: facts.update(version=2),
        lambda facts: facts.update(format="another"),
    ],
)
def test_an_edited_result_is_refused(tmp_path: Path, edit: object) -> None:
    path = save(tmp_path, RESULT)
    facts = json.loads(path.read_text())
    assert callable(edit)
    edit(facts)
    path.write_text(json.dumps(facts))
    with pytest.raises(FileRefused):
        read_line(path.read_text(), path)
    assert find(tmp_path, SPEC) is None


def test_a_result_in_the_place_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    other = dataclasses.replace(SPEC, task="mnist")
    save(tmp_path, RESULT).rename(path_of(tmp_path, other))
    assert find(tmp_path, other) is None
    assert find(tmp_path, SPEC) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": 0.0}, "a private run must have epsilon > 0"),
        ({"accountant": "prv"}, "an accountant of pld, clt"),
        ({"steps": 0}, "steps must be >= 1"),
        ({"batch": -1.0}, "batch must be"),
        ({"averaging": -0.1}, "averaging must be"),
    ],
)
def test_nonsense_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        dataclasses.replace(SPEC, **change)  # type: ignore[arg-type]


def test_a_result_says_which_commit_it_was_made_with_and_older_lines_stay_as_they_are() -> None:
    made = dataclasses.replace(RESULT, commit="0123456789ab+")
    assert read_line(line_of(made), "here") == made
    assert "commit" not in json.loads(line_of(RESULT))
    assert read_line(line_of(RESULT), "here").commit == ""


def test_the_commit_is_that_of_the_checkout() -> None:
    done = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert commit().rstrip("+") == (done.stdout.strip() if done.returncode == 0 else "")
