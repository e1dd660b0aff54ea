"""The command line, called in this process with files that may be damaged and options that may be anything."""

import contextlib
import json
import sys
from collections.abc import Generator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import typer
from typer.testing import CliRunner

from decrescendo.accounting import GdpClt, Pld
from decrescendo.accounting.ledger import Ledger
from decrescendo.cli import app
from decrescendo.errors import InvalidValue, check_real
from decrescendo_papers.cli import COMMANDS as PAPERS
from decrescendo_papers.cli import app as papers
from fuzzing import run_files
from fuzzing.decisions import Decisions
from fuzzing.target import Files, Target

ARGUMENTS = "arguments"
NUMBERS = (
    "0", "1", "-1", "2", "7", "0.5", "1e-6", "1e-300", "1e300", "1e308", "1e400", "nan", "inf", "-inf", "-0.0", "1_000",
    "1e5", "4", "9" * 30, "9" * 400, "9" * 5000, "0x10", "1,5", "١", "", " ", "--", "-", "1/3", "60000", "999999999999",
)  # fmt: skip
TEXTS = (
    "plan.json", "ledger.db", "missing.json", ".", "..", "new.json", "new/x.json", "new", "run", "a" * 300, "a\nb", "é",
    "[red]", "[/red]", "\udcff", "table1", "figure1", "hong", "mnist/*/*", "*", "renyi:16", "renyi:99999", "sum",
    "geometric:10", "poisson:1e9", "clip=0.1..2:log", "clip=2..1", "steps=", "=", "rho_mu=1", "fashion-mnist", "digits",
    "mnist", "imdb", "dynamic", "constant", "optimal", "cosine", "adam", "cpu", "\x1b[2J", "weights.json",
)  # fmt: skip
# Hours of work begin here; a fuzzer is after what comes before.
WORK = (
    "decrescendo_papers.experiments.execute.execute", "decrescendo_papers.experiments.hong.reproduce_hong",
    "decrescendo_papers.experiments.costs.compute", "decrescendo.cli.demo.demonstrate",
    "decrescendo.training.train_task", "decrescendo.training.tune", "decrescendo.training.search_privately",
    "decrescendo_papers.experiments.search.search",
    "decrescendo_papers.experiments.influence_plan.influence_plan",
    "decrescendo.plans.plan.verify_epsilon",
)  # fmt: skip
SMALL = ["--epsilon", "2", "--delta", "1e-6", "--dataset-size", "500", "--batch", "10", "--steps", "4"]
CALLS: tuple[list[str], ...] = (
    ["plan", *SMALL, "--schedule", "dynamic", "--save", "new.json", "--json"],
    ["plan", *SMALL, "--schedule", "optimal", "--lr-schedule", "cosine"],
    ["plan", *SMALL, "--schedule", "optimal", "--influence", "weights.json"],
    ["plan", "--epsilon", "2", "--dataset-size", "500", "--batch", "10", "--epochs", "1", "--schedule", "step-decay"],
    ["account", "plan.json", "--json"],
    ["account", "ledger.json", "--delta", "1e-6", "--sample-rate", "0.02"],
    ["account", "run"],
    ["verify", "plan.json"],
    ["verify", "run"],
    ["ledger", "ledger.db"],
    ["ledger", "ledger.db", "--json"],
    ["ledger", "new.db", "--create", "--epsilon", "2", "--delta", "1e-6", "--rows", "500", "--composition", "renyi:16"],
    ["train", "digits", "--plan", "plan.json", "--out", "new", "--seed", "1"],
    ["train", "digits", "--epsilon", "2", "--steps", "4", "--batch", "9", "--store", "ledger.db", "--checkpoints", "x"],
    ["reproduce", "table1", "--dry-run", "--cells", "mnist/0.4/*", "--seeds", "1"],
    ["reproduce", "figure2", "--results", "run"],
    ["report", "--results", "run", "--curves", "run", "--out", "new"],
    ["search", "mnist", "--epsilon", "1", "--on", "fashion-mnist", "--trials", "4", "--out", "x.json"],
    ["tune", "digits", "--epsilon", "1", "--on", "digits", "--trials", "4", "--out", "x.json", "--vary", "lr=1"],
    ["tune", "digits", "--epsilon", "2", "--private", "--trials", "poisson:10", "--out", "new.json", "--fix", "clip=1"],
    ["influence", "mnist35-pca", "--on", "gaussian-2", "--epsilon", "4", "--steps", "50", "--out", "new.json"],
    ["demo", "--out", "new", "--steps", "1", "--seeds", "1"],
)  # fmt: skip


@cache
def _seeds() -> list[Files]:
    made = {target.name: target for target in run_files.RUNS}
    files: Files = {
        "plan.json": made["plan"].seeds()[0]["plan.json"],
        "ledger.json": b"[2.0, 1.5]",
        "weights.json": b"[1, 2, 3, 4]",
        "ledger.db": made["store"].seeds()[0]["ledger.db"],
    }
    files |= {f"run/{name}": content for name, content in made["run"].seeds()[0].items()}
    return [{**files, ARGUMENTS: json.dumps(call).encode()} for call in CALLS]


@cache
def _options() -> dict[str, list[str]]:
    groups: list[Any] = [typer.main.get_command(of) for of in (app, papers)]
    return {
        name: [
            "--help",
            *sorted(o for parameter in command.params for o in parameter.opts if o.startswith("-")),
        ]
        for group in groups
        for name, command in group.commands.items()
    }


def _bend(files: Files, choose: Decisions) -> Files:
    """Other options, other values, fewer or more of them."""
    try:
        words = [str(word) for word in json.loads(files[ARGUMENTS])]
    except (KeyError, TypeError, ValueError, RecursionError):
        return files
    for _ in range(1 + choose.below(3)):
        at, what = choose.below(len(words) + 1), choose.below(6)
        value = choose.pick(NUMBERS) if choose.below(3) else choose.pick(TEXTS)
        if what <= 2 and len(words) > 1:
            words[1 + at % (len(words) - 1)] = value
        elif what == 3 and len(words) > 1:
            del words[1 + at % (len(words) - 1)]
        elif what == 4 and words and words[0] in _options():
            words[len(words) :] = [choose.pick(_options()[words[0]]), value]
        elif what == 5:
            words[at:at] = [value]
    return {**files, ARGUMENTS: json.dumps(words).encode()}


def _rough(_: Pld, ledger: Ledger, delta: float) -> tuple[float, float]:
    """In place of the certified bracket, which takes seconds: what the CLT says. Here no number is looked at."""
    check_real("delta", delta, above=0, below=1)
    epsilon = GdpClt().epsilon(ledger, delta).value if len(ledger) else 0.0
    return 0.99 * epsilon, epsilon


def _left_out(*_: object, **__: object) -> NoReturn:
    raise InvalidValue("a fuzzer must not begin hours of work, got here")


@contextlib.contextmanager
def _without_work() -> Generator[None]:
    with ExitStack() as stack:
        for name in WORK:
            module, _, function = name.rpartition(".")
            __import__(module)
            if function == "verify_epsilon":  # minutes; slow and right is tested elsewhere
                stack.enter_context(patch(name, _left_out))
            else:
                stack.enter_context(patch.object(sys.modules[module], function, _left_out))
        stack.enter_context(patch.object(Pld, "bracket", _rough))
        stack.enter_context(patch.object(Pld, "estimate", lambda *given: _rough(*given)[1]))
        yield


def _read(folder: Path) -> str:
    try:
        words = [str(word) for word in json.loads((folder / ARGUMENTS).read_bytes())]
    except (OSError, TypeError, ValueError, RecursionError):
        words = []
    with contextlib.chdir(folder), _without_work():
        result = CliRunner().invoke(papers if words and words[0] in PAPERS else app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if "Traceback" in result.output:
        raise RuntimeError(f"a traceback is shown: {result.output}")
    if result.exit_code != 0:
        raise InvalidValue(result.stderr or result.stdout)
    return result.stdout


COMMANDS = (Target("command-line", _seeds, _read, bend=_bend, writes=True),)
