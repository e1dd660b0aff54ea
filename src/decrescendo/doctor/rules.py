"""What the source of a training makes one suspect: the catalogue of rules, and those about budgets."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from decrescendo.doctor.batch_rules import (
    clip_of_batches,
    denominators,
    empty_batches,
    is_private,
    poisson_off,
    rows_together,
    shuffled,
    tensors_apart,
    unused_loader,
    weighted,
)  # fmt: skip
from decrescendo.doctor.finding import Certainty, Finding
from decrescendo.doctor.published_rules import (
    fixed_keys,
    histories,
    logs,
    seeds,
    selections,
    statistics,
    trainer_logs,
    units,
)
from decrescendo.doctor.source import MAKERS, Hit, Sources, keyword, name_of, read, targets_of


def read_source(script: Path) -> tuple[list[Finding], list[str]]:
    """What is suspected of a script, and a word if nothing in it is private.

    Raises:
        FileRefused: the script is no Python.
    """
    sources = read(script)
    if not is_private(sources):
        return [], [
            "privacy: nothing in the source clips gradients and adds noise, or calls a library that does"
        ]
    findings = []
    for rule in RULES:
        for module, node, check, says, costs in rule(sources):
            line = getattr(node, "lineno", 0)
            findings.append(Finding(check, Certainty.SUSPECTED, says, costs, module.file, line))
    return findings, []


def schedule(sources: Sources) -> Iterator[Hit]:
    """Noise that moves after it was calibrated."""
    if not any(sources.calls("make_private_with_epsilon", "get_noise_multiplier")):
        return
    for module, call in sources.calls("ExponentialNoise", "StepNoise", "LambdaNoise"):
        yield (module, call, "schedule", "a scheduler moves the noise after it was calibrated as a constant",
               "more is spent than was asked for")  # fmt: skip
    for module in sources.modules:
        for node in ast.walk(module.tree):
            for target in targets_of(node):
                held = isinstance(target, ast.Attribute) and target.attr == "noise_multiplier"
                if held and "optim" in ast.unparse(target).lower():
                    yield (module, node, "schedule", "the noise multiplier is set after it was calibrated",
                           "more may be spent than was asked for")  # fmt: skip


def small_noise(sources: Sources) -> Iterator[Hit]:
    """Budgets and noise, written as constants, that promise nothing."""
    seen = False
    for module, call in sources.calls(*MAKERS, "PrivacyEngine"):
        noise = sources.number(keyword(call, "noise_multiplier"))
        epsilon = sources.number(keyword(call, "target_epsilon"))
        if noise == 0 and name_of(call.func) != "make_private_with_epsilon":
            yield module, call, "noise", "the noise multiplier is 0", "no privacy: epsilon is infinite"
        if epsilon is not None and epsilon > 20:
            yield (module, call, "noise", f"the target is epsilon {epsilon:g}",
                   "such a guarantee bounds nothing that an attacker would want to know")  # fmt: skip
        delta = keyword(call, "target_delta")
        expression = ast.unparse(delta) if delta is not None else ""
        if isinstance(delta, ast.Name):
            expression = next((ast.unparse(n.value) for n in ast.walk(module.tree) if isinstance(n, ast.Assign)
                               and name_of(n.targets[0]) == delta.id), "")  # fmt: skip
        if not seen and re.fullmatch(r"1(\.0)? / len\(.*\)", expression):
            seen = True
            yield (module, call, "delta", "delta is 1/n",
                   "publishing one record in n in the clear would be within it: take much less")  # fmt: skip
    for module, call in sources.calls("PrivacyEngine"):
        given = keyword(call, "accountant")
        if isinstance(given, ast.Constant) and given.value == "gdp":
            yield (module, call, "budget", "the accountant is a central limit theorem (gdp), an estimate",
                   "the true epsilon may be larger")  # fmt: skip


def counted_less_often(sources: Sources) -> Iterator[Hit]:
    """An accountant that is stepped by hand, outside of the loop of the steps."""
    for module, call in sources.calls("step"):
        if keyword(call, "noise_multiplier") is None:
            continue
        scope = module.function(call) or module.tree
        stepping = {"step"} | {
            found.name
            for held in sources.modules
            for found in map(held.function, (c for c in held.calls if name_of(c.func) == "step"))
            if found is not None and found is not scope
        }
        own = module.loops(call)
        for loop in (node for node in ast.walk(scope) if isinstance(node, ast.For | ast.While)):
            inside = list(ast.walk(loop))
            turned = name_of(loop.target) if isinstance(loop, ast.For) else ""
            steps = any(
                isinstance(node, ast.Call) and name_of(node.func) in stepping
                # One of several optimisers, in a loop over them.
                and not (isinstance(node.func, ast.Attribute) and name_of(node.func.value) == turned)
                for node in inside
            )  # fmt: skip
            if steps and call not in inside and (not own or loop in ast.walk(own[0])):
                yield (module, call, "history", "the accountant is told of one step where a loop takes several",
                       "epsilon is that of the steps that are counted: count inside of the loop")  # fmt: skip
                return


RULES = (
    poisson_off, shuffled, unused_loader, weighted, schedule, rows_together, clip_of_batches, tensors_apart,
    denominators, empty_batches, histories, counted_less_often, seeds, fixed_keys, logs, trainer_logs, statistics,
    selections, units, small_noise,
)  # fmt: skip
