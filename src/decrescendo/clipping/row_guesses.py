"""Guesses the row layout of tensors that depend on no example: constants, and copies of a parameter for each
example."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from decrescendo.base.storages import is_hollow, is_whole, paused
from decrescendo.clipping.rules.fallback import is_in_place
from decrescendo.clipping.tracking import Tracking
from decrescendo.row_independence.tracing import Public, RowLayout, Tracer, constant_of, is_uniform


@dataclass(slots=True)
class RowGuesses:
    """Where examples may lie in constants and in copies of parameters; the tracer says whether a guess was right.

    Args:
        tracer: checks a guess, by the passes over two and three rows.
        tracking: the tensors made from parameters, which are no constants.
    """

    tracer: Tracer
    tracking: Tracking

    def laid_out(
        self, name: str, call: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[Tensor]]:
        """The arguments, with constants of one row per example (first states, token types) labelled so; and these."""
        laid: list[Tensor] = []
        lay = functools.partial(self._lay, name, call, itertools.count(), laid)
        return tuple(map(lay, args)), {key: lay(value) for key, value in kwargs.items()}, laid

    def _lay(self, name: str, call: int, numbers: Iterator[int], laid: list[Tensor], value: Any) -> Any:
        """One argument, or a labelled copy of it, which is appended to ``laid``; ``numbers`` counts arguments."""
        if isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in cast("list[Any]", value)):
            return [self._lay(name, call, numbers, laid, item) for item in cast("list[Any]", value)]
        number = next(numbers)
        if not isinstance(value, Tensor) or value in self.tracking or value.requires_grad:
            return value
        if is_hollow(value):
            return value
        for place in self._likely(value):
            with paused():
                filled = constant_of(self.tracer.label(value)) is Public.FILL
                uniform = filled or is_uniform(value, place, self.tracer.count)
            if uniform and self.tracer.guess(call, number, place):
                # A tensor that is written to is not copied; only one that the pass made has a label.
                own = number == 0 and is_in_place(name) and is_whole(value) and self.tracer.made(value)
                with paused():
                    laid.append(value if own else value.clone(memory_format=torch.contiguous_format))
                self.tracer.assign(laid[-1], place)
                return laid[-1]
        return value

    def _likely(self, value: Tensor) -> list[RowLayout]:
        """Where examples may lie in a constant, perhaps several rows of each (the texts of a choice)."""
        places = [RowLayout(axis, value.shape[axis] // self.tracer.count) for axis in range(min(2, value.dim()))]
        whole = [
            p for p in places if p.inner * self.tracer.count == value.shape[p.dim] and (p.inner == 1 or value.dim() > 1)
        ]
        return sorted((p for p in whole if p.inner), key=lambda place: place.inner)

    def copied(self, name: str, call: int, source: Tensor, output: Tensor) -> tuple[Tensor, RowLayout] | None:
        """Copies of a parameter, one for each example (a class token, an initial state), and where they are."""
        places: list[RowLayout] = []
        longer = source.dim() > 0 and (self.tracer.count * source.shape[0], *source.shape[1:])
        if name == "repeat" and output.shape == longer and source.shape[0] > 1:
            places.append(RowLayout(0, source.shape[0]))  # one copy after another along a dimension it had
        shape = (*[1] * (output.dim() - source.dim()), *source.shape)
        if all(size in (1, wide) for size, wide in zip(shape, output.shape, strict=True)):
            places += [place for place in self._likely(output) if shape[place.dim] == 1]
        for place in places:
            if self.tracer.guess(call, 0, place):
                output = output.clone(memory_format=torch.contiguous_format)
                self.tracer.assign(output, place)
                return output, place
        return None
