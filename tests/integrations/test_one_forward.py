"""A loop's outputs from the pass of its step: the same numbers, and only where nobody could see a difference."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from decrescendo.clipping import EngineSettings
from decrescendo.integrations.opacus import PrivacyEngine
from decrescendo.integrations.opacus.recording import LoopRecording

STEPS = 16
# (Equal trainings need equal seeds.)
pytestmark = pytest.mark.filterwarnings("ignore:secure_mode is off")
Call = Callable[[Any, Tensor, int], Tensor]


@pytest.fixture(autouse=True)
def _python_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's type checker draws random numbers of Python's."""
    monkeypatch.setattr("decrescendo.clipping.checker.drawn_by_python", lambda held: ())


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each forward pass of a loop's own."""
    calls, own = list[int](), LoopRecording._called

    def counted(self: LoopRecording, *given: Any) -> Any:
        calls.append(self.rows)
        return own(self, *given)

    monkeypatch.setattr(LoopRecording, "_called", counted)
    return calls


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def plainly(module: Any, x: Tensor, step: int) -> Tensor:
    del step
    return module(x)


def private(inner: nn.Module, *, capture: bool = True, batch: int = 64) -> tuple[Any, Any, Any]:
    """Model, optimiser and loader of the bridge, over 64 rows."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 6), torch.randint(4, (64,)))
    return PrivacyEngine().make_private(
        module=inner, optimizer=torch.optim.SGD(inner.parameters(), lr=0.5),
        data_loader=DataLoader(data, batch_size=batch), noise_multiplier=1.0, max_grad_norm=0.3,
        settings=EngineSettings(capture=capture),
    )  # fmt: skip


def trained(
    inner: nn.Module, call: Call = plainly, *, capture: bool = True, expected: bool = True, batch: int = 64,
    between: Callable[[nn.Module, int], None] | None = None,
) -> list[Tensor]:  # fmt: skip
    """Weights after some steps; every step's outputs are compared with the model's own."""
    module, optimizer, loader = private(inner, capture=capture, batch=batch)
    step = 0
    while step < STEPS:
        for x, y in loader:
            outputs = call(module, x, step)
            nn.functional.cross_entropy(outputs, y).backward()
            if expected:
                with torch.no_grad():
                    own = call(inner, x.as_subclass(Tensor), step)
                assert torch.allclose(outputs.as_subclass(Tensor), own, atol=1e-6)
            if between is not None:
                between(inner, step)
            optimizer.step()
            step += 1
    return [weight.detach().clone() for weight in inner.parameters()]


@cache
def in_python(batch: int = 64) -> list[Tensor]:
    """Weights of the plain loop, of which no pass is captured."""
    return trained(model(), capture=False, expected=False, batch=batch)


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_outputs_are_the_models_own_and_the_weights_those_of_passes_in_python(called: list[int]) -> None:
    weights = trained(model(), batch=32)
    few = len(called)
    assert few < STEPS * 4 / 5
    assert equal(weights, trained(model(), capture=False, batch=32))
    assert len(called) - few == STEPS


def test_a_model_that_returns_a_dictionary_gives_one(called: list[int]) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"logits": self.inner(x), "hidden": None}

    def call(module: Any, x: Tensor, step: int) -> Tensor:
        del step
        found = module(x)
        assert found["hidden"] is None
        return found["logits"]

    weights = trained(Named(), call)
    assert len(called) < STEPS / 2
    assert equal(weights, in_python())


def test_what_goes_into_the_model_may_change_from_step_to_step(called: list[int]) -> None:
    def call(module: Any, x: Tensor, step: int) -> Tensor:
        return module(2 * x if 8 <= step < 10 else x)

    # (Nothing may be read of a batch where the loss changes: outputs are not looked at.)
    weights = trained(model(), call, expected=False)
    assert len(called) < STEPS
    assert equal(weights, trained(model(), call, capture=False, expected=False))


def test_functions_that_return_what_they_were_given_are_followed(called: list[int]) -> None:
    def call(module: Any, x: Tensor, step: int) -> Tensor:
        del step
        halved = (x.to("cpu") * 0.5).to("cpu").contiguous()
        return module(halved.view(-1, 6).float())

    weights = trained(model(), call)
    assert len(called) < STEPS / 2
    assert equal(weights, trained(model(), call, capture=False))


def test_outputs_of_a_changed_call_are_its_own() -> None:
    seen = list[Any]()

    def call(module: Any, x: Tensor, step: int) -> Tensor:
        outputs = module(2 * x if step >= 8 else x)
        seen.append((outputs, x.clone()))
        return outputs

    inner = model()
    before = list[list[Tensor]]()

    def noted(module: nn.Module, step: int) -> None:
        before.append([weight.detach().clone() for weight in module.parameters()])

    trained(inner, call, between=noted, expected=False)
    for step, ((outputs, x), weights) in enumerate(zip(seen, before, strict=True)):
        fresh = model()
        for parameter, value in zip(fresh.parameters(), weights, strict=True):
            parameter.data.copy_(value)
        own = fresh((2 if step >= 8 else 1) * x.as_subclass(Tensor))
        assert torch.allclose(outputs.as_subclass(Tensor), own, atol=1e-6), step


def test_weights_that_are_written_before_the_step_count(called: list[int]) -> None:
    @torch.no_grad()
    def halved(module: nn.Module, step: int) -> None:
        if step == STEPS - 3:
            for weight in module.parameters():
                weight.mul_(0.5)

    weights = trained(model(), between=halved, expected=False)
    assert len(called) < STEPS / 2
    assert equal(weights, trained(model(), between=halved, capture=False, expected=False))


def test_a_model_with_hooks_is_called_at_every_step(called: list[int]) -> None:
    inner = model()
    inner[0].register_forward_hook(lambda *given: None)
    trained(inner, expected=False)
    assert len(called) == STEPS


def test_outputs_have_the_masks_of_the_pass_that_is_trained_on_and_move_no_global_numbers(
    called: list[int],
) -> None:
    def dropped() -> nn.Module:
        return nn.Sequential(model(), nn.Dropout(0.3))

    weights = trained(dropped(), expected=False)
    drawn = torch.rand(3)
    assert len(called) < STEPS / 2
    assert equal(weights, trained(dropped(), capture=False, expected=False))
    assert torch.equal(drawn, torch.rand(3))


def test_the_form_of_what_a_call_returns_is_its_own(called: list[int]) -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, x: Tensor, *, several: bool = False) -> Any:
            found = self.inner(x)
            return (found,) if several else found

    def call(module: Any, x: Tensor, step: int) -> Tensor:
        found = module(x)
        if step > STEPS / 2:
            assert isinstance(module(x, several=True), tuple)
        assert isinstance(found, Tensor)
        return found

    weights = trained(Either(), call)
    assert len(called) < STEPS
    assert equal(weights, in_python())


def test_rows_of_an_evaluation_while_a_batch_waits_are_not_taken_for_the_batch() -> None:
    inner = model()
    module, optimizer, loader = private(inner)
    for _ in range(12):
        for x, y in loader:
            with torch.no_grad():
                for rows, _labels in loader:
                    with torch.enable_grad():
                        found = module(rows[:32])
                    own = inner(rows.as_subclass(Tensor)[:32])
                    assert torch.allclose(found.as_subclass(Tensor), own, atol=1e-6)
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()


class Several(nn.Module):
    """Outputs of any form, of which the loss takes the first."""

    def __init__(self, others: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.inner, self.others = model(), others

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        found = self.inner(x)
        return found, *self.others(found)


@pytest.mark.parametrize(
    "others", [lambda h: (h @ h.t(), h - h.mean(0)), lambda h: (h.argmax(1),)],
    ids=["rows by each other", "whole numbers"],
)  # fmt: skip
def test_outputs_that_are_not_made_row_by_row_are_the_loops_own(
    called: list[int], others: Callable[[Tensor], tuple[Tensor, ...]]
) -> None:
    def call(module: Any, x: Tensor, step: int) -> Tensor:
        del step
        found = module(x)
        rows = x.as_subclass(Tensor) if isinstance(module, Several) else None
        if rows is None and torch.is_grad_enabled():  # of the loop; later calls compare them with the model's own
            seen.append([one.as_subclass(Tensor) for one in found])
        else:
            for one, own in zip(seen[-1], found, strict=True):
                assert torch.allclose(one.to(own.dtype), own, atol=1e-6)
        return found[0]

    seen = list[list[Tensor]]()
    trained(Several(others), call, batch=32)
    assert len(called) == STEPS


def test_what_the_loop_draws_for_the_model_is_what_the_model_is_given(called: list[int]) -> None:
    def call(module: Any, x: Tensor, step: int) -> Tensor:
        noise = torch.randn_like(x)
        outputs = module(x + noise)
        if step > STEPS / 2:
            with torch.no_grad():
                own = inner((x + noise).as_subclass(Tensor))
            assert torch.allclose(outputs.as_subclass(Tensor), own, atol=1e-6)
        return outputs

    inner = model()
    trained(inner, call, expected=False)
    assert len(called) == STEPS


def test_an_object_that_is_given_to_the_model_counts(called: list[int]) -> None:
    class Scale:
        value = 1.0

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, x: Tensor, scale: Scale) -> Tensor:
            return self.inner(x) * scale.value

    def weights(*, capture: bool) -> list[Tensor]:
        scale = Scale()

        def call(module: Any, x: Tensor, step: int) -> Tensor:
            scale.value = 1.0 if step < STEPS / 2 else 10.0
            return module(x, scale)

        return trained(Scaled(), call, capture=capture)

    assert equal(weights(capture=True), weights(capture=False))
    assert len(called) == 2 * STEPS


def test_a_model_that_returns_its_loss_goes_on_being_called(called: list[int]) -> None:
    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            logits = self.inner(x)
            return {"loss": nn.functional.cross_entropy(logits, y), "logits": logits}

    module, optimizer, loader = private(Scored())
    for _ in range(6):
        for x, y in loader:
            loss = module(x, y)["loss"]
            assert loss.dim() == 0
            loss.backward()
            optimizer.step()
    assert len(called) == 6
