"""Captured passes on a CPU, which are the operations of a proven pass; `test_on_cuda.py` has CUDA graphs."""

import gc
import os
import random
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES, OTHERS
from clipping_cases import CASES
from clipping_cases import loss as cases_loss
from often import some
from operation_cases import OPERATIONS
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

import decrescendo as dc
from decrescendo.base.assumptions import assumed
from decrescendo.base.batches import count_rows, map_rows
from decrescendo.clipping import (
    ClippedSum,
    Engine,
    EngineSettings,
    Reference,
    capture,
    capture_choice,
    device_graphs,
)
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.recording import Recorder
from decrescendo.clipping.rules import segments
from decrescendo.clipping.tape import Operations
from decrescendo.errors import UnsupportedModel

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning"),
]


@pytest.fixture(autouse=True)
def _python_draws_nothing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The run's type checker draws random numbers of Python's."""
    if "device" not in request.node.name:
        monkeypatch.setattr("decrescendo.clipping.checker.drawn_by_python", lambda held: ())


CAPTURE, PYTHON = EngineSettings(capture=True), EngineSettings(capture=False)
REPLAYED = assumed("replayed-passes")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))


def loss(model: Callable[[Tensor], Tensor], batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def rows(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=dice), torch.randint(3, (count,), generator=dice)


def near(found: ClippedSum, expected: ClippedSum) -> None:
    """The same but for rounding."""
    assert found.gradients.keys() == expected.gradients.keys()
    for name, total in expected.gradients.items():
        torch.testing.assert_close(found.gradients[name], total, rtol=1e-4, atol=1e-5)


def in_python() -> Engine:
    """Of the same weights, and captures nothing: one for all steps of a test, whose program it checks once."""
    return Engine(network(), loss, PYTHON)


def test_every_sum_is_the_reference_s() -> None:
    model = network()
    engine, reference = Engine(model, loss, CAPTURE), Reference(model, loss)
    for step in range(24):
        batch = rows(8, step)
        found, expected = (
            engine.clipped_sum(batch, 0.3 + 0.1 * step),
            reference.clipped_sum(batch, 0.3 + 0.1 * step),
        )
        near(found, expected)
        assert found.diagnostics.examples == 8
        assert found.diagnostics.clipped == expected.diagnostics.clipped
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.01 * torch.ones_like(parameter))
    # The first is done in Python, and the first, the second, the fourth, .. of the others.
    assert (engine._captures._done, engine._captures._missed) == (23 - len((1, 2, 4, 8, 16)), 0)


def test_sums_are_in_memory_of_their_own() -> None:
    engine = Engine(network(), loss, CAPTURE)
    found = [engine.clipped_sum(rows(8, step), 1.0) for step in range(6)]
    plain = in_python()
    again = [plain.clipped_sum(rows(8, step), 1.0) for step in range(6)]
    for one, other in zip(found, again, strict=True):
        near(one, other)


@pytest.mark.parametrize("count", [33, 40, 47, 63, 250])
def test_batches_are_filled_up_with_rows_that_count_for_nothing(count: int) -> None:
    model = network()
    engine, plain = Engine(model, loss, CAPTURE), Engine(model, loss, PYTHON)
    for step in range(6):
        batch = rows(count, step)
        found, expected = engine.clipped_sum(batch, 0.5), plain.clipped_sum(batch, 0.5)
        near(found, expected)
        assert found.diagnostics.examples == count
        assert found.diagnostics.loss_sum == pytest.approx(expected.diagnostics.loss_sum)
    assert engine._captures._done


@pytest.mark.parametrize("double", some([False, True], 1), ids=["float32", "float64"])
@pytest.mark.parametrize("options", [{}, {"gamma": 0.01}, {"accumulate": "float64"}], ids=str)
def test_the_clip_norm_and_the_rows_are_those_of_each_step(options: dict[str, Any], *, double: bool) -> None:
    """What Python makes of as many rows, filled up or not: a batch is captured of 38 rows, then done again for others;
    with an infinite clip norm and with rows that are clipped, not finite, or only just within it."""
    model = network().double() if double else network()
    engine = Engine(model, loss, EngineSettings(capture=True, **options))
    python = Engine(model, loss, EngineSettings(capture=True, **options))
    for step, count in enumerate((38, 38, 38, 37, 40, 39, 38, 40)):
        features, labels = rows(count, step)
        features = features.double() if double else features
        if step == 5:
            features[3] = torch.nan
        for limit in (0.5, 1e-3, 30.0, 1e30 if "gamma" in options else torch.inf):
            python._captures._seen.clear()  # so that it captures nothing
            found, expected = (one.clipped_sum((features, labels), limit) for one in (engine, python))
            for name, total in expected.gradients.items():
                assert torch.equal(found.gradients[name], total)
            assert found.diagnostics == expected.diagnostics
            assert found.diagnostics.examples == count
            assert found.diagnostics.nonfinite == (step == 5)
    assert engine._captures._done > 16
    assert engine._captures._missed == 4  # those with a row that is not finite


@pytest.mark.slow
def test_few_numbers_of_rows_occur() -> None:
    engine = Engine(network(), loss, CAPTURE)
    dice, seen = random.Random(0), set[int]()
    for step in range(60):
        engine.clipped_sum(rows(dice.randint(210, 300), step), 1.0)
        seen |= {count_rows(captured.rows) for captured in engine._captures._captured.values()}
    assert seen <= {*range(216, 256, 8), *range(256, 320, 16)}


def test_no_more_rows_than_may_be_at_once() -> None:
    engine = Engine(network(), loss, EngineSettings(capture=True, microbatch_size=35))
    plain = in_python()
    for step in range(4):
        near(engine.clipped_sum(rows(70, step), 1.0), plain.clipped_sum(rows(70, step), 1.0))
    assert {count_rows(captured.rows) for captured in engine._captures._captured.values()} == {35}


def test_one_row_is_done_in_python() -> None:
    engine = Engine(network(), loss, CAPTURE)
    for step in range(4):
        engine.clipped_sum(rows(1, step), 1.0)
    assert not engine._captures._done


def test_gradients_that_are_not_finite_are_left_out() -> None:
    engine, plain = Engine(network(), loss, CAPTURE), in_python()
    for step in range(12):
        features, labels = rows(40, step)
        features[step % 8] = float("inf") if step > 2 else 1.0
        found = engine.clipped_sum((features, labels), 1.0)
        kept = torch.arange(40) != (step % 8 if step > 2 else -1)
        near(found, plain.clipped_sum((features[kept], labels[kept]), 1.0))
        assert found.diagnostics.nonfinite == (step > 2)


def test_padding_that_is_not_finite_is_no_example() -> None:
    """Its random numbers are others than those of the row it repeats."""

    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) / (torch.rand(len(x), 1) > 0.01)

    model, seeds = Sometimes(), iter(range(100))
    engine = Engine(model, loss, CAPTURE, seeds=lambda: next(seeds))
    for step in range(30):
        found = engine.clipped_sum(rows(33, step), 1.0)
        assert all(bool(total.isfinite().all()) for total in found.gradients.values())


def test_a_model_in_other_memory_is_captured_down_anew() -> None:
    model = network()
    engine, reference = Engine(model, loss, CAPTURE), Reference(model, loss)
    for step in range(12):
        if step == 5:
            for parameter in model.parameters():
                parameter.data = parameter.data * 1.5
        if step == 8:
            model[0].weight.requires_grad_(False)
        near(engine.clipped_sum(rows(8, step), 1.0), reference.clipped_sum(rows(8, step), 1.0))
    assert len(engine._captures._captured) == 3


@pytest.mark.slow
def test_other_settings_of_torch_are_another_pass() -> None:
    engine, plain, cudnn = Engine(network(), loss, CAPTURE), in_python(), torch.backends.cudnn.enabled
    try:
        for step in range(8):
            torch.backends.cudnn.enabled = step < 4
            near(engine.clipped_sum(rows(8, step), 1.0), plain.clipped_sum(rows(8, step), 1.0))
    finally:
        torch.backends.cudnn.enabled = cudnn
    assert len(engine._captures._captured) == 2


def test_autocast_around_training_would_keep_copies_of_old_weights() -> None:
    engine = Engine(network(), loss, CAPTURE)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.warns(UserWarning, match="autocast is on around"),
    ):
        engine.clipped_sum(rows(8), 1.0)


@pytest.mark.slow
def test_autocast_inside_of_the_loss_is_done_again() -> None:
    def coarse(model: Any, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(model, batch)

    engine = Engine(network(), coarse, CAPTURE)
    for step in range(8):
        near(
            engine.clipped_sum(rows(8, step), 1.0),
            Engine(network(), coarse, PYTHON).clipped_sum(rows(8, step), 1.0),
        )
    assert engine._captures._done


def test_data_that_are_withheld_later_are_no_part_of_what_is_done_again() -> None:
    model, table = network(), torch.ones(3)

    def weighed(model: Any, batch: Any) -> Tensor:
        return loss(model, batch) * table[0]

    engine = Engine(model, weighed, CAPTURE)
    for step in range(6):
        engine.clipped_sum(rows(8, step), 1.0)
    engine.withhold([table])
    with pytest.raises(UnsupportedModel):
        engine.clipped_sum(rows(8, 6), 1.0)


def changing(how: Callable[[int], float]) -> tuple[Engine, list[float]]:
    """An engine whose loss has a weight, and its weight."""
    weight = [1.0]

    def weighed(model: Any, batch: Any) -> Tensor:
        return weight[0] * loss(model, batch)

    return Engine(network(), weighed, CAPTURE), weight


@pytest.mark.slow
def test_a_weight_that_changes_in_each_step_is_found_before_anything_is_done_again() -> None:
    engine, weight = changing(float)
    plain = in_python()
    with pytest.warns(UserWarning, match="something else than in an earlier pass"):  # noqa: PT031
        for step in range(12):
            weight[0] = 1 + 0.1 * step
            found = engine.clipped_sum(rows(8, step), 1e6)
            for name, total in plain.clipped_sum(rows(8, step), 1e6).gradients.items():
                torch.testing.assert_close(found.gradients[name], weight[0] * total)
    assert not engine._captures._done


@pytest.mark.slow
@pytest.mark.parametrize("period", [3, 10])
def test_what_happens_in_some_steps_alone_happens_in_these(period: int) -> None:
    """The passes in Python in between may all miss it; what Python keeps says so before each."""
    net = network()
    net.penalty = 0.0

    def penalised(model: Any, batch: Any) -> Tensor:
        found = loss(model, batch)
        return found + model.penalty * model(batch[0]).abs().sum(1) if model.penalty else found

    engine, plain = Engine(net, penalised, CAPTURE), Engine(net, penalised, PYTHON)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no pass is captured")
        for step in range(1, 41):
            net.penalty = 5.0 * (step % period == 0)
            near(engine.clipped_sum(rows(8, step), 1.0), plain.clipped_sum(rows(8, step), 1.0))
    assert bool(engine._captures._done) == (period == 10)
    assert set(engine.assumptions) - {REPLAYED} == set(plain.assumptions)
    # Where nothing was replayed, nothing is assumed of it.
    assert bool(engine.assumptions) == (period == 10)


def in_a_list() -> tuple[Any, Callable[[float], None]]:
    held = [1.0]
    return lambda model, batch: held[0] * loss(model, batch), lambda value: held.__setitem__(0, value)


def in_an_array() -> tuple[Any, Callable[[float], None]]:
    held = np.ones(3)
    return lambda model, batch: float(held.sum() / 3) * loss(model, batch), held.fill


def in_a_slot() -> tuple[Any, Callable[[float], None]]:
    class Weighed:
        __slots__ = ("weight",)

        def __call__(self, model: Any, batch: Any) -> Tensor:
            return self.weight * loss(model, batch)

    weighed = Weighed()
    weighed.weight = 1.0
    return weighed, lambda value: setattr(weighed, "weight", value)


def in_a_class() -> tuple[Any, Callable[[float], None]]:
    class Config:
        weight = 1.0

    return (
        lambda model, batch: Config.weight * loss(model, batch),
        lambda value: setattr(Config, "weight", value),
    )


def in_a_function() -> tuple[Any, Callable[[float], None]]:
    def weighed(model: Any, batch: Any, weight: float = 1.0) -> Tensor:
        return weight * loss(model, batch)

    return weighed, lambda value: setattr(weighed, "__defaults__", (value,))


def in_an_attribute_of_a_number() -> tuple[Any, Callable[[float], None]]:
    class Number(float):
        weight = 1.0

    number = Number()
    number.weight = 1.0
    return (
        lambda model, batch: number.weight * loss(model, batch),
        lambda value: setattr(number, "weight", value),
    )


_WEIGHT = 1.0


def in_a_global_name() -> tuple[Any, Callable[[float], None]]:
    def change(value: float) -> None:
        global _WEIGHT
        _WEIGHT = value

    change(1.0)
    return lambda model, batch: _WEIGHT * loss(model, batch), change


def in_other_memory() -> tuple[Any, Callable[[float], None]]:
    weight = torch.ones(())

    def change(value: float) -> None:
        weight.data = torch.tensor(value)

    return lambda model, batch: weight * loss(model, batch), change


def in_other_memory_of_another_model() -> tuple[Any, Callable[[float], None]]:
    """As of a teacher that is put in place of the one before."""
    other = nn.Linear(1, 1, bias=False).requires_grad_(False)

    def change(value: float) -> None:
        other.weight.data = torch.full((1, 1), value)

    change(1.0)
    return lambda model, batch: other(torch.ones(1, 1)).sum() * loss(model, batch), change


def in_strides() -> tuple[Any, Callable[[float], None]]:
    weight = torch.tensor([[1.0, 0.1], [1.0, 1.0]])
    return lambda model, batch: weight[0].prod() * loss(model, batch), lambda _: weight.t_()


def in_a_module_by_its_function() -> tuple[Any, Callable[[float], None]]:
    module = ModuleType("own")
    module.__file__ = __file__
    exec(compile("WEIGHT = 1.0\ndef weight():\n return WEIGHT\n", __file__, "exec"), vars(module))
    return (
        lambda model, batch: cast("Any", module).weight() * loss(model, batch),
        lambda value: setattr(module, "WEIGHT", value),
    )


def in_a_local_of_a_thread() -> tuple[Any, Callable[[float], None]]:
    local = threading.local()
    local.weight = 1.0
    return lambda model, batch: local.weight * loss(model, batch), lambda value: setattr(local, "weight", value)


def on_a_tensor() -> tuple[Any, Callable[[float], None]]:
    held: Any = torch.ones(())
    held.weight = 1.0
    return lambda model, batch: held.weight * loss(model, batch), lambda value: setattr(held, "weight", value)


def in_a_global_of_an_installed_project() -> tuple[Any, Callable[[float], None]]:
    space: dict[str, Any] = {"WEIGHT": 1.0, "loss": loss}
    text = "def weighed(model, batch):\n return WEIGHT * loss(model, batch)\n"
    exec(compile(text, "/lib/site-packages/project/losses.py", "exec"), space)
    return space["weighed"], lambda value: space.__setitem__("WEIGHT", value)


@pytest.mark.parametrize(
    "where",
    some(
        [
            on_a_tensor,
            in_a_global_of_an_installed_project,
            in_a_list,
            in_an_array,
            in_a_slot,
            in_a_class,
            in_a_function,
            in_an_attribute_of_a_number,
            in_a_global_name,
            in_other_memory,
            in_other_memory_of_another_model,
            in_strides,
            in_a_module_by_its_function,
            in_a_local_of_a_thread,
        ],
        2,
    ),
)
def test_what_changes_once_is_followed_wherever_it_is_kept(where: Any) -> None:
    weighed, change = where()
    engine, plain = Engine(network(), weighed, CAPTURE), Engine(network(), weighed, PYTHON)
    for step in range(40):
        if step == 20:
            done = engine._captures._done
            change(0.1)
        # (Of one size in the end, after two: each has passes of its own.)
        batch = rows(8 if step < 25 or step % 2 else 9, step)
        near(engine.clipped_sum(batch, 1e6), plain.clipped_sum(batch, 1e6))
    assert engine._captures._done > done > 0
    assert set(engine.assumptions) - {REPLAYED} == set(plain.assumptions)


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_hook_that_comes_between_steps_is_followed(*, everywhere: bool) -> None:
    def hook(module: nn.Module, given: Any, made: Tensor) -> Tensor:
        return 3 * made if isinstance(module, nn.Linear) else made

    models = [network(), network()]
    engine, plain = Engine(models[0], loss, CAPTURE), Engine(models[1], loss, PYTHON)
    handles = []
    warnings.simplefilter("ignore" if everywhere else "error")  # of all modules: captures are given up
    try:
        for step in range(14):
            if step == 9:
                done = engine._captures._done
                handles = (
                    [nn.modules.module.register_module_forward_hook(hook)]
                    if everywhere
                    else [
                        next(m for m in model.modules() if isinstance(m, nn.Linear)).register_forward_hook(hook)
                        for model in models
                    ]
                )
            near(engine.clipped_sum(rows(8, step), 1e6), plain.clipped_sum(rows(8, step), 1e6))
    finally:
        for handle in handles:
            handle.remove()
    assert done > 0
    assert engine._captures.choice.on is not everywhere


def test_nothing_is_done_again_under_a_mode_of_all_functions() -> None:
    """Two of them may have one address."""

    class Times(TorchFunctionMode):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            return made * self.factor if func is functional.cross_entropy else made

    engine = Engine(network(), loss, CAPTURE)
    with pytest.warns(UserWarning, match="mode of all functions"), Times(1.0):  # noqa: PT031
        for step in range(6):
            engine.clipped_sum(rows(8, step), 1.0)
    assert engine._captures._done == 0


@pytest.mark.parametrize(
    ("reads", "said"),
    [
        (lambda model, weight: float(str(weight)[7:-1]), "__repr__|repr"),
        (lambda model, weight: next(model.parameters()).grad.mean(), "lies in .grad"),
    ],
    ids=["a text", "a gradient"],
)
def test_what_no_operation_would_read_again_is_not_captured(reads: Any, said: str) -> None:
    model, weight = network(), torch.tensor(2.0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    engine = Engine(model, lambda m, batch: reads(m, weight) * loss(m, batch), CAPTURE)
    with pytest.warns(UserWarning, match=f"no pass is captured from here on: .*({said})"):  # noqa: PT031
        for step in range(4):
            engine.clipped_sum(rows(8, step), 1.0)


def test_batches_are_filled_up_after_captures_were_given_up_too() -> None:
    """A resumed run does not know that they were, and is to draw the same masks."""
    engine = Engine(network(), loss, CAPTURE)
    before = engine._captures.count(37, None, Inventory.of(engine._model), rows(37, 0))
    with pytest.warns(UserWarning, match="no pass is captured"):
        engine._captures._stop("a test", capture_choice.CANNOT)
    assert engine._captures.count(37, None, Inventory.of(engine._model), rows(37, 0)) == before == 40


def test_what_changes_where_nobody_looks_is_found_by_a_pass_in_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEIGHT", "1")

    def weighed(model: Any, batch: Any) -> Tensor:
        return float(os.environ["WEIGHT"]) * loss(model, batch)

    engine = Engine(network(), weighed, CAPTURE)
    for step in range(6):
        engine.clipped_sum(rows(8, step), 1.0)
    monkeypatch.setenv("WEIGHT", "2")
    with pytest.warns(UserWarning, match="something else than in an earlier pass"):  # noqa: PT031
        for step in range(6):
            engine.clipped_sum(rows(8, step), 1.0)


def test_a_counter_beside_the_program_costs_captures_and_is_said() -> None:
    net = network()
    net.steps = 0
    engine = Engine(net, loss, CAPTURE)
    with pytest.warns(UserWarning, match=r"keeps in Sequential.* changes again and again"):  # noqa: PT031
        for step in range(40):
            net.steps += 1
            engine.clipped_sum(rows(8, step), 1.0)


def test_numbers_that_python_reads_from_a_constant_are_not_captured() -> None:
    table = torch.ones(3)

    def weighed(model: Any, batch: Any) -> Tensor:
        return loss(model, batch) * table.tolist()[0]

    engine = Engine(network(), weighed, CAPTURE)
    with pytest.warns(UserWarning, match="tolist"):  # noqa: PT031
        for step in range(6):
            table.mul_(2.0)
            found = engine.clipped_sum(rows(8, step), 1e6)
            near(found, Engine(network(), weighed, PYTHON).clipped_sum(rows(8, step), 1e6))


def turned(model: Any, batch: Any) -> Tensor:
    """Tensors that are turned where they lie, of which others know as they were."""
    features = model[0](batch[0])
    one, two = features.detach().clone(), features.detach().clone()
    other = two.view(two.shape)
    one.t_()
    two.unsqueeze_(0).squeeze_(0)
    two.transpose_(0, 1)
    factor = (one.t() * other).sum(1) + (two.t() * other).sum(1)
    unused = (batch[0] * 2).exp()
    unused[:, 1:].mul_(3.0)
    batch[0].sin()
    return functional.cross_entropy(model[3](model[2](model[1](features))), batch[1], reduction="none") * factor


def test_tensors_that_are_turned_and_what_nobody_uses() -> None:
    model = network()
    engine, reference = Engine(model, turned, CAPTURE), Reference(model, turned)
    for step in range(8):
        near(engine.clipped_sum(rows(8, step), 1.0), reference.clipped_sum(rows(8, step), 1.0))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
    assert engine._captures._done
    # What is made for nothing is not done again.
    aten = torch.ops.aten
    for part in engine._captures._captured.values():
        functions = [value for name, value in part.capture._first.__globals__.items() if name.startswith("f")]
        assert aten._log_softmax.default._op in functions
        assert aten.sin.default._op not in functions


def test_a_tensor_that_is_given_other_memory_is_not_captured() -> None:
    def grown(model: Any, batch: Any) -> Tensor:
        room = torch.zeros(3)
        room.resize_(2)
        return loss(model, batch) + room.sum()

    engine = Engine(network(), grown, CAPTURE)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no pass is captured")
        for step in range(4):
            with suppress(UnsupportedModel):
                engine.clipped_sum(rows(8, step), 1.0)
    assert not engine._captures._done


@pytest.mark.parametrize("name", some(CASES | OPERATIONS, 3))
def test_nothing_of_a_pass_outlives_its_sums(name: str) -> None:
    """Neither in a circle that waits for the collector nor in what is captured."""
    model, batch = (CASES | OPERATIONS)[name].make(torch.float32, 6, seed=1)
    engine = Engine(model, cases_loss, CAPTURE)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no pass is captured")
        for _ in range(4):
            engine.clipped_sum(batch, 1.0)
    gc.collect()
    gc.disable()
    try:
        before = {id(one) for one in gc.get_objects() if isinstance(one, Recorder)}
        engine.clipped_sum(batch, 1.0)
        engine.clipped_sum(batch, 1.0)
        assert {id(one) for one in gc.get_objects() if isinstance(one, Recorder)} <= before
    finally:
        gc.enable()
    for captured in engine._captures._captured.values():
        for done_again in (captured.capture._first, captured.capture._last):
            known = {id(tensor) for tensor in captured.capture._tape.constants.values()}
            leaves = tree_leaves(list(done_again.__globals__.values()))
            assert not any(isinstance(leaf, Tensor) and id(leaf) not in known for leaf in leaves)


@pytest.mark.slow
def test_a_number_in_a_tensor_is_followed_where_it_changes_in_place() -> None:
    for weight in (torch.tensor(1.0), torch.ones(1)):

        def weighed(model: Any, batch: Any) -> Tensor:
            return weight * loss(model, batch)  # noqa: B023

        engine, plain = Engine(network(), weighed, CAPTURE), in_python()
        for step in range(9):
            weight.add_(0.5)
            found, expected = (one.clipped_sum(rows(8, step), 1e6) for one in (engine, plain))
            for name, total in expected.gradients.items():
                torch.testing.assert_close(found.gradients[name], float(weight) * total)
        assert engine._captures._done


def counting(model: Any, batch: Any) -> Tensor:
    model.times = getattr(model, "times", 0) + 1
    return loss(model, batch)


def drawing_in_python(model: Any, batch: Any) -> Tensor:
    return loss(model, batch) * (1.0 if random.random() < 2 else 2.0)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (counting, "keeps something else after each pass"),
        (drawing_in_python, "not the device's"),
    ],
)
def test_what_python_does_in_each_pass_is_not_done_again(program: Any, why: str) -> None:
    engine = Engine(network(), program, CAPTURE, seeds=lambda: 5)
    with pytest.warns(UserWarning, match=why):  # noqa: PT031
        for step in range(4):
            engine.clipped_sum(rows(8, step), 1.0)
    assert not engine._captures._done


def test_random_numbers_are_those_of_the_pass() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 3))
    seeds, other = iter(range(100)), iter(range(100))
    engine = Engine(model, loss, CAPTURE, seeds=lambda: next(seeds))
    plain = Engine(model, loss, PYTHON, seeds=lambda: next(other))
    before = torch.get_rng_state()
    for step in range(10):
        near(engine.clipped_sum(rows(8, step), 1.0), plain.clipped_sum(rows(8, step), 1.0))
    assert torch.equal(before, torch.get_rng_state())
    assert engine._captures._done


def test_what_the_proof_compares_is_compared_each_time() -> None:
    """A table of places that the program keeps: if the data or the program change it, the pass is done in Python."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"table": nn.Embedding(9, 4), "out": nn.Linear(4, 3)})
    places = torch.arange(5)

    def placed(model: Any, batch: Any) -> Tensor:
        seen = batch[0].unsqueeze(1) + model["table"](places)
        rows_of_their_own = seen[torch.arange(len(seen)), batch[1]]
        return functional.cross_entropy(model["out"](rows_of_their_own), batch[1], reduction="none")

    engine, reference = Engine(model, placed, CAPTURE), Reference(model, placed)
    with pytest.warns(UserWarning, match="something else than in an earlier pass"):  # noqa: PT031
        for step in range(12):
            if step == 6:
                places[1] = 0  # no longer distinct: the norm of its gradient is another one
            near(engine.clipped_sum(rows(8, step), 0.01), reference.clipped_sum(rows(8, step), 0.01))
    # Done again: the third, the fifth and the sixth of those that are written down; the last was done in Python, too.
    assert (engine._captures._done, engine._captures._missed) == (3, 1)


def test_most_passes_done_twice_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_MISSED", 2)
    engine = Engine(network(), loss, CAPTURE)
    with pytest.warns(UserWarning, match="had to be done in Python once more"):  # noqa: PT031
        for step in range(12):
            features, labels = rows(8, step)
            features[0] = float("nan")
            engine.clipped_sum((features, labels), 1.0)


def test_a_recording_that_fails_is_said_and_all_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Operations):
        @contextmanager
        def passing(self) -> Generator[None]:
            yield
            raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(device_graphs, "Operations", Broken)
    engine, plain = Engine(network(), loss, CAPTURE), in_python()
    with pytest.warns(UserWarning, match="not permitted") as said:  # noqa: PT031
        for step in range(5):
            near(engine.clipped_sum(rows(8, step), 1.0), plain.clipped_sum(rows(8, step), 1.0))
    assert len([one for one in said if "captured" in str(one.message)]) == 1


# What the data select has a shape that follows them; lengths, and random numbers of Python's, are read there.
NOT_CAPTURED = {"packed lstm", "bag of embeddings, maxima", "LSTM of the tutorial"}


@pytest.mark.parametrize("name", some(CASES | OPERATIONS, 8))
def test_a_layer_or_operation_is_captured_to_the_bit(name: str) -> None:
    model, batch = (CASES | OPERATIONS)[name].make(torch.float32, 6, seed=1)
    check_captured(name, model, cases_loss, batch)


@pytest.mark.parametrize("name", some(ARCHITECTURES | OTHERS, 1))
def test_an_architecture_is_captured_to_the_bit(name: str) -> None:
    """In training mode: masks of dropout are those of the pass."""
    architecture = (ARCHITECTURES | OTHERS)[name]
    model, batch = architecture.make(torch.float32, 5)
    check_captured(name, model, architecture.loss, batch)


def check_captured(name: str, model: nn.Module, loss: Any, batch: Any) -> None:
    seeds = [iter(range(100)), iter(range(100))]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore" if name in NOT_CAPTURED else "error", "no pass is captured")
        engine = Engine(model, loss, CAPTURE, seeds=lambda: next(seeds[0]))
        plain = Engine(model, loss, PYTHON, seeds=lambda: next(seeds[1]))
        for step in range(6):
            given = map_rows(lambda rows: rows.roll(step, 0), batch)  # noqa: B023
            found, expected = engine.clipped_sum(given, 0.1 + step), plain.clipped_sum(given, 0.1 + step)
            for parameter, total in expected.gradients.items():
                assert torch.equal(found.gradients[parameter], total), parameter
            assert found.diagnostics == expected.diagnostics
    # The third and the fifth of those that are captured.
    assert (engine._captures._done, engine._captures._missed) == ((0, 0) if name in NOT_CAPTURED else (2, 0))


def test_a_truth_value_of_the_data_that_is_another_one_has_the_pass_done_in_python() -> None:
    """Whether all is as the program says is looked at there, for each way in which they come out."""

    def steered(model: Any, batch: Any) -> Tensor:
        found = loss(model, batch)
        return found * 3 if batch[0].max() > 50 else found

    engine = Engine(network(), steered, CAPTURE)
    for step in range(12):
        features, labels = rows(8, step)
        if step < 6:
            engine.clipped_sum((features, labels), 1.0)
            continue
        features[3] = 60.0
        with pytest.raises(UnsupportedModel, match="steer"):
            engine.clipped_sum((features, labels), 1.0)
    assert engine._captures._missed == engine._captures._done - 2


def test_a_branch_that_makes_no_difference_is_captured() -> None:
    def skipping(model: Any, batch: Any) -> Tensor:
        mask = batch[0] > -3
        features = batch[0] if bool(mask.all()) else batch[0] * mask
        return loss(model, (features, batch[1]))

    engine = Engine(network(), skipping, CAPTURE)
    for step in range(12):
        features, labels = rows(8, step)
        features[3] = -4.0 if step in (3, 7) else 1.0
        near(
            engine.clipped_sum((features, labels), 1.0),
            Reference(network(), skipping).clipped_sum((features, labels), 1.0),
        )
    assert engine._captures._done > engine._captures._missed


def test_a_checkpoint_with_dropout_draws_again_and_is_not_captured() -> None:
    class Saved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.inside, self.out = nn.Sequential(nn.Linear(4, 8), nn.Dropout()), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(checkpoint(self.inside, x, use_reentrant=False))

    seeds = [iter(range(100)), iter(range(100))]
    model = Saved()
    engine, plain = (
        Engine(model, loss, CAPTURE, seeds=lambda: next(seeds[0])),
        Engine(model, loss, PYTHON, seeds=lambda: next(seeds[1])),
    )
    with pytest.warns(UserWarning, match="drawn again"):  # noqa: PT031
        for step in range(6):
            near(engine.clipped_sum(rows(8, step), 1.0), plain.clipped_sum(rows(8, step), 1.0))


def test_what_a_loss_had_stays_as_long_as_it_is_read() -> None:
    """A teacher that is exchanged: its old weights are not given to the next batch."""

    class Tilted:
        def __init__(self) -> None:
            self.target = torch.randn(1000)

        def __call__(self, model: Any, batch: Any) -> Tensor:
            return loss(model, batch) * self.target.square().mean()

    tilted = Tilted()
    engine = Engine(network(), tilted, CAPTURE)
    for step in range(6):
        engine.clipped_sum(rows(8, step), 1.0)
    storage = tilted.target.untyped_storage()._weak_ref()
    tilted.target = tilted.target.clone()
    gc.collect()
    assert not torch.UntypedStorage._expired(storage)
    for step in range(6):
        near(
            engine.clipped_sum(rows(8, step), 1.0),
            Engine(network(), tilted, PYTHON).clipped_sum(rows(8, step), 1.0),
        )


def test_changes_of_the_model_are_followed() -> None:
    def hooked(m: Any) -> None:
        m[0].weight.register_hook(lambda gradient: gradient)

    def coarser(m: Any) -> None:
        for parameter in m.parameters():
            parameter.data = parameter.data.to(torch.bfloat16).float()

    def renamed(m: Any) -> None:
        m.one = m[0]
        m[0] = nn.Identity()
        m.forward = lambda x: m[3](m[2](m[1](m.one(x))))

    for change in (hooked, coarser, renamed):
        model = network()
        engine = Engine(model, loss, CAPTURE)
        for step in range(6):
            engine.clipped_sum(rows(8, step), 1.0)
        change(model)
        done = engine._captures._done
        if change is hooked:
            with pytest.raises(UnsupportedModel, match="hook"):
                engine.clipped_sum(rows(8, 6), 1.0)
        else:
            found = engine.clipped_sum(rows(8, 6), 1.0)
            near(found, Engine(model, loss, PYTHON).clipped_sum(rows(8, 6), 1.0))
        assert engine._captures._done == done


def test_a_line_that_was_declared_to_read_the_data_is_not_captured() -> None:
    def reading(model: Any, batch: Any) -> Tensor:
        return loss(model, batch) * (2.0 if float(batch[0][0, 0]) > 0 else 1.0)

    line = f"test_capture.py:{reading.__code__.co_firstlineno + 1}"
    engine = Engine(network(), reading, EngineSettings(capture=True, declared=(line,)))
    with pytest.warns(UserWarning, match="reads numbers in Python"):  # noqa: PT031
        for step in range(4):
            engine.clipped_sum(rows(8, step), 1.0)


def test_what_numpy_makes_of_the_data_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a rule of the engine's would do it: no operation shows the array."""

    def found_by_numpy(first: Tensor) -> Tensor:
        return torch.from_numpy(np.flatnonzero(first.numpy()))

    monkeypatch.setattr("decrescendo.clipping.rules.embedding.covers", lambda ids, d: False)
    monkeypatch.setattr("decrescendo.clipping.rules.embedding.places_of", found_by_numpy)
    model, batch = CASES["embedding"].make(torch.float32, 6)
    engine = Engine(model, cases_loss, CAPTURE)
    with pytest.warns(UserWarning, match="nothing shows where a tensor"):  # noqa: PT031
        for _ in range(4):
            engine.clipped_sum(batch, 1.0)


def test_without_compiled_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("segments", "matrices", "compiled"):
        monkeypatch.setattr(f"decrescendo.clipping.rules.{module}.library", lambda: None)
    for name in ("linear", "conv2d"):
        model, batch = CASES[name].make(torch.float32, 6)
        check_captured(name, model, cases_loss, batch)


def test_shapes_have_recordings_of_their_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 3))

    def spoken(model: Any, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch["words"]).mean(1), batch["label"], reduction="none")

    engine, reference = Engine(model, spoken, CAPTURE), Reference(model, spoken)
    for step in range(16):
        dice = torch.Generator().manual_seed(step)
        words = torch.randint(9, (6, 3 + step % 2), generator=dice)
        batch = {"words": words, "label": torch.randint(3, (6,), generator=dice)}
        near(engine.clipped_sum(batch, 0.5), reference.clipped_sum(batch, 0.5))
    assert len(engine._captures._captured) == 2
    assert engine._captures._done


@pytest.mark.slow
def test_no_more_than_some_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_MOST", 3)
    engine, plain = Engine(network(), loss, CAPTURE), in_python()
    for step in range(5):
        for count in range(2, 8):
            near(engine.clipped_sum(rows(count, step), 1.0), plain.clipped_sum(rows(count, step), 1.0))
    assert len(engine._captures._captured) == 3


def test_what_each_rank_keeps_is_given_each_sum_once() -> None:
    given = list[str]()

    def keep(name: str, total: Tensor) -> Tensor:
        given.append(name)
        return total * 2

    model, plain = network(), in_python()
    engine = Engine(model, loss, CAPTURE, keep=keep)
    for step in range(6):
        given.clear()
        found = engine.clipped_sum(rows(8, step), 1.0)
        assert given == [name for name, _ in model.named_parameters()]
        for name, total in plain.clipped_sum(rows(8, step), 1.0).gradients.items():
            torch.testing.assert_close(found.gradients[name], 2 * total)


def test_nothing_is_done_again_where_it_was_not_asked_for() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = in_python()
        for step in range(5):
            engine.clipped_sum(rows(8, step), 1.0)
    assert not engine._captures._done


class Memory(TorchDispatchMode):
    """In place of a CUDA graph: the operations are done again on the same memory, as its kernels are."""

    def __init__(self) -> None:
        super().__init__()
        self.played: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, named = tree_map_only(Tensor, _alias, (args, kwargs or {}))
        output = func(*args, **(kwargs or {}))
        places = {_place(leaf) for leaf in tree_leaves((given, named)) if isinstance(leaf, Tensor)}
        made = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        own = [_alias(leaf) for leaf in made if _place(leaf) not in places]
        self.played.append((func, given, named, own))
        return output

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, own in self.played:
                made = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
                # (Views come again, and are what they were.)
                for before, now in zip(own, made, strict=bool(own)):
                    before.copy_(now)


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _alias(tensor: Tensor) -> Tensor:
    """Another tensor in its memory: autograd goes by how often a tensor is held."""
    with torch._C._DisableTorchDispatch():
        return tensor.detach()


class Dice:
    """In place of that of a CUDA device."""

    def __init__(self) -> None:
        self.state = 0

    def clone_state(self) -> int:
        return self.state

    def graphsafe_set_state(self, state: int) -> None:
        self.state = state


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Dice:
    """A processor that passes for a CUDA device: what is played there on memory of its own."""
    generator, shared = Dice(), dict[object, Tensor]()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Memory)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **_: graph)
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    monkeypatch.setattr(
        device_graphs, "Operations", lambda: device_graphs.DeviceGraphs(torch.device("cpu"), None, shared)
    )
    for module in ("segments", "matrices", "compiled"):  # compiled forms are no operations of torch's
        monkeypatch.setattr(f"decrescendo.clipping.rules.{module}.library", lambda: None)
    monkeypatch.setattr("decrescendo.clipping.rules.embedding.places_of", segments.padded_places_of)
    return generator


@pytest.mark.parametrize("name", some(["linear", "embedding", "layer norm", "conv2d", "tied embedding"], 2))
def test_a_graph_on_memory_of_its_own(name: str, device: Dice) -> None:
    del device
    model, batch = CASES[name].make(torch.float32, 6)
    check_captured(name, model, cases_loss, batch)


@pytest.mark.slow
def test_sums_of_a_graph_are_in_memory_of_their_own(device: Dice) -> None:
    del device
    engine = Engine(network(), loss, CAPTURE)
    found = [engine.clipped_sum(rows(8, step), 1.0) for step in range(8)]
    plain = in_python()
    again = [plain.clipped_sum(rows(8, step), 1.0) for step in range(8)]
    assert engine._captures._done == 4
    for one, other in zip(found, again, strict=True):
        near(one, other)


def test_a_number_of_the_processor_s_is_compared_where_a_graph_has_read_it(device: Dice) -> None:
    del device
    weight = torch.tensor(1.0)

    def weighed(model: Any, batch: Any) -> Tensor:
        return weight * loss(model, batch)

    engine = Engine(network(), weighed, CAPTURE)
    with pytest.warns(UserWarning, match="something else than in an earlier pass"):  # noqa: PT031
        for step in range(9):
            weight.add_(0.5)
            engine.clipped_sum(rows(8, step), 1.0)
    assert not engine._captures._done


def test_a_generator_is_as_before_where_a_graph_breaks_off(device: Dice, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def broken(graph: Memory, **_: Any) -> Generator[None]:
        del graph
        device.state = 7
        yield
        raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(torch.cuda, "graph", broken)
    engine = Engine(network(), loss, CAPTURE)
    with pytest.warns(UserWarning, match="previous error during capture"):  # noqa: PT031
        for step in range(4):
            engine.clipped_sum(rows(8, step), 1.0)
    assert device.state == 0


def _problem() -> tuple[nn.Module, tuple[Tensor, Tensor], Any]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
    x = torch.randn(1000, 20, generator=torch.Generator().manual_seed(0))
    plan = dc.calibrate(
        dc.Budget(3.0, 1e-5), dc.PoissonSampling(1000, 40), steps=40, privacy=dc.curves.constant(1.0),
        clip=dc.curves.constant(1.0),
    )  # fmt: skip
    return model, (x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()), plan


@pytest.mark.slow
def test_a_run_is_the_run_without_but_for_rounding() -> None:
    found = []
    for settings in (CAPTURE, PYTHON):
        model, data, plan = _problem()
        model[2].p = 0.0  # masks follow the number of rows, padding's too
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
        run = dc.train(model, loss, data, plan, optimizer, seed=4, settings=settings)
        assert run.ledger == plan.ledger
        assert set(run.assumptions) <= {REPLAYED}
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_run_that_is_interrupted_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    """To the bit, though other steps of it are done in Python."""
    found = []
    for crash in (None, 17):
        model, data, plan = _problem()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        folder = tmp_path / str(crash)
        if crash is not None:
            trainer = dc.Trainer(
                model, loss, plan, optimizer, seed=4, checkpoints=dc.Checkpoints(folder, 5), settings=CAPTURE
            )
            for step, batch in enumerate(trainer.batches(data)):
                if step == crash:
                    break
                trainer.step(batch)
            model, data, plan = _problem()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        checkpoints = dc.Checkpoints(folder, 5, resume=crash is not None)
        dc.train(model, loss, data, plan, optimizer, seed=4, checkpoints=checkpoints, settings=CAPTURE)
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*found)
