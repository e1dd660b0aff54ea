"""From what observers saw to findings: histories judged by the bracket, and what the accountant was told.

Longer than most files: one check after another, each a page of a book that is read as a whole.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from decrescendo.accounting import Ledger, Pld, Release, epsilon_of, rounded
from decrescendo.doctor.finding import Certainty, Finding
from decrescendo.errors import DecrescendoError

Event = dict[str, Any]
_POISSON = ("UniformWithReplacementSampler", "DistributedUniformWithReplacementSampler")
_SLACK = 1.01  # of accountants that search with a tolerance
_LITTLE = 20.0  # above it a guarantee says next to nothing
_GREATEST_DELTA = 1.0


class Seen:
    """The events of one training, by kind.

    Args:
        events: in their order.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._kinds: dict[str, list[Event]] = {}
        for event in events:
            self._kinds.setdefault(event["kind"], []).append(event)

    def of(self, kind: str) -> list[Event]:
        """All events of a kind."""
        return self._kinds.get(kind, [])

    def loader(self, number: int) -> Event | None:
        """The loader with this number, if batches came from it."""
        return next((event for event in self.of("loader") if event["id"] == number), None)


def epsilon_words(epsilon: float) -> str:
    """Rounded up; in words where there is none."""
    return "infinite" if math.isinf(epsilon) else f"{rounded(epsilon, 'up', 4)}"


def judged(ledger: Ledger, delta: float) -> tuple[float, float] | None:
    """Both ends of the bracket, or nothing where it says nothing."""
    if not ledger.steps:
        return 0.0, 0.0
    if not (ledger.noise_multiplier > 0).all():
        return math.inf, math.inf
    try:
        return Pld().bracket(ledger, delta)
    except (DecrescendoError, ArithmeticError):
        return None


def ledger_of(history: Sequence[Sequence[Any]]) -> Ledger:
    """A history of Opacus', (noise multiplier, sample rate, steps) each, as a ledger.

    >>> ledger_of([(1.0, 0.01, 5)])
    Ledger(5 releases, sample_rate 0.01, noise_multiplier 1)
    """
    return Ledger(Release(float(rate), float(noise), count=int(steps)) for noise, rate, steps in history)


def shuffled_epsilon(noise: float, epochs: int, delta: float) -> float:
    """What is proven of batches of one size that are cut from a list shuffled each epoch: one record is in one batch
    an epoch, and if it is exchanged the sum moves by 2 C."""
    return epsilon_of(delta, 2 * math.sqrt(epochs) / noise) if noise > 0 else math.inf


def found_in(seen: Seen) -> tuple[list[Finding], list[str]]:
    """Findings of one training, and facts that were seen."""
    findings: list[Finding] = []
    facts: list[str] = []
    for private in seen.of("private"):
        findings += _sampling(seen, private)
        more, said = _budget(seen, private)
        findings += more
        facts += said
    findings += [*_rates(seen), *_noise(seen), *_ghosts(seen), *_history(seen), *_bypass(seen), *_delta(seen)]
    findings += [*_printed(seen), *_buffers(seen), *_by_hand(seen)]
    return findings, facts


def _at(event: Event) -> tuple[str, int]:
    return event["file"], event["line"]


def _usual_delta(private: Event) -> float:
    """Where a training has not said it yet."""
    return min(1e-5, 1 / max(1, 10 * private["made"]["rows"]))


def _epochs(seen: Seen, private: Event) -> int | None:
    looped = [event["epochs"] for event in seen.of("noise") if event.get("epochs")]
    return looped[0] if looped else private["asked"].get("epochs")


def _sampling(seen: Seen, private: Event) -> Iterator[Finding]:
    made, given, noise = private["made"], private["given"], float(private["noise"])
    delta = private["asked"].get("target_delta") or _usual_delta(private)
    epochs = _epochs(seen, private) or 1
    used = [event["loader"] for event in seen.of("step") if event["private"]]
    actual = seen.loader(used[0]) if used else None
    drawn = actual if actual is not None else made
    if drawn["batches"] not in _POISSON and drawn["sampler"] not in _POISSON:
        how = {"RandomSampler": "shuffled", "SequentialSampler": "taken in their order"}.get(
            drawn["sampler"], f"drawn by {drawn['sampler']}"
        )
        epsilon = epsilon_words(shuffled_epsilon(noise, epochs, delta))
        yield Finding(
            "sampling", Certainty.RECOMPUTED,
            f"batches are {how} and cut to {drawn['size']} rows, the accountant counts them as Poisson batches at rate "
            f"{1 / max(1, made['steps'] or 1):.4g}",
            f"proven without that assumption, for {epochs} epoch(s) at delta {delta:.3g}: epsilon {epsilon}",
            *_at(private),
        )  # fmt: skip
    if given["heaviest"] is not None:
        yield Finding(
            "sampling", Certainty.RECOMPUTED,
            f"the loader's {given['sampler']} draws the heaviest of {given['rows']} rows with weight "
            f"{given['heaviest']:.3g}; "
            + ("Opacus replaced it by a uniform Poisson sampler" if drawn["batches"] in _POISSON else
               "the accountant counts every row at the same rate, and a row may be in a batch several times"),
            "weights that the training needs are not there, or the rate that is accounted is not the largest in force",
            *_at(private),
        )  # fmt: skip


def _total(seen: Seen, private: Event) -> Ledger | None:
    """The whole training as it would go on: the loop's epochs, the loader's steps, the schedulers' noise."""
    epochs, steps = _epochs(seen, private), private["made"]["steps"]
    if not epochs or not steps:
        return None
    rate, total = 1 / steps, epochs * steps
    noise = float(private["noise"])
    observed = [
        float(event["noise"]) for event in seen.of("noise") if event["optimizer"] == private["optimizer"]
    ]
    movers = [event for event in seen.of("scheduler") if len(set(event["ahead"])) > 1]
    if not movers:
        return Ledger([Release(rate, observed[-1] if observed else noise, count=total)])
    ahead, every = movers[0]["ahead"], 1 if movers[0]["steps"] >= len(observed) - 1 > 0 else steps
    values = [*observed, *(ahead[min(i // every, len(ahead) - 1)] for i in range(total))][:total]
    counts: list[Release] = []
    for value in values:
        if counts and counts[-1].noise_multiplier == value:
            counts[-1] = Release(rate, value, count=counts[-1].count + 1)
        else:
            counts.append(Release(rate, value))
    return Ledger(counts)


def _budget(seen: Seen, private: Event) -> tuple[list[Finding], list[str]]:
    asked, ledger = private["asked"], _total(seen, private)
    target = asked.get("target_epsilon")
    told = asked.get("target_delta") or next((event["delta"] for event in seen.of("epsilon")), None)
    delta = told if told is not None and 0 < told < 1 else _usual_delta(private)
    if ledger is None:
        return [], []
    ends = judged(ledger, delta)
    if ends is None:
        return [], []
    lower, upper = ends
    facts = [
        f"{ledger.steps} steps at rate {ledger.sample_rate[0]:.4g}, noise multiplier "
        f"{ledger.noise_multiplier.min():.4g}..{ledger.noise_multiplier.max():.4g}: epsilon {epsilon_words(upper)} at "
        f"delta {delta:.3g} if all that was assumed holds"
    ]
    findings = []
    moved = len(set(ledger.noise_multiplier.tolist())) > 1
    place = next(((event["at"], event["at_line"]) for event in seen.of("scheduler") if moved), _at(private))
    if target is not None and lower > target * _SLACK:
        check = "schedule" if moved else "budget"
        says = (
            f"the noise multiplier moves from {ledger.noise_multiplier[0]:.4g} to {ledger.noise_multiplier[-1]:.4g} "
            "after it was calibrated as a constant" if moved
            else f"the loop goes through {_epochs(seen, private)} epochs, the noise was calibrated for "
                 f"{asked.get('epochs')}"
        )  # fmt: skip
        findings.append(Finding(
            check, Certainty.RECOMPUTED, says,
            f"asked for epsilon {target:g}, the whole training spends {epsilon_words(upper)} at delta "
            f"{delta:.3g}", *place,
        ))  # fmt: skip
    if upper > _LITTLE:
        findings.append(Finding(
            "noise", Certainty.RECOMPUTED,
            f"the whole training has epsilon {epsilon_words(upper)} at delta {delta:.3g}",
            "such a guarantee bounds nothing that an attacker would want to know", *_at(private),
        ))  # fmt: skip
    return findings, facts


def _rates(seen: Seen) -> Iterator[Finding]:
    """The rate that the accountant was told, against that of the loader in use."""
    steps = [event for event in seen.of("step") if event["loader"]]
    loader = seen.loader(steps[0]["loader"]) if steps else None
    counted = seen.of("account")
    if loader is None or not counted or not loader["steps"] or "sample_rate" not in counted[0]:
        return
    actual = loader["rate"] or (loader["size"] or 0) / max(1, loader["rows"])
    told = float(counted[0]["sample_rate"])
    if actual and told < actual / 1.05:
        yield Finding(
            "sampling", Certainty.RECOMPUTED,
            f"the accountant is told a sample rate of {told:.4g}, the loader draws {actual:.4g} of the rows",
            "each step costs more than is counted", *_at(counted[0]),
        )  # fmt: skip


def _noise(seen: Seen) -> Iterator[Finding]:
    for event in seen.of("noise"):
        if not float(event["noise"]) > 0:
            yield Finding(
                "noise", Certainty.PROVEN, f"a step releases its sum with noise multiplier {event['noise']}",
                "no privacy: epsilon is infinite", *_at(event),
            )  # fmt: skip
            return


def _ghosts(seen: Seen) -> Iterator[Finding]:
    for event in seen.of("noise"):
        ghost, clip = event["ghost_clip"], event["clip"]
        if isinstance(ghost, int | float) and isinstance(clip, int | float) and ghost > clip * _SLACK:
            yield Finding(
                "sensitivity", Certainty.RECOMPUTED,
                f"gradients are clipped to {ghost:g} (the module's max_grad_norm), the noise is for {clip:g} (the "
                "optimiser's)",
                f"the noise multiplier in force is {float(event['noise']) * clip / ghost:.4g}, not "
                f"{event['noise']:.4g}",
                *_at(event),
            )  # fmt: skip
            return


def _history(seen: Seen) -> Iterator[Finding]:
    made = seen.of("private")
    by_data: dict[int, set[int]] = {}
    for event in made:
        accountants = by_data.setdefault(event["given"]["dataset"], set())
        if accountants and event["accountant"] not in accountants:
            yield Finding(
                "history", Certainty.RECOMPUTED,
                "a second PrivacyEngine, with an empty history, trains on the same data set",
                "epsilon of the two adds up; each accountant knows its own steps", *_at(event),
            )  # fmt: skip
        accountants.add(event["accountant"])
    resumed = [
        e for e in seen.of("load") if any("optim" in key.lower() or key == "epoch" for key in e["keys"])
    ]
    if resumed and made and not seen.of("restored") and not any(event["history"] for event in made):
        yield Finding(
            "history", Certainty.RECOMPUTED,
            "a checkpoint of an earlier training is loaded, and the accountant begins with an empty history",
            "what was spent before is not in the epsilon that is printed: load the accountant's state, too",
            *_at(resumed[0]),
        )  # fmt: skip


def _bypass(seen: Seen) -> Iterator[Finding]:
    passed = seen.of("bypass")
    if passed:
        private = sum(event["private"] for event in seen.of("step"))
        yield Finding(
            "bypass", Certainty.PROVEN,
            "the optimiser that was given to Opacus steps by itself, with gradients that are neither "
            "clipped nor noised",
            "no privacy: use the optimiser that make_private returns" + ("" if private else "; no step was private"),
            *_at(passed[0]),
        )  # fmt: skip


def _delta(seen: Seen) -> Iterator[Finding]:
    asked = [
        (event["asked"].get("target_delta"), event["given"]["rows"], event) for event in seen.of("private")
    ]
    rows = max((count for _, count, _ in asked), default=0)
    asked += [(event["delta"], rows, event) for event in seen.of("epsilon")]
    for delta, count, event in asked:
        if delta is not None and count and delta * count >= _GREATEST_DELTA:
            yield Finding(
                "delta", Certainty.RECOMPUTED, f"delta is {delta:.3g} for {count} records",
                f"publishing one record in {1 / delta:.3g} in the clear would be within it: take less than 1/{count}",
                *_at(event),
            )  # fmt: skip
            return


def _printed(seen: Seen) -> Iterator[Finding]:
    for event in seen.of("epsilon")[-1:]:
        history = event["history"]
        ends = judged(ledger_of(history), event["delta"]) if history and 0 < event["delta"] < 1 else None
        if ends is not None and event["epsilon"] < ends[0] / _SLACK:
            yield Finding(
                "budget", Certainty.RECOMPUTED,
                f"{event['mechanism']} says epsilon {event['epsilon']:.4g} of its history, whose true epsilon "
                "is at least "
                f"{rounded(ends[0], 'down', 4)}",
                "the number printed is an estimate below the truth", *_at(event),
            )  # fmt: skip


def _buffers(seen: Seen) -> Iterator[Finding]:
    private = seen.of("noise") or any(event.get("drawn") for event in seen.of("step"))
    for event in seen.of("buffers")[:1] if private else ():
        yield Finding(
            "beside", Certainty.RECOMPUTED,
            f"layers keep running statistics of their inputs ({', '.join(event['layers'])}), which are saved with the "
            "weights, without noise",
            "BatchNorm mixes the rows of a batch, too: replace it by GroupNorm", *_at(event),
        )  # fmt: skip


def _by_hand(seen: Seen) -> Iterator[Finding]:
    """Shuffled batches under an accountant that is called by hand."""
    if seen.of("private") or not (seen.of("account") or _claimed(seen)):
        return
    steps = [event for event in seen.of("step") if event["loader"]]
    loader = seen.loader(steps[0]["loader"]) if steps else None
    if loader is None or loader["batches"] in _POISSON or "oisson" in loader["batches"] + loader["sampler"]:
        return
    how = {"RandomSampler": "shuffled", "SequentialSampler": "taken in their order"}.get(loader["sampler"])
    if how is not None and loader["batches"] == "BatchSampler" and loader["size"] < loader["rows"]:
        yield Finding(
            "sampling", Certainty.RECOMPUTED if seen.of("account") else Certainty.SUSPECTED,
            f"batches are {how} and cut to {loader['size']} of {loader['rows']} rows: accountants of DP-SGD "
            "assume that "
            "each record is drawn by itself (Poisson)",
            "amplification by sampling is not proven for such batches: draw each record with probability "
            f"{loader['size'] / max(1, loader['rows']):.4g}",
            loader["made_file"], loader["made_line"],
        )  # fmt: skip


def _claimed(seen: Seen) -> bool:
    return any({"noise", "sigma", "epsilon"} & set(event["names"]) for event in seen.of("claims"))
