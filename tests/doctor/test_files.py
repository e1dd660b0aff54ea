"""Checkpoints, runs and rewritten scripts: what the doctor says without running anything of the user's."""

import json
import os
import pickle
from pathlib import Path

import doctor_trainings as trainings
import pytest
import torch
from typer.testing import CliRunner

import decrescendo as dc
from decrescendo.cli import app
from decrescendo.doctor import examine, rewrite
from decrescendo.doctor.budgets import bracket_of, ledger_of, shuffled_epsilon
from decrescendo.doctor.rules import RULES
from decrescendo.doctor.source import Hit
from decrescendo.errors import FileRefused, InvalidValue
from decrescendo.training.tasks.script import script as new_script


def _checkpoint(path: Path, history: object, mechanism: str = "prv") -> Path:
    state = {"history": history, "mechanism": mechanism}
    torch.save({"module_state_dict": {"w": torch.zeros(2)}, "privacy_accountant_state_dict": state}, path)
    return path


def test_a_checkpoints_history_is_judged_by_the_bracket(tmp_path: Path) -> None:
    found = examine(_checkpoint(tmp_path / "c.pt", [(1.0, 0.01, 500), (0.8, 0.01, 500)]))
    ends = bracket_of(ledger_of([(1.0, 0.01, 500), (0.8, 0.01, 500)]), 1e-5)
    assert ends is not None
    assert not found.findings
    assert any(f"epsilon {dc.accounting.rounded(ends[1], 'up', 4)} at delta 1e-05" in fact for fact in found.facts)


@pytest.mark.parametrize(
    ("history", "mechanism", "check"),
    [([], "prv", "history"), ([(0.0, 0.01, 5)], "rdp", "noise"), ([(0.3, 0.1, 900)], "rdp", "noise"),
     ([(1.0, 0.01, 50)], "gdp", "budget")],
)  # fmt: skip
def test_what_is_wrong_with_a_history_is_found(tmp_path: Path, history: object, mechanism: str, check: str) -> None:
    found = examine(_checkpoint(tmp_path / "c.pt", history, mechanism))
    assert check in {finding.check for finding in found.findings}


def test_a_checkpoint_without_an_accountant_is_a_finding(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.zeros(1)}, "epoch": 3}, tmp_path / "c.pt")
    assert [finding.check for finding in examine(tmp_path / "c.pt").findings] == ["history"]


@pytest.mark.parametrize(
    "history", [[("a", "b", "c")], [(1.0, 2.0, 3)], [(1.0,)], [(1.0, 0.1, -1)], [(float("nan"), 0.1, 1)]]
)
def test_a_hostile_history_is_refused(tmp_path: Path, history: object) -> None:
    with pytest.raises(FileRefused, match="history"):
        examine(_checkpoint(tmp_path / "c.pt", history))


class _Harmful:
    def __reduce__(self) -> object:
        return os.mkdir, (os.environ["HARM"],)


def test_no_code_in_a_checkpoint_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARM", str(tmp_path / "harm"))
    torch.save({"history": [], "mechanism": "prv", "x": _Harmful()}, tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(_Harmful()))
    (tmp_path / "c.pt").write_bytes(b"nothing")
    for name in ("a.pt", "b.pt", "c.pt"):
        with pytest.raises(FileRefused, match="without running code"):
            examine(tmp_path / name)
    assert not (tmp_path / "harm").exists()


def test_a_folder_of_ours_is_judged_again_and_one_with_checkpoints_read(tmp_path: Path) -> None:
    data = torch.randn(40, 3), torch.randint(2, (40,))
    model = torch.nn.Linear(3, 2)
    plan = dc.calibrate(dc.Budget(2.0, 1e-3), dc.PoissonSampling(40, 8), steps=3, clip=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dc.train(model, dc.training.cross_entropy, data, plan, optimizer, seed=0).save(tmp_path / "run")
    found = examine(tmp_path / "run")
    assert not found.findings, found.describe()
    assert any("Pld upper bound" in fact for fact in found.facts)
    (tmp_path / "theirs").mkdir()
    _checkpoint(tmp_path / "theirs" / "c.pt", [])
    assert [finding.check for finding in examine(tmp_path / "theirs").findings] == ["history"]


def test_shuffled_batches_cost_what_a_gaussian_release_an_epoch_costs() -> None:
    # Exchanging a record moves one sum an epoch by 2 C: with noise 2 C one epoch is one release at mu = 1.
    assert shuffled_epsilon(2.0, 1, 1e-5) == pytest.approx(dc.accounting.epsilon_of(1e-5, 1.0))
    assert shuffled_epsilon(2.0, 4, 1e-5) == pytest.approx(dc.accounting.epsilon_of(1e-5, 2.0))


def _fixed(folder: Path, text: str) -> tuple[str, tuple[str, ...]]:
    script = folder / "train.py"
    script.write_text(text)
    written = rewrite(script)
    compile(written.text, "fixed", "exec")
    return written.text, written.left


def test_the_clean_training_needs_other_imports_alone(tmp_path: Path) -> None:
    text, left = _fixed(tmp_path, trainings.CLEAN["plain"])
    assert "from decrescendo.integrations.opacus import PrivacyEngine" in text
    assert "from opacus" not in text
    assert not left


def test_clip_norms_of_layers_become_their_joint_norm(tmp_path: Path) -> None:
    text, left = _fixed(tmp_path, trainings.CLEAN["plain"].replace(
        "max_grad_norm=1.0", "max_grad_norm=[1.0] * 2, clipping='per_layer'"))  # fmt: skip
    assert "max_grad_norm=sum((c ** 2 for c in [1.0] * 2)) ** 0.5" in text
    assert [note for note in left if note.startswith("clipping='per_layer'")]


def test_checkpoints_do_not_name_a_scheduler_that_was_taken_out(tmp_path: Path) -> None:
    given = trainings.FAULTY["noise falls each epoch"][1]
    text, left = _fixed(
        tmp_path, given + "engine.save_checkpoint(path='c.pt', module=model, noise_scheduler=scheduler)\n"
        "engine.load_checkpoint(path='c.pt', module=model, noise_scheduler=scheduler)\n",
    )  # fmt: skip
    assert "scheduler=scheduler" not in text
    assert [note for note in left if note.startswith("load_checkpoint comes before the first batch")]


def test_a_private_loader_that_was_thrown_away_is_taken(tmp_path: Path) -> None:
    dropped = trainings.CLEAN["plain"].replace("optimizer, loader = engine", "optimizer, _ = engine")
    text, left = _fixed(tmp_path, dropped.replace("in loader", "in rows"))
    assert "optimizer, rows = engine" in text
    assert not left


def test_faults_with_one_right_repair_are_repaired(tmp_path: Path) -> None:
    text, left = _fixed(tmp_path, trainings.FAULTY["shuffled"][1])
    assert "poisson_sampling=" not in text.replace("# TODO: poisson_sampling=False", "")
    assert len(left) == 1
    text, _ = _fixed(tmp_path, trainings.FAULTY["thrown away"][1])
    assert "model, plain, rows = engine.make_private_with_epsilon" in text
    _, left = _fixed(tmp_path, trainings.FAULTY["the old loader"][1])
    assert "is not used" in left[0]
    text, left = _fixed(tmp_path, f"{trainings.CLEAN['plain']}\noptimizer.signal_skip_step(do_skip=True)\n")
    assert "# TODO: signal_skip_step has no counterpart" in text
    assert len(left) == 1


@pytest.mark.parametrize(
    ("name", "turn"), [("noise falls each step", "t"), ("noise falls each epoch", "(t // len(rows))")]
)
def test_a_noise_scheduler_becomes_a_schedule_that_is_calibrated(tmp_path: Path, name: str, turn: str) -> None:
    text, _ = _fixed(tmp_path, trainings.FAULTY[name][1])
    gamma = "0.95" if turn == "t" else "0.5"
    assert f"privacy=[1 / {gamma} ** {turn} for t in range(3 * len(rows))]" in text
    assert "scheduler.step()" not in text


def test_a_loop_by_hand_is_not_rewritten(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"make_private.*If another file makes it, rewrite that one"):
        _fixed(tmp_path, trainings.CLEAN_BY_HAND["vmap"])


def test_the_command_reads_pages_json_and_exit_codes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(trainings.FAULTY["losses printed"][1])
    ask = ["doctor", str(script), "--steps", "0"]
    done = CliRunner().invoke(app, [*ask, "--json", "--ci"])
    assert done.exit_code == 1
    assert [f["check"] for f in json.loads(done.stdout)["findings"]] == ["beside"]
    assert CliRunner().invoke(app, [*ask, "--ci", "--ignore", "beside"]).exit_code == 0
    script.with_name("ends.py").write_text("raise SystemExit(2)\n")
    assert CliRunner().invoke(app, ["doctor", str(script.with_name("ends.py")), "--ci"]).exit_code == 1
    done = CliRunner().invoke(app, [*ask, "--page", str(tmp_path / "page.md"), "--fix", str(tmp_path / "fixed.py")])
    assert done.exit_code == 0
    assert "| beside" in (tmp_path / "page.md").read_text()
    assert "decrescendo.integrations.opacus" in (tmp_path / "fixed.py").read_text()
    assert CliRunner().invoke(app, [*ask, "--ignore", "nothing"]).exit_code == 2


def test_notebooks_and_files_that_are_none(tmp_path: Path) -> None:
    notebook = tmp_path / "train.ipynb"
    cells = [{"cell_type": "code", "source": ["!pip install opacus\n", trainings.FAULTY["losses printed"][1]]}]
    notebook.write_text(json.dumps({"cells": cells}))
    assert [f.check for f in examine(notebook, steps=0).findings] == ["beside"]
    fixed = rewrite(notebook).text
    assert "decrescendo.integrations.opacus" in fixed
    assert "!pip" not in fixed
    notebook.write_text("{}")
    with pytest.raises(FileRefused, match="notebook"):
        examine(notebook, steps=0)
    (tmp_path / "no.py").write_text("def (")
    with pytest.raises(FileRefused, match="Python"):
        examine(tmp_path / "no.py", steps=0)
    with pytest.raises(FileRefused, match="no such file"):
        examine(tmp_path / "absent.py")


def test_the_reading_of_public_trainings_is_whole() -> None:
    from decrescendo.doctor import CHECKS

    content = json.loads((Path(__file__).parent / "public_trainings.json").read_text())
    trained = content["trainings"]
    assert len(trained) >= 30
    named = [check for one in trained for check in (*one["read"], *one["doctor"])]
    assert set(named) <= set(CHECKS)
    found = sum(len(set(one["read"]) & set(one["doctor"])) for one in trained)
    assert found >= 0.9 * sum(len(one["read"]) for one in trained)
    assert sum(len(set(one["doctor"]) - set(one["read"])) for one in trained) <= len(trained) / 10


def test_the_examination_is_whole() -> None:
    from decrescendo.doctor import CHECKS

    content = json.loads((Path(__file__).parent / "public_trainings.json").read_text())["examined"]
    trained = content["trainings"]
    lists = ("doctor_first", "doctor_after", "false_first", "false_after")
    assert {check for one in trained for check in (*one["read"], *(c for name in lists for c in one[name]))} <= set(
        CHECKS
    )
    assert all(set(one["doctor_first"]) <= set(one["doctor_after"]) <= set(one["read"]) for one in trained)
    for name in ("false_first", "false_after"):
        assert sum(len(one[name]) for one in trained) == content[name]


def test_a_training_of_ones_own_that_is_accounted_by_this_library_is_run(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "from decrescendo.accounting import Ledger, Pld\ndef train(model, steps):\n    pass\ntrain(None, 3)\n"
        "noise_multiplier = 1.0\nimport sys\nsys.exit(3)\n"
    )
    found = examine(script)
    assert any("ended itself with 3" in why for why in found.unseen), found.describe()


def test_a_rule_that_cannot_read_a_source_is_named_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(sources: object) -> list[Hit]:
        raise RecursionError("too deep")

    monkeypatch.setattr("decrescendo.doctor.rules.RULES", (breaks, *RULES))
    script = tmp_path / "mine.py"
    script.write_text(trainings.FAULTY["shuffled"][1])
    found = examine(script, steps=0)
    assert "sampling" in [finding.check for finding in found.findings]
    assert any(why.startswith("what the rule breaks looks for") for why in found.unseen)


def test_the_page_has_the_numbers_of_the_examinations() -> None:
    content = json.loads((Path(__file__).parent / "public_trainings.json").read_text())
    page = (Path(__file__).parents[2] / "docs/how-to/doctor.md").read_text()
    first = content["examined"]
    rows = [("first", len(first["trainings"]), first["faults"], first["found_first"], first["false_first"])]
    seventh = "seventh: thirteen public scripts, five right ones with one fault at a time, and six right ones"
    eighth = "eighth: eleven public scripts, five right ones with one fault at a time, and eleven right ones"
    ninth = "ninth: ten public scripts, five right ones with one fault at a time, and ten right ones"
    for name, later in zip(("second", "third", seventh, eighth, ninth), content["examined_later"], strict=True):
        each = later["trainings"]
        assert all(one["found"] <= one["faults"] for one in each)
        rows.append((name, len(each), *(sum(one[key] for one in each) for key in ("faults", "found", "false"))))
    for row in rows:
        assert f"| {' | '.join(map(str, row))} |" in page


@pytest.mark.parametrize("made", ["new", "fixed"])
def test_a_training_by_this_library_is_read_and_not_run(made: str, tmp_path: Path) -> None:
    """Of the template, and of what the doctor itself has written."""
    script = tmp_path / "mine.py"
    if made == "new":
        script.write_text(new_script('dc.Plan.load("plan.json")', rows=300))
    else:
        given = tmp_path / "theirs.py"
        given.write_text(trainings.CLEAN["plain"].replace("    engine.get", "    print(loss.item())\n    engine.get"))
        script.write_text(rewrite(given).text)
    found = examine(script)
    assert not found.unseen
    assert any(fact.startswith("the training is by decrescendo") for fact in found.facts)
    assert [finding.check for finding in found.findings] == ([] if made == "new" else ["beside"])
    assert CliRunner().invoke(app, ["doctor", str(script), "--ci"]).exit_code == int(made == "fixed")
