"""From what observers saw to findings: loaders against accountants, noise, histories, and what goes around both."""

import re
from collections.abc import Iterator

from decrescendo.doctor.budgets import (
    Event,
    Observed,
    budgets,
    epochs_of,
    epsilon_words,
    looped_by_hand,
    place_of,
    printed,
    shuffled_epsilon,
    usual_delta,
)  # fmt: skip
from decrescendo.doctor.finding import Certainty, Finding

_POISSON = ("UniformWithReplacementSampler", "DistributedUniformWithReplacementSampler")
_SLACK = 1.01
_GREATEST_DELTA = 1.0
_HARDLY = 1 / 12  # `Pld` accounts noise multipliers from here on


def found_in(seen: Observed, *, buffers_moved: bool = True) -> tuple[list[Finding], list[str]]:
    """Findings of one training, and facts that were seen.

    Args:
        seen: its events.
        buffers_moved: whether a record moved running statistics of layers, as far as is known.
    """
    findings: list[Finding] = []
    facts: list[str] = []
    for private in seen.of("private"):
        findings += _sampling(seen, private)
        more, said = budgets(seen, private)
        findings += more
        facts += said
    facts += [
        f"{event['steps']} steps without privacy came before; if their rows are private, so is what they trained"
        for event in seen.of("early")
    ]
    findings += [
        *_pretrained(seen),
        *_bare_rounds(seen),
        *_repeated(seen),
        *_rates(seen),
        *_noise(seen),
        *_ghosts(seen),
        *_history(seen),
        *_bypass(seen),
        *_delta(seen),
    ]
    findings += [
        *printed(seen),
        *looped_by_hand(seen),
        *(_buffers(seen) if buffers_moved else ()),
        *_by_hand(seen),
        *_uncounted(seen),
    ]
    return findings, list(dict.fromkeys(facts))


def _bare_rounds(seen: Observed) -> Iterator[Finding]:
    """Rounds of a federation whose clients' steps reach the server's weights without noise."""
    for event in seen.of("bare")[:1]:
        yield Finding(
            "bypass", Certainty.SUSPECTED,
            "the server's weights changed after clients trained, and no noise was drawn",
            "no privacy for the clients of that round, unless their rows are public: add noise in each round",
            *place_of(event),
        )  # fmt: skip


def _pretrained(seen: Observed) -> Iterator[Finding]:
    """Weights that were trained before, without privacy, on the rows of the private loader."""
    for event in seen.of("private"):
        if event.get("pretrained"):
            yield Finding(
                "bypass", Certainty.RECOMPUTED,
                "the private model's weights were trained before, without noise, on the rows of the private loader",
                "no privacy: what these steps learned is in the weights that are released. Pre-train on public rows",
                *place_of(event),
            )  # fmt: skip
            return


def _repeated(seen: Observed) -> Iterator[Finding]:
    """Rows that are several times in the data set."""
    for event in seen.of("private"):
        times = event["given"].get("repeats", 1)
        if times > 1:
            yield Finding(
                "unit", Certainty.RECOMPUTED, f"some rows are {times} times in the data set: each of them is drawn by "
                "itself",
                f"one record moves the sum by up to {times} C: draw each once, and weight its loss", *place_of(event),
            )  # fmt: skip
            return


def _sampling(seen: Observed, private: Event) -> Iterator[Finding]:
    made, given, noise = private["made"], private["given"], float(private["noise"])
    delta = private["asked"].get("target_delta") or usual_delta(private)
    epochs = epochs_of(seen, private) or 1
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
            f"batches are {how}, {drawn['size']} rows each, the accountant counts them as Poisson batches at rate "
            f"{1 / max(1, made['steps'] or 1):.4g}",
            f"proven without that assumption, for {epochs} epoch(s) at delta {delta:.3g}: epsilon {epsilon}",
            *place_of(private),
        )  # fmt: skip
    if given["heaviest"] is not None:
        yield Finding(
            "sampling", Certainty.RECOMPUTED,
            f"the loader's {given['sampler']} draws the heaviest of {given['rows']} rows with weight "
            f"{given['heaviest']:.3g}; "
            + ("Opacus replaced it by a uniform Poisson sampler" if drawn["batches"] in _POISSON else
               "the accountant counts every row at the same rate, and a row may be in a batch several times"),
            "weights that the training needs are not there, or the rate that is accounted is not the largest in force",
            *place_of(private),
        )  # fmt: skip


def _rates(seen: Observed) -> Iterator[Finding]:
    """The rate that the accountant was told, against that of the loader in use."""
    taken = [event for event in seen.of("step") if event["loader"]]
    steps = [event for event in taken if event["private"]] or taken
    loader = seen.loader(steps[0]["loader"]) if steps else None
    counted = seen.of("account")
    if not counted or "sample_rate" not in counted[0]:
        return
    if loader is not None and loader["steps"]:
        actual, drawing = loader["rate"] or (loader["size"] or 0) / max(1, loader["rows"]), "loader"
    else:
        # Before the first step coins may have split the rows into those of training and others.
        rates = [event["rate"] for event in seen.of("step")[1:] if event.get("rate")]
        actual, drawing = (rates[0] if len(set(rates)) == 1 else 0.0), "loop"
    told = float(counted[0]["sample_rate"])
    if actual and told < actual / 1.05:
        yield Finding(
            "sampling", Certainty.RECOMPUTED,
            f"the accountant is told a sample rate of {told:.4g}, the {drawing} draws {actual:.4g} of the rows",
            "each step costs more than is counted", *place_of(counted[0]),
        )  # fmt: skip


def _noise(seen: Observed) -> Iterator[Finding]:
    for event in seen.of("noise"):
        if not float(event["noise"]) > 0:
            yield Finding(
                "noise", Certainty.PROVEN, f"a step releases its sum with noise multiplier {event['noise']}",
                "no privacy: epsilon is infinite", *place_of(event),
            )  # fmt: skip
            return
        if float(event["noise"]) < _HARDLY:
            yield Finding(
                "noise", Certainty.RECOMPUTED, f"a step releases its sum with noise multiplier {event['noise']:.3g}",
                "such a step alone has an epsilon around a hundred", *place_of(event),
            )  # fmt: skip
            return


def _ghosts(seen: Observed) -> Iterator[Finding]:
    for event in seen.of("noise"):
        ghost, clip = event["ghost_clip"], event["clip"]
        if isinstance(ghost, int | float) and isinstance(clip, int | float) and ghost > clip * _SLACK:
            yield Finding(
                "sensitivity", Certainty.RECOMPUTED,
                f"gradients are clipped to {ghost:g} (the module's max_grad_norm), the noise is for {clip:g} (the "
                "optimiser's)",
                f"the noise multiplier in force is {float(event['noise']) * clip / ghost:.4g}, not "
                f"{event['noise']:.4g}",
                *place_of(event),
            )  # fmt: skip
            return


def _history(seen: Observed) -> Iterator[Finding]:
    made = seen.of("private")
    by_data: dict[int, set[int]] = {}
    for event in made:
        accountants = by_data.setdefault(event["given"]["dataset"], set())
        if accountants and event["accountant"] not in accountants:
            yield Finding(
                "history", Certainty.RECOMPUTED,
                "a second PrivacyEngine, with an empty history, trains on the same data set",
                "epsilon of the two adds up; each accountant knows its own steps", *place_of(event),
            )  # fmt: skip
        accountants.add(event["accountant"])
    resumed = [e for e in seen.of("load") if any(re.search("optim|epoch|round|step", key.lower()) for key in e["keys"])]
    if resumed and made and not seen.of("restored") and not any(event["history"] for event in made):
        yield Finding(
            "history", Certainty.RECOMPUTED,
            "a checkpoint of an earlier training is loaded, and the accountant begins with an empty history",
            "what was spent before is not in the epsilon that is printed: load the accountant's state, too",
            *place_of(resumed[0]),
        )  # fmt: skip


def _bypass(seen: Observed) -> Iterator[Finding]:
    passed = seen.of("bypass")
    if passed:
        private = sum(event["private"] for event in seen.of("step"))
        yield Finding(
            "bypass", Certainty.PROVEN,
            "an optimiser other than the one that make_private returned steps parameters of the private model, with "
            "gradients that are neither clipped nor noised",
            "no privacy: let the optimiser that make_private returns step all of them"
            + ("" if private else "; no step was private"),
            *place_of(passed[0]),
        )  # fmt: skip


def _delta(seen: Observed) -> Iterator[Finding]:
    asked = [(event["asked"].get("target_delta"), event["given"]["rows"], event) for event in seen.of("private")]
    rows = max((count for _, count, _ in asked), default=0)
    asked += [(event.get("names", {}).get("delta"), rows, event) for event in seen.of("private")]
    asked += [(event["delta"], rows, event) for event in [*seen.of("epsilon"), *seen.of("asks")]]
    for delta, count, event in asked:
        if delta is not None and delta < 1 and count and delta * count >= _GREATEST_DELTA:
            yield Finding(
                "delta", Certainty.RECOMPUTED, f"delta is {delta:.3g} for {count} records",
                f"publishing one record in {1 / delta:,.0f} in the clear would be within it: take less than 1/{count}",
                *place_of(event),
            )  # fmt: skip
            return


def _buffers(seen: Observed) -> Iterator[Finding]:
    private = seen.of("noise") or any(event.get("drawn") for event in seen.of("step"))
    for event in seen.of("buffers")[:1] if private else ():
        yield Finding(
            "beside", Certainty.RECOMPUTED,
            f"layers keep running statistics of their inputs ({', '.join(event['layers'])}), which are saved with the "
            "weights, without noise",
            "BatchNorm mixes the rows of a batch, too: replace it by GroupNorm", *place_of(event),
        )  # fmt: skip


def _by_hand(seen: Observed) -> Iterator[Finding]:
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
            f"batches are {how}, {loader['size']} of {loader['rows']} rows each: accountants of DP-SGD "
            "assume that "
            "each record is drawn by itself (Poisson)",
            "amplification by sampling is not proven for such batches: draw each record with probability "
            f"{loader['size'] / max(1, loader['rows']):.4g}",
            loader["made_file"], loader["made_line"],
        )  # fmt: skip


def _uncounted(seen: Observed) -> Iterator[Finding]:
    """Steps with noise, of which an accountant that is called by hand sees fewer."""
    counted, drawn = seen.of("account"), 0
    last = max((event["order"] for event in counted), default=0)
    noisy = sum(drawn < (drawn := event["drawn"]) for event in seen.of("step") if event["order"] < last)
    # (A generator in between may draw numbers, too, for no noise.)
    if seen.of("private") or not counted or noisy <= 2 * len(counted):
        return
    yield Finding(
        "history", Certainty.RECOMPUTED,
        f"{noisy} steps added noise, the accountant was told of {len(counted)}",
        "epsilon is that of the steps that are counted", *place_of(counted[0]),
    )  # fmt: skip


def _claimed(seen: Observed) -> bool:
    return any({"noise", "sigma", "epsilon"} & set(event["names"]) for event in seen.of("claims"))
