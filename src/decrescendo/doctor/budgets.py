"""Histories in the certified bracket: what a whole training spends, beside what was asked for and what was printed."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from decrescendo.accounting import Ledger, Pld, Release, epsilon_of, rounded
from decrescendo.doctor.finding import Certainty, Finding
from decrescendo.errors import DecrescendoError

Event = dict[str, Any]
_SLACK = 1.01  # of accountants that search with a tolerance
STATED = "the script names an epsilon of"
_LEAST = 0.05  # of what people state; a smaller number keeps a division from zero
_LITTLE = 20.0  # above it a guarantee says next to nothing


class Observed:
    """The events of one training, by kind.

    Args:
        events: in their order.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._kinds: dict[str, list[Event]] = {}
        for at, event in enumerate(events):
            self._kinds.setdefault(event["kind"], []).append({"order": at, **event})

    def of(self, kind: str) -> list[Event]:
        """All events of a kind."""
        return self._kinds.get(kind, [])

    def loader(self, number: int) -> Event | None:
        """The loader with this number, if batches came from it."""
        return next((event for event in self.of("loader") if event["id"] == number), None)


def epsilon_words(epsilon: float) -> str:
    """Rounded up; in words where there is none."""
    return "infinite" if math.isinf(epsilon) else f"{rounded(epsilon, 'up', 4)}"


def bracket_of(ledger: Ledger, delta: float) -> tuple[float, float] | None:
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


def usual_delta(private: Event) -> float:
    """Where a training has not said it yet."""
    return min(1e-5, 1 / max(1, 10 * private["made"]["rows"]))


def loop_seen(seen: Observed) -> bool:
    """Whether the loops around a step say how many epochs there are."""
    return any(event.get("epochs") for event in seen.of("noise"))


def epochs_of(seen: Observed, private: Event) -> int | None:
    looped = [event["epochs"] for event in seen.of("noise") if event.get("epochs")]
    return looped[0] if looped else private["asked"].get("epochs")


def _calibrated_by_hand(seen: Observed, noise: float) -> Event | None:
    """What this noise multiplier was asked of `get_noise_multiplier` for, if it was, by a number of epochs: a loop that
    was given a number of steps may count them itself, and end."""
    return next((e for e in seen.of("calibrated") if e["epochs"] and math.isclose(e["noise"], noise)), None)


def looped_by_hand(seen: Observed) -> Iterator[Finding]:
    """A loop without Opacus' optimiser: more steps, or a higher rate, than its noise was calibrated for."""
    claims, first = seen.of("claims")[:1], seen.of("step")[:1]
    loader = seen.loader(first[0]["loader"]) if first and first[0]["drawn"] else None
    if seen.of("private") or loader is None or not claims or not loader["steps"]:
        return
    named, epochs = claims[0]["names"], claims[0].get("epochs")
    asked = next(filter(None, (_calibrated_by_hand(seen, named.get(of, 0.0)) for of in ("noise", "sigma"))), None)
    if asked is None or not epochs:
        return
    total, drawn = epochs * loader["steps"], loader["rate"] or (loader["size"] or 0) / max(1, loader["rows"])
    rate = drawn if 0 < drawn < 1 else asked["rate"]
    ends = bracket_of(Ledger([Release(rate, asked["noise"], count=total)]), asked["target_delta"])
    if ends is not None and ends[0] > asked["target_epsilon"] * _SLACK:
        yield Finding(
            "budget", Certainty.RECOMPUTED, _more_than(asked, total, rate),
            f"asked for epsilon {asked['target_epsilon']:g}, the whole training spends {epsilon_words(ends[1])} at "
            f"delta {asked['target_delta']:.3g}", *place_of(asked),
        )  # fmt: skip


def _more_than(asked: Event, total: int, rate: float) -> str:
    if total <= asked["steps"] and rate <= asked["rate"] * _SLACK:
        return "the noise was calibrated by an estimate below the truth"
    return (
        f"the noise was calibrated for {asked['steps']} steps at rate {asked['rate']:.4g}, the loop takes {total} at "
        f"rate {rate:.4g}"
    )


def _total(seen: Observed, private: Event) -> Ledger | None:
    """The whole training as it would go on: the loop's epochs, the loader's steps, the schedulers' noise."""
    epochs, steps = epochs_of(seen, private), private["made"]["steps"]
    if not epochs or not steps:
        return None
    rate, total = 1 / steps, private.get("total", epochs * steps)
    noise = float(private["noise"])
    observed = [float(event["noise"]) for event in seen.of("noise") if event["optimizer"] == private["optimizer"]]
    movers = [event for event in seen.of("scheduler") if len(set(event["ahead"])) > 1]
    if not movers:
        return Ledger([Release(rate, observed[-1] if observed else noise, count=total)])
    ahead, every = movers[0]["ahead"], 1 if movers[0]["steps"] >= len(observed) - 1 > 0 else steps
    # The last step that was observed was taken with the first of ``ahead``; the scheduler moves after every so many.
    last = max(len(observed) - 1, 0)
    places = (at // every - last // every for at in range(len(observed), total))
    values = [*observed, *(ahead[min(place, len(ahead) - 1)] for place in places)][:total]
    return Ledger.of(values, rate)


def budgets(seen: Observed, private: Event) -> tuple[list[Finding], list[str]]:
    asked, ledger = private["asked"], _total(seen, private)
    by_hand = None if "target_epsilon" in asked else _calibrated_by_hand(seen, float(private["noise"]))
    asked = asked if by_hand is None else {**asked, **by_hand}
    target = asked.get("target_epsilon")
    told = asked.get("target_delta") or next((event["delta"] for event in seen.of("epsilon")), None)
    told = told or private.get("names", {}).get("delta")
    delta = told if told is not None and 0 < told < 1 else usual_delta(private)
    if ledger is None:
        return _of_one_pass(private, delta), []
    ends = bracket_of(ledger, delta)
    if ends is None:
        return [], []
    lower, upper = ends
    how = "by its loop" if loop_seen(seen) else "as asked for"
    noise = ledger.noise_multiplier
    between = " to ".join(dict.fromkeys((f"{noise.min():.4g}", f"{noise.max():.4g}")))
    facts = [
        f"a whole training of {epochs_of(seen, private)} epochs ({how}) takes {ledger.steps} steps at rate "
        f"{ledger.sample_rate[0]:.4g}, noise multiplier {between}: epsilon {epsilon_words(upper)} at "
        f"delta {delta:.3g} if all that was assumed holds"
    ]
    findings = []
    moved = len(set(ledger.noise_multiplier.tolist())) > 1
    place = next(((event["at"], event["at_line"]) for event in seen.of("scheduler") if moved), place_of(private))
    if target is not None and lower > target * _SLACK:
        check = "schedule" if moved else "budget"
        says = (
            f"the noise multiplier moves from {ledger.noise_multiplier[0]:.4g} to {ledger.noise_multiplier[-1]:.4g} "
            "after it was calibrated as a constant" if moved
            else f"the training takes {private['total']} steps, more than the noise is enough for"
            if "total" in private
            else _more_than(by_hand, ledger.steps, float(ledger.sample_rate[0])) if by_hand is not None
            else f"the loop goes through {epochs_of(seen, private)} epochs, the noise was calibrated for "
                 f"{asked.get('epochs')}"
        )  # fmt: skip
        findings.append(Finding(
            check, Certainty.RECOMPUTED, says,
            f"asked for epsilon {target:g}, the whole training spends {epsilon_words(upper)} at delta "
            f"{delta:.3g}", *place,
        ))  # fmt: skip
    stated = private.get("names", {}).get("epsilon")
    named = target is None and stated is not None and "delta" in private["names"]
    if named and _LEAST < stated < lower / _SLACK:
        findings.append(Finding(
            "budget", Certainty.SUSPECTED, f"{STATED} {stated:g}, the whole training spends {epsilon_words(upper)} at "
            f"delta {delta:.3g}", "the noise is too small for what is stated: let an accountant find it, and ask it at "
            "the end", *place_of(private),
        ))  # fmt: skip
    if upper > _LITTLE:
        findings.append(Finding(
            "noise", Certainty.RECOMPUTED,
            f"the whole training has epsilon {epsilon_words(upper)} at delta {delta:.3g}",
            "such a guarantee bounds nothing that an attacker would want to know", *place_of(private),
        ))  # fmt: skip
    return findings, facts


def _of_one_pass(private: Event, delta: float) -> list[Finding]:
    """Where nobody knows how long the training is: noise that is too small for one pass over the rows."""
    noise, steps = float(private["noise"]), private["made"]["steps"]
    ends = bracket_of(Ledger([Release(1 / steps, noise, count=steps)]), delta) if steps and noise > 0 else None
    if ends is None or ends[0] <= _LITTLE:
        return []
    return [Finding(
        "noise", Certainty.RECOMPUTED,
        f"one pass over the rows alone has epsilon {epsilon_words(ends[1])} at delta {delta:.3g}",
        "such a guarantee bounds nothing that an attacker would want to know", *place_of(private),
    )]  # fmt: skip


def printed(seen: Observed) -> Iterator[Finding]:
    for event in seen.of("epsilon")[-1:]:
        history = event["history"]
        ends = bracket_of(ledger_of(history), event["delta"]) if history and 0 < event["delta"] < 1 else None
        if ends is not None and event["epsilon"] < ends[0] / _SLACK:
            yield Finding(
                "budget", Certainty.RECOMPUTED,
                f"{event['mechanism']} says epsilon {event['epsilon']:.4g} of its history, whose true epsilon "
                "is at least "
                f"{rounded(ends[0], 'down', 4)}",
                "the number printed is an estimate below the truth", *place_of(event),
            )  # fmt: skip


def place_of(event: Event) -> tuple[str, int]:
    return event["file"], event["line"]
