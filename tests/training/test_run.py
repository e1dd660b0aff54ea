"""Facts: a saved run comes back equal or is refused; nothing secret is in it; nothing half is left."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from decrescendo.accounting import Budget, Pld
from decrescendo.accounting.ledger import Ledger
from decrescendo.base import sealed
from decrescendo.errors import FileRefused, InvalidValue
from decrescendo.optim.noise import privatise
from decrescendo.plans import calibrate
from decrescendo.plans.curves import constant
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training import train
from decrescendo.training.run import Run, certify
from decrescendo.training.run import record as module

from .conftest import loss, make_model, make_plan, sgd

SEED = 918273645918273


@pytest.fixture
def run(data: tuple[torch.Tensor, torch.Tensor]) -> Run:
    model = make_model()
    result = train(model, loss, data, make_plan(), sgd(model), seed=SEED, callback=lambda p: p.step == 2)
    return result.with_metrics({"test_accuracy": 0.75})


def test_what_was_saved_is_loaded(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "deep" / "run", include_diagnostics=True)
    back = Run.load(tmp_path / "deep" / "run")
    assert back.plan == run.plan
    assert back.ledger == run.ledger
    assert back.guarantee == run.guarantee
    assert back.weights.keys() == run.weights.keys()
    assert all(torch.equal(back.weights[name], run.weights[name]) for name in run.weights)
    assert back.diagnostics == run.diagnostics
    assert (back.metrics, back.seconds, back.versions) == (run.metrics, run.seconds, run.versions)
    assert sorted(p.name for p in tmp_path.rglob("*")) == sorted(
        [
            *("deep", "run", "run.json", "plan.json", "weights.safetensors", "diagnostics-private.json"),
            *("statement.json", "statement.md"),
        ]
    )


@pytest.mark.parametrize("rtol", [1e-3, 1e-5])
def test_a_run_by_its_plan_keeps_the_promise_however_narrow_it_was_made(
    rtol: float, data: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    plan = calibrate(
        Budget(2.0, 1e-3), PoissonSampling(len(data[0]), 8), steps=3, privacy=constant(1.0), clip=constant(1.0),
        accountant=Pld(rtol=rtol),
    )  # fmt: skip
    assert (Pld().certify(plan.ledger, plan.budget).epsilon > 2) == (rtol < 1e-4)
    model = make_model()
    run = train(model, loss, data, plan, sgd(model), seed=SEED)
    assert run.guarantee.epsilon_lower is not None
    assert 1.99 < run.guarantee.epsilon_lower < run.guarantee.epsilon <= 2
    run.save(tmp_path / "run")
    assert Run.load(tmp_path / "run").guarantee == run.guarantee
    spoilt = certify(plan.ledger + plan.ledger, plan.budget)  # what happened beyond it stays beyond it
    assert spoilt.epsilon > 2.2


def test_a_whole_run_is_judged_by_what_happened(
    data: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Half the noise for once: the run must say so, whatever the plan promised.
    def weaker(clipped: Any, noise_multiplier: float, *others: Any) -> Any:
        return privatise(clipped, noise_multiplier / 2, *others)

    monkeypatch.setattr("decrescendo.training.loop.releasing.privatise", weaker)
    model = make_model()
    run = train(model, loss, data, make_plan(), sgd(model), seed=SEED)
    happened = Ledger.of(make_plan().schedule.noise_multiplier / 2, 0.2)
    assert run.ledger == happened
    lower, upper = Pld().bracket(happened, 1e-5)
    assert (run.guarantee.epsilon_lower, run.guarantee.epsilon) == (lower, upper)
    assert run.guarantee.kind == "upper"
    assert upper > 1.5 * make_plan().guarantee.epsilon


def test_weights_load_into_the_model(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    model = make_model()
    model.load_state_dict(dict(Run.load(tmp_path / "run").weights))
    assert torch.equal(model[0].weight, run.weights["0.weight"])


def test_seed_and_diagnostics_are_not_saved_unless_asked(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    assert Run.load(tmp_path / "run").diagnostics is None
    assert run.diagnostics is not None
    secrets = [str(SEED), *(repr(value) for value in run.diagnostics.loss_sum if value)]
    for path in (tmp_path / "run").iterdir():
        content = path.read_bytes()
        assert not any(secret.encode() in content for secret in secrets), path.name


def test_a_run_is_never_overwritten(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run.save(tmp_path / "run")  # an empty folder is fine
    before = (tmp_path / "run" / "run.json").read_bytes()
    for beside in ("run-2", "run-3"):
        with pytest.warns(UserWarning, match=f"never overwritten: saved in .*{beside}"):
            assert run.save(tmp_path / "run") == tmp_path / beside
        assert Run.load(tmp_path / beside).ledger == run.ledger
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_a_run_is_saved_where_a_link_leads_and_beside_one_that_came_first(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert Run.load(run.save(tmp_path / "link")).ledger == run.ledger
    assert (tmp_path / "real" / "run.json").exists()
    stated = run.statement

    def meanwhile() -> Any:  # another process, which asked for the same folder
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "run.json").write_text("theirs")
        return stated()

    monkeypatch.setattr(type(run), "statement", lambda _: meanwhile())
    with pytest.warns(UserWarning, match="run-2"):
        assert run.save(tmp_path / "run") == tmp_path / "run-2"
    assert (tmp_path / "run" / "run.json").read_text() == "theirs"
    monkeypatch.chdir(tmp_path)
    for folder in (".", "./", "", "/", ".."):
        with pytest.raises(InvalidValue, match="another than the one worked in"):
            run.save(folder)


def test_a_crash_while_saving_leaves_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def power_cut(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.os, "replace", power_cut)
    with pytest.raises(KeyboardInterrupt):
        run.save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["run.json", "plan.json", "weights.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "flip", "missing", "empty"])
def test_a_damaged_file_is_refused(run: Run, tmp_path: Path, name: str, damage: str) -> None:
    run.save(tmp_path / "run")
    path = tmp_path / "run" / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes({"cut": content[:-5], "flip": flipped, "empty": b""}[damage])
    with pytest.raises(FileRefused):
        Run.load(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "newer"),
        ({"format": "another"}, "foreign"),
        ({"extra": 1}, "extra"),
        ({"seconds": 0.125}, "checksum"),
        ({"metrics": {"test_accuracy": 0.99}}, "checksum"),
    ],
)
def test_foreign_newer_and_edited_files_are_refused(
    run: Run, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    run.save(tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FileRefused, match=words):
        Run.load(tmp_path / "run")


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["ledger"]["noise_multiplier"].__setitem__(0, 9.0),  # not the plan's
        lambda c: c["ledger"]["count"].__setitem__(0, 2),
        lambda c: c["ledger"].pop("count"),
        lambda c: c["ledger"].update(more=[]),
        lambda c: c["guarantee"].update(epsilon=-1.0),
        lambda c: c["guarantee"].update(kind="certain"),
        lambda c: c["guarantee"].pop("delta"),
        lambda c: c.update(metrics={"test_accuracy": "high"}),
        lambda c: c.update(seconds=-1.0),
        lambda c: c.update(ledger=[]),
    ],
)
def test_content_that_does_not_fit_together_is_refused_even_with_a_right_checksum(
    run: Run, tmp_path: Path, change: Any
) -> None:
    run.save(tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    content = json.loads(path.read_text())
    content.pop("sha256")
    change(content)
    content["sha256"] = sealed.digest(content)
    path.write_text(json.dumps(content))
    with pytest.raises(FileRefused):
        Run.load(tmp_path / "run")


def test_damaged_diagnostics_are_refused(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "run", include_diagnostics=True)
    (tmp_path / "run" / "diagnostics-private.json").write_text('{"examples": [1, 2], "clipped": [1]}')
    with pytest.raises(FileRefused, match="diagnostics"):
        Run.load(tmp_path / "run")


def test_tied_weights_are_saved(data: tuple[torch.Tensor, torch.Tensor], tmp_path: Path) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self.b.weight = self.a.weight
            self.out = torch.nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.b(torch.tanh(self.a(x))))

    model = Tied()
    train(model, loss, data, make_plan(), sgd(model), seed=0).save(tmp_path / "run")
    back = Run.load(tmp_path / "run").weights
    assert torch.equal(back["a.weight"], back["b.weight"])
    assert torch.equal(back["a.weight"], model.a.weight.detach())
