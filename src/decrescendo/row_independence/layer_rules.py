"""Independence rules of layers and losses: normalisation, convolution, attention, image operations."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from torch import Tensor

from decrescendo.row_independence import indexing
from decrescendo.row_independence.basic_rules import pointwise, reduced, without_dims
from decrescendo.row_independence.labels import (
    LAID_ALONG,
    SUMMED,
    Call,
    Label,
    Mixed,
    Public,
    RowLayout,
    is_data,
)
from decrescendo.row_independence.rule_signatures import Rule, signature


def normalised(call: Call) -> Sequence[Label]:
    """The rule of layer and RMS normalisation, which mix the last dimensions."""
    last = len(call.args["normalized_shape"])
    core = "ABCDEFGH"[:last]
    rest = ",".join(["." + "I" * last] * 2)  # saved statistics: normalised dimensions have size one
    inside = {
        "native_layer_norm": f".{core},{core},{core}->.{core},{rest}",
        "native_layer_norm_backward": f".{core},.{core},.{core},.{core},{core},{core}->.{core},{core},{core}",
        "_fused_rms_norm": f".{core},{core}->.{core},{rest}",
        "_fused_rms_norm_backward": f".{core},.{core},.{core},{core}->.{core},{core}",
    }
    return cast("Sequence[Label]", signature(inside[call.name])(call))


def batch_norm(call: Call) -> Label | Sequence[Label]:
    training = call.args.get("training", call.args.get("train", False))
    forward = not call.name.endswith("backward")
    if training and forward and call.args.get("running_mean") is not None:
        label = call.label(call.args["input"])
        if isinstance(label, RowLayout) and not label.constant:
            return call.mixed("it keeps statistics of the batch")
    n = "N" if training else "n"
    kept = "c,c" if training else "_,_"
    inside = f"{n}c*,c,c,c,c->{n}c*,{kept}" if forward else f"{n}c*,{n}c*,c,c,c,c,c->{n}c*,c,c"
    return signature(inside)(call)


def group_norm(call: Call) -> Label | Sequence[Label]:
    given = call.args["input"]
    if (call.args["N"], call.args["C"]) != tuple(given.shape[:2]):
        return call.mixed("its groups are not parts of one example")
    backward = call.name == "native_group_norm_backward"
    return signature("n*,n*,n*,n*,*->n*,*,*" if backward else "n*,*,*->n*,n*,n*")(call)


def convolution(call: Call) -> Label | Sequence[Label]:
    """The rule of convolution: examples lie in the batch dimension, or in the channels with groups of their own."""
    backward = call.name == "convolution_backward"
    given, weight = call.args["input"], call.args["weight"]
    label = call.label(given)
    if not isinstance(label, RowLayout) or label.dim == 0:
        return signature("n*,n*,*->n*,*,*" if backward else "n*,*,*->n*")(call)
    groups, transposed = call.args["groups"], call.args["transposed"]
    if label.dim > 1 and _is_single(call, label.dim):
        beside = [tensor for tensor in (given, call.args.get("grad_output")) if tensor is not None]
        if not indexing.same_layout(call, beside, label, given.dim()):
            return call.mixed(LAID_ALONG)
        return [label, call.mixed(SUMMED), call.mixed(SUMMED)] if backward else label
    if label.dim != 1:
        return call.mixed(SUMMED)
    own = given.shape[1] // groups
    outputs = weight.shape[1] if transposed else weight.shape[0] // groups
    if label.outer != 1 or label.inner % own:
        return call.mixed("its groups do not keep examples independent")
    inner = label.inner // own * outputs
    filters = RowLayout(0, label.inner if transposed else inner, 1, label.owners)
    found, after = call.label(weight), RowLayout(1, inner, 1, label.owners)
    if isinstance(found, Mixed) or (isinstance(found, RowLayout) and not filters.same(found)):
        return call.mixed("its filters are not each example's own")
    bias = call.args.get("bias")
    if not indexing.same_layout(call, [weight], filters, weight.dim()) or (
        bias is not None and not indexing.same_layout(call, [bias], RowLayout(0, inner, 1, label.owners), 1)
    ):
        return call.mixed(LAID_ALONG)
    if not backward:
        return after
    arrived = call.label(call.args["grad_output"])
    if isinstance(arrived, Mixed) or (isinstance(arrived, RowLayout) and not after.same(arrived)):
        return call.mixed(SUMMED)
    if not indexing.same_layout(call, [call.args["grad_output"]], after, call.args["grad_output"].dim()):
        return call.mixed(LAID_ALONG)
    own_filters = filters if isinstance(found, RowLayout) else call.mixed(SUMMED)
    return [
        label,
        own_filters,
        RowLayout(0, inner, 1, label.owners) if isinstance(found, RowLayout) else own_filters,
    ]


def _is_single(call: Call, dim: int) -> bool:
    """Whether a convolution does not mix along a dimension: its kernel has size one there."""
    at, one = dim - 2, {"stride": 1, "padding": 0, "output_padding": 0}

    def entry(name: str) -> int:
        values = cast("list[int]", call.args[name])
        return values[at if len(values) > 1 else 0]

    data = [t for t in call.tensors if t is not None and isinstance(call.label(t), RowLayout | Mixed)]
    alone = all(t is call.args["input"] or t is call.args.get("grad_output") for t in data)
    same = [call.label(t) for t in data if isinstance(call.label(t), RowLayout)]
    together = len(same) == len(data) and all(label == same[0] for label in same)
    single = call.args["weight"].shape[dim] == 1 and all(entry(name) == size for name, size in one.items())
    return alone and together and single


def ctc(call: Call) -> Label | Sequence[Label]:
    lengths = ",n,n" if isinstance(call.args["input_lengths"], Tensor) else ""
    if call.args["targets"].dim() < 2:
        return call.mixed("where an example's targets begin depends on the lengths of others")
    backward = call.name == "_ctc_loss_backward"
    return signature(f"n,TnC,n*{lengths},n,n*->TnC" if backward else f"TnC,n*{lengths}->n,n*")(call)


QUERIES = "bhle,bhse,bhsv,bhls->bhlv,bhl*"


def attention(text: str) -> Rule:
    """The rule of attention: queries are independent, unless a mask by position selects each query's keys."""
    return lambda call: signature(text.replace("l", "L").replace("s", "S") if call.args.get("is_causal") else text)(
        call
    )


def least_squares(call: Call) -> Label | Sequence[Label]:
    """The rule of `lstsq`: solutions are independent per example. Whether residuals exist depends on all
    matrices, except for drivers that return none."""
    if call.args.get("driver") in ("gelss", "gelsd"):
        return call.mixed("the shape of the residuals depends on the ranks of all matrices")
    found = cast("Sequence[Label]", signature(".AB,.Ck->.Bk,.k,.,.A")(call))
    made = zip(found, cast("Sequence[Tensor]", call.outputs), strict=True)
    return [label if tensor.numel() else Public.FILL for label, tensor in made]


def chosen_loss(inner: Rule) -> Rule:
    """A loss per entry; its mean or sum over all entries mixes the examples."""
    return lambda call: inner(call) if call.args.get("reduction", 1) == 0 else reduced()(call)


def loss_backward(call: Call) -> Label:
    label = pointwise(call)
    if call.args.get("reduction", 1) == 1 and isinstance(label, RowLayout):
        return call.mixed("a mean over the batch depends on the number of examples")
    return label


def mean_backward(rule: Rule) -> Rule:
    """The gradient of a mean loss, whose kernel divides by the number of examples."""

    def backward(call: Call) -> Label | Sequence[Label]:
        if call.args.get("reduction", 1) == 1 and holds_rows(call):
            return call.mixed("a mean over the batch depends on the number of examples")
        return rule(call)

    return backward


def holds_rows(call: Call) -> bool:
    labels = [call.label(tensor) for tensor in call.tensors if tensor is not None]
    return any(isinstance(label, RowLayout) for label in labels)


def nll(call: Call) -> Label | Sequence[Label]:
    two = "*" if "2d" in call.name else ""
    reduction = call.args["reduction"]
    if call.name.endswith("backward"):
        grad = f"n{two}" if reduction == 0 else ""
        return signature(f"{grad},nC{two},n{two},C,{'' if reduction == 1 else '_'}->nC{two}")(call)
    return signature(f"nC{two},n{two},C->n{two},_" if reduction == 0 else f"nC{two},n{two},C->,")(call)


def solve(call: Call) -> Label | Sequence[Label]:
    """The rule of `solve`: examples lie in leading dimensions, or in columns of the right-hand side if the matrix
    is public."""
    left = call.args.get("left", True)
    right = ".Bk" if left else ".kB"
    if call.name == "linalg_solve_triangular":
        return signature(f".AB,{right}->{right}")(call)
    if call.name == "linalg_lu_solve":
        return signature(f".AB,.A,{right}->{right}")(call)
    if call.args["B"].shape in (call.args["A"].shape[:-1], call.args["A"].shape[-1:]):
        right = ".B"  # vectors
    return signature(f".AB,{right}->{right},.AB,.A,.")(call)


def trilinear(call: Call) -> Label:
    """The rule of `_trilinear`: three factors, expanded by new dimensions, multiplied, summed over some of them."""
    factors: list[Tensor] = []
    for key, spread in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        factor = cast("Tensor", call.args[key])
        for dim in sorted(call.args[spread]):
            factor = factor.unsqueeze(dim)
        factors.append(factor)
    label = call.joined(factors, factors[0].dim())
    if isinstance(label, RowLayout):
        return without_dims(call, label, {dim % factors[0].dim() for dim in call.args["sumdim"]})
    return label if isinstance(label, Mixed) else Public.ANY


def images(sides: int, text: str) -> Rule:
    """The rule ``text`` for images: channels and ``sides`` sides, with at most one dimension of examples first.
    Inputs with other dimensions are refused, though some operations accept them."""

    def rule(call: Call) -> Label | Sequence[Label]:
        if any(tensor is not None and tensor.dim() not in (sides + 1, sides + 2) for tensor in call.tensors):
            return call.mixed("it has other dimensions than images have")
        return inner(call)

    inner = signature(text)
    return rule


def distances_back(call: Call) -> Label | Sequence[Label]:
    """Refuses a gradient of another shape than the distances: the kernel would read memory beside its
    arguments."""
    shape = {name: cast("Tensor", call.args[name]).shape for name in ("grad", "x1", "x2", "cdist")}
    matches = shape["grad"] == shape["cdist"] and shape["x1"][-1:] == shape["x2"][-1:]
    if not matches or shape["grad"][-2:] != shape["x1"][-2:-1] + shape["x2"][-2:-1]:
        return call.mixed("arguments are not of the shapes of distances")
    return signature(".pr,.pm,.rm,.pr->.pm")(call)


def quantised(call: Call) -> Label:
    """The rule of quantisation with one scale and one zero point for all rows."""
    if any(is_data(call.label(cast("Tensor", call.args[name]))) for name in ("scale", "zero_point")):
        return call.mixed(SUMMED)
    return pointwise(replace(call, tensors=call.tensors[:1]))
