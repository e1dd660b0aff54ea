"""What the source of a training makes one suspect: the catalogue of rules, and those about budgets."""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from decrescendo.doctor.account_rules import (
    asymptotic,
    by_formula,
    counted_less_often,
    never_asked,
    never_counted,
    told_of_epochs,
    told_the_first_noise,
)
from decrescendo.doctor.batch_rules import (
    clip_of_batches,
    denominators,
    empty_batches,
    is_private,
    noise_on_some,
    poisson_off,
    rows_together,
    unused_loader,
    weighted,
)
from decrescendo.doctor.finding import Certainty, Finding
from decrescendo.doctor.kept_rules import fitted_without_noise, kept_batches, left_midway, stale_noise
from decrescendo.doctor.norm_rules import follows_the_norms, sums_clipped, tensors_apart
from decrescendo.doctor.published_rules import histories, label_counts, statistics, target_encodings
from decrescendo.doctor.sampling_rules import drawn_by_number, shuffled
from decrescendo.doctor.saved_rules import saved_statistics, standardised, whole_modules
from decrescendo.doctor.score_rules import client_scores, gradient_logs, logs, saved_scores, trainer_logs
from decrescendo.doctor.seed_rules import fixed_keys, seeds
from decrescendo.doctor.selection_rules import selections
from decrescendo.doctor.source import (
    MAKERS,
    Hit,
    Module,
    Sources,
    assigned,
    keyword,
    name_of,
    read,
    targets_of,
)
from decrescendo.doctor.unit_rules import stated_units, units

_LARGE = 5e-3


def read_source(
    script: Path, shown: Collection[tuple[str, int]] = (), kept: Collection[tuple[str, int]] = ()
) -> tuple[list[Finding], list[str]]:
    """What is suspected of a script, and a word if nothing in it is private.

    Args:
        script: its file.
        shown: files and lines whose outputs a run has shown to depend on private rows.
        kept: those whose outputs it has shown not to.

    Raises:
        FileRefused: the script is no Python.
    """
    sources = read(script)
    if not is_private(sources):
        return [], ["privacy: nothing in the source clips gradients and adds noise, or calls a library that does"]
    findings: list[Finding] = []
    unread: list[str] = []
    for rule in RULES:
        try:
            hits = list(rule(sources))
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            # A form of Python that the rule does not know must not hide what the others say.
            unread.append(f"what the rule {rule.__name__} looks for: it cannot read this source ({error!r})")
            continue
        settled = {*shown, *kept} if rule in _OF_SCORES else shown
        hits = [hit for hit in hits if hit[2] != "beside" or (hit[0].file, getattr(hit[1], "lineno", 0)) not in settled]
        for module, node, check, says, costs in _together(hits):
            line = getattr(node, "lineno", 0)
            findings.append(Finding(check, Certainty.SUSPECTED, says, costs, module.file, line))
    return findings, unread


def _together(hits: list[Hit]) -> Iterator[Hit]:
    """One hit for all places of a file that a rule says the same of, which names the others' lines."""
    places: dict[tuple[str, str], list[Hit]] = {}
    for hit in hits:
        places.setdefault((str(hit[0].file), hit[3]), []).append(hit)
    for (module, node, check, says, costs), *others in places.values():
        lines = sorted({getattr(one[1], "lineno", 0) for one in others} - {getattr(node, "lineno", 0)})
        also = f" (and in line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))})" if lines else ""
        yield module, node, check, says + also, costs


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


def clip_schedules(sources: Sources) -> Iterator[Hit]:
    """Opacus' schedulers of the clip norm, where clipping does not go by the number that they move."""
    asked = [keyword(call, name) for _, call in sources.calls(*MAKERS) for name in ("grad_sample_mode", "clipping")]
    if any(given is not None and re.search("ghost|per_layer", ast.unparse(given)) for given in asked):
        for module, call in sources.calls("ExponentialGradClip", "StepGradClip", "LambdaGradClip"):
            yield (module, call, "sensitivity", "a scheduler moves the clip norm that the noise is for, and neither "
                   "ghost clipping nor clipping per layer goes by it", "the noise falls, against sums as long as ever: "
                   "set the clip norm of the clipping, too")  # fmt: skip


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


def other_deltas(sources: Sources) -> Iterator[Hit]:
    """An epsilon that is asked for at a larger delta than the noise was calibrated at."""
    meant = [sources.number(keyword(call, "target_delta")) for _, call in sources.calls(*MAKERS)]
    least = min(filter(None, meant), default=1.0)
    for module, call in sources.calls("get_epsilon") if len(set(meant)) == 1 else ():
        asked = sources.number(keyword(call, "delta") or next(iter(call.args), None))
        if asked is not None and asked > 1.01 * least:
            yield (module, call, "budget",
                   f"epsilon is asked for at delta {asked:g}, the noise was calibrated at {least:g}",
                   "at a larger delta the same training has a smaller epsilon: state both at one delta")  # fmt: skip
            return


def large_deltas(sources: Sources) -> Iterator[Hit]:
    """A delta, written as a constant, that is large for any number of records."""
    if sources.matches(re.compile("huber|smooth_l1")):
        return
    for module in sources.modules:
        for node in ast.walk(module.tree):
            for target, value in assigned(node):
                delta = sources.number(value) if isinstance(value, ast.Constant) else None
                if name_of(target).lower() in ("delta", "target_delta") and delta and _LARGE <= delta < 1:
                    yield (module, node, "delta", f"delta is {delta:g}",
                           f"publishing one record in {1 / delta:,.0f} in the clear would be within it: take much less "
                           "than one over the number of records")  # fmt: skip
                    return


def high_targets(sources: Sources) -> Iterator[Hit]:
    """Lists of target epsilons, of which the largest promises nothing."""
    if not any(sources.calls("make_private_with_epsilon", "get_noise_multiplier")):
        return
    for module in sources.modules:
        for loop in (node for node in ast.walk(module.tree) if isinstance(node, ast.For)):
            names = {name_of(part).lower() for part in ast.walk(loop.target)}
            if not any(re.fullmatch(r"(target_)?eps(ilon)?s?", name) for name in names):
                continue
            highest = max(_numbers(module, loop.iter), default=0.0)
            if highest > 20:
                yield (module, loop, "budget", f"the targets go up to epsilon {highest:g}",
                       "such a guarantee bounds nothing that an attacker would want to know")  # fmt: skip
                return


def _numbers(module: Module, node: ast.expr, deep: int = 4) -> list[float]:
    """The constants of a list, the ends of a range, or those of a name for one."""
    if not deep:
        return []
    if isinstance(node, ast.Call) and name_of(node.func) in (
        "enumerate",
        "tqdm",
        "list",
        "sorted",
        "reversed",
    ):
        return _numbers(module, node.args[0], deep - 1) if node.args else []
    if isinstance(node, ast.Call) and name_of(node.func) == "range":
        given = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, int)]
        if not 1 <= len(given) == len(node.args) <= 3 or not all(given[2:]) or not (over := range(*given)):
            return []
        return [float(over[0]), float(over[-1])]
    if isinstance(node, ast.Name):
        made = [n.value for n in module.tree.body if isinstance(n, ast.Assign) and name_of(n.targets[0]) == node.id]
        return _numbers(module, made[0], deep - 1) if len(made) == 1 and not isinstance(made[0], ast.Name) else []
    if isinstance(node, ast.List | ast.Tuple):
        values = [part.value for part in node.elts if isinstance(part, ast.Constant)]
        return [float(v) for v in values if isinstance(v, int | float)]
    return []


# What they suspect of a line a run judges.
_OF_SCORES = (logs, saved_scores)
RULES = (
    left_midway, poisson_off, shuffled, drawn_by_number, unused_loader, weighted, schedule, clip_schedules,
    told_the_first_noise, told_of_epochs, kept_batches, stale_noise, noise_on_some, follows_the_norms,
    target_encodings, gradient_logs, stated_units, large_deltas, rows_together, clip_of_batches, tensors_apart,
    denominators, empty_batches, histories, counted_less_often, never_counted, never_asked, by_formula, seeds,
    fixed_keys, logs, trainer_logs, saved_scores, statistics, label_counts, standardised, saved_statistics,
    whole_modules, asymptotic, sums_clipped, selections, units, small_noise, other_deltas, high_targets, client_scores,
    fitted_without_noise,
)  # fmt: skip
