"""`ClippedSum`, a sum with its sensitivity, and `Clipper`, the protocol of classes that make it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypeAlias, cast, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from decrescendo.base.batches import Batch
from decrescendo.base.limits import SMALLEST_CLIP_NORM
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.telemetry import Telemetry
from decrescendo.errors import InvalidType, InvalidValue, check_instance, check_real

# One loss per example: loss(model, batch) has shape (batch,), and row i of it depends on row i of the batch
# only. Or a pair: losses, and scores of the same shape (1 where the class was right).
Loss: TypeAlias = Callable[[nn.Module, Batch], "Tensor | tuple[Tensor, Tensor]"]


@final
@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Statistics of a batch: private, NOT covered by the guarantee, for the holder of the data only.

    Args:
        examples: rows of the batch.
        nonfinite: rows whose gradient (or its squared norm) was infinite or not a number; they contributed
            zero.
        clipped: rows whose gradient was longer than the clip norm and was shortened.
        loss_sum: sum of the finite losses.

    >>> Diagnostics(examples=2, nonfinite=0, clipped=1, loss_sum=1.5) + Diagnostics(1, 1, 0, 0.25)
    Diagnostics(examples=3, nonfinite=1, clipped=1, loss_sum=1.75)
    """

    examples: int
    nonfinite: int
    clipped: int
    loss_sum: float

    def __add__(self, other: "Diagnostics") -> "Diagnostics":
        return Diagnostics(
            self.examples + other.examples,
            self.nonfinite + other.nonfinite,
            self.clipped + other.clipped,
            self.loss_sum + other.loss_sum,
        )


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClippedSum:
    """sum_i g_i min(1, C / |g_i|) over the examples i of one batch, with C as its ``sensitivity``.

    Args:
        gradients: one tensor for each trainable parameter, by its name in ``model.named_parameters()`` (a
            tied parameter once), of the parameter's shape and at least float32.
        sensitivity: C > 0: adding or removing one example moves the whole sum by at most this, in the joint
            Euclidean norm over all tensors. ``inf`` says that nothing was clipped.
        diagnostics: about the batch; private.
        extra_coordinates: the sum's telemetry coordinates (`Telemetry`), in float64; ``sensitivity`` is of gradients
            and these jointly; ``None`` for none.

    Guarantee:
        none by itself: this is private until `decrescendo.optim.noise.privatise` has added noise.

    Raises:
        InvalidValue: a sensitivity that is not above zero.
        InvalidType: gradients that are not tensors by name.

    >>> import torch
    >>> clipped = ClippedSum({"w": torch.ones(2)}, 1.0, Diagnostics(3, 0, 1, 2.5))
    >>> clipped
    ClippedSum(1 parameter, sensitivity 1)
    """

    gradients: Mapping[str, Tensor]
    sensitivity: float
    diagnostics: Diagnostics
    extra_coordinates: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gradients", check_gradients(self.gradients))
        object.__setattr__(self, "sensitivity", check_clip_norm("sensitivity", self.sensitivity))
        check_instance("diagnostics", self.diagnostics, Diagnostics)
        if self.extra_coordinates is not None:
            check_real_floats("extra_coordinates", self.extra_coordinates)

    def __repr__(self) -> str:
        # The values are private: they are not printed.
        count = len(self.gradients)
        return f"ClippedSum({count} parameter{'' if count == 1 else 's'}, sensitivity {self.sensitivity:g})"


@runtime_checkable
class Clipper(Protocol):
    """Turns a batch into a clipped sum; all implementations pass tests/contracts/test_clippers.py."""

    def clipped_sum(self, batch: Batch | None, clip_norm: float) -> ClippedSum:
        """The sum over ``batch`` of gradients clipped to ``clip_norm``; ``None`` is an empty batch."""
        ...


def check_gradients(gradients: object) -> Mapping[str, Tensor]:
    """The gradients as a read-only mapping; raises unless they are real floating-point tensors by name."""
    if not isinstance(gradients, Mapping):
        raise InvalidType(f"gradients must be a mapping from names to tensors, got {type(gradients).__name__}")
    for name, tensor in gradients.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise InvalidType(f"gradients must map names to tensors, got {name!r}: {type(tensor).__name__}")
        check_real_floats(f"gradients[{name!r}]", tensor)
    return MappingProxyType(dict(gradients))


def check_real_floats(what: str, tensor: Tensor) -> None:
    """Raise unless ``tensor`` is real floating point: a scaled integer is truncated, and noise on the real part of a
    complex number leaves the imaginary part without noise, or drops it.

    >>> check_real_floats("update['w']", torch.tensor([3, 4]))
    Traceback (most recent call last):
    decrescendo.errors.InvalidType: update['w'] must be real floating point, got torch.int64. Convert it with .float()
    """
    if not tensor.is_floating_point():
        way = (
            "Hold real and imaginary parts as two tensors: torch.view_as_real"
            if tensor.is_complex()
            else "Convert it with .float()"
        )
        raise InvalidType(f"{what} must be real floating point, got {tensor.dtype}. {way}")


def check_clip_norm(name: str, value: object) -> float:
    """A checked clip norm C: at least 1e-12 (float32 squares vanish below), or ``inf`` for no clipping.

    >>> check_clip_norm("clip_norm", float("inf"))
    inf
    >>> check_clip_norm("clip_norm", 0.0)
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: clip_norm must be >= 1e-12, got clip_norm=0.0
    """
    if isinstance(value, float) and value == math.inf:
        return value
    return check_real(name, value, at_least=SMALLEST_CLIP_NORM)


# Gradients are clipped to C (1 - margin): room for the rounding of the factor and of its product with a gradient.
MARGINS = {torch.float32: 2.0**-20, torch.float64: 2.0**-42}


def clip_factors(
    norms: Float[Tensor, " batch"],
    clip_norm: float | Float[Tensor, ""],
    dtype: torch.dtype | None = None,
    margin: float | None = None,
    gamma: float | None = None,
) -> Float[Tensor, " batch"]:
    """min(1, C (1 - margin) / |g_i|) rounded towards zero, 0 where the norm is not finite.

    With ``gamma`` C (1 - margin) / (|g_i| + gamma) instead: automatic clipping (Bu et al. 2023).

    Args:
        norms: |g_i|, or upper bounds of it.
        clip_norm: C.
        dtype: of the factors, and of the products with them; ``None`` for that of ``norms``.
        margin: ``None`` for 2^-20 in float32 and 2^-42 in float64.
        gamma: > 0, in the unit of the norms.

    Guarantee:
        a factor times |g_i|, each number of the product rounded to ``dtype``, is at most C: see
        docs/explanation/rounding.md.

    >>> import torch
    >>> clip_factors(torch.tensor([0.0, 1.0, 4.0, float("nan")], dtype=torch.float64), 2.0)
    tensor([1.0000, 1.0000, 0.5000, 0.0000], dtype=torch.float64)
    """
    dtype = norms.dtype if dtype is None else dtype
    target = clip_norm * (1 - (MARGINS[dtype] if margin is None else margin))
    exact = norms.to(norm_dtype(norms.device))
    # (torch computes number / tensor in this way: a number C and a tensor C give the same rounding.)
    if gamma is None:
        factors = torch.where(exact > target, exact.reciprocal() * target, torch.ones_like(exact))
    else:
        factors = (exact + gamma).reciprocal() * target
    factors = torch.where(torch.isfinite(exact), factors, torch.zeros_like(exact))
    rounded = factors.to(dtype)
    # Denormal numbers have few digits: rounding one upwards can double it.
    lower = torch.nextafter(rounded, torch.zeros_like(rounded))
    return torch.where(rounded.to(exact.dtype) > factors, lower, rounded)


def count_clipped(norms: Float[Tensor, " batch"], clip_norm: float | Float[Tensor, ""]) -> Int[Tensor, ""]:
    """How many finite norms are above C."""
    return (torch.isfinite(norms) & (norms > clip_norm)).sum()


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name, each tied one once.

    Raises:
        InvalidType: not a module.
        InvalidValue: nothing to train, or a parameter that is not real floating point.
    """
    check_instance("model", model, nn.Module)
    return trainable_of(Inventory.of(model))


def trainable_of(held: Inventory) -> dict[str, nn.Parameter]:
    """The trainable parameters in an inventory, by name."""
    found = {name: parameter for name, parameter in held.parameters.items() if parameter.requires_grad}
    if not found:
        raise InvalidValue(
            "model must have at least one parameter with requires_grad=True, got none. Unfreeze what is to be trained"
        )
    for name, parameter in found.items():
        if isinstance(parameter, nn.UninitializedParameter):
            raise InvalidValue(
                f"trainable parameters must have their shapes, got {name} of a lazy module. Call the model once, on "
                "rows that are made up, and make the optimiser after it"
            )
        if parameter.is_inference():
            raise InvalidValue(
                f"trainable parameters must be made outside of torch.inference_mode(), got {name} made within. Make or "
                "load the model outside of it"
            )
        if not parameter.is_floating_point():
            raise InvalidValue(
                f"trainable parameters must be real floating point, got {name} of {parameter.dtype}. "
                "Freeze it or hold it as real numbers"
            )
    return found


def check_loss(loss: object) -> None:
    """Check that the loss is callable; its result is checked when it is called."""
    if not callable(loss):
        raise InvalidType(
            f"loss must be a function of (model, batch) that returns one loss per example, got {type(loss).__name__}"
        )
    if type(loss).__module__ == "torch.nn.modules.loss":
        raise InvalidType(
            "loss must be a function of (model, batch) that returns one loss per example, got "
            f"{type(loss).__name__}, which takes outputs and targets. Call it inside of one, with reduction='none'"
        )


def split(returned: object) -> tuple[object, object]:
    """Losses and scores in the result of a loss function; scores are ``None`` if it returned losses only.

    >>> split(torch.ones(2))[1] is None
    True
    """
    if isinstance(returned, tuple) and len(found := cast("tuple[object, ...]", returned)) == 2:
        return found
    return returned, None


def losses_of(loss: Loss, model: nn.Module, batch: Batch) -> Tensor:
    """The losses that ``loss`` returns, without scores."""
    return cast("Tensor", split(loss(model, batch))[0])


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and norms: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def norm_dtype(device: torch.device) -> torch.dtype:
    """The dtype in which per-example squares are added: float64; on mps, which has none, float32."""
    return torch.float32 if device.type == "mps" else torch.float64


def norm_accumulator(parameters: Mapping[str, Tensor]) -> torch.dtype:
    """The dtype in which per-example norms are returned: float64 if any parameter is."""
    wide = any(parameter.dtype == torch.float64 for parameter in parameters.values())
    return torch.float64 if wide else torch.float32


def empty_sum(
    parameters: Mapping[str, Tensor], clip_norm: float, telemetry: Telemetry | None = None, *, wide: bool = False,
    stored: bool = True,
) -> ClippedSum:  # fmt: skip
    """The clipped sum of an empty batch: zeros, with the sensitivity of any batch, ``clip_norm``.

    Without ``stored`` each tensor expands a single zero: it takes no memory, and must not be written to.
    """
    zeros: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        dtype = torch.float64 if wide else accumulator(parameter.dtype)
        zero = torch.zeros(parameter.shape if stored else (), dtype=dtype, device=parameter.device)
        zeros[name] = zero.expand(parameter.shape)
    extra = torch.zeros(telemetry.size, dtype=torch.float64, device="cpu") if telemetry else None
    return ClippedSum(zeros, clip_norm, Diagnostics(0, 0, 0, 0.0), extra)
