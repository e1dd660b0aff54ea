"""Checkpoints of Opacus' (1.4 to 1.6): the accountant's history in them, in the certified bracket. No code in a file is
run: it is read with ``weights_only``."""

import warnings
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from decrescendo.doctor.budgets import bracket_of, epsilon_words, ledger_of
from decrescendo.doctor.finding import Certainty, Diagnosis, Finding, ordered
from decrescendo.errors import DecrescendoError, FileRefused

# Where `PrivacyEngine.save_checkpoint` keeps the accountant, and people by hand.
STATES = ("privacy_accountant_state_dict", "accountant_state_dict", "accountant", "privacy_accountant")
DELTAS = (1e-5, 1e-6)
_DEEPEST = 3


def examine_checkpoint(path: Path) -> Diagnosis:
    """The history in a checkpoint, and what it cost.

    Raises:
        FileRefused: not a file of `torch.save`, or one that could run code; or no history is in it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles of another protocol, which are refused
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, UnpicklingError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileRefused(
            f"{path} must be a checkpoint of tensors, numbers and lists, which is read without running code, "
            f"got: {reason}"
        ) from None
    state = _state(content, 0)
    if state is None:
        if isinstance(content, dict):
            finding = Finding(
                "history", Certainty.RECOMPUTED, "the checkpoint has no state of an accountant",
                "a training that goes on from it counts from nothing: save it by "
                "PrivacyEngine.save_checkpoint", str(path),
            )  # fmt: skip
            return Diagnosis(str(path), (finding,))
        raise FileRefused(f"{path} must have the state of an accountant of Opacus, got a {type(content).__name__}")
    return _judge(path, state)


def _state(content: Any, depth: int) -> dict[str, Any] | None:
    if not isinstance(content, dict) or depth > _DEEPEST:
        return None
    if isinstance(content.get("history"), list) and "mechanism" in content:
        return content
    held = [content[key] for key in STATES if key in content] + list(content.values())
    return next((found for value in held if (found := _state(value, depth + 1)) is not None), None)


def _judge(path: Path, state: dict[str, Any]) -> Diagnosis:
    history, mechanism = state["history"], str(state["mechanism"])
    try:
        ledger = ledger_of(history)
    except (DecrescendoError, TypeError, ValueError, OverflowError) as error:
        raise FileRefused(
            f"{path} must have a history of (noise multiplier, sample rate, steps), got {str(history)[:80]}: {error}"
        ) from None
    findings: list[Finding] = []
    facts = [f"{mechanism}: {ledger!r}"]
    if not ledger.steps:
        findings.append(Finding(
            "history", Certainty.RECOMPUTED, "the accountant's history is empty",
            "epsilon 0 is said of weights that were trained", str(path),
        ))  # fmt: skip
    elif not (ledger.noise_multiplier > 0).all():
        findings.append(Finding(
            "noise", Certainty.RECOMPUTED, "the history has steps without noise", "epsilon is infinite", str(path),
        ))  # fmt: skip
    else:
        for delta in DELTAS:
            ends = bracket_of(ledger, delta)
            if ends is not None:
                facts.append(f"epsilon {epsilon_words(ends[1])} at delta {delta:g}, if batches were Poisson batches")
                if ends[1] > 20 and delta == DELTAS[0]:
                    findings.append(Finding(
                        "noise", Certainty.RECOMPUTED, f"epsilon is {epsilon_words(ends[1])} at delta {delta:g}",
                        "such a guarantee bounds nothing that an attacker would want to know", str(path),
                    ))  # fmt: skip
        if mechanism == "gdp":
            findings.append(Finding(
                "budget", Certainty.RECOMPUTED, "the accountant is a central limit theorem (gdp), an estimate",
                f"the bound is epsilon {epsilon_words((bracket_of(ledger, DELTAS[0]) or (0, 0))[1])} at delta "
                f"{DELTAS[0]:g}",
                str(path),
            ))  # fmt: skip
    return Diagnosis(str(path), ordered(findings), tuple(facts))
