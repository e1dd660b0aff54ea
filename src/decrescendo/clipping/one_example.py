"""Single-example passes by plain autograd, for models that are refused as a batch.

No example can depend on another one in a pass that has no other. What is left to check is that nothing is carried from
one pass to the next: buffers, what Python keeps, random generators of the program's own.
"""

import copy
import math
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from decrescendo.base.assumptions import assumed
from decrescendo.base.batches import Batch, examples_of, map_example
from decrescendo.clipping.clipped import Loss, accumulator, norm_dtype, trainable_of
from decrescendo.clipping.engine_settings import EngineSettings
from decrescendo.clipping.example_reads import Watch, refuse
from decrescendo.clipping.factors import Factors, OnePass, PassNumbers, seen_of
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.memory import is_out_of_memory, too_large
from decrescendo.clipping.mixed_rows import ANOTHER_LOSS, mixes_rows
from decrescendo.clipping.passes import eager
from decrescendo.clipping.reference import NO_GRADIENT, check_losses, in_a_row, is_scored
from decrescendo.clipping.restored import gradients_kept, unchanged
from decrescendo.clipping.telemetry import Telemetry
from decrescendo.errors import OutOfMemory, UnsupportedModel
from decrescendo.row_independence.tracing import (
    UNSEARCHED,
    Memory,
    Numbers,
    Stored,
    Stream,
    changed_places,
    drawing,
    numbers_of,
    without_keys,
    written_by_the_pass,
)

# Gradients by the name of their parameter, of one example.
_Gradients: TypeAlias = dict[str, Tensor]
# Called with the pass of each example, and the joint norm of its gradients.
_Take: TypeAlias = Callable[[OnePass, Float[Tensor, " 1"]], None]
ONE_BY_ONE = "each example was passed by itself, in Python, as one_example_a_pass=True asks for"
# How far, relatively, a repeated example's gradient may be off: sums on a GPU have no fixed order.
_AGAIN = {"cpu": 1e-5}
_ELSEWHERE = 1e-3
# The first batches, in which rows are also passed together to warn of a loss that mixes them.
_TOGETHER = 3
# Relative rounding of a counter that grows by fractions.
_ROUNDING = 1e-9

_CARRIED = (
    "an example must have the same loss and gradient when it is passed again after others, got another one: something "
    "that model or loss keep carries from one example to the next (a running mean, a bank of features, a count of "
    "calls, a random generator of their own, a clock). Leave it out, or change it between steps"
)

_NUMBER = (
    "a pass must store no number of its example for the next, got one in {} that changes otherwise from pass to pass "
    "than a counter does. Leave it out"
)


class OneExamplePasses:
    """Forward and backward passes of one example after another.

    Args:
        model: its parameters with ``requires_grad`` are trained.
        loss: ``loss(model, batch)`` returns the loss of one example, shape () or (1,).
        memory: the engine's records of the training data and of assumptions.
        seeds: the seed of each pass's random numbers; negative: torch may draw none.
        factors: `factors_of`, of one example.
        settings: of the engine.
        telemetry: coordinates that are summed with the gradients.

    Guarantee:
        a pass is given one example and random numbers of its own. In each batch the first example is passed again
        after the others, and the last one with what Python stored before the first: loss and gradient are the same. A
        pass reads no training data but its own and no tensor that an earlier pass computed from its example. A
        repeated pass changes no number that Python keeps in model or loss; those that grow alike in every pass
        (counters) are among the assumptions.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        memory: Memory,
        seeds: Callable[[], int],
        factors: Callable[..., Factors],
        settings: EngineSettings,
        telemetry: Telemetry | None,
    ) -> None:
        self._model, self._loss, self._memory, self._seeds = model, loss, memory, seeds
        self._factors, self._wide, self._scored = factors, settings.wide, is_scored(telemetry)
        # One pass at a time: all passes seed the global generators.
        self._lock, self._watch = threading.RLock(), Watch(memory)
        self._depends, self._together = False, _TOGETHER

    def clipped(self, batch: Batch, held: Inventory, limit: float) -> tuple[_Gradients, PassNumbers]:
        """The sum of clipped gradients by parameter, and the diagnostics and telemetry sums."""
        sums: _Gradients = {}
        numbers: list[Tensor] = []

        def take(done: OnePass, norm: Tensor) -> None:
            found = self._factors(done, norm, 1, limit)
            numbers.append(found.numbers)
            if not sums:
                sums.update({name: torch.zeros_like(gradient) for name, gradient in done.gradients.items()})
            if bool(found.counted):  # 0 times infinity is not 0
                gradients = list(done.gradients.values())
                factors = [found.factors.reshape(()).to(gradient) for gradient in gradients]
                torch._foreach_addcmul_(list(sums.values()), gradients, factors)

        self._each(batch, held, take)
        return sums, seen_of(torch.stack(numbers).sum(0), len(numbers))[0]

    def norms(self, batch: Batch, held: Inventory) -> list[Float[Tensor, " 1"]]:
        """|g_i| of each example."""
        found: list[Tensor] = []
        self._each(batch, held, lambda _, norm: found.append(norm))
        return found

    def _each(self, batch: Batch, held: Inventory, take: _Take) -> None:
        examples = list(examples_of(batch))
        parameters = trainable_of(held)

        def passed(example: Batch, seed: int) -> OnePass:
            return self._pass(example, seed, held, parameters)

        with self._lock, eager(), unchanged(self._model, held), gradients_kept(parameters.values()):
            seeds = [self._seeds() for _ in examples]
            first: list[OnePass] = []
            start = before = alone = self._numbers()
            began = Stored(self._model, self._loss)
            for at, (example, seed) in enumerate(zip(examples, seeds, strict=True)):
                is_last = at == len(examples) - 1
                before = self._numbers() if is_last else before
                done = passed(example, seed)
                first = first or [done]
                take(done, _norm(done.gradients))
                if is_last and len(examples) > 1:
                    # Repeated with the state before the first example: a maximum, once moved, would not move again.
                    with began.restored():
                        _check_same(done, passed(example, seed))
                        alone = self._numbers()
            between = self._numbers()
            _check_same(first[0], passed(examples[0], seeds[0]))
            after = self._numbers()
            self._check_stored(before, between, after)
            if self._watch.gave_numbers and len(examples) > 1:
                _check_alike(start, alone, between, after, len(examples))
            if not self._depends:
                raise UnsupportedModel(NO_GRADIENT)
            if self._together and len(examples) > 1:
                self._together -= 1
                if mixes_rows(self._model, self._loss, batch):
                    self._together = 0
                    warnings.warn(ANOTHER_LOSS, UserWarning, stacklevel=4)

    def _pass(
        self,
        example: Batch,
        seed: int,
        held: Inventory,
        parameters: dict[str, nn.Parameter],
    ) -> OnePass:
        """The pass of one example. (The watch sees a stored tensor even if its values stay the same: a maximum.)"""
        versions = [tensor._version for _, tensor in held.tensors()]
        stream = Stream(seed, refuse)
        try:
            with drawing({p.device for p in held.parameters.values()}, seed), torch.enable_grad():
                if seed < 0:
                    stream.begin()
                own = _copied(example)
                grads = [p.grad for p in parameters.values() if p.grad is not None]
                with self._watch.of(own, [*grads, *held.buffers.values()]):
                    returned = in_a_row(self._loss(self._model, own))
                loss, score = check_losses(returned, 1, scored=self._scored, constant=True)
                self._depends |= loss.requires_grad
                # An example may have nothing to learn from: an image without boxes.
                trained = list(parameters.values())
                found = (
                    torch.autograd.grad(loss, trained, materialize_grads=True)
                    if loss.requires_grad
                    else map(torch.zeros_like, trained)
                )
                if seed < 0:
                    stream.end((), jump=False)
                stored = [_stored(gradient, wide=self._wide) for gradient in found]
                return OnePass(loss.detach(), score, dict(zip(parameters, stored, strict=True)))
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfMemory(too_large(error)) from None
            # (BatchNorm counts a batch before it raises, as one example is too few.)
            changed = [
                name
                for (name, tensor), before in zip(held.tensors(), versions, strict=True)
                if tensor._version != before
            ]
            if changed and not isinstance(error, UnsupportedModel):
                raise UnsupportedModel(written_by_the_pass(changed, held.parameters)) from error
            raise

    def _numbers(self) -> Numbers:
        return numbers_of(self._model, self._loss)

    def _check_stored(self, before: Numbers, between: Numbers, after: Numbers) -> None:
        """Compare the Python numbers before, between and after two passes, of which the second repeats an example."""
        if UNSEARCHED in after:
            self._memory.assumed.add(assumed("stored-unsearched"))
        for name in changed_places(between, after):
            place = without_keys(name)
            for key in {name, f"len({name})"} & after.keys():
                if not _grows_alike(before.get(key), between.get(key), after[key]):
                    raise UnsupportedModel(_NUMBER.format(place))
            self._memory.assumed.add(assumed("stored-count", place))


def _copied(example: Batch) -> Batch:
    """A copy of an example: no other pass finds what a pass writes to it, or puts into its objects."""

    def own(tensor: Tensor) -> Tensor:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    with torch.inference_mode(False):
        return map_example(own, _copied_object, example)


def _copied_object(value: Any) -> Any:
    """With its tensors, unless it cannot be copied so deeply (a lock, an open file)."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return copy.copy(value)


def _stored(gradient: Tensor, *, wide: bool) -> Tensor:
    """A gradient in the dtype that sums are held in."""
    dense = gradient if gradient.layout is torch.strided else gradient.to_dense()
    return dense.to(torch.float64 if wide else accumulator(dense.dtype))


def _norm(gradients: Mapping[str, Tensor]) -> Float[Tensor, " 1"]:
    """The joint norm, in float64; never below the exact one."""
    stored = list(gradients.values())
    norms = torch._foreach_norm(stored, 2, norm_dtype(stored[0].device))
    return torch.stack([norm.to(norms[0].device) for norm in norms]).norm().reshape(1) * (1 + 2.0**-40)


def _check_same(first: OnePass, again: OnePass) -> None:
    """Raise if a repeated example has another loss or gradient."""
    one, other, its = first.losses, again.losses, first.gradients
    norm = float(_norm(its))
    if not math.isfinite(norm):
        return
    part = _AGAIN.get(one.device.type, _ELSEWHERE)
    moved = float(_norm({name: again.gradients[name] - gradient for name, gradient in its.items()}))
    if not moved <= part * norm or not torch.allclose(one, other, rtol=part, atol=part, equal_nan=True):
        raise UnsupportedModel(_CARRIED)


def _check_alike(start: Numbers, alone: Numbers, between: Numbers, after: Numbers, count: int) -> None:
    """Refuse a real number that ``count`` passes stored, unless it counts them, or the last one ``alone``, passed with
    what was stored before the first, stores the same: a constant."""
    for name in changed_places(start, between):
        value = between.get(name)
        if not isinstance(value, float) or value == alone.get(name):
            continue
        if not _grows_alike(start.get(name), value, after.get(name), passes=count):
            raise UnsupportedModel(_NUMBER.format(without_keys(name)))


def _grows_alike(before: Any, between: Any, after: Any, *, passes: int = 1) -> bool:
    """Whether a number grew in a pass by as much as in each of the ``passes`` before."""
    if before is None or between is None or after is None:
        return False
    return bool(abs(passes * (after - between) - (between - before)) <= _ROUNDING * max(abs(after), 1))


def kept_by(keep: Callable[[str, Tensor], Tensor] | None, sums: _Gradients) -> _Gradients:
    """The result of an engine's ``keep`` for each sum."""
    return sums if keep is None else {name: keep(name, total) for name, total in sums.items()}
