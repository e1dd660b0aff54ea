"""A clip norm that is ten times off: do the controllers find back? And what telemetry costs in time.

    python -m benchmarks.telemetry "IMDB 1" .. [--seeds 3]   # what results/telemetry/ lacks of these, then the page
    python -m benchmarks.telemetry --page           # the page alone
    python -m benchmarks.telemetry --time           # seconds of a step with and without telemetry

Every run of a task has one certified budget, batches and steps, and constant noise. On public data (one seed) are
chosen: the fixed clip norm, and the learning rate of every rule, begun at that clip norm. Then every rule is trained on
the private data from a tenth of that clip norm and from ten times as much, at the rate that was chosen: five seeds,
paired.
"""

import functools
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import decrescendo as dc
from benchmarks import measured_at, words
from benchmarks.batch_curves import spread
from benchmarks.telemetry_tasks import SETTINGS, Setting
from decrescendo.clipping import EngineSettings
from decrescendo.plans import Schedule
from decrescendo.training import cross_entropy
from decrescendo.training.digits import digits, digits_cnn
from decrescendo.training.steering import ClipController
from decrescendo.training.steering.reading import Reading

ROOT = Path(__file__).resolve().parents[1]
FOUND, PAGE = ROOT / "results/telemetry", ROOT / "docs/reference/telemetry.md"
SEEDS, PUBLIC_SEED = 5, 99
STARTS = (0.1, 10.0)
GAMMA = 0.01
# Whose clip norm, and whose step, does not depend on where C begins.
AUTOMATIC = "automatic"
RULES = ("fixed", AUTOMATIC, "Andrew et al.", "SlaClip", "quantile", "error")
# Rules whose steps are as long as those of gradients that are clipped to 1.
UNIT = (AUTOMATIC, "error")


@dataclass(frozen=True)
class Andrew(ClipController):  # type: ignore[misc]
    """The rule of Andrew et al. 2021: of the noise on the count, what telemetry's own lacks is drawn here."""

    seed: int = 0

    def next_factor(self, factor: float, reading: Reading, coordinates: int) -> float:
        del coordinates
        found = reading.norms[-1]
        missing = math.sqrt(max(0.05**2 - found.noise_std**2, 0.0))
        drawn = missing * np.random.Generator(np.random.PCG64([self.seed, reading.step])).standard_normal()
        share = min(max(found.value + drawn, 0.0), 1.0)
        return float(factor * math.exp(self.rate * (self.target - share)))


class SlaClip(ClipController):  # type: ignore[misc]
    """Equations 28 to 30 of Zou et al. 2026: the target is a half, and more where many norms are near zero."""

    def next_factor(self, factor: float, reading: Reading, coordinates: int) -> float:
        del factor, coordinates
        clip_norm = reading.clip_norm
        near_zero = min(max(reading.norms[0].value / clip_norm, 0.0), 1.0)
        moved = 1 - (1 - near_zero) / 2 - reading.norms[-1].value
        return min(max(clip_norm * math.exp(0.5 * moved), 0.1), 50.0) / float(self.plan.clip_norm[0])


def bins(setting: Setting, plan: dc.Plan) -> int:
    """Their number by equation 36 of Zou et al."""
    return max(2, int((setting.batch / (2 * 2.576 * float(plan.noise_multiplier[0]))) ** (2 / 3)))


def counted(plan: dc.Plan, batch: float) -> dc.Plan:
    """The plan with the noise that a count with noise of B / 20 leaves to the gradients (Andrew et al., theorem 1)."""
    noise = (plan.noise_multiplier**-2 - (batch / 10) ** -2) ** -0.5
    return replace(plan, schedule=Schedule(noise, plan.clip_norm))


@functools.cache
def plan_for(task: str, rows: int, clip: float) -> dc.Plan:
    """The calibrated plan, with a clip norm to begin with."""
    setting = SETTINGS[task]
    return dc.calibrate(
        dc.Budget(setting.epsilon, 1 / (10 * rows)), dc.PoissonSampling(rows, setting.batch), steps=setting.steps,
        privacy=dc.curves.constant(1.0), clip=dc.curves.constant(clip),
    )  # fmt: skip


def trained(task: str, data: Any, rule: str, clip: float, rate: float, seed: int) -> dict[str, float]:
    """Accuracy of one run, and where its clip norm ended."""
    setting, (train, scored) = SETTINGS[task], data
    rows = len(train["labels"] if isinstance(train, dict) else train[1])
    plan, model = plan_for(task, rows, clip), setting.build(seed)
    given: Any = plan
    if rule == "Andrew et al.":
        given = Andrew(counted(plan, setting.batch), seed=seed)
    elif rule == "SlaClip":
        given = SlaClip(plan)
    elif rule in ("quantile", "error"):
        also = {"rescale_to_unit_norm": True, "min_clip_norm": 0.01} if rule == "error" else {}
        given = ClipController(plan, rule, **also)  # type: ignore[arg-type]
    weights = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.Adam(weights, lr=rate) if setting.adam else torch.optim.SGD(weights, lr=rate)
    run = dc.train(
        model, setting.loss, train, given, optimizer, seed=1_000 + seed,
        telemetry=dc.Telemetry(norms=bins(setting, plan)) if rule == "SlaClip" else None,
        settings=EngineSettings(
            gamma=GAMMA if rule == AUTOMATIC else None, microbatch_size=64 if setting.adam else None
        ),
    )  # fmt: skip
    assert run.guarantee.epsilon <= setting.epsilon
    ended = run.clip_norm[-1] if run.clip_norm else float(plan.clip_norm[-1])
    return {"accuracy": setting.score(model, scored), "clip_norm": ended}


def chosen(task: str, entry: dict[str, Any]) -> None:
    """Clip norm and rates, by public data: the rate at the middle clip norm, the clip norm at that rate, the rate
    again; then each rule's rate, begun at that clip norm."""
    setting, known = SETTINGS[task], entry.setdefault("searched", {})
    data = None

    def score(rule: str, clip: float, rate: float) -> float:
        nonlocal data
        key = f"{rule}, C {clip:g}, rate {rate:g}"
        if key not in known:
            data = data or setting.public()
            known[key] = trained(task, data, rule, clip, rate, PUBLIC_SEED)["accuracy"]
            save(task, entry)
        return float(known[key])

    def fixed(unit_rate: float, clip: float) -> float:
        return score("fixed", clip, unit_rate if setting.adam else unit_rate / clip)

    clip = setting.clips[len(setting.clips) // 2]
    for _ in range(2):
        unit = max(setting.unit_rates, key=lambda rate, clip=clip: fixed(rate, clip))  # type: ignore[misc]
        clip = max(setting.clips, key=lambda clip, unit=unit: fixed(unit, clip))  # type: ignore[misc]
    rates = {"fixed": unit if setting.adam else unit / clip}
    for rule in (AUTOMATIC, "error", "quantile", "SlaClip"):
        grid = setting.unit_rates if rule in UNIT or setting.adam else setting.rates
        # Without a clip norm in its way, a rule of unit steps begins anywhere.
        begun = 1.0 if rule == AUTOMATIC else clip
        rates[rule] = max(grid, key=lambda rate, rule=rule, begun=begun: score(rule, begun, rate))  # type: ignore[misc]
    entry["clip"], entry["rates"] = clip, {**rates, "Andrew et al.": rates["quantile"]}
    save(task, entry)


def fill(task: str, seeds: int) -> None:
    """Every run of a task that is not there yet, each written down when it ends."""
    path = path_of(task)
    entry: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    entry.setdefault("measured", measured_at())
    if "rates" not in entry:
        chosen(task, entry)
    data = None
    for seed in range(seeds):
        for name, rule, start in rows_of():
            runs = entry.setdefault("runs", {}).setdefault(name, [])
            if len(runs) == seed:
                data = data or SETTINGS[task].private()
                clip = 1.0 if rule == AUTOMATIC else start * entry["clip"]
                runs.append(trained(task, data, rule, clip, entry["rates"][rule], seed))
                if measured_at()["commit"] != entry["measured"]["commit"]:
                    entry.setdefault("added", {})[str(seed)] = measured_at()["commit"]
                print(task, name, seed, runs[-1], flush=True)
                save(task, entry)


def rows_of() -> list[tuple[str, str, float]]:
    """Name, rule and start of each contender; the first is what the others are compared with."""
    begun = [(f"{rule} from {start:g} C", rule, start) for rule in RULES if rule != AUTOMATIC for start in STARTS]
    return [("fixed", "fixed", 1.0), (AUTOMATIC, AUTOMATIC, 1.0), *begun]


def path_of(task: str) -> Path:
    """A task's file."""
    return FOUND / f"{task.replace(' ', '-')}.json"


def save(task: str, entry: Mapping[str, Any]) -> None:
    """The file, whole."""
    FOUND.mkdir(exist_ok=True)
    path_of(task).write_text(json.dumps(entry, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def timed(batch: float = 256, steps: int = 40) -> dict[str, list[float]]:
    """Processor seconds of each step, without telemetry, with norms, and with the loss too, one after another."""
    (train, _), seconds = digits(), dict[str, list[float]]()
    one = dc.curves.constant(1.0)
    plan = dc.calibrate(
        dc.Budget(4.0, 1e-5), dc.PoissonSampling(len(train[1]), batch), steps=steps, privacy=one, clip=one
    )
    asked = {
        "none": None,
        "norms": dc.Telemetry(norms=10),
        "norms and loss": dc.Telemetry(norms=10, loss=True),
    }
    going: dict[str, Any] = {}
    for name, telemetry in asked.items():
        model = digits_cnn(0, nn.Tanh)
        trainer = dc.Trainer(
            model,
            cross_entropy,
            plan,
            torch.optim.SGD(model.parameters(), lr=0.1),
            seed=0,
            telemetry=telemetry,
        )
        going[name] = trainer, trainer.batches(train)
    for _ in range(steps):
        for name, (trainer, batches) in going.items():
            drawn = next(batches)
            began = time.process_time()
            trainer.step(drawn)
            seconds.setdefault(name, []).append(time.process_time() - began)
    return seconds


TEXT = """# Clip norms that follow telemetry: do they recover?

Generated by `python -m benchmarks.telemetry` from `results/telemetry/`.

A clip norm C and a learning rate are tuned on public data of the same shape, with one seed. Then C is set ten times
too small or too large, and the rate stays. Which rule still reaches the accuracy of the tuned C? All runs of a task
have the same certified epsilon, batches and steps, and constant noise. Test accuracy in percent, mean ± standard
deviation over seeds; *minus tuned* is the mean paired difference to the tuned C ± its standard error, with ✓
where it is at least minus one standard error. In brackets: C at the last step.

| rule | what it does |
| --- | --- |
| fixed | C stays where it begins |
| automatic | `EngineSettings(gamma=0.01)`: there is no clip norm to get wrong |
| Andrew et al. | C follows the median norm; more noise on the gradients pays for its count (noise B / 20) |
| SlaClip | the controller of the paper that telemetry comes from, with its settings: rate 0.5, C from 0.1 to 50 |
| quantile | `ClipController(plan, "quantile")`: the median, from telemetry |
| error | `ClipController(plan, "error", rescale_to_unit_norm=True, min_clip_norm=0.01)` |

Each rule has its own learning rate, the best on the public data when it begins at the tuned C (that of Andrew et al.
is quantile's). For *automatic* and *error* it is the rate for gradients scaled to norm 1. C of *error* is below 0.01
only where it starts there. "At an end of the grid" names rules whose best rate was the smallest or largest that was
tried. All settings are in `benchmarks/telemetry_tasks.py`. Stand-ins: Fashion-MNIST for MNIST, made-up names for
NAME, reviews of other films for IMDB, other rows for diamonds and LoRA (whose reviews may be of the same films). The
rule *error* was changed twice while this was measured, after runs of it on IMDB and diamonds had been seen; its rows
are from after the last change.

{summary}
"""


def page() -> str:
    """The page, from the files alone."""
    entries = {
        task: json.loads(path_of(task).read_text(encoding="utf-8")) for task in SETTINGS if path_of(task).exists()
    }
    within: dict[str, list[str]] = {rule: [] for rule in RULES}
    parts: list[str] = []
    for task, entry in entries.items():
        setting, seeds = SETTINGS[task], min(map(len, entry["runs"].values()))
        runs = {name: found[:seeds] for name, found in entry["runs"].items()}
        tuned = scores_of(runs["fixed"])
        edges = [rule for rule, rate in entry["rates"].items() if is_edge(setting, entry["clip"], rule, rate)]
        rates = ", ".join(f"{rule} {rate:.3g}" for rule, rate in entry["rates"].items())
        parts += [
            f"## {task}", "",
            f"Epsilon {setting.epsilon:g}, {setting.steps} steps of {setting.batch:g} expected examples, "
            f"{'Adam' if setting.adam else 'SGD'}, {seeds} seeds, {words(entry['measured'])}{added_to(entry)}. "
            f"Tuned: C = {entry['clip']:g}, **{spread(tuned)}**. Rates: {rates}"
            + (f" (at an end of the grid: {', '.join(edges)})." if edges else "."), "",
            "| rule | from C / 10 | minus tuned | from 10 C | minus tuned |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]  # fmt: skip
        for rule in RULES:
            cells: list[str] = []
            for start in STARTS:
                found = runs[AUTOMATIC if rule == AUTOMATIC else f"{rule} from {start:g} C"]
                gap = scores_of(found) - tuned
                error = gap.std(ddof=1) / math.sqrt(len(gap))
                good = gap.mean() >= -error
                ended = np.mean([run["clip_norm"] for run in found])
                cells += [
                    spread(scores_of(found)) + ("" if rule == AUTOMATIC else f" ({ended:.2g})"),
                    f"{gap.mean():+.2f} ± {error:.2f}" + (" ✓" if good else ""),
                ]
                within[rule] += [task] if good else []
            parts.append(f"| {rule} | {' | '.join(cells)} |")
        parts.append("")
    total = len(STARTS) * len(entries)
    counts = ", ".join(f"{rule} {len(good)}" for rule, good in within.items())
    summary = f"**At most one standard error below the tuned C, of {total} (task, start) pairs**: {counts}."
    return "\n".join([TEXT.format(summary=summary), *parts])


def added_to(entry: Mapping[str, Any]) -> str:
    """Which seeds were run at other commits."""
    return "".join(f", seed {seed} at {commit}" for seed, commit in sorted(entry.get("added", {}).items()))


def scores_of(runs: Sequence[Mapping[str, float]]) -> np.ndarray:
    """In percent."""
    return 100 * np.array([run["accuracy"] for run in runs])


def is_edge(setting: Setting, clip: float, rule: str, rate: float) -> bool:
    """Whether a rate is an end of its grid."""
    unit = setting.adam or rule in UNIT or rule == "fixed"
    grid = setting.unit_rates if unit else setting.rates
    at = rate * clip if rule == "fixed" and not setting.adam else rate
    return any(math.isclose(at, end) for end in (min(grid), max(grid)))


def main() -> None:
    """Fill the files of the tasks that are named, and write the page; or measure the time."""
    torch.set_num_threads(1)
    if "--time" in sys.argv:
        found = timed()
        base = float(np.median(found["none"]))
        for name, seconds in found.items():
            print(f"{name}: {1e3 * np.median(seconds):.2f} ms a step, {100 * (np.median(seconds) / base - 1):+.1f} %")
        return
    asked = sys.argv[1:]
    seeds = int(asked.pop(asked.index("--seeds") + 1)) if "--seeds" in asked else SEEDS
    named = [word for word in asked if word[:2] != "--"]
    for task in named or ([] if "--page" in asked else list(SETTINGS)):
        fill(task, seeds)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
