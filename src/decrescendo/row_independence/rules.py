"""The tables of independence rules, one per torch operation; and `register_rule` for custom operations."""

import torch
from torch import Tensor

from decrescendo.errors import InvalidValue
from decrescendo.row_independence import indexing
from decrescendo.row_independence import packed_sequences as packed
from decrescendo.row_independence.basic_rules import along, drawn, either, fill, pointwise, reduced
from decrescendo.row_independence.joining_rules import (
    concatenated,
    diag_embed,
    isin,
    padded,
    repeated,
    searched,
    set_back,
)
from decrescendo.row_independence.layer_rules import (
    QUERIES,
    attention,
    batch_norm,
    chosen_loss,
    convolution,
    ctc,
    distances_back,
    group_norm,
    images,
    least_squares,
    loss_backward,
    mean_backward,
    nll,
    normalised,
    quantised,
    solve,
    trilinear,
)
from decrescendo.row_independence.rule_signatures import Rule, signature

_ATTENTIONS = {
    "flash_attention_for_cpu": (QUERIES, "bhlv,bhle,bhse,bhsv,bhlv,bhl,bhls->bhle,bhse,bhsv"),
    "flash_attention": ("bhle,bhse,bhsv->bhlv,bhl", "bhlv,bhle,bhse,bhsv,bhlv,bhl,_,_,_,_->bhle,bhse,bhsv"),
    "efficient_attention": (QUERIES, "bhlv,bhle,bhse,bhsv,bhls,bhlv,bhl,_,_->bhle,bhse,bhsv,bhls"),
    "cudnn_attention": (QUERIES, "bhlv,bhle,bhse,bhsv,bhlv,bhl*,_,_,bhls,_,_->bhle,bhse,bhsv"),
}  # fmt: skip


# Elementwise operations that torch does not tag as pointwise.
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
    **{name: images(k, f".{'ABC'[:k]},.{'ABC'[:k]}->.{'ABC'[:k]},.{'ABC'[:k]}") for name, k in _POOLED.items()},
    **{
        f"{name}_backward": images(k, ",".join([f".{'ABC'[:k]}"] * 3) + f"->.{'ABC'[:k]}")
        for name, k in _POOLED.items()
    },
}
RULES: dict[str, Rule] = {
    **dict.fromkeys(_POINTWISE.split(), pointwise), **dict.fromkeys(_FILLS.split(), fill),
    **dict.fromkeys(_DRAWS.split(), drawn), **dict.fromkeys(_ALONG.split(), along("dim", "dims")),
    **dict.fromkeys(_REDUCED.split(), either(pointwise, reduced("dim"))),
    **_mixing_last, **{name: signature(text) for name, text in _SIGNATURES.items()},
    "topk": along("dim"), "glu": along("dim"), "_fft_r2c": along("dim"), "_fft_c2r": along("dim"),
    "native_layer_norm": normalised, "native_layer_norm_backward": normalised, "_fused_rms_norm": normalised,
    "_fused_rms_norm_backward": normalised,
    "native_group_norm": group_norm, "native_group_norm_backward": group_norm,
    "native_batch_norm": batch_norm, "native_batch_norm_backward": batch_norm,
    "_native_batch_norm_legit": batch_norm,
    "cudnn_batch_norm": batch_norm, "_native_batch_norm_legit_no_training": batch_norm,
    "convolution": convolution, "convolution_backward": convolution,
    "cat": concatenated, "stack": concatenated, "repeat": repeated, "constant_pad_nd": padded,
    "select_backward": set_back(torch.select), "slice_backward": set_back(torch.ops.aten.slice.Tensor),
    "diagonal_backward": set_back(torch.diagonal), "unfold_backward": set_back(Tensor.unfold),
    **{
        f"_scaled_dot_product_{name}{tail}": attention(text)
        for name, texts in _ATTENTIONS.items()
        for tail, text in zip(("", "_backward"), texts, strict=True)
    },
    "linalg_lstsq": least_squares, "diag_embed": diag_embed, "_ctc_loss": ctc, "_ctc_loss_backward": ctc,
    "_cudnn_ctc_loss": ctc,
    "_fake_quantize_learnable_per_tensor_affine": quantised, "_cdist_backward": distances_back,
    "_trilinear": trilinear, "searchsorted": searched,
    **dict.fromkeys(
        ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss",
         "binary_cross_entropy_with_logits"), chosen_loss(pointwise)
    ),
    **dict.fromkeys(
        ("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "binary_cross_entropy_backward",
         "soft_margin_loss_backward"), loss_backward
    ),
    "multi_margin_loss_backward": mean_backward(signature("n,nC,n,C->nC")),
    "multilabel_margin_loss_backward": mean_backward(signature("n,nC,nC,nC->nC")), "isin": isin,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward", "nll_loss_backward", "nll_loss2d_backward"), nll),
    **dict.fromkeys(("_linalg_solve_ex", "linalg_solve_triangular", "linalg_lu_solve"), solve),
    **indexing.RULES, **packed.RULES,
}  # fmt: skip

# Rules that read tensor values in other ways than by `Call.uniform`; all others see shapes and labels only.
BY_VALUE = frozenset((*indexing.RULES.values(), *packed.RULES.values()))


def register_rule(operation: str, text: str) -> None:
    """Declare how a custom operation treats the examples, for the check of row independence.

    Args:
        operation: its full name, ``"namespace::name"``.
        text: the dimensions of its tensor arguments and outputs, in order. Examples along a dimension that a lower-case
            letter names stay independent, and lie along the dimension of that name in the outputs. A capital letter,
            or ``*`` for any number of dimensions, says that the operation mixes along it; ``.`` stands for leading
            dimensions that broadcast; ``+`` for an argument that broadcasts with the first output.

    The declaration is assumed, not checked: every run that meets the operation lists it among its assumptions. The
    last text holds, from the next pass on also in existing engines: passes accepted by an earlier text are checked
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
    """How many times `register_rule` has changed a rule in this process."""
    return len(_CHANGES)
