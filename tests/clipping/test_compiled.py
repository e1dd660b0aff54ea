"""Models under torch.compile: recorded passes run them uncompiled, and afterwards they are compiled as before."""

import warnings
from typing import Any

import pytest
import torch
from clipping_cases import CASES, loss
from equality import check_equal
from often import some
from torch import Tensor, nn

from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.errors import UnsupportedModel

# torch's own, while it loads its compiler, and while it looks at the input of a second compiled part.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]
NAMES = ["weight norm", "deep", "transformer layer", "tied embedding", "self attention", "checkpointed"]


class Counter:
    """A backend that counts graphs compiled and graphs run."""

    def __init__(self) -> None:
        self.compiled = self.runs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.compiled += 1

        def run(*values: Any) -> Any:
            self.runs += 1
            return graph.forward(*values)

        return run


class Net(nn.Module):
    """A class of the user's own: torch compiles nothing when it is asked to compile a bare ``nn.Sequential``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Block(4, 5), Block(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


def made() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Net().double(), (torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,)))


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", some(["aot_eager", "eager"], 1))
@pytest.mark.parametrize("name", some(NAMES, 1))
def test_a_compiled_model_equals_the_reference(name: str, backend: str) -> None:
    model, batch = CASES[name].make(torch.float64, 6)
    check_equal(torch.compile(model, backend=backend), batch, torch.float64, EngineSettings())


@pytest.mark.slow
def test_a_model_compiled_by_inductor_equals_the_reference() -> None:
    model, batch = CASES["deep"].make(torch.float64, 6)
    check_equal(torch.compile(model), batch, torch.float64, EngineSettings())


def compiled_whole(model: nn.Module, backend: Any) -> nn.Module:
    return torch.compile(model, backend=backend)


def compiled_in_place(model: nn.Module, backend: Any) -> nn.Module:
    model.compile(backend=backend)
    return model


def compiled_inside(model: nn.Module, backend: Any) -> nn.Module:
    model.first = torch.compile(model.first, backend=backend)
    model.last.compile(backend=backend)
    return model


def compiled_without_breaks(model: nn.Module, backend: Any) -> nn.Module:
    return torch.compile(model, backend=backend, fullgraph=True, dynamic=True)


def compiled_forward(model: nn.Module, backend: Any) -> nn.Module:
    model.forward = torch.compile(model.forward, backend=backend)
    return model


@pytest.mark.parametrize("used_before", some([False, True], 3))
@pytest.mark.parametrize(
    "compiling",
    [compiled_whole, compiled_in_place, compiled_inside, compiled_without_breaks, compiled_forward],
)
def test_every_way_to_compile_works_and_goes_on_working(compiling: Any, used_before: bool) -> None:
    plain, batch = made()
    expected = Reference(plain, loss).per_example_norms(batch)
    values = plain(batch[0]).detach()
    count = Counter()
    model = compiling(plain, count)
    keys = list(model.state_dict())
    if used_before:
        model(batch[0])
    compiled, runs = count.compiled, count.runs
    engine = Engine(model, loss)
    engine.check(batch)
    torch.testing.assert_close(engine.per_example_norms(batch), expected, rtol=1e-10, atol=1e-12)
    gradients = engine.clipped_sum(batch, 1.0).gradients
    assert set(gradients) == {name for name, _ in model.named_parameters()}
    assert list(model.state_dict()) == keys
    assert (count.compiled, count.runs) == (compiled, runs)  # nothing was compiled, or run compiled
    torch.testing.assert_close(model(batch[0]), values)
    assert count.runs > runs
    if used_before:
        assert count.compiled == compiled  # and what was compiled is still good


def test_a_model_compiled_after_the_engine_was_made_works() -> None:
    model, batch = made()
    engine = Engine(model, loss)
    before = engine.clipped_sum(batch, 1.0).gradients
    count = Counter()
    model.compile(backend=count)
    model(batch[0])
    after = engine.clipped_sum(batch, 1.0).gradients
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert count.runs == 1


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_loss_equals_the_reference(fullgraph: bool) -> None:
    count = Counter()
    compiled = torch.compile(loss, backend=count, fullgraph=fullgraph)
    model, batch = made()
    plain = Engine(model, loss).clipped_sum(batch, 1.0).gradients
    found = Engine(model, compiled).clipped_sum(batch, 1.0).gradients
    assert all(torch.equal(plain[name], found[name]) for name in plain)
    assert count.compiled == 0
    compiled(model, batch)
    assert count.compiled >= 1


def test_a_compiled_function_called_in_the_model_is_followed() -> None:
    """Not the module is compiled but a helper that gets the parameter."""
    count = Counter()
    helper = torch.compile(lambda x, weight, bias: torch.tanh(x @ weight + bias), backend=count)

    class Helped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            return helper(x, self.weight, self.bias)

    check_equal(
        Helped().double(),
        (torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,))),
        torch.float64,
        EngineSettings(),
    )
    assert count.runs > 0  # the slow loop ran it compiled


def scripted(function: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".torch\.jit\.script. is deprecated")  # of another category in torch 2.14
        return torch.jit.script(function)


@scripted
def scaled_root(x: Tensor, scale: int) -> Tensor:
    """As DeBERTa had it: a constant that no operation shows the making of."""
    return torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * scale)


@scripted
def bucketed(x: Tensor, middle: int) -> Tensor:
    near = torch.where(x < middle, torch.tensor(middle - 1).type_as(x), torch.abs(x))
    return torch.where(near <= middle, x.type_as(near), near * torch.sign(x))


@scripted
def counted(x: Tensor) -> Tensor:
    return torch.tensor(x.size(0))


@scripted
def swapped(x: Tensor) -> Tensor:
    first, second = x.chunk(2, 0)
    return torch.cat([second * 2 + 1, first * 2 + 1], 0).tanh() * 3


def test_scripted_functions_are_followed() -> None:
    """Once torch.jit has made them faster too, which hides what they do."""
    model = CASES["deep"].make(torch.float64, 6)[0]
    batch = torch.randn(6, 5, dtype=torch.float64), torch.randint(3, (6,))
    for _ in range(4):
        swapped(torch.randn(6, 3, requires_grad=True)).sum().backward()
        scaled_root(batch[0], 3)

    def usual(model: nn.Module, batch: Any) -> Tensor:
        return loss(model, (bucketed(batch[0], 2), batch[1])) / scaled_root(batch[0], 3)

    check_equal(model, batch, torch.float64, EngineSettings(), usual)
    for size in (6, 4, 2, 6):  # addresses of what is gone are given again
        few = tuple(rows[:size] for rows in batch)
        for bad in (
            lambda m, b: loss(m, b) * counted(b[0]),
            lambda m, b: swapped(m(b[0])).sum(1),
        ):
            with pytest.raises(UnsupportedModel):
                Engine(model, bad).clipped_sum(few, 1.0)


def test_the_stance_of_the_user_is_left_as_it_was() -> None:
    model, batch = made()
    compiled = torch.compile(model, backend="eager")
    with torch.compiler.set_stance("fail_on_recompile"):
        Engine(compiled, loss).clipped_sum(batch, 1.0)
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            compiled(batch[0])
