"""What each operation does to where the examples are: the tables, and the door for operations of others.

Longer than most files: most of it is a table.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from decrescendo.errors import InvalidValue
from decrescendo.row_independence import indexing
from decrescendo.row_independence import packed_sequences as packed
from decrescendo.row_independence.labels import (
    LAID_ALONG,
    SUMMED,
    Call,
    Label,
    Mixed,
    Public,
    RowLayout,
    is_data,
    is_fixed,
)
from decrescendo.row_independence.rule_signatures import Rule, signature


def pointwise(call: Call) -> Label:
    """Every entry is made from those that broadcasting puts at its place."""
    return call.joined(call.tensors, call.dims)


def fill(call: Call) -> Label:
    """One number everywhere, whatever the arguments are; as long as the batch where it is made like rows of it."""
    return _made_like(call, Public.FILL)


def drawn(call: Call) -> Label:
    """Independent random numbers of one law, which a tensor may bound (`randint_like`)."""
    bound = call.args.get("high")
    if isinstance(bound, Tensor) and is_data(call.label(bound)):
        return call.mixed("random numbers are bounded by a number of an example's")
    like = call.args.get("self")
    own = call.label(like) if isinstance(like, Tensor) else None
    # Laid out as the examples are, or written over them: each row's numbers are its own.
    return (
        own
        if own is not None and is_data(own) and isinstance(own, RowLayout)
        else _made_like(call, Public.RANDOM)
    )


def _made_like(call: Call, label: Public) -> Label:
    like = call.args.get("self")
    own = call.label(like) if isinstance(like, Tensor) and call.name.endswith("_like") else None
    rows = isinstance(own, RowLayout) and (label is Public.FILL or own.owners is not None)
    return own if own is not None and (rows or (isinstance(own, Mixed) and own.counted)) else label


def along(*names: str) -> Rule:
    """Mixes entries along the dimensions that an argument names (all of them, where it names none)."""

    def rule(call: Call) -> Label:
        dims = call.dims
        label = call.joined(call.tensors, dims)
        named = _dims(call, names, dims)
        return call.mixed(SUMMED) if isinstance(label, RowLayout) and label.dim in named else label

    return rule


def reduced(*names: str) -> Rule:
    """Puts together what lies along the dimensions that an argument names (all of them, where it names none)."""

    def rule(call: Call) -> Label:
        (tensor, *_) = (t for t in call.tensors if t is not None)
        label, named = call.joined(call.tensors, tensor.dim()), _dims(call, names, tensor.dim())
        if not isinstance(label, RowLayout):
            return label
        return label if call.args.get("keepdim") and label.dim not in named else _without(call, label, named)

    return rule


def _without(call: Call, place: RowLayout, dims: Collection[int]) -> Label:
    """Where examples are that were there before these dimensions were summed over."""
    moved = place.moved(place.dim - sum(dim < place.dim for dim in dims))
    return call.mixed(SUMMED) if place.dim in dims else moved


def _dims(call: Call, names: Sequence[str], dims: int) -> set[int]:
    given = next((call.args[name] for name in names if call.args.get(name) is not None), None)
    if given is None or given == []:
        return set(range(dims))
    listed = cast("list[int]", given if isinstance(given, (list, tuple)) else [given])
    return {dim % max(dims, 1) for dim in listed}


def _either(first: Rule, second: Rule) -> Rule:
    """``max`` and its like: of two tensors entry by entry, or of one along a dimension."""
    return lambda call: first(call) if "other" in call.args else second(call)


def _normalised(call: Call) -> Sequence[Label]:
    """Layer and RMS normalisation: over the last dimensions."""
    last = len(call.args["normalized_shape"])
    core = "ABCDEFGH"[:last]
    rest = ",".join(["." + "I" * last] * 2)  # what was kept: the same with ones
    inside = {
        "native_layer_norm": f".{core},{core},{core}->.{core},{rest}",
        "native_layer_norm_backward": f".{core},.{core},.{core},.{core},{core},{core}->.{core},{core},{core}",
        "_fused_rms_norm": f".{core},{core}->.{core},{rest}",
        "_fused_rms_norm_backward": f".{core},.{core},.{core},{core}->.{core},{core}",
    }
    return cast("Sequence[Label]", signature(inside[call.name])(call))


def _batch_norm(call: Call) -> Label | Sequence[Label]:
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


def _group_norm(call: Call) -> Label | Sequence[Label]:
    given = call.args["input"]
    if (call.args["N"], call.args["C"]) != tuple(given.shape[:2]):
        return call.mixed("its groups are not parts of one example")
    backward = call.name == "native_group_norm_backward"
    return signature("n*,n*,n*,n*,*->n*,*,*" if backward else "n*,*,*->n*,n*,n*")(call)


def _convolution(call: Call) -> Label | Sequence[Label]:
    """Examples in the first dimension; or in the channels, each with groups of its own."""
    backward = call.name == "convolution_backward"
    given, weight = call.args["input"], call.args["weight"]
    label = call.label(given)
    if not isinstance(label, RowLayout) or label.dim == 0:
        return signature("n*,n*,*->n*,*,*" if backward else "n*,*,*->n*")(call)
    groups, transposed = call.args["groups"], call.args["transposed"]
    if label.dim > 1 and _is_single(call, label.dim):
        beside = [tensor for tensor in (given, call.args.get("grad_output")) if tensor is not None]
        if not indexing.fits(call, beside, label, given.dim()):
            return call.mixed(LAID_ALONG)
        return [label, call.mixed(SUMMED), call.mixed(SUMMED)] if backward else label
    if label.dim != 1:
        return call.mixed(SUMMED)
    own = given.shape[1] // groups
    outputs = weight.shape[1] if transposed else weight.shape[0] // groups
    if label.outer != 1 or label.inner % own:
        return call.mixed("its groups do not keep the examples apart")
    inner = label.inner // own * outputs
    filters = RowLayout(0, label.inner if transposed else inner, 1, label.owners)
    found, after = call.label(weight), RowLayout(1, inner, 1, label.owners)
    if isinstance(found, Mixed) or (isinstance(found, RowLayout) and not filters.same(found)):
        return call.mixed("its filters are not each example's own")
    bias = call.args.get("bias")
    if not indexing.fits(call, [weight], filters, weight.dim()) or (
        bias is not None and not indexing.fits(call, [bias], RowLayout(0, inner, 1, label.owners), 1)
    ):
        return call.mixed(LAID_ALONG)
    if not backward:
        return after
    arrived = call.label(call.args["grad_output"])
    if isinstance(arrived, Mixed) or (isinstance(arrived, RowLayout) and not after.same(arrived)):
        return call.mixed(SUMMED)
    if not indexing.fits(call, [call.args["grad_output"]], after, call.args["grad_output"].dim()):
        return call.mixed(LAID_ALONG)
    own_filters = filters if isinstance(found, RowLayout) else call.mixed(SUMMED)
    return [
        label,
        own_filters,
        RowLayout(0, inner, 1, label.owners) if isinstance(found, RowLayout) else own_filters,
    ]


def _is_single(call: Call, dim: int) -> bool:
    """Whether a convolution keeps the places along a dimension apart: its kernel has size one there."""
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


def _diag_embed(call: Call) -> Label:
    label, dims = call.label(call.args["self"]), call.dims
    last = {call.args["dim1"] % dims, call.args["dim2"] % dims} == {dims - 1, dims - 2}
    if not isinstance(label, RowLayout):
        return _widened(label)
    return label if last and label.dim < dims - 2 else call.mixed(SUMMED)


def _ctc(call: Call) -> Label | Sequence[Label]:
    lengths = ",n,n" if isinstance(call.args["input_lengths"], Tensor) else ""
    if call.args["targets"].dim() < 2:
        return call.mixed("where an example's targets begin depends on the lengths of others")
    backward = call.name == "_ctc_loss_backward"
    return signature(f"n,TnC,n*{lengths},n,n*->TnC" if backward else f"TnC,n*{lengths}->n,n*")(call)


_QUERIES = "bhle,bhse,bhsv,bhls->bhlv,bhl*"
_ATTENTIONS = {
    "flash_attention_for_cpu": (_QUERIES, "bhlv,bhle,bhse,bhsv,bhlv,bhl,bhls->bhle,bhse,bhsv"),
    "flash_attention": ("bhle,bhse,bhsv->bhlv,bhl", "bhlv,bhle,bhse,bhsv,bhlv,bhl,_,_,_,_->bhle,bhse,bhsv"),
    "efficient_attention": (_QUERIES, "bhlv,bhle,bhse,bhsv,bhls,bhlv,bhl,_,_->bhle,bhse,bhsv,bhls"),
    "cudnn_attention": (_QUERIES, "bhlv,bhle,bhse,bhsv,bhlv,bhl*,_,_,bhls,_,_->bhle,bhse,bhsv"),
}  # fmt: skip


def _attention(text: str) -> Rule:
    """Queries are apart, but not where which keys each of them sees follows from its place."""
    return lambda call: signature(
        text.replace("l", "L").replace("s", "S") if call.args.get("is_causal") else text
    )(call)


def _least_squares(call: Call) -> Label | Sequence[Label]:
    """Of solutions; whether there are residuals at all depends on every matrix, but for the drivers that make none."""
    if call.args.get("driver") in ("gelss", "gelsd"):
        return call.mixed("the shape of the residuals depends on the ranks of all matrices")
    found = cast("Sequence[Label]", signature(".AB,.Ck->.Bk,.k,.,.A")(call))
    made = zip(found, cast("Sequence[Tensor]", call.outputs), strict=True)
    return [label if tensor.numel() else Public.FILL for label, tensor in made]


def _concatenated(call: Call) -> Label:
    tensors = [t for t in cast("list[Tensor]", call.args["tensors"]) if t.numel()]
    dims = call.dims
    labels = [call.label(t) for t in tensors]
    at = call.args.get("dim", 0) % dims
    if call.name == "stack":
        label = call.joined(tensors, dims - 1)
        return label.moved(label.dim + (label.dim >= at)) if isinstance(label, RowLayout) else label
    there = [label for label in labels if isinstance(label, RowLayout) and label.dim == at]
    if not there:
        if any(isinstance(label, Mixed) for label in labels):
            return next(label for label in labels if isinstance(label, Mixed))
        return _side_by_side(call, tensors, labels)
    first = there[0]
    same = all(label.inner == first.inner and label.owners is first.owners for label in there)
    if len(there) < len(labels) or not same or first.owners is not None or any(x.constant for x in there):
        return call.mixed("rows are added to the batch")
    return RowLayout(at, first.inner, sum(label.outer for label in there))


def _side_by_side(call: Call, tensors: Sequence[Tensor], labels: Sequence[Label]) -> Label:
    places = [label for label in labels if isinstance(label, RowLayout)]
    rows = [place for place in places if not place.constant] or places
    if not rows:
        kinds = set(labels)
        return Public.RANDOM if kinds == {Public.RANDOM} else Public.ANY
    if not all(map(rows[0].same, rows)):
        return call.mixed("examples that do not lie at the same places are put together")
    if rows[0].constant:
        return rows[0]
    uniform = all(
        call.uniform(t, rows[0]) for t, label in zip(tensors, labels, strict=True) if is_fixed(label)
    )
    return rows[0] if uniform else call.mixed(LAID_ALONG)


def _repeated(call: Call) -> Label:
    label = call.label(call.args["self"])
    if not isinstance(label, RowLayout):
        return label
    repeats = cast("list[int]", call.args["repeats"])
    dim = label.dim + len(repeats) - call.args["self"].dim()
    return label._replace(dim=dim, outer=label.outer * repeats[dim])


def _padded(call: Call) -> Label:
    label, dims = call.label(call.args["self"]), call.dims
    pads = cast("list[int]", call.args["pad"])
    widened = {dims - 1 - at // 2 for at, width in enumerate(pads) if width}
    return (
        call.mixed("rows are added to the batch")
        if isinstance(label, RowLayout) and label.dim in widened
        else label
    )


def _set_back(view: Callable[..., Tensor]) -> Rule:
    """The gradient of a view, set into zeros: the examples are where the view shows them as the gradient has them."""

    def rule(call: Call) -> Label:
        given, whole = cast("Tensor", call.tensors[0]), cast("Tensor", call.outputs[0])
        label = call.label(given)
        if not isinstance(label, RowLayout):
            return _widened(label)
        numbers = [value for value in call.args.values() if isinstance(value, int)]
        shown = view(whole, *numbers)
        if shown.shape != given.shape:
            return call.mixed("a gradient is spread over several places")
        period = label.inner * call.units(label)
        if call.name == "slice_backward" and numbers[0] % whole.dim() == label.dim and numbers[3] == 1:
            rounds, rest = divmod(whole.shape[label.dim], period)  # some rounds over all examples, of several
            start = numbers[1] % whole.shape[label.dim] if numbers[1] < whole.shape[label.dim] else 0
            if not rest and start % period == 0:
                return label._replace(outer=rounds)
        seen = shown.shape[label.dim], shown.stride(label.dim)
        there = (label.moved(d) for d in range(whole.dim()) if seen == (whole.shape[d], whole.stride(d)))
        return next(there, call.mixed("a part of the batch is taken"))

    return rule


def _widened(label: Label) -> Label:
    """Of numbers set into zeros: not the same everywhere any more."""
    return Public.ANY if isinstance(label, Public) else label


def _chosen_loss(inner: Rule) -> Rule:
    """A loss for each entry; with a mean or sum over all of them, examples are put together."""
    return lambda call: inner(call) if call.args.get("reduction", 1) == 0 else reduced()(call)


def _loss_backward(call: Call) -> Label:
    label = pointwise(call)
    if call.args.get("reduction", 1) == 1 and isinstance(label, RowLayout):
        return call.mixed("a mean over the batch depends on the number of examples")
    return label


def _mean_backward(rule: Rule) -> Rule:
    """The gradient of a loss whose kernel divides by the number of examples itself, where the loss is their mean."""

    def backward(call: Call) -> Label | Sequence[Label]:
        if call.args.get("reduction", 1) == 1 and _holds_rows(call):
            return call.mixed("a mean over the batch depends on the number of examples")
        return rule(call)

    return backward


def _holds_rows(call: Call) -> bool:
    labels = [call.label(tensor) for tensor in call.tensors if tensor is not None]
    return any(isinstance(label, RowLayout) for label in labels)


def _isin(call: Call) -> Label | Sequence[Label]:
    """Each id is looked up by itself; but where all are said to be different, they are sorted together."""
    if call.args.get("assume_unique") and _holds_rows(call):
        return call.mixed("ids that are said to be unique are compared with those of other examples")
    return signature(".,A->.")(call)


def _nll(call: Call) -> Label | Sequence[Label]:
    two = "*" if "2d" in call.name else ""
    reduction = call.args["reduction"]
    if call.name.endswith("backward"):
        grad = f"n{two}" if reduction == 0 else ""
        return signature(f"{grad},nC{two},n{two},C,{'' if reduction == 1 else '_'}->nC{two}")(call)
    return signature(f"nC{two},n{two},C->n{two},_" if reduction == 0 else f"nC{two},n{two},C->,")(call)


def _solve(call: Call) -> Label | Sequence[Label]:
    """Examples in leading dimensions; or in the columns of what is solved for, with a matrix that is public."""
    left = call.args.get("left", True)
    right = ".Bk" if left else ".kB"
    if call.name == "linalg_solve_triangular":
        return signature(f".AB,{right}->{right}")(call)
    if call.name == "linalg_lu_solve":
        return signature(f".AB,.A,{right}->{right}")(call)
    if call.args["B"].shape in (call.args["A"].shape[:-1], call.args["A"].shape[-1:]):
        right = ".B"  # vectors
    return signature(f".AB,{right}->{right},.AB,.A,.")(call)


def _trilinear(call: Call) -> Label:
    """Three factors, spread out by new dimensions, multiplied and summed over some."""
    factors: list[Tensor] = []
    for key, spread in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        factor = cast("Tensor", call.args[key])
        for dim in sorted(call.args[spread]):
            factor = factor.unsqueeze(dim)
        factors.append(factor)
    label = call.joined(factors, factors[0].dim())
    if isinstance(label, RowLayout):
        return _without(call, label, {dim % factors[0].dim() for dim in call.args["sumdim"]})
    return label if isinstance(label, Mixed) else Public.ANY


def _images(sides: int, text: str) -> Rule:
    """Channels and sides, with examples before them or none: some operations take more dimensions, and for others."""

    def rule(call: Call) -> Label | Sequence[Label]:
        if any(tensor is not None and tensor.dim() not in (sides + 1, sides + 2) for tensor in call.tensors):
            return call.mixed("it has other dimensions than images have")
        return inner(call)

    inner = signature(text)
    return rule


def _distances_back(call: Call) -> Label | Sequence[Label]:
    """Of other shapes than the distances' it would read what lies beside its arguments in memory."""
    shape = {name: cast("Tensor", call.args[name]).shape for name in ("grad", "x1", "x2", "cdist")}
    fits = shape["grad"] == shape["cdist"] and shape["x1"][-1:] == shape["x2"][-1:]
    if not fits or shape["grad"][-2:] != shape["x1"][-2:-1] + shape["x2"][-2:-1]:
        return call.mixed("arguments are not of the shapes of distances")
    return signature(".pr,.pm,.rm,.pr->.pm")(call)


def _quantised(call: Call) -> Label:
    """With one scale and one zero point for all, however many are given."""
    if any(is_data(call.label(cast("Tensor", call.args[name]))) for name in ("scale", "zero_point")):
        return call.mixed(SUMMED)
    return pointwise(replace(call, tensors=call.tensors[:1]))


def _searched(call: Call) -> Label | Sequence[Label]:
    first = call.args["sorted_sequence"]
    return signature("A,.->." if first.dim() == 1 else ".A,.B->.B")(call)


# Beyond those that torch tags as pointwise.
_POINTWISE = """
softplus_backward hardswish hardswish_backward hardtanh_backward log_sigmoid_forward log_sigmoid_backward
hardsigmoid_backward leaky_relu_backward elu_backward _to_copy copy copy_ clone contiguous fill masked_fill floor_divide
_prelu_kernel _prelu_kernel_backward native_dropout bernoulli
polar complex angle hardshrink_backward softshrink_backward
celu_backward mish_backward logit_backward huber softplus rsub fmod remainder where _masked_scale
native_dropout_backward leaky_relu elu hardtanh
normal poisson binomial _conj_physical mvlgamma special_zeta fused_dropout lift lift_fresh_copy detach_copy
fake_quantize_per_tensor_affine_cachemask fake_quantize_per_tensor_affine_cachemask_backward
_unsafe_view alias _test_check_tensor isclose
_conj resolve_conj _neg_view zero clamp_min clamp_max rrelu_with_noise rrelu_with_noise_backward _standard_gamma
"""
_FILLS = """
zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_empty_strided
empty_strided scalar_tensor zero empty_permuted _efficientzerotensor
"""
_DRAWS = """
rand randn randint rand_like randn_like randint_like uniform normal_ uniform_ random random_ exponential exponential_
geometric geometric_ log_normal log_normal_ cauchy cauchy_
"""
_ALONG = """
_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data cumsum cumprod logcumsumexp cummax
cummin flip roll glu_backward _fft_c2c linalg_cross cross
"""
_REDUCED = """
sum mean nansum prod amax amin argmax argmin any all var std var_mean std_mean logsumexp norm linalg_vector_norm
count_nonzero median nanmedian kthvalue mode max min aminmax
"""
_POOLED = {
    "max_pool2d_with_indices": 2, "max_pool3d_with_indices": 3, "avg_pool2d": 2, "avg_pool3d": 3, "max_unpool2d": 2,
    "max_unpool3d": 3, "_adaptive_avg_pool2d": 2, "_adaptive_avg_pool3d": 3, "adaptive_max_pool2d": 2,
    "adaptive_max_pool3d": 3, "avg_pool1d": 1, "reflection_pad1d": 1, "reflection_pad2d": 2, "reflection_pad3d": 3,
    "replication_pad1d": 1, "replication_pad2d": 2, "replication_pad3d": 3, "upsample_nearest1d": 1,
    "_upsample_nearest_exact1d": 1, "upsample_linear1d": 1, "upsample_nearest2d": 2, "_upsample_nearest_exact2d": 2,
    "upsample_bilinear2d": 2, "_upsample_bilinear2d_aa": 2, "upsample_bicubic2d": 2, "_upsample_bicubic2d_aa": 2,
    "upsample_nearest3d": 3, "_upsample_nearest_exact3d": 3, "upsample_trilinear3d": 3,
}  # fmt: skip
_SIGNATURES = {
    "mm": "ik,kj->ij", "addmm": "+,ik,kj->ij", "bmm": "bik,bkj->bij", "baddbmm": "+,bik,bkj->bij", "mv": "ik,k->i",
    "addmv": "+,ik,k->i", "dot": "k,k->", "vdot": "k,k->", "addr": "+,i,j->ij", "linear": ".k,ok,o->.o",
    "addbmm": "+,bik,bkj->ij", "_addmm_activation": "+,ik,kj->ij",
    "_int_mm": "ik,kj->ij", "_scaled_mm": "ik,kj,ix,yj,j,*->ij", "_weight_int8pack_mm": "ik,*,O->iO",
    "_weight_int4pack_mm": "ik,*,*->iO", "_weight_int4pack_mm_for_cpu": "ik,*,*->iO",
    "_cdist_forward": ".pm,.rm->.pr", "_euclidean_dist": ".pm,.rm->.pr",
    "embedding": "Vd,.->.d", "bucketize": ".,A->.", "take": "*,.->.", "multinomial": ".C->.S",
    "_sample_dirichlet": ".C->.C",
    "grid_sampler_2d": "nc*,n*->nc*", "grid_sampler_3d": "nc*,n*->nc*",
    "cudnn_grid_sampler": "nc*,n*->nc*", "cudnn_grid_sampler_backward": "nc*,n*,nc*->nc*,n*",
    "grid_sampler_2d_backward": "nc*,nc*,n*->nc*,n*", "grid_sampler_3d_backward": "nc*,nc*,n*->nc*,n*",
    "im2col": "n*->n*", "col2im": "n*->n*", "native_channel_shuffle": "n*->n*", "channel_shuffle": "n*->n*",
    "pixel_shuffle": ".CAB->.CAB", "pixel_unshuffle": ".CAB->.CAB", "tril": ".AB->.AB", "triu": ".AB->.AB",
    "fractional_max_pool2d": ".AB,.C->.AB,.AB", "fractional_max_pool2d_backward": ".AB,.AB,.AB->.AB",
    "fractional_max_pool3d": ".ABC,.D->.ABC,.ABC", "fractional_max_pool3d_backward": ".ABC,.ABC,.ABC->.ABC",
    "affine_grid_generator": "n*->n*", "affine_grid_generator_backward": "n*->n*",
    "multi_margin_loss": "nC,n,C->n", "multilabel_margin_loss_forward": "nC,nC->n,nC",
    "linalg_inv_ex": ".AB->.AB,.", "linalg_cholesky_ex": ".AB->.AB,.", "_linalg_det": ".AB->.,.AB,.A",
    "_linalg_slogdet": ".AB->.,.,.AB,.A", "_linalg_eigh": ".AB->.A,.AB", "linalg_eig": ".AB->.A,.AB",
    "_linalg_svd": ".AB->.AB,.A,.AB", "linalg_qr": ".AB->.AB,.AB", "linalg_lu_factor_ex": ".AB->.AB,.A,.",
    "linalg_householder_product": ".AB,.A->.AB", "linalg_matrix_exp": ".AB->.AB", "linalg_pinv": ".AB->.BA",
    "linalg_lu": ".AB->.AB,.AB,.AB", "linalg_polar": ".AB->.AB,.AB", "linalg_matrix_sqrth": ".AB->.AB",
    "cholesky_inverse": ".AB->.AB", "cholesky_solve": ".Ak,.AB->.Ak", "cholesky": ".AB->.AB",
}  # fmt: skip

_mixing_last = {
    **{
        name: _images(k, f".{'ABC'[:k]},.{'ABC'[:k]}->.{'ABC'[:k]},.{'ABC'[:k]}")
        for name, k in _POOLED.items()
    },
    **{
        f"{name}_backward": _images(k, ",".join([f".{'ABC'[:k]}"] * 3) + f"->.{'ABC'[:k]}")
        for name, k in _POOLED.items()
    },
}
RULES: dict[str, Rule] = {
    **dict.fromkeys(_POINTWISE.split(), pointwise), **dict.fromkeys(_FILLS.split(), fill),
    **dict.fromkeys(_DRAWS.split(), drawn), **dict.fromkeys(_ALONG.split(), along("dim", "dims")),
    **dict.fromkeys(_REDUCED.split(), _either(pointwise, reduced("dim"))),
    **_mixing_last, **{name: signature(text) for name, text in _SIGNATURES.items()},
    "topk": along("dim"), "glu": along("dim"), "_fft_r2c": along("dim"), "_fft_c2r": along("dim"),
    "native_layer_norm": _normalised, "native_layer_norm_backward": _normalised, "_fused_rms_norm": _normalised,
    "_fused_rms_norm_backward": _normalised,
    "native_group_norm": _group_norm, "native_group_norm_backward": _group_norm,
    "native_batch_norm": _batch_norm, "native_batch_norm_backward": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "cudnn_batch_norm": _batch_norm, "_native_batch_norm_legit_no_training": _batch_norm,
    "convolution": _convolution, "convolution_backward": _convolution,
    "cat": _concatenated, "stack": _concatenated, "repeat": _repeated, "constant_pad_nd": _padded,
    "select_backward": _set_back(torch.select), "slice_backward": _set_back(torch.ops.aten.slice.Tensor),
    "diagonal_backward": _set_back(torch.diagonal), "unfold_backward": _set_back(Tensor.unfold),
    **{
        f"_scaled_dot_product_{name}{tail}": _attention(text)
        for name, texts in _ATTENTIONS.items()
        for tail, text in zip(("", "_backward"), texts, strict=True)
    },
    "linalg_lstsq": _least_squares, "diag_embed": _diag_embed, "_ctc_loss": _ctc, "_ctc_loss_backward": _ctc,
    "_cudnn_ctc_loss": _ctc,
    "_fake_quantize_learnable_per_tensor_affine": _quantised, "_cdist_backward": _distances_back,
    "_trilinear": _trilinear, "searchsorted": _searched,
    **dict.fromkeys(
        ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss",
         "binary_cross_entropy_with_logits"), _chosen_loss(pointwise)
    ),
    **dict.fromkeys(
        ("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "binary_cross_entropy_backward",
         "soft_margin_loss_backward"), _loss_backward
    ),
    "multi_margin_loss_backward": _mean_backward(signature("n,nC,n,C->nC")),
    "multilabel_margin_loss_backward": _mean_backward(signature("n,nC,nC,nC->nC")), "isin": _isin,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward", "nll_loss_backward", "nll_loss2d_backward"), _nll),
    **dict.fromkeys(("_linalg_solve_ex", "linalg_solve_triangular", "linalg_lu_solve"), _solve),
    **indexing.RULES, **packed.RULES,
}  # fmt: skip

# They look at values where `Call.uniform` does not say so; all other rules see shapes and labels alone.
BY_VALUE = frozenset((*indexing.RULES.values(), *packed.RULES.values()))


def register_rule(operation: str, text: str) -> None:
    """Tell the proof how an operation of yours treats the examples.

    Args:
        operation: its full name, ``"namespace::name"``.
        text: the dimensions of its tensor arguments and outputs, in order. Examples along a dimension that a lower-case
            letter names stay apart, and are found along the dimension of that name in the outputs. A capital letter,
            or ``*`` for any number of dimensions, says that the operation mixes along it; ``.`` stands for leading
            dimensions that broadcast; ``+`` for an argument that broadcasts with the first output.

    What is said here is believed, not checked: every run that meets the operation lists it among its assumptions. The
    last text holds, from the next pass on also in engines made before: what they accepted by another one is checked
    anew.

    Raises:
        InvalidValue: a name without a namespace, one of torch's own, or a text without an arrow.

    >>> register_rule("mylib::gated_scan", "nTd,nTd,d->nTd")
    """
    namespace, _, name = operation.partition("::")
    if not name or namespace in ("aten", "prims") or text.count("->") != 1:
        raise InvalidValue(
            'a rule must be for an operation of your own, "namespace::name", with a text like "nTd,d->nTd", got '
            f"operation={operation!r}, text={text!r}"
        )
    if _TEXTS.get(operation) != text:
        DECLARED[operation], _TEXTS[operation] = signature(text), text
        _CHANGES.append(operation)


DECLARED: dict[str, Rule] = {}
_TEXTS: dict[str, str] = {}
_CHANGES: list[str] = []


def declared_changes() -> int:
    """How often `register_rule` has said something new, in this process."""
    return len(_CHANGES)
