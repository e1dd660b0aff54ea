"""The five sentences of ARCHITECTURE.md, as far as a test can say them."""

import ast
import dataclasses
import math
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import get_type_hints

import grimp
import numpy as np
import pytest
import torch
from fuzzing import seeds
from nodes import parsed
from torch import nn

import decrescendo as dc
from decrescendo.accounting import Accountant, Pld
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.release import Release
from decrescendo.clipping import ClippedSum, Clipper, Diagnostics, Engine
from decrescendo.errors import InvalidType
from decrescendo.optim import NoisyMean
from decrescendo.plans import AdaptivePlan, Agreement, Plan, PoissonSampling, Schedule
from decrescendo.training import Run
from decrescendo.training.run import History
from decrescendo.training.steering import Settings

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "src/decrescendo"
# Of files that say why they are longer than 300 lines there are at most so many; these may have more than 500.
WAIVERS = 5
LONG_FILES = {
    "accounting/pld/accountant.py",  # an algorithm beside its proof
}  # fmt: skip
# Functions that may have more than 60 lines.
LONG_FUNCTIONS = {
    "clipping/checker.py: capture",
}  # fmt: skip
BUDGET, SAMPLING = dc.Budget(1.0, 1e-5), PoissonSampling(500, 10)


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch)[:, 0]


def test_the_page_has_five_sentences_and_names_a_test_of_each() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text[text.index("## Five sentences") : text.index("## The flow")]
    assert re.findall(r"^(\d)\. \*\*", section, re.MULTILINE) == list("12345")
    classes = {f"TestSentence{number}" for number in range(1, 6)}
    assert set(re.findall(r"test_architecture\.py::(\w+)", section)) == classes <= globals().keys()


class TestSentence1:
    """A run is decided before it starts."""

    @pytest.mark.parametrize("agreed", [seeds.plan(), seeds.adaptive_plan()])
    def test_what_is_decided_is_frozen(self, agreed: Agreement) -> None:
        for field in dataclasses.fields(agreed):  # type: ignore[arg-type]
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(agreed, field.name, None)
        if isinstance(agreed, Plan):
            for array in (agreed.noise_multiplier, agreed.clip_norm):
                with pytest.raises(ValueError, match="read-only"):
                    array[0] = 0.0

    def test_both_forms_are_agreements_and_an_adaptive_one_costs_its_filters_whole_budget(self) -> None:
        assert isinstance(seeds.plan(), Agreement)
        assert isinstance(seeds.adaptive_plan(), Agreement)
        price = seeds.adaptive_plan().price(Pld())
        assert (price.epsilon, price.kind) == (seeds.adaptive_plan().budget.epsilon, "upper")

    def test_nobody_asks_which_form_it_is(self) -> None:
        """One place does, by dispatch: where `train` takes a plan or an `Adaptive`."""
        asked = re.compile(r"isinstance\([^()]*\b(?:Plan|AdaptivePlan|Adaptive|AdaptiveRun|Pld)\b")
        found = [str(path) for path in LIBRARY.rglob("*.py") if asked.search(path.read_text(encoding="utf-8"))]
        assert found == []


class TestSentence2:
    """Privacy sees (p, z_t, count); learning sees (C_t, z_t)."""

    def test_a_release_has_no_clip_norm(self) -> None:
        assert [field.name for field in dataclasses.fields(Release)] == [
            "sample_rate",
            "noise_multiplier",
            "count",
            "overflow",
            "steps_per_epoch",
            "bands",
            "step",
        ]
        assert set(Settings.__dataclass_fields__) == {"noise_multiplier", "clip_norm"}

    def test_the_clip_curve_moves_no_epsilon_and_no_noise_multiplier(self) -> None:
        plans = [
            dc.calibrate(BUDGET, SAMPLING, steps=4, privacy=dc.curves.constant(1.0), clip=clip)
            for clip in ([1.0, 1.0, 1.0, 1.0], [8.0, 4.0, 2.0, 1.0])
        ]
        assert np.array_equal(plans[0].noise_multiplier, plans[1].noise_multiplier)
        assert plans[0].guarantee == plans[1].guarantee
        assert plans[0].ledger == plans[1].ledger

    def test_the_noise_on_a_sum_clipped_to_c_has_std_z_c(self) -> None:
        assert Schedule([2.0, 3.0], [0.5, 4.0]).noise_std.tolist() == [1.0, 12.0]
        clipped = ClippedSum({"w": torch.zeros(40_000)}, 0.5, Diagnostics(0, 0, 0, 0.0))
        noisy = dc.privatise(clipped, 3.0, SAMPLING, torch.Generator().manual_seed(0))
        std = float(noisy.gradients["w"].std()) * SAMPLING.expected_batch_size
        assert std == pytest.approx(1.5, rel=0.02)  # 5.7 standard errors


class TestSentence3:
    """Accountants judge ledgers."""

    def test_what_is_planned_and_what_happened_have_one_type(self) -> None:
        plan = seeds.plan()
        model, data = nn.Linear(2, 1), torch.zeros(plan.sampling.dataset_size, 2)
        run = dc.train(model, loss, data, plan, torch.optim.SGD(model.parameters(), lr=0.1), seed=0)
        assert type(run.ledger) is type(plan.ledger) is Ledger
        assert run.ledger == plan.ledger
        assert {type(release) for release in (*run.ledger, *plan.ledger)} == {Release}
        fields = {"ledger": Ledger, "planned": Ledger}
        hints = {name: get_type_hints(getattr(Plan, name).fget)["return"] for name in fields}
        assert hints == fields == {**fields, "ledger": get_type_hints(Run)["ledger"]}

    def test_a_certificate_is_a_pure_function_of_the_ledger_and_says_what_it_is(self) -> None:
        ledger = Ledger.of([1.2, 1.1, 1.0], 0.02)
        before = [column.tobytes() for column in (ledger.sample_rate, ledger.noise_multiplier, ledger.count)]
        for judge in (Pld(), dc.accounting.GdpClt(), dc.accounting.Rdp()):
            assert isinstance(judge, Accountant)
            first, second = judge.certify(ledger, BUDGET), judge.certify(ledger, BUDGET)
            assert first == second
            words = "NOT a bound" if first.kind == "estimate" else "upper bound"
            assert words in str(first)
        after = [column.tobytes() for column in (ledger.sample_rate, ledger.noise_multiplier, ledger.count)]
        assert before == after

    def test_no_noise_is_no_privacy_in_words(self) -> None:
        found = Pld().certify(Ledger.of([1.0, 0.0], 0.02), BUDGET)
        assert found.epsilon == math.inf
        assert "NO PRIVACY" in str(found)

    @pytest.mark.parametrize(("one", "other"), [("accounting", "clipping"), ("clipping", "accounting")])
    def test_accounting_and_clipping_know_nothing_of_each_other(self, one: str, other: str) -> None:
        graph = grimp.build_graph("decrescendo", cache_dir=None)
        chain = graph.find_shortest_chains(f"decrescendo.{one}", f"decrescendo.{other}", as_packages=True)
        assert chain == set()
        down = graph.find_shortest_chains("decrescendo.plans", "decrescendo.accounting", as_packages=True)
        assert down, "the probe sees what there is"


class TestSentence4:
    """Examples are independent, which is checked at every pass, and gradients pass one gate in one direction."""

    def test_each_door_takes_what_the_one_before_makes(self) -> None:
        """That a type checker refuses the short cut: tests/optim/test_apply.py, which runs one."""
        assert get_type_hints(Clipper.clipped_sum)["return"] is ClippedSum
        assert get_type_hints(Engine.clipped_sum)["return"] is ClippedSum
        hints = get_type_hints(dc.privatise)
        assert (hints["clipped"], hints["return"]) == (ClippedSum, NoisyMean)
        assert NoisyMean in get_type_hints(dc.apply).values()
        assert not issubclass(ClippedSum, NoisyMean)
        assert not issubclass(NoisyMean, ClippedSum)
        assert ClippedSum.__final__ is NoisyMean.__final__ is True  # type: ignore[attr-defined]

    def test_the_short_cut_is_refused_at_run_time_too(self) -> None:
        model = nn.Linear(2, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        clipped = ClippedSum({"weight": torch.ones(1, 2)}, 1.0, Diagnostics(1, 0, 0, 0.0))
        noisy = dc.privatise(clipped, 1.0, SAMPLING, torch.Generator().manual_seed(0))
        for short_cut in (clipped, clipped.gradients):
            with pytest.raises((InvalidType, TypeError)):  # ours, or the tests' hook before it
                dc.apply(short_cut, model, optimizer)  # type: ignore[arg-type]
        with pytest.raises((InvalidType, TypeError)):
            dc.privatise(noisy, 1.0, SAMPLING, torch.Generator())  # type: ignore[arg-type]

    def test_examples_that_meet_are_refused(self) -> None:
        class Meets(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(2, 1)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.layer(x - x.mean(0))

        with pytest.raises(dc.errors.UnsupportedModel):
            Engine(Meets(), loss).clipped_sum(torch.randn(4, 2), 1.0)


class TestSentence5:
    """The papers are a client, and everything that lasts is a small file that is read back as it was written."""

    def test_the_library_knows_no_paper_package(self) -> None:
        """That the papers use public names only: papers/tests/test_public_only.py."""
        named: set[str] = set()
        for path in LIBRARY.rglob("*.py"):
            named |= set(re.findall(r"^\s*(?:from|import) +([\w.]+)", path.read_text(encoding="utf-8"), re.MULTILINE))
        assert "decrescendo.plans.plan" in named
        assert not {name for name in named if name.startswith("decrescendo_papers")}

    @pytest.mark.parametrize(
        "value",
        [
            seeds.plan(),
            Plan.without_privacy(SAMPLING, steps=3),
            Plan.without_privacy(SAMPLING, steps=2, clip=[2.0, 1.0]),
            *(seeds.adaptive_plan(rule) for rule in ("ZcdpFilter", "GdpFilter", "RenyiFilter(order=12)")),
        ],
        ids=lambda value: f"{type(value).__name__}-{value.guarantee.accountant}",
    )
    def test_both_plans_are_read_back(self, value: Plan | AdaptivePlan) -> None:
        again = type(value).from_json(value.to_json())
        assert again == value
        assert again.to_json() == value.to_json()

    def test_diagnostics_are_read_back(self) -> None:
        history = History((3, 0), (0, 0), (2, 0), (1.5, math.inf))
        assert History.from_json(history.to_json(), source="here") == history

    @pytest.mark.parametrize("agreed", [seeds.plan(), seeds.adaptive_plan()])
    def test_runs_are_read_back_file_by_file(self, agreed: Agreement, tmp_path: Path) -> None:
        ledger = agreed.planned or Ledger([Release(0.02, 4.0)] * 3)
        decided = () if agreed.planned else (1.0, 0.75, 0.5)
        run = Run(
            agreed,
            ledger,
            agreed.guarantee,
            {"w": torch.arange(3.0)},
            {"accuracy": 0.5},
            diagnostics=History((1,), (0,), (1,), (0.5,)),
            clip_norm=decided,
        )
        for name in ("first", "second"):
            run.save(tmp_path / name, include_diagnostics=True)
            run = Run.load(tmp_path / name)
        written = {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()}
        assert f"{agreed.kind}.json" in written
        assert written == {path.name: path.read_bytes() for path in (tmp_path / "second").iterdir()}


def test_a_long_file_says_why() -> None:
    """Above 300 lines a file says at its top why it is not two."""
    sources = [path for folder in ("src", "papers/src") for path in sorted((ROOT / folder).rglob("*.*"))]
    for path in sources:
        if path.suffix in (".py", ".c", ".h", ".js", ".css", ".html"):
            text = path.read_text(encoding="utf-8")
            assert text.count("\n") <= 300 or "Longer than most files: " in text[:1500], path


def test_files_and_functions_are_short() -> None:
    """Of a function its docstring does not count; of a command neither do its options. How complex: ruff's C901."""
    files: set[str] = set()
    functions: set[str] = set()
    for path in LIBRARY.rglob("*.py"):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(LIBRARY).as_posix()
        if text.count("\n") > 500:
            files.add(name)
        left: list[ast.AST] = [parsed(text)] if text.count("\n") > 60 else []
        while left:
            node = left.pop()
            # What has statements: no functions are in expressions but lambdas.
            left += [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.expr)]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first, end = node.body[0], node.end_lineno or 0
                lines = end - (first.lineno if name.startswith("cli/") else node.lineno) + 1
                if ast.get_docstring(node) is not None:
                    lines -= (first.end_lineno or 0) - first.lineno + 1
                if lines > 60:
                    functions.add(f"{name}: {node.name}")
    assert files <= LONG_FILES
    assert functions <= LONG_FUNCTIONS
    sources = [path for path in LIBRARY.rglob("*.*") if path.suffix in (".py", ".js", ".c", ".h", ".css", ".html")]
    waived = [path for path in sources if "Longer than most files: " in path.read_text(encoding="utf-8")[:1500]]
    assert len(waived) <= WAIVERS


def test_no_import_goes_round_in_a_circle() -> None:
    """Files, not rooms only; an import that waits for a call counts too, one for the type checker does not."""
    for package in ("decrescendo", "decrescendo_papers"):
        graph = grimp.build_graph(package, cache_dir=None, exclude_type_checking_imports=True)
        TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()
    with pytest.raises(CycleError):
        TopologicalSorter({"one": ["other"], "other": ["one"]}).prepare()


def test_few_doors_and_few_floors() -> None:
    doors = {path.name for path in LIBRARY.iterdir()} - {"__pycache__", "__init__.py", "__main__.py", "py.typed"}
    assert len(doors) <= 16
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(page[page.index("```layers\n") :].split("```")[1].splitlines()[1:]) <= 9
    assert len(dc.__all__) <= 22
