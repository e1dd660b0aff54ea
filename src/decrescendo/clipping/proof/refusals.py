"""What a refusal says: what must hold, what was found, and the way out."""

from collections.abc import Collection, Sequence

from decrescendo.clipping.proof.labels import LAID_ALONG, NO_RULE, Label, Mixed, Place

_EXPERTS = (
    'Mixtures of experts: model.set_experts_implementation("batched_mm") where Transformers offers it, else compute '
    "every expert for every row"
)
# Of a loop over those experts that some row is sent to, or over rows that a token selects.
ALL_EXPERTS = (
    ' (mixtures of experts: a loop over all of them, or model.set_experts_implementation("batched_mm") where '
    "Transformers offers it; PEFT's aLoRA looks for its invocation tokens in Python, row by row: leave "
    "alora_invocation_tokens out, which is plain LoRA)"
)
# Of several tensors so many are named.
_NAMED = 3
# Where `register_rule` says nothing.
_TORCHS = frozenset({"aten", "prims"})
_OUTLIERS = "Load the model with BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0), or in 4 bits"
GENERATOR = (
    "random numbers of a pass must come from torch's default generator, which each step seeds anew, got a generator of "
    "the program's own (generator=..) at {}, whose numbers follow from its seed and from the passes before, one after "
    "another along the batch. Leave generator= out"
)
# Of a pass that writes to a buffer or a frozen parameter.
_WRITES = (
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
    **dict.fromkeys(("int8_vectorwise_quant", "int8_mixed_scaled_mm"), _OUTLIERS),
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"), _GROUP_NORM),
    **dict.fromkeys(("_grouped_mm", "histc"), _EXPERTS),
    # Features of images put among the embeddings of a text (LLaVA-like models).
    "masked_scatter": (
        "It takes its values from one list for the whole batch: give each example as many of its own, "
        "torch.where(mask, features.gather(1, place), embeddings) with place = mask.cumsum(1) - 1 clamped at 0"
    ),
    **dict.fromkeys(
        ("index", "index_put", "index_add"),
        "Keep one row an example, in the order of the batch, or choose from within each example. " + _EXPERTS,
    ),
}


def written_by_the_pass(changed: Sequence[str], parameters: Collection[str]) -> str:
    """Of parameters and buffers that a forward pass has written to, by name.

    >>> print(written_by_the_pass(["oft_R.weight"], ["oft_R.weight"]))
    a forward pass must not change the model's parameters or buffers, got a change of oft_R.weight. A weight that the
    pass itself moves moves without noise: project or renew it between steps, or leave that out (PEFT: OFT with
    coft=False)
    """
    shown = ", ".join(changed[:_NAMED]) + (f" and {len(changed) - _NAMED} others" if changed[_NAMED:] else "")
    if any("monteclora" in name for name in changed):
        remedy = "MonteCLoRA draws new weights and keeps them in each pass: use plain LoRA"
    elif changed[0] in parameters:
        remedy = (
            "A weight that the pass itself moves moves without noise: project or renew it between steps, or leave "
            "that out (PEFT: OFT with coft=False)"
        )
    else:
        remedy = _WRITES
    return (
        f"a forward pass must not change the model's parameters or buffers, got a change of {shown}. {remedy}"
    )


def _without_a_rule(form: str) -> str:
    """What to do about an operation, given as torch's signature of it.

    >>> print(_without_a_rule("mylib::scan.default(Tensor x, Tensor? state=None, int n=1) -> (Tensor, Tensor)"))
    Write it with torch's ordinary operations; or, if it keeps examples independent, say so before the first step:
    decrescendo.clipping.register_rule("mylib::scan", text), where text has the dimensions of its 2 tensor arguments and
    2 outputs ("nTd,d->nTd": independent along n, mixed along T). Its backward pass needs a rule for what it calls, too
    """
    name, _, types = form.partition("(")
    name = name.rpartition(".")[0]
    if name.split("::")[0] in _TORCHS:
        return "Write it with other operations of torch's"
    given, _, made = types.partition("->")
    tensors, outputs = given.count("Tensor"), made.count("Tensor")
    words = [f"{n} {what}{'s' * (n != 1)}" for n, what in ((tensors, "tensor argument"), (outputs, "output"))]
    return (
        "Write it with torch's ordinary operations; or, if it keeps examples independent, say so before the first "
        f'step: decrescendo.clipping.register_rule("{name}", text), where text has the dimensions of its '
        f'{" and ".join(words)} ("nTd,d->nTd": independent along n, mixed along T). Its backward pass needs a rule '
        "for what it calls, too"
    )


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
        if NO_RULE in label.why and known is None:
            remedy = _without_a_rule(label.why.rpartition(NO_RULE)[2])
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
