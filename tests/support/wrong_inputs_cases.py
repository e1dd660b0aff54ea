"""Wrong inputs, each tried in a process without run-time type checks; prints what happened to each as JSON.

A case makes a thunk (preparing files where it needs them); then the world is looked at, the thunk is called, and the
world is looked at again: an error must leave no file, no changed weight, no gradient and no release behind.
"""

import copy
import json
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import decrescendo as dc
from decrescendo.accounting import Gaussian, Pld, Selection, Tcdp, Trials
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.release import Release
from decrescendo.accounting.table import OPTIONS
from decrescendo.base.rng import Streams
from decrescendo.clipping import ClippedSum, Diagnostics, Engine, Reference
from decrescendo.errors import DecrescendoError
from decrescendo.optim import apply
from decrescendo.optim.noise import NoisyMean, privatise
from decrescendo.plans.plan import Plan
from decrescendo.plans.schedule import Schedule
from decrescendo.training import Checkpoints, Trainer, train
from decrescendo.training.run import Run, certify

NAN, INF = float("nan"), float("inf")
BUDGET, SAMPLING = dc.Budget(5.0, 1e-3), dc.PoissonSampling(40, 10)
SCHEDULE = Schedule([3.0, 2.5, 2.0], [1.0, 1.0, 0.5])
GUARANTEE = certify(Ledger.of(SCHEDULE.noise_multiplier, SAMPLING.sample_rate), BUDGET)
LIE = replace(GUARANTEE, epsilon=0.1, epsilon_lower=None)
ONE = dc.curves.constant(1.0)
RUN = Ledger.of([2.0, 1.0], 0.1)


def row_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


@dataclass
class World:
    """Everything a mistake could leave a trace in."""

    folder: Path
    model: nn.Module = field(default_factory=lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    trainer: Trainer | None = None

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.data = (torch.randn(40, 3), torch.randint(2, (40,)))
        self.plan = Plan(BUDGET, SAMPLING, SCHEDULE, GUARANTEE)

    def portrait(self) -> dict[str, Any]:
        return {
            "files": sorted((str(p), p.read_bytes().hex()) for p in self.folder.rglob("*") if p.is_file()),
            "folders": sorted(str(p) for p in self.folder.rglob("*") if p.is_dir()),
            "weights": {name: value.tolist() for name, value in self.model.state_dict().items()},
            "gradients": [name for name, p in self.model.named_parameters() if p.grad is not None],
            "optimizer": len(self.optimizer.state),
            "releases": 0 if self.trainer is None else self.trainer.ledger.steps,
            "global random state": torch.get_rng_state().tolist(),
        }

    def made_trainer(self, **change: Any) -> Trainer:
        arguments = {
            "model": self.model,
            "loss": row_loss,
            "plan": self.plan,
            "optimizer": self.optimizer,
            "seed": 0,
        }
        self.trainer = Trainer(**{**arguments, **change})
        return self.trainer

    def training(self, **change: Any) -> Callable[[], object]:
        arguments = {
            "model": self.model, "loss": row_loss, "data": self.data, "plan": self.plan, "optimizer": self.optimizer,
            "seed": 0,
        }  # fmt: skip
        return lambda: train(**{**arguments, **change})

    def first_batch(self, trainer: Trainer) -> Any:
        return next(iter(trainer.batches(self.data)))

    def file(self, change: Callable[[str], str | bytes]) -> Callable[[], object]:
        """Loading a plan file after ``change`` of its text."""
        self.plan.save(self.folder / "plan.json")
        path = self.folder / "plan.json"
        changed = change(path.read_text(encoding="utf-8"))
        path.write_bytes(changed if isinstance(changed, bytes) else changed.encode())
        return lambda: Plan.load(path)

    def edited(self, *keys: str, value: Any) -> Callable[[], object]:
        """Loading a plan file in which one entry was replaced and the checksum left as it was."""

        def change(text: str) -> str:
            body = json.loads(text)
            inner = body
            for key in keys[:-1]:
                inner = inner[key]
            inner[keys[-1]] = value
            return json.dumps(body)

        return self.file(change)


def calibrating(**change: Any) -> Callable[[], object]:
    arguments = {"budget": BUDGET, "sampling": SAMPLING, "steps": 3, "privacy": ONE, "clip": ONE}
    return lambda: dc.calibrate(**{**arguments, **change})


def noising(**change: Any) -> Callable[[], object]:
    clipped = ClippedSum({"w": torch.ones(2)}, 1.0, Diagnostics(1, 0, 0, 0.0))
    arguments = {
        "clipped": clipped, "noise_multiplier": 1.0, "sampling": SAMPLING, "stream": torch.Generator(),
    }  # fmt: skip
    return lambda: privatise(**{**arguments, **change})


@torch.inference_mode()
def _in_inference_mode() -> nn.Module:
    return nn.Linear(3, 2)


def _skipping(world: World) -> Callable[[], object]:
    trainer = world.made_trainer()
    batches = trainer.batches(world.data)
    next(batches)
    return lambda: next(batches)


def _stepping(change: Callable[[World, Any], Any]) -> Callable[[World], Callable[[], object]]:
    def make(world: World) -> Callable[[], object]:
        trainer = world.made_trainer()
        batch = world.first_batch(trainer)
        wrong = change(world, batch)
        return lambda: trainer.step(wrong)

    return make


def _undrawn(world: World) -> Callable[[], object]:
    trainer = world.made_trainer()
    return lambda: trainer.step(world.data)


def _applying(make: Callable[[World], object]) -> Callable[[World], Callable[[], object]]:
    return lambda world: lambda: apply(make(world), world.model, world.optimizer)


def _saved_run(world: World) -> Run:
    run = Run(world.plan, Ledger(), GUARANTEE, dict(world.model.state_dict()))
    run.save(world.folder / "run")
    return run


def _run_with(name: str, content: bytes | None) -> Callable[[World], Callable[[], object]]:
    def make(world: World) -> Callable[[], object]:
        _saved_run(world)
        path = world.folder / "run" / name
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        return lambda: Run.load(world.folder / "run")

    return make


def call(
    function: Callable[..., object], *arguments: object, **named: object
) -> Callable[[World], Callable[[], object]]:
    return lambda _: lambda: function(*arguments, **named)


Case = tuple[str, str, Callable[[World], Callable[[], object]]]
# name: (error, words of its message, thunk maker)
CASES: dict[str, Case] = {
    # budgets
    "epsilon negative": ("InvalidValue", "epsilon must be .*> 0", call(dc.Budget, -1.0, 1e-5)),
    "epsilon zero": ("InvalidValue", "epsilon must be .*> 0", call(dc.Budget, 0.0, 1e-5)),
    "epsilon NaN": ("InvalidValue", "epsilon must be finite", call(dc.Budget, NAN, 1e-5)),
    "epsilon infinite": ("InvalidValue", "epsilon must be finite", call(dc.Budget, INF, 1e-5)),
    "epsilon text": ("InvalidType", "epsilon must be a real number", call(dc.Budget, "1", 1e-5)),
    "epsilon None": ("InvalidType", "epsilon must be a real number", call(dc.Budget, None, 1e-5)),
    "epsilon bool": ("InvalidType", "epsilon must be a real number", call(dc.Budget, True, 1e-5)),
    "epsilon complex": ("InvalidType", "epsilon must be a real number", call(dc.Budget, 1j, 1e-5)),
    "epsilon beyond floats": ("InvalidValue", "epsilon must be finite", call(dc.Budget, 10**400, 1e-5)),
    "delta one": ("InvalidValue", "delta must be > 0 and < 1", call(dc.Budget, 1.0, 1.0)),
    "delta two": ("InvalidValue", "delta must be > 0 and < 1", call(dc.Budget, 1.0, 2)),
    "delta zero": ("InvalidValue", "delta must be > 0 and < 1", call(dc.Budget, 1.0, 0.0)),
    "delta NaN": ("InvalidValue", "delta must be finite", call(dc.Budget, 1.0, NAN)),
    "unit unknown": ("InvalidValue", "unit must be one of", call(dc.Budget, 1.0, 1e-5, "city")),
    # sampling
    "no record": ("InvalidValue", "dataset_size must be >= 1", call(dc.PoissonSampling, 0, 1)),
    "half a record": ("InvalidType", "dataset_size must be a whole number", call(dc.PoissonSampling, 9.5, 1)),
    "batch above the data": ("InvalidValue", "expected_batch_size must be <= ", call(dc.PoissonSampling, 10, 11)),
    "batch zero": ("InvalidValue", "expected_batch_size must be .*> 0", call(dc.PoissonSampling, 10, 0)),
    "batch NaN": ("InvalidValue", "expected_batch_size must be finite", call(dc.PoissonSampling, 10, NAN)),
    "steps negative": (
        "InvalidValue", "steps must be >= 0", call(lambda: list(SAMPLING.batches(-1, np.random.default_rng(0)))),
    ),
    "generator of another library": (
        "InvalidType", "rng must be a numpy Generator", call(lambda: list(SAMPLING.batches(1, torch.Generator()))),
    ),
    # schedules and ledgers
    "noise negative": ("InvalidValue", r"noise_multiplier\[1\]=-1", call(Schedule, [1.0, -1.0], [1.0, 1.0])),
    "noise NaN": ("InvalidValue", r"noise_multiplier\[0\]=nan", call(Schedule, [NAN], [1.0])),
    "noise complex": ("InvalidType", "array of numbers", call(Schedule, [1j], [1.0])),
    "noise bool": ("InvalidType", "array of numbers", call(Schedule, [True], [1.0])),
    "noise text": ("InvalidType", "array of numbers", call(Schedule, "12", [1.0])),
    "noise ragged": ("InvalidType", "array of numbers", call(Schedule, [[1.0], [1.0, 2.0]], [1.0])),
    "noise of two dimensions": ("InvalidValue", "one dimension", call(Schedule, [[1.0]], [1.0])),
    "clip zero": ("InvalidValue", r"clip_norm\[1\]=0", call(Schedule, [1.0, 1.0], [1.0, 0.0])),
    "lengths that differ": ("InvalidValue", "one value a step", call(Schedule, [1.0, 1.0], [1.0])),
    "no step": ("InvalidValue", "at least one step", call(Schedule, [], [])),
    "rate above one": ("InvalidValue", "sample_rate must be", call(Release, 1.5, 1.0)),
    "count zero": ("InvalidValue", "count must be >= 1", call(Release, 0.5, 1.0, 0)),
    "count beyond any ledger": ("InvalidValue", "count must be", call(lambda: Ledger([Release(0.5, 1.0, 2**63)]))),
    "counts that overflow": (
        "InvalidValue", "releases", call(lambda: Ledger([Release(0.5, 1.0, 2**52)] * 4)),
    ),
    "a ledger of numbers": ("InvalidType", "each release must be a Release", call(Ledger, [0.5])),
    # accountants
    **{
        f"{judge.name}: delta {delta}": ("InvalidValue", "delta must be", call(judge.epsilon, RUN, delta))
        for judge in (known.made() for known in OPTIONS.values())
        for delta in (0.0, 1.0, NAN)
    },
    **{
        f"{judge.name}: no ledger": ("InvalidType", "ledger must be a Ledger", call(judge.epsilon, [1.0], 1e-5))
        for judge in (known.made() for known in OPTIONS.values())
    },
    "Pld: epsilon negative": ("InvalidValue", "epsilon must be", call(Pld().delta, RUN, -0.1)),
    "Pld: rtol zero": ("InvalidValue", "rtol must be", call(Pld, 0.0)),
    "Gaussian: sampled": ("AccountingError", "sample_rate=1 only", call(Gaussian().epsilon, RUN, 1e-5)),
    "Tcdp: outside its conditions": ("AccountingError", "1/\\(2 z", call(Tcdp().epsilon, RUN, 1e-5)),
    "Pld: hardly any noise": (
        "AccountingError", "noise multipliers from", call(Pld().epsilon, Ledger.of([0.01, 0.01], 0.1), 1e-5),
    ),
    "Selection: a fixed number": ("InvalidType", "A fixed number of trials costs their", call(Selection, 10)),
    "Selection: fewer than one": ("InvalidValue", "mean must be", call(Trials, 0.0)),
    "Selection: seed for rng": ("InvalidType", "rng must be", lambda _: lambda: Trials(5).draw(0)),
    # calibration
    "calibrate: budget a number": ("InvalidType", "budget must be a Budget", lambda _: calibrating(budget=1.0)),
    "calibrate: no steps": ("InvalidValue", "steps must be >= 1", lambda _: calibrating(steps=0)),
    "calibrate: steps a fraction": ("InvalidType", "steps must be a whole", lambda _: calibrating(steps=2.5)),
    "calibrate: curve of zeros": (
        "InvalidValue", r"privacy\[2\]=0", lambda _: calibrating(privacy=lambda u: np.where(u < 1, 1.0, 0.0)),
    ),
    "calibrate: clip ends early": (
        "InvalidValue", r"clip\[1\]=0.*stay above 0", lambda _: calibrating(clip=lambda u: np.where(u < 0.5, 1.0, 0.0)),
    ),
    "calibrate: curve of NaN": ("InvalidValue", "privacy", lambda _: calibrating(privacy=lambda u: u * NAN)),
    "calibrate: array too short": ("InvalidValue", "one value a step", lambda _: calibrating(privacy=[1.0, 1.0])),
    "calibrate: curve a truth value": ("InvalidType", "clip must be a curve", lambda _: calibrating(clip=True)),
    "calibrate: clip norm without a number": (
        "InvalidType", "clip='constant'.*the number itself", lambda _: calibrating(clip="constant"),
    ),
    "calibrate: clip a number below zero": ("InvalidValue", "clip must be", lambda _: calibrating(clip=-1.0)),
    "calibrate: steps and epochs": ("InvalidValue", "exactly one.*got both", lambda _: calibrating(epochs=2)),
    "calibrate: no epochs": ("InvalidValue", "epochs must be", lambda _: calibrating(steps=None, epochs=0)),
    "calibrate: curve a text": (
        "InvalidType", r"privacy must be a curve.*curves.linear\(start, end\)", lambda _: calibrating(privacy="linear"),
    ),
    "calibrate: curve of text": ("InvalidType", "privacy", lambda _: calibrating(privacy=lambda _: "abc")),
    "calibrate: accountant a text": ("InvalidType", "accountant must", lambda _: calibrating(accountant="Pld")),
    "calibrate: budget that needs no noise": (
        "ImpossibleBudget", "budget", lambda _: calibrating(budget=dc.Budget(1.0, 0.9999)),
    ),
    # plan files
    "plan file: none": ("FileRefused", "readable", lambda w: lambda: Plan.load(w.folder / "absent.json")),
    "plan file: a folder": ("FileRefused", "readable", lambda w: lambda: Plan.load(w.folder)),
    "plan file: empty": ("FileRefused", "must be JSON", lambda w: w.file(lambda _: "")),
    "plan file: truncated": ("FileRefused", "must be JSON", lambda w: w.file(lambda text: text[: len(text) // 2])),
    "plan file: bytes": ("FileRefused", "not text", lambda w: w.file(lambda _: b"\xff\xfe\x00")),
    "plan file: foreign": ("FileRefused", "a foreign file", lambda w: w.file(lambda _: '{"format": "zip"}')),
    "plan file: a list": ("FileRefused", "a foreign file", lambda w: w.file(lambda _: "[1, 2]")),
    "plan file: newer": ("FileRefused", "version", lambda w: w.edited("version", value=2)),
    "plan file: unknown key": ("FileRefused", "a difference in speed", lambda w: w.edited("speed", value=1)),
    "plan file: unknown inner key": (
        "FileRefused", "its own checksum", lambda w: w.edited("budget", "mood", value=1),
    ),
    "plan file: edited epsilon": ("FileRefused", "or edited", lambda w: w.edited("budget", "epsilon", value=9.0)),
    "plan file: edited noise": (
        "FileRefused", "damaged or edited", lambda w: w.edited("schedule", "noise_multiplier", value=[0.1] * 3),
    ),
    "plan file: budget a number": ("FileRefused", "its own checksum", lambda w: w.edited("budget", value=3)),
    "plan file: NaN": ("FileRefused", "plan|JSON|value", lambda w: w.edited("budget", "epsilon", value=NAN)),
    "plan over its budget": (
        "InvalidValue", "within its budget", call(Plan, dc.Budget(0.01, 1e-3), SAMPLING, SCHEDULE, GUARANTEE),
    ),
    "plan of another delta": (
        "InvalidValue", "delta", call(Plan, dc.Budget(5.0, 1e-4), SAMPLING, SCHEDULE, GUARANTEE),
    ),
    "plan of arrays": ("InvalidType", "schedule must be a Schedule", call(Plan, BUDGET, SAMPLING, [1.0], GUARANTEE)),
    "plan without privacy of no sampling": (
        "InvalidType", "sampling must be a PoissonSampling", call(Plan.without_privacy, "all", steps=3),
    ),
    "plan without privacy or steps": ("InvalidValue", "steps", call(Plan.without_privacy, SAMPLING, steps=0)),
    "plan without privacy, clip norm zero": (
        "InvalidValue", "clip_norm", call(Plan.without_privacy, SAMPLING, steps=3, clip=0.0),
    ),
    "calibration without a limit": (
        "InvalidValue", "without_privacy",
        call(dc.calibrate, dc.Budget.unlimited(1e-6), SAMPLING, steps=3, privacy=ONE, clip=ONE),
    ),
    "plan saved into nowhere": (
        "InvalidValue", "written", lambda w: lambda: w.plan.save(w.folder / "absent" / "plan.json"),
    ),
    # runs
    "run without weights": ("FileRefused", "readable", _run_with("weights.safetensors", None)),
    "run with other weights": ("FileRefused", "other bytes", _run_with("weights.safetensors", b"\0" * 64)),
    "run damaged": ("FileRefused", "JSON", _run_with("run.json", b"{")),
    "run foreign": ("FileRefused", "foreign", _run_with("run.json", b'{"format": "x"}')),
    # the gate
    "privatise: a tensor": ("InvalidType", "clipped must be a ClippedSum", lambda _: noising(clipped=torch.ones(2))),
    "privatise: noise negative": ("InvalidValue", "noise_multiplier must", lambda _: noising(noise_multiplier=-1.0)),
    "privatise: noise NaN": ("InvalidValue", "noise_multiplier must", lambda _: noising(noise_multiplier=NAN)),
    "privatise: a seed": ("InvalidType", "stream must be a SecureStream", lambda _: noising(stream=0)),
    "privatise: a batch size": ("InvalidType", "sampling must be a PoissonSampling", lambda _: noising(sampling=8)),
    "privatise: unbounded": (
        "InvalidValue", "finite sensitivity",
        lambda _: noising(clipped=ClippedSum({"w": torch.ones(2)}, INF, Diagnostics(1, 0, 0, 0.0))),
    ),
    "apply: not noisy yet": (
        "InvalidType", "noisy must be a NoisyMean",
        _applying(lambda w: Engine(w.model, row_loss).clipped_sum(w.data, 1.0)),
    ),
    "apply: other names": (
        "InvalidValue", "missing=", _applying(lambda _: NoisyMean({"w": torch.ones(2)}, Release(0.1, 1.0))),
    ),
    "apply: other shapes": (
        "InvalidValue", "parameter's shape",
        _applying(lambda w: NoisyMean({n: torch.ones(7) for n, _ in w.model.named_parameters()}, Release(0.1, 1.0))),
    ),
    # clipping
    **{
        f"{kind.__name__}: clip norm {limit}": (
            error, "clip_norm must", lambda w, k=kind, c=limit: lambda: k(w.model, row_loss).clipped_sum(w.data, c),
        )
        for kind in (Engine, Reference)
        for limit, error in ((0.0, "InvalidValue"), (-1.0, "InvalidValue"), (NAN, "InvalidValue"), ("1", "InvalidType"))
    },
    "engine: a model that is none": ("InvalidType", "model must be a Module", call(Engine, "model", row_loss)),
    "engine: rows that differ": (
        "InvalidValue", "same first dimension",
        lambda w: lambda: Engine(w.model, row_loss).clipped_sum((torch.zeros(3, 3), torch.zeros(2).long()), 1.0),
    ),
    # training
    "train: a plan file's name": ("InvalidType", "plan must be a Plan", lambda w: w.training(plan="plan.json")),
    "train: seed negative": ("InvalidValue", "seed must be >= 0", lambda w: w.training(seed=-1)),
    "train: seed None": ("InvalidType", "seed must be Secure()", lambda w: w.training(seed=None)),
    "train: seed a class": ("InvalidType", "seed must be Secure()", lambda w: w.training(seed=dc.Secure)),
    "train: seed a fraction": ("InvalidType", "seed must be a whole number", lambda w: w.training(seed=0.5)),
    "train: data a text": ("InvalidType", "data must be", lambda w: w.training(data="train.csv")),
    "train: data of another length": (
        "InvalidValue", "40 rows, got 39", lambda w: w.training(data=tuple(part[:39] for part in w.data)),
    ),
    "train: data of two lengths": (
        "InvalidValue", "same first dimension", lambda w: w.training(data=(w.data[0], w.data[1][:39])),
    ),
    "train: scalar loss": (
        "UnsupportedModel", "one loss per example", lambda w: w.training(loss=lambda m, b: row_loss(m, b).mean()),
    ),
    "train: loss a number": ("UnsupportedModel", "tensor of losses", lambda w: w.training(loss=lambda *_: 1.0)),
    "train: loss without gradient": (
        "UnsupportedModel", "without a gradient|depend",
        lambda w: w.training(loss=lambda m, b: row_loss(m, b).detach()),
    ),
    "train: loss no function": ("InvalidType", "loss must be", lambda w: w.training(loss="cross_entropy")),
    "train: nothing to train": (
        "InvalidValue", "requires_grad", lambda w: w.training(model=nn.Linear(3, 2).requires_grad_(False)),
    ),
    "train: optimizer of another model": (
        "InvalidValue", "this model",
        lambda w: w.training(optimizer=torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=1)),
    ),
    "train: optimizer with a closure": (
        "InvalidType", "closure", lambda w: w.training(optimizer=torch.optim.LBFGS(w.model.parameters())),
    ),
    "train: optimizer a text": ("InvalidType", "optimizer must be", lambda w: w.training(optimizer="sgd")),
    "train: store a path": ("InvalidType", r"store must be a Store.*Store\(path\)", lambda w: w.training(store="a.db")),
    "train: checkpoints a path": ("InvalidType", "checkpoints must be a Check", lambda w: w.training(checkpoints="a")),
    "checkpoints: folder a number": ("InvalidType", "folder must be", lambda w: lambda: Checkpoints(7)),
    "checkpoints: also a list": ("InvalidType", "also must be", lambda w: lambda: Checkpoints("a", also=[1])),
    "checkpoints: also without a state": (
        "InvalidType", r"also\['rate'\] must be a Stateful", lambda w: lambda: Checkpoints("a", also={"rate": 0.1}),
    ),
    "train: optimizer that misses a layer": (
        "InvalidValue", "every trainable",
        lambda w: w.training(optimizer=torch.optim.SGD(w.model[0].parameters(), lr=1)),
    ),
    "train: a plan that promises too little": (
        "InvalidValue", "must promise what its releases spend",
        lambda w: w.training(plan=Plan(BUDGET, SAMPLING, SCHEDULE, LIE)),
    ),
    "calibrate: a clip curve that falls below float32": (
        "InvalidValue", r"at least 1e-12 at every step, got clip_norm\[2\]",
        lambda _: calibrating(clip=[1.0, 1e-6, 1e-13]),
    ),
    "train: data without values": (
        "InvalidValue", "must have values", lambda w: w.training(data=tuple(part.to("meta") for part in w.data)),
    ),
    "train: nested data": (
        "InvalidValue", "must be dense",
        lambda w: w.training(data=(torch.nested.nested_tensor([*w.data[0]]), w.data[1])),
    ),
    "train: a model made in inference mode": (
        "InvalidValue", "outside of torch.inference_mode()", lambda w: w.training(model=_in_inference_mode()),
    ),
    "trainer: a copy": ("PlanViolation", "must not be copied", lambda w: partial(copy.copy, w.made_trainer())),
    "engine: a copy": (
        "UnsupportedModel", "must stay with its model", lambda w: partial(copy.deepcopy, Engine(w.model, row_loss)),
    ),
    "step: nothing drawn": ("PlanViolation", "without a draw", _undrawn),
    "step: a row left out": (
        "PlanViolation", "batch just drawn", _stepping(lambda w, b: tuple(part[1:] for part in b)),
    ),
    "step: None for a full batch": ("PlanViolation", "batch just drawn", _stepping(lambda *_: None)),
    "step: a text": ("InvalidType", "batch must be", _stepping(lambda *_: "batch")),
    "batches: one skipped": ("PlanViolation", "every drawn batch", _skipping),
    "stream: purpose unknown": ("InvalidValue", "purpose must be", call(Streams(0).seed_of, "mood")),
}  # fmt: skip


def outcome(make: Callable[[World], Callable[[], object]]) -> dict[str, Any]:
    """What came of one case."""
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        thunk = make(world)
        before = world.portrait()
        found: dict[str, Any] = {"error": None, "message": "", "ours": False, "trace": ""}
        try:
            thunk()
        except Exception as error:
            found = {
                "error": type(error).__name__,
                "message": str(error),
                "ours": isinstance(error, DecrescendoError),
                "trace": "" if isinstance(error, DecrescendoError) else traceback.format_exc(limit=-3),
            }
        after = world.portrait()
        found["left"] = [key for key, value in before.items() if after[key] != value]
        return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    json.dump({name: outcome(make) for name, (_, _, make) in CASES.items()}, sys.stdout)
