"""What the guarantee in a statement does not cover, and the result of an audit."""

from collections.abc import Mapping
from typing import Any

from decrescendo.accounting.budget import Guarantee
from decrescendo.errors import InvalidValue, check_instance, check_real
from decrescendo.plans.agreement import Agreement
from decrescendo.training.statement.provenance import FLOAT64, SECURE, Provenance

SEVERAL = "people behind several {unit}s: their epsilon is larger"


WRONG_IDS = "people with several ids, or rows with a wrong id: the owner declared the ids, and nothing checked them"


NOT_COVERED = (
    "everything computed from the private data outside this training (see what the owner declares)",
    "diagnostics, losses and gradient norms of private rows, wherever they are shown",
    "scores measured on private data; those in this statement are declared public",
    "running time, memory, and errors that depend on the data",
    "replacing one {unit} by another, which is two changes: at most twice epsilon, and (1 + e^epsilon) times delta",
    "{behind}",
    "facts about people that can be learned whether or not they took part",
    "attackers with access to the machine, the raw data, checkpoints or seeds",
)


AUDITED = (
    "the audit: a separate training, which spent its certified epsilon again on the rows that it used, unless they "
    "were made up, "
)


def check_audit(audit: Mapping[str, Any], agreed: Agreement, guarantee: Guarantee) -> None:
    """Check that the epsilon found by an audit of this plan is within the guarantee, unless the audit says BROKEN."""
    check_instance("audit", audit, Mapping)
    # A lower bound on epsilon at a larger delta holds at a smaller one too.
    delta = check_real("an audit's delta", audit.get("delta", 0.0), at_least=0)
    same = audit.get("plan_sha256") == agreed.sha256 and delta >= guarantee.delta * (1 - 1e-9)
    if not same or audit.get("caught_by"):  # the audit itself says that it is broken
        return
    found = [audit.get(name) or 0.0 for name in ("lower", "lower_by_curve")]
    lower = max(check_real("an audit's lower end", value, at_least=0) for value in found)
    if lower > guarantee.epsilon:
        raise InvalidValue(
            "an audit that found nothing must be below what its plan promises, got one of at least "
            f"{lower:.6g} beside epsilon={guarantee.epsilon:.6g}. It was compared with another promise: audit again"
        )


def audited_lines(audit: Mapping[str, Any], sha256: str) -> list[str]:
    store, of = audit.get("store"), audit.get("plan_sha256")
    lines = [AUDITED + (f"reserved in {store}" if store else "in no ledger")]
    if of != sha256:
        what = "it attacked a training with another plan" if of else "it does not say with which plan it trained"
        lines.append(f"this plan, by the audit: {what}, and shows about this one only that the same code ran")
    return lines


def gap_lines(provenance: Provenance | None) -> list[str]:
    if provenance is None:
        return ["how the training was run: this was not recorded"]
    gaps: list[str] = []
    if provenance.assumptions:
        gaps.append("assumptions that are not true (see how it was run): then the guarantee may not hold")
    if any(assumption.of_published for assumption in provenance.assumptions):
        gaps.append(
            "buffers and frozen parameters, which are published as they are, without noise (see how it was run)"
        )
    if provenance.random != SECURE:
        gaps.append(
            "attackers who know or guess the seed, which determines the noise. For models that you publish, train with "
            "Secure()"
        )
    if not provenance.account:
        gaps.append("other trainings on the same data: this one is not recorded in a ledger of the data set (Store)")
    if provenance.accumulate != FLOAT64:
        gaps.append(
            "the rounding of float32 sums of clipped gradients, about 2 n 2^-24 C_t for n equal ones "
            "(docs/explanation/rounding.md)"
        )
    return gaps
