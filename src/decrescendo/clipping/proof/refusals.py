"""What a refusal says: what must hold, what was found, and the way out."""

from decrescendo.clipping.proof.labels import LAID_ALONG, Label, Mixed, Place

_EXPERTS = (
    'Mixtures of experts: model.set_experts_implementation("batched_mm") where Transformers offers it, else compute '
    "every expert for every row"
)
# Of a loop over those experts that some row is sent to.
ALL_EXPERTS = (
    ' (mixtures of experts: a loop over all of them, or model.set_experts_implementation("batched_mm") where '
    "Transformers offers it)"
)
# Of a pass that writes to a buffer or a frozen parameter.
WRITES = (
    "They would hold private data without noise. Replace BatchNorm by GroupNorm "
    "(model = decrescendo.training.without_batch_norm(model)), or call .eval() on it if it has public statistics, "
    "which no private row went into; let no other layer keep anything of its inputs, or call .eval() if that stops it"
)
# Of batch normalisation without running statistics: it takes those of the batch in evaluation mode, too.
_GROUP_NORM = (
    "Replace BatchNorm by GroupNorm (model = decrescendo.training.without_batch_norm(model), or F.group_norm with "
    "several channels a group); here it has no public statistics that it could use"
)
_REMEDIES = {
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"), _GROUP_NORM),
    **dict.fromkeys(("_grouped_mm", "histc"), _EXPERTS),
    **dict.fromkeys(
        ("index", "index_put", "index_add"),
        "Keep one row an example, in the order of the batch, or choose from within each example. " + _EXPERTS,
    ),
}


def refusal(label: Label, of: str) -> str:
    """Why a loss or a gradient is refused.

    >>> print(refusal(Mixed("several examples are put together", "mean"), "loss"))
    no example's loss may depend on another example, on its place or on their number, but in mean several examples are
    put together. Let row i of the losses depend on row i of the batch alone
    """
    remedy = "Let row i of the losses depend on row i of the batch alone"
    if isinstance(label, Mixed):
        found = f"in {label.name} {label.why}" if label.name else label.why
        known = _REMEDIES.get(label.name.removesuffix("_"))
        remedy = known or remedy
        if "no rule" in label.why and known is None:
            remedy = (
                "Write it with torch's ordinary operations; if it is one of your own that keeps examples apart, "
                "say so with decrescendo.clipping.register_rule"
            )
        if label.why == LAID_ALONG:
            remedy = (
                "Is the batch the first dimension where another was meant (a positional encoding for sequences that "
                "come first)? Let a constant have size 1 along the examples"
            )
    elif isinstance(label, Place):
        found = "its examples are in another dimension, or in another order"
    else:
        found = "it depends on no example"
    return f"no example's {of} may depend on another example, on its place or on their number, but {found}. {remedy}"
