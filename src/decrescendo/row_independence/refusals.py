"""The error messages of refused passes: what must hold, what was found, and the way out."""

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.labels import LAID_ALONG, NO_RULE, PARTS, Label, Mixed, RowLayout

_EXPERTS = (
    'Mixtures of experts: model.set_experts_implementation("batched_mm") where Transformers offers it, else compute '
    "every expert for every row"
)
# Remedy for a loop over the experts that some row is routed to, or over rows that a token selects.
ALL_EXPERTS = (
    ' (mixtures of experts: a loop over all of them, or model.set_experts_implementation("batched_mm") where '
    "Transformers offers it; PEFT's aLoRA looks for its invocation tokens in Python, row by row: leave "
    "alora_invocation_tokens out, which is plain LoRA; detectors: a one-stage head, or as many proposals per example "
    "by topk(k, 1) and gather)"
)
# At most so many tensors are named in a message.
_NAMED = 3
# Namespaces of torch, for whose operations `register_rule` is not offered.
_TORCHS = frozenset({"aten", "prims"})
_OUTLIERS = "Load the model with BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0), or in 4 bits"
GENERATOR = (
    "random numbers of a pass must come from torch's default generator, which each step seeds again, got your own "
    "generator (generator=..) at {}, whose numbers depend on its seed and on earlier passes. Leave generator= out"
)
# Remedy for a gradient penalty (WGAN-GP).
SECOND_DERIVATIVE = (
    "a loss must need first derivatives only, got one with a second derivative (torch.autograd.grad(.., "
    "create_graph=True) or torch.func.grad of the model, as in a gradient penalty). Instead, bound the critic by "
    "torch.nn.utils.parametrizations.orthogonal, or clip its weights between steps"
)
# Remedy for constants that differ along the examples, if Python or NumPy drew random numbers.
HOSTS = (
    "Random numbers were drawn by NumPy or Python in this pass: draw each example's own by torch (torch.rand(len(x), "
    "1), torch.rand_like(x)), or make them a part of the batch (SpecAugment of Transformers: "
    "model.config.apply_spec_augment = False, and mask the features in the data set, or give mask_time_indices with "
    "the batch)"
)
# Remedy for code that converts data to NumPy, lists or a Python integer.
SPEC_AUGMENT = " (SpecAugment of Transformers: model.config.apply_spec_augment = False)"
SEEDS = " (an example's own random numbers: torch.randn_like(x), without a seed)"
# Remedy for layers that keep running statistics.
STATISTICS = (
    "Call .eval() on it if it has public statistics (a generator that is not trained in this loss), replace a "
    "BatchNorm by GroupNorm (model = decrescendo.training.without_batch_norm(model)), or make an InstanceNorm with "
    "track_running_stats=False"
)
# Remedy for a pass that writes to a buffer or a frozen parameter.
_WRITES = (
    "They would hold private data without noise. Replace BatchNorm by GroupNorm "
    "(model = decrescendo.training.without_batch_norm(model)), or call .eval() on it if it has public statistics, "
    "which no private row went into; let no other layer store anything of its inputs, or call .eval() if that stops it"
)
# Remedy for batch normalisation without running statistics, which uses the batch's in evaluation mode, too.
_GROUP_NORM = (
    "Replace BatchNorm by GroupNorm (model = decrescendo.training.without_batch_norm(model), or F.group_norm with "
    "several channels a group); here it has no public statistics that it could use"
)
_GRAPHS = (
    "Graphs: give each its own row, (n, nodes, features), filled up to one number of nodes, and h.gather(1, index) and "
    "scatter_add(1, index, messages) along its nodes"
)
_DETECTORS = "Detectors: a one-stage head, or as many proposals per example (scores.topk(k, 1), then gather)"
_KEYS = "Draw each example's own numbers by torch.randn_like(x), without a key"
_REMEDIES = {
    **dict.fromkeys(("_philox_normal", "_philox_uniform", "_philox_key_split", "_philox_key_fold_in"), _KEYS),
    **dict.fromkeys(("nms", "roi_align", "roi_pool", "ps_roi_align"), _DETECTORS),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce", "gather", "index_select"), _GRAPHS),
    **dict.fromkeys(("int8_vectorwise_quant", "int8_mixed_scaled_mm"), _OUTLIERS),
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"), _GROUP_NORM),
    **dict.fromkeys(("_grouped_mm", "histc"), _EXPERTS),
    # Image features written into the text embeddings (LLaVA-like models).
    "masked_scatter": (
        "It takes its values from one list for the whole batch: give each example as many of its own, "
        "torch.where(mask, features.gather(1, place), embeddings) with place = mask.cumsum(1) - 1 clamped at 0"
    ),
    **dict.fromkeys(
        ("index", "index_put", "index_add"),
        "Keep one row per example, in the order of the batch, or choose from within each example. "
        + _EXPERTS
        + ". "
        + _GRAPHS,
    ),
}


def written_by_the_pass(changed: Sequence[str], parameters: Collection[str]) -> str:
    """The message about parameters and buffers that a forward pass has written to, by name.

    >>> print(written_by_the_pass(["oft_R.weight"], ["oft_R.weight"]))
    a forward pass must not change the model's parameters or buffers, got a change of oft_R.weight. A weight that the
    pass itself changes gets no noise: project or renew it between steps, or leave that out (PEFT: OFT with coft=False)
    """
    shown = ", ".join(changed[:_NAMED]) + (f" and {len(changed) - _NAMED} others" if changed[_NAMED:] else "")
    if any("monteclora" in name for name in changed):
        remedy = "MonteCLoRA draws and stores new weights in each pass: use plain LoRA"
    elif changed[0].endswith(("._u", "._v", ".weight_u", ".weight_v")):
        remedy = (
            "Spectral norm renews them in training mode: call .eval() on its parametrization for the pass, and renew "
            "them between steps"
        )
    elif "inv_freq" in changed[0]:
        remedy = (
            "Rotary frequencies that follow the length of a text are stored (rope_type 'dynamic' or 'longrope'): take "
            "another rope_type, or texts of one length"
        )
    elif changed[0] in parameters:
        remedy = (
            "A weight that the pass itself changes gets no noise: project or renew it between steps, or leave that "
            "out (PEFT: OFT with coft=False)"
        )
    else:
        remedy = _WRITES
    return f"a forward pass must not change the model's parameters or buffers, got a change of {shown}. {remedy}"


def _without_a_rule(form: str) -> str:
    """The remedy for an operation without a rule, given by torch's signature of it.

    >>> print(_without_a_rule("mylib::scan.default(Tensor x, Tensor? state=None, int n=1) -> (Tensor, Tensor)"))
    Write it with torch's ordinary operations; or, if it keeps examples independent, say so before the first step:
    decrescendo.clipping.register_rule("mylib::scan", text), where text has the dimensions of its 2 tensor arguments and
    2 outputs ("nTd,d->nTd": independent along n, mixed along T). Its backward pass needs a rule for what it calls, too
    """
    name, _, types = form.partition("(")
    name = name.rpartition(".")[0]
    if name.split("::")[0] in _TORCHS:
        return "Write it with other torch operations"
    given, _, made = types.partition("->")
    tensors, outputs = given.count("Tensor"), made.count("Tensor")
    words = [f"{n} {what}{'s' * (n != 1)}" for n, what in ((tensors, "tensor argument"), (outputs, "output"))]
    return (
        "Write it with torch's ordinary operations; or, if it keeps examples independent, say so before the first "
        f'step: decrescendo.clipping.register_rule("{name}", text), where text has the dimensions of its '
        f'{" and ".join(words)} ("nTd,d->nTd": independent along n, mixed along T). Its backward pass needs a rule '
        "for what it calls, too"
    )


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason to refuse a program.

    Args:
        why: what must hold, and what was found.
        operation: the name of the torch operation that mixed rows; empty if none did.
        where: the program's line that called it, ``"file.py:12"``; empty if unknown.
        remedy: what to do.

    >>> print(Refusal("rows must be independent, got a mean over them", "mean", "model.py:3", "Divide by a constant"))
    rows must be independent, got a mean over them. Divide by a constant
    """

    why: str
    operation: str = ""
    where: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.why}. {self.remedy}" if self.remedy else self.why


def refused(found: Refusal) -> UnsupportedModel:
    """The error for a refusal: its text, the line of code as a note, and the refusal itself."""
    error = UnsupportedModel(str(found))
    error.refusal = found
    if found.where:
        error.add_note(f"That operation is called at {found.where}")
    return error


# How refusals begin whose fault is there in a pass over a single row, too.
_OF_ANY_PASS = (
    "no pass may write the data", "a forward pass must not change", "a pass must not depend on how many examples",
    "the losses must depend", "loss(model, batch) must return a tensor", "losses must be floating point",
    "random numbers in a pass", "random numbers of a pass", "a pass must be of its own process",
    "the backward pass must leave .grad", "an embedding must not rescale",
    "every use of a trainable parameter must be in the graph",
)  # fmt: skip


@contextmanager
def naming(way_out: Callable[[], str]) -> Generator[None]:
    """Inside, append ``way_out`` to the remedy of a refusal, unless a pass over a single row has the same
    fault.

    >>> with naming(lambda: "Or pass rows one by one"):
    ...     raise refused(Refusal("rows must be independent, got a mean over them", remedy="Divide by a constant"))
    Traceback (most recent call last):
    decrescendo.errors.UnsupportedModel: rows must be ... over them. Divide by a constant. Or pass rows one by one
    """
    try:
        yield
    except UnsupportedModel as error:
        if not str(error).startswith(_OF_ANY_PASS):
            way = way_out()
            error.args = (f"{error}. {way}",)
            if isinstance(error.refusal, Refusal):
                error.refusal = replace(error.refusal, remedy=f"{error.refusal.remedy}. {way}")
        raise


def refusal(label: Label, of: str, *, hosts: bool = False, where: str = "") -> Refusal:
    """The reason to refuse a loss or a gradient. ``hosts``: NumPy or Python drew random numbers; ``where``:
    the line of code.

    >>> print(refusal(Mixed("several examples are put together", "mean"), "loss"))
    no example's loss may depend on another example, on its position in the batch or on the number of examples, but in
    mean several examples are put together. Let row i of the losses depend on row i of the batch alone
    """
    remedy = "Let row i of the losses depend on row i of the batch alone"
    if isinstance(label, Mixed):
        if label.why == PARTS:
            remedy = f"Write it for all rows of the batch at once, without a loop over them. {_DETECTORS}"
        found = f"in {label.name} {label.why}" if label.name else label.why
        known = _REMEDIES.get(label.name.removesuffix("_"))
        remedy = known or remedy
        if NO_RULE in label.why and known is None:
            remedy = _without_a_rule(label.why.rpartition(NO_RULE)[2])
        if label.why == LAID_ALONG:
            remedy = (
                "Is the batch in the first dimension where the code expects another one (a positional encoding for "
                "sequence-first inputs)? Give the constant size 1 in the dimension of examples"
            )
            remedy = HOSTS if hosts else remedy
    elif isinstance(label, RowLayout):
        found = "its examples are in another dimension, or in another order"
    else:
        found = "it depends on no example"
    why = (
        f"no example's {of} may depend on another example, on its position in the batch or on the number of examples, "
        f"but {found}"
    )
    return Refusal(why, label.name if isinstance(label, Mixed) else "", where, remedy)


def reads_a_number(where: str) -> str:
    """The reason to refuse a pass whose result depends on a number that Python read from the data."""
    return (
        f"the data must not steer the pass, but {where} reads a number from them in Python, and losses depend on it. "
        f'Use tensor operations there; or declare the line: EngineSettings(declared=("{where}",))'
    )
