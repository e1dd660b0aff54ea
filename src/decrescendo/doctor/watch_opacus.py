"""Observes Opacus: what was asked for, what each step did, and what its accountants wrote down."""

import copy
import functools
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from decrescendo.doctor.events import user_frame
from decrescendo.doctor.loops import epochs_asked
from decrescendo.doctor.watch_torch import TorchWatch, facts_of

_DIGEST = 8  # projections of each record's gradient
_LONG = 1000.0  # of each number of a long gradient
_LONGEST = 200_000  # steps of a schedule that are played ahead


class OpacusWatch:
    """What Opacus does for the user's training.

    Args:
        torch_watch: which is told that a step is Opacus'.
    """

    def __init__(self, torch_watch: TorchWatch) -> None:
        self._torch, self._events, self._neighbours = torch_watch, torch_watch.events, torch_watch.neighbours
        self._accountants: list[Any] = []
        self._schedulers: list[tuple[Any, dict[str, Any]]] = []
        self._ghosts: dict[int, Any] = {}
        self._nested = False
        self._looked = False

    def start(self) -> None:
        """Put the observers in; nothing if Opacus is not installed."""
        opacus = importlib.import_module("opacus")
        engine = opacus.PrivacyEngine
        for name in ("make_private", "make_private_with_epsilon"):
            setattr(engine, name, self._making(getattr(engine, name), name))
        base = importlib.import_module("opacus.optimizers").DPOptimizer
        for kind in _with_subclasses(base):
            for name, wrap in (
                ("add_noise", self._noising),
                ("clip_and_accumulate", self._clipping),
                ("step", self._step),
            ):
                if name in vars(kind):
                    setattr(kind, name, wrap(vars(kind)[name]))
        accountant = importlib.import_module("opacus.accountants.accountant").IAccountant
        for kind in _with_subclasses(accountant):
            for name, wrap in (("step", self._counting), ("get_epsilon", self._asking)):
                if name in vars(kind):
                    setattr(kind, name, wrap(vars(kind)[name]))
            kind.load_state_dict = self._restoring(kind.load_state_dict)
        schedulers = importlib.import_module("opacus.schedulers")
        for name in ("_NoiseScheduler", "_GradClipScheduler"):
            for module in (schedulers, *map(importlib.import_module, _modules_of(schedulers))):
                if (kind := vars(module).get(name)) is not None:
                    kind.__init__ = self._scheduling(kind.__init__)
                    break

    def _making(self, make: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(make)
        def made(engine: Any, *args: Any, **kwargs: Any) -> Any:
            if self._nested:
                return make(engine, *args, **kwargs)
            self._nested = True
            try:
                result = make(engine, *args, **kwargs)
            finally:
                self._nested = False
            self._note(engine, name, kwargs, result)
            return result

        return made

    def _note(self, engine: Any, name: str, asked: dict[str, Any], result: Any) -> None:
        self._torch.private += 1
        optimizer, loader, given = result[1], result[-1], asked["data_loader"]
        if "ghost" in asked.get("grad_sample_mode", ""):
            self._ghosts[id(optimizer)] = result[0]
        if not any(held is engine.accountant for held in self._accountants):
            self._accountants.append(engine.accountant)
        plain = {key: value for key, value in asked.items() if isinstance(value, str | bool | int | float)}
        self._events.write("private", {
            "call": name, "asked": plain, "given": facts_of(given), "made": facts_of(loader),
            "optimizer": id(optimizer),
            "loader": id(loader), "given_loader": id(given), "accountant": id(engine.accountant),
            "mechanism": engine.accountant.mechanism(), "history": list(engine.accountant.history),
            "noise": optimizer.noise_multiplier, "clip": optimizer.max_grad_norm, "secure": engine.secure_mode,
            "expected": optimizer.expected_batch_size, "reduction": optimizer.loss_reduction,
        })  # fmt: skip

    def _step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def stepped(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._torch.inside = True
            try:
                return step(optimizer, *args, **kwargs)
            finally:
                self._torch.inside = False

        return stepped

    def _clipping(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(clip)
        def clipped(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._neighbours._waiting:
                optimizer.doctor_rows = _digest(optimizer)
                if self._neighbours.role == "large":
                    _lengthen_first(optimizer)
            return clip(optimizer, *args, **kwargs)

        return clipped

    def _noising(self, noise: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(noise)
        def noised(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            ghost = self._ghosts.get(id(optimizer))
            clip = optimizer.max_grad_norm
            std = optimizer.noise_multiplier * (clip if isinstance(clip, float | int) else 1.0)
            self._events.write("noise", {
                "noise": optimizer.noise_multiplier, "clip": clip, "optimizer": id(optimizer),
                "ghost_clip": getattr(ghost, "max_grad_norm", None),
                **({} if self._looked else {"epochs": epochs_asked(user_frame())}),
            })  # fmt: skip
            self._looked = True
            sums = [p.summed_grad if p.summed_grad is not None else p.grad for p in optimizer.params]
            facts: dict[str, Any] = {
                "kind": "sum",
                "std": float(std),
                "noise": float(optimizer.noise_multiplier),
            }
            rows = getattr(optimizer, "doctor_rows", None)
            if rows is not None:
                facts["rows"] = rows
            self._neighbours.release(
                lambda: torch.cat([s.detach().flatten() for s in sums if s is not None]), facts
            )
            return noise(optimizer, *args, **kwargs)

        return noised

    def _counting(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def counted(accountant: Any, *args: Any, **kwargs: Any) -> Any:
            if not any(held is accountant for held in self._accountants):
                self._accountants.append(accountant)
            done = step(accountant, *args, **kwargs)
            self._events.write("account", {"id": id(accountant), **kwargs})
            return done

        return counted

    def _asking(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(ask)
        def asked(accountant: Any, delta: Any, *args: Any, **kwargs: Any) -> Any:
            epsilon = ask(accountant, delta, *args, **kwargs)
            if user_frame() is not None and not self._nested:
                self._events.write("epsilon", {
                    "epsilon": float(epsilon), "delta": float(delta), "history": list(accountant.history),
                    "mechanism": accountant.mechanism(),
                })  # fmt: skip
            return epsilon

        return asked

    def _restoring(self, load: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(load)
        def restored(accountant: Any, *args: Any, **kwargs: Any) -> Any:
            self._events.write("restored", {"id": id(accountant)})
            return load(accountant, *args, **kwargs)

        return restored

    def _scheduling(self, init: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(init)
        def scheduled(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            frame = user_frame()
            place = (
                {"at": frame.f_code.co_filename, "at_line": frame.f_lineno}
                if frame
                else {"at": "", "at_line": 0}
            )
            self._schedulers.append((scheduler, place))
            return init(scheduler, *args, **kwargs)

        return scheduled

    def finish(self) -> None:
        """What is known at the end: whole histories, and how schedulers would go on."""
        for accountant in self._accountants:
            self._events.write("history", {"id": id(accountant), "history": list(accountant.history)})
        for scheduler, place in self._schedulers:
            if not hasattr(scheduler, "get_noise_multiplier"):
                continue
            self._events.write("scheduler", {
                "name": type(scheduler).__name__, "steps": scheduler.last_epoch, **place, "ahead": _ahead(scheduler),
            })  # fmt: skip


def _ahead(scheduler: Any, most: int = _LONGEST) -> list[float]:
    """The noise multipliers from now on, a call of its `step` each, until they no longer change."""
    played = copy.copy(scheduler)
    played.optimizer = SimpleNamespace(
        noise_multiplier=scheduler.optimizer.noise_multiplier, max_grad_norm=scheduler.optimizer.max_grad_norm
    )
    values = [float(played.optimizer.noise_multiplier)]
    for _ in range(min(most, 20_000)):
        played.step()
        values.append(float(played.optimizer.noise_multiplier))
    return values


def _digest(optimizer: Any) -> Tensor | None:
    """A few projections of each record's gradient before clipping, or nothing where Opacus keeps none."""
    samples = []
    for parameter in optimizer.params:
        held = getattr(parameter, "grad_sample", None)
        if isinstance(held, list):
            held = torch.cat(held)
        if not isinstance(held, Tensor) or not len(held):
            return None
        samples.append(held.detach().reshape(len(held), -1).to(torch.float64))
    if not samples:
        return None
    random, total = (
        torch.Generator().manual_seed(0),
        torch.zeros(len(samples[0]), _DIGEST, dtype=torch.float64),
    )
    for sample in samples:
        signs = torch.randint(2, (sample.shape[1], _DIGEST), generator=random).to(torch.float64) * 2 - 1
        total += sample @ signs
    return total


def _lengthen_first(optimizer: Any) -> None:
    """Give the first record a long gradient: a large record may be one that the model already gets right."""
    for parameter in optimizer.params:
        held = getattr(parameter, "grad_sample", None)
        first = held[0] if isinstance(held, list) and held else held
        if isinstance(first, Tensor) and len(first):
            first[0] = _LONG


def _with_subclasses(kind: type) -> list[type]:
    return [kind, *(below for child in kind.__subclasses__() for below in _with_subclasses(child))]


def _modules_of(package: Any) -> list[str]:
    return [vars(package)[name].__module__ for name in vars(package) if isinstance(vars(package)[name], type)]
