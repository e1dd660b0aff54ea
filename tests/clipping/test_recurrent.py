"""Plain recurrent layers and cells against the slow loop, and what must hold of the replaced forward pass."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from clipping_cases import Made, loss, normal
from equality import check_equal, has_kernels
from hypothesis import example, given
from hypothesis import strategies as st
from often import some
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from untouched import portrait

from decrescendo.base.rng import seeded
from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.clipping.recurrent.scan import Mode, Steps, Weights, forward
from decrescendo.errors import UnsupportedModel

# torch says that it has no fast kernel for projections; it is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
WIDTH, STATE = 3, 4
KINDS: dict[str, Callable[..., nn.Module]] = {
    "lstm": nn.LSTM,
    "lstm with projection": lambda *a, **k: nn.LSTM(*a, proj_size=2, **k),
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
}


class Reader(nn.Module):
    """Sequences (batch, length, 3), of the lengths in their first column when packed, to three outputs."""

    def __init__(
        self,
        kind: str,
        *,
        layers: int = 1,
        bidirectional: bool = False,
        bias: bool = True,
        batch_first: bool = True,
        packed: str = "",
        given: bool = False,
        reads: str = "both",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.layer = KINDS[kind](
            WIDTH,
            STATE,
            num_layers=layers,
            bidirectional=bidirectional,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
        )
        out = 2 if "projection" in kind else STATE
        wide = layers * (1 + bidirectional)
        self.first = nn.Parameter(0.5 * torch.randn(wide, 1, out)) if given else None
        self.cell = nn.Parameter(0.5 * torch.randn(wide, 1, STATE)) if given and "lstm" in kind else None
        self.out = nn.Linear(out * (1 + bidirectional), 3)
        self.last = nn.Linear(out * wide, 3)
        self.packed, self.reads, self.batch_first = packed, reads, batch_first

    def states(self, batch: int) -> Any:
        if self.first is None:
            return None
        first = self.first.expand(-1, batch, -1)
        return first if self.cell is None else (first, self.cell.repeat(1, batch, 1))

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x[:, 0, 0].abs() * 3).long().clamp(max=x.shape[1] - 1) + 1
        rows = x if self.batch_first else x.transpose(0, 1)
        if self.packed:
            # Sorted by the user the examples would change places: sequences of one length are sorted as they are.
            lengths = lengths if self.packed == "any order" else torch.full_like(lengths, max(1, x.shape[1] - 1))
            rows = pack_padded_sequence(
                rows, lengths, batch_first=self.batch_first, enforce_sorted=self.packed == "sorted"
            )
        outputs, last = self.layer(rows, self.states(x.shape[0]))
        if self.packed:
            # Up to the longest of the batch, the mean would let examples see each other.
            outputs = pad_packed_sequence(outputs, self.batch_first, total_length=x.shape[1])[0]
        outputs = outputs if self.batch_first else outputs.transpose(0, 1)
        state = last[0] if isinstance(last, tuple) else last
        read = self.out(outputs).mean(1) if self.reads in ("both", "outputs") else 0
        if self.reads in ("both", "last"):
            read = read + self.last(state.transpose(0, 1).flatten(1))
        if self.reads == "both" and isinstance(last, tuple):
            read = read + last[1].sum((0, 2)).tanh().unsqueeze(1) * torch.arange(3)
        return read


def rows(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, length, WIDTH, dtype=dtype), torch.randint(3, (batch,))


@given(
    kind=st.sampled_from(sorted(KINDS)),
    layers=st.integers(1, 3),
    bidirectional=st.booleans(),
    bias=st.booleans(),
    batch_first=st.booleans(),
    packed=st.sampled_from(["", "", "sorted", "any order", "any order"]),
    given_state=st.booleans(),
    reads=st.sampled_from(["both", "outputs", "last"]),
    frozen=st.sets(st.integers(0, 40), max_size=8),
    batch=st.integers(1, 7),
    length=st.integers(1, 7),
    seed=st.integers(0, 1000),
    single=st.booleans(),
)
@example(  # as many examples as steps and as units
    kind="lstm", layers=2, bidirectional=True, bias=True, batch_first=False, packed="", given_state=True,
    reads="both", frozen=set(), batch=4, length=4, seed=0, single=True,
)  # fmt: skip
def test_a_recurrent_layer_equals_the_reference(
    kind: str,
    layers: int,
    bidirectional: bool,
    bias: bool,
    batch_first: bool,
    packed: str,
    given_state: bool,
    reads: str,
    frozen: set[int],
    batch: int,
    length: int,
    seed: int,
    single: bool,
) -> None:
    dtype = torch.float32 if single else torch.float64
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Reader(
            kind, layers=layers, bidirectional=bidirectional, bias=bias, batch_first=batch_first, packed=packed,
            given=given_state, reads=reads,
        ).to(dtype)  # fmt: skip
        for number, parameter in enumerate(model.layer.parameters()):
            parameter.requires_grad_(number not in frozen)
        check_equal(model, rows(batch, length, dtype), dtype, EngineSettings())


@pytest.mark.slow
@pytest.mark.parametrize("packed", ["", "any order"])
@pytest.mark.parametrize("kind", KINDS)
def test_sizes_that_coincide_change_nothing(kind: str, packed: str) -> None:
    """One engine over batches as long as sequences, as wide as states, of sequences of one length and of several."""
    torch.manual_seed(0)
    for batch_first in (True, False):
        model = Reader(kind, layers=2, batch_first=batch_first, packed=packed).double()
        engine, reference = Engine(model, loss), Reference(model, loss)
        for batch, length in ((5, 3), (3, 3), (4, 4), (1, 4), (4, 1), (1, 1), (6, 3), (12, 4), (16, 4)):
            given = rows(batch, length, torch.float64)
            if batch == 12:
                given[0][:, 0, 0] = 1.0
            torch.testing.assert_close(
                engine.per_example_norms(given), reference.per_example_norms(given), rtol=1e-9, atol=1e-12
            )


@pytest.mark.parametrize("packed", ["", "any order"])
@pytest.mark.parametrize("bidirectional", some([False, True], 1))
@pytest.mark.parametrize("batch_first", some([False, True], 1))
@pytest.mark.parametrize("kind", some(sorted(KINDS), 1))
def test_recording_changes_no_loss(kind: str, batch_first: bool, bidirectional: bool, packed: str) -> None:
    """Dropout between layers included: the same masks are drawn, and as many numbers. (Where data say how long
    sequences are, what is drawn later comes from elsewhere: where the generator is tells nothing.)"""
    torch.manual_seed(0)
    dropout = 0.0 if packed == "any order" else 0.4
    model = Reader(kind, layers=3, bidirectional=bidirectional, batch_first=batch_first, packed=packed, dropout=dropout)
    batch = rows(6, 5, torch.float32)
    with seeded(1):
        plain = loss(model, batch)
    engine = Engine(model, loss, seeds=lambda: 1)
    torch.testing.assert_close(engine.checked_pass(batch).losses, plain.detach(), rtol=1e-6, atol=1e-6)
    found = engine.clipped_sum(batch, float("inf")).gradients
    with seeded(1):
        expected = torch.autograd.grad(loss(model, batch).sum(), list(model.parameters()))
    for gradient, other in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)


def cells(kind: type[nn.Module], **options: Any) -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = m.cell(step, state)
        return m.out(state[0] * state[1] if isinstance(state, tuple) else state)

    return Made(run, cell=kind(WIDTH, STATE, **options), out=nn.Linear(STATE, 3))


@pytest.mark.parametrize("bias", some([True, False], 1))
@pytest.mark.parametrize(
    ("kind", "options"),
    some([(nn.LSTMCell, {}), (nn.GRUCell, {}), (nn.RNNCell, {}), (nn.RNNCell, {"nonlinearity": "relu"})], 2),
    ids=["lstm", "gru", "tanh", "relu"],
)
def test_an_unrolled_cell_equals_the_reference(kind: type[nn.Module], options: Any, bias: bool) -> None:
    for dtype in (torch.float32, torch.float64):
        for batch, length in ((6, 4), (4, 4), (3, 1)):
            torch.manual_seed(batch)
            model = cells(kind, bias=bias, **options).to(dtype)
            check_equal(model, rows(batch, length, dtype), dtype, EngineSettings())


def test_a_layer_called_twice_and_weights_tied_between_layers() -> None:
    torch.manual_seed(0)
    twice = Made(
        lambda m, x: m.out(m.layer(m.layer(x)[0])[0][:, -1]),
        layer=nn.GRU(WIDTH, WIDTH, batch_first=True),
        out=nn.Linear(WIDTH, 3),
    ).double()
    check_equal(twice, rows(5, 4, torch.float64), torch.float64, EngineSettings())
    tied = Reader("lstm", layers=2).double()
    tied.layer.weight_hh_l1 = tied.layer.weight_hh_l0
    tied.layer.bias_hh_l0 = tied.layer.bias_ih_l0
    check_equal(tied, rows(5, 4, torch.float64), torch.float64, EngineSettings())


def test_a_weight_made_from_parameters() -> None:
    torch.manual_seed(0)
    model = Reader("lstm").double()
    nn.utils.parametrizations.weight_norm(model.layer, "weight_hh_l0")
    check_equal(model, rows(5, 4, torch.float64), torch.float64, EngineSettings())


def test_several_sequences_an_example() -> None:
    """Words of letters: the sequences of an example lie together, or its first ones come first."""
    torch.manual_seed(0)
    for batch_first in (True, False):
        for order in ("folded", "interleaved"):

            def run(m: Any, x: Tensor, first: bool = batch_first, order: str = order) -> Tensor:
                words = x if order == "folded" else x.transpose(0, 1)
                flat = words.flatten(0, 1)
                states = m.layer(flat if first else flat.transpose(0, 1))[1][-1]
                states = states.reshape(*words.shape[:2], -1)
                return m.out(states if order == "folded" else states.transpose(0, 1))

            model = Made(run, layer=nn.GRU(WIDTH, STATE, batch_first=batch_first), out=nn.Linear(STATE, 3)).double()
            x = torch.randn(5, 2, 4, WIDTH, dtype=torch.float64)
            check_equal(model, (x, torch.randint(3, (5,))), torch.float64, EngineSettings())


def test_trained_layers_on_packed_data() -> None:
    """Rows of packed data belong to the examples that pack_padded_sequence took them from."""
    torch.manual_seed(0)

    def run(m: Any, x: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, (x[:, :, 0] > 0).sum(1).clamp(min=1), True, enforce_sorted=False)
        inner = m.norm(m.layer(packed.data)).tanh() * m.scale
        outputs = m.rnn(packed._replace(data=inner))[0]
        outputs = outputs._replace(data=m.out(outputs.data))
        return pad_packed_sequence(outputs, True, total_length=x.shape[1])[0].mean(1)

    model = Made(
        run,
        layer=nn.Linear(WIDTH, 5),
        norm=nn.LayerNorm(5),
        scale=normal(5),
        rnn=nn.LSTM(5, STATE),
        out=nn.Linear(STATE, 3),
    ).double()
    check_equal(model, rows(7, 5, torch.float64), torch.float64, EngineSettings())


def test_lengths_that_are_not_the_sequences_own_are_refused() -> None:
    torch.manual_seed(0)

    def run(m: Any, x: Tensor) -> Tensor:
        there = torch.arange(1, 1 + x.shape[0]).clamp(max=x.shape[1])
        packed = pack_padded_sequence(x, there, True, enforce_sorted=False)
        return pad_packed_sequence(packed._replace(data=m.out(packed.data)), True)[0].mean(1)

    with pytest.raises(UnsupportedModel, match=r"lengths|same for any number|number of examples"):
        Engine(Made(run, out=nn.Linear(WIDTH, 3)), loss).check(rows(4, 5, torch.float32))


def test_sequences_sorted_by_the_user_and_put_back_are_followed() -> None:
    torch.manual_seed(0)

    def run(m: Any, x: Tensor) -> Tensor:
        order = torch.argsort(x[:, 0, 0], descending=True)
        last = m.layer(x[order])[1]
        return m.out(last[0][torch.argsort(order)])

    model = Made(run, layer=nn.GRU(WIDTH, STATE, batch_first=True), out=nn.Linear(STATE, 3)).double()
    check_equal(model, rows(8, 5, torch.float64), torch.float64, EngineSettings())


def test_the_batch_taken_for_the_length_is_refused() -> None:
    """batch_first forgotten: the layer runs from example to example."""
    torch.manual_seed(0)
    wrong = Made(lambda m, x: m.out(m.layer(x)[0]).mean(1), layer=nn.LSTM(WIDTH, STATE), out=nn.Linear(STATE, 3))
    with pytest.raises(UnsupportedModel, match="Is batch_first right"):
        Engine(wrong, loss).check(rows(6, 5, torch.float32))
    with pytest.raises(UnsupportedModel, match="Is batch_first right"):
        Engine(wrong, loss).check(rows(6, 6, torch.float32))


def test_a_first_state_that_is_a_parameter_itself_is_refused() -> None:
    torch.manual_seed(0)
    model = Made(
        lambda m, x: m.out(m.layer(x, m.first)[1][0]),
        layer=nn.GRU(WIDTH, STATE, batch_first=True),
        first=normal(1, 5, STATE),
        out=nn.Linear(STATE, 3),
    )
    with pytest.raises((UnsupportedModel, RuntimeError), match=r"Expand it|Expected hidden size"):
        Engine(model, loss).check(rows(5, 4, torch.float32))


@pytest.mark.parametrize("packed", ["", "any order"])
@pytest.mark.parametrize("kind", some(sorted(KINDS), 1))
def test_an_example_without_a_finite_gradient_contributes_nothing(kind: str, packed: str) -> None:
    torch.manual_seed(0)
    model = Reader(kind, layers=2, bidirectional=True, packed=packed)
    x, y = rows(6, 5, torch.float32)
    x[1, 0, 1], x[4, -1, 2] = float("nan"), float("inf")
    x[4, 0, 0] = 3.0  # as long as it can be, so that the last step is there
    found, expected = (build(model, loss).clipped_sum((x, y), 0.5) for build in (Engine, Reference))
    assert found.diagnostics.nonfinite == expected.diagnostics.nonfinite
    assert found.diagnostics.nonfinite >= 1
    for name, gradient in expected.gradients.items():
        torch.testing.assert_close(found.gradients[name], gradient, rtol=1e-4, atol=1e-6)


def test_a_step_leaves_no_trace_on_the_layer() -> None:
    torch.manual_seed(0)
    model = Reader("lstm", layers=2, dropout=0.3)
    batch = rows(6, 5, torch.float32)
    values = {key: value.clone() for key, value in model.state_dict().items()}
    before = portrait(model)
    Engine(model, loss, seeds=lambda: 1).clipped_sum(batch, 1.0)
    assert portrait(model) == before
    assert all(torch.equal(values[key], value) for key, value in model.state_dict().items())


def test_outputs_changed_in_place_are_what_they_were() -> None:
    """The outputs are a copy of what the rules need: activations in place behind the layer do no harm."""
    torch.manual_seed(0)
    model = Made(
        lambda m, x: m.out(m.layer(x)[0].mul_(2)).mean(1),
        layer=nn.GRU(WIDTH, STATE, batch_first=True),
        out=nn.Linear(STATE, 3),
    )
    batch = rows(6, 5, torch.float32)
    outside = Made(lambda m, x: m.out(m.layer(x)[0] * 2).mean(1), layer=model.layer, out=model.out)
    found = Engine(model, loss).per_example_norms(batch)
    torch.testing.assert_close(found, Reference(outside, loss).per_example_norms(batch), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["lstm", "gru", "tanh", "relu"])
def test_what_is_written_meanwhile_does_not_get_into_the_way_back(mode: Mode) -> None:
    """Neither outputs nor states, the first ones and the last, which a program may fill with other examples."""
    width, cell = (
        {"lstm": 4, "gru": 3}.get(mode, 1) * STATE,
        torch.randn(5, STATE) if mode == "lstm" else None,
    )
    gates, state, weights = (
        torch.randn(5, 6, width),
        torch.randn(5, STATE),
        Weights(torch.randn(width, STATE)),
    )
    given = torch.randn(5, 6, STATE)

    def gradients(*, late: bool) -> list[Tensor]:
        mine = [tensor.clone() for tensor in (gates, state, cell) if tensor is not None]
        trace = forward(mode, mine[0], mine[1], mine[2] if cell is not None else None, weights, Steps(), reverse=False)
        if late:
            for tensor in (*mine, trace.outputs, trace.before):
                tensor.fill_(torch.nan)
        found = trace.gradients(given, None, None)
        return [value for value in (found.gates, found.hidden, found.state, found.cell) if value is not None]

    for one, two in zip(gradients(late=False), gradients(late=True), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("kind", ["lstm with projection", "gru", "tanh"])
def test_weights_written_after_the_layer_are_refused(kind: str) -> None:
    """The way back would multiply by what was written."""
    names = {"lstm with projection": torch.lstm, "gru": torch.gru, "tanh": torch.rnn_tanh}

    def run(m: Any, x: Tensor) -> Tensor:
        made = [weight * 1 for weight in m.layer.all_weights[0]]
        width = 2 if "projection" in kind else STATE
        states = [x.new_zeros(1, len(x), size) for size in ((width, STATE) if "lstm" in kind else (width,))]
        hx = states if "lstm" in kind else states[0]
        outputs = names[kind](x, hx, made, True, 1, 0.0, False, False, True)[0]
        with torch.no_grad():
            made[1].mul_(1 + m.late)
        return m.out(outputs).mean(1)

    torch.manual_seed(0)
    layer = KINDS[kind](WIDTH, STATE, batch_first=True)
    model = Made(run, layer=layer, out=nn.Linear(2 if "projection" in kind else STATE, 3))
    model.late = 0.5
    with pytest.raises((UnsupportedModel, RuntimeError), match=r"written in place|inplace operation"):
        Engine(model, loss).check(rows(6, 5, torch.float32))


def test_inputs_changed_after_the_layer_are_refused() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        inner = x * 1
        outputs = m.layer(inner)[0]
        inner.mul_(2)
        return m.out(outputs).mean(1)

    model = Made(run, layer=nn.GRU(WIDTH, STATE, batch_first=True), out=nn.Linear(STATE, 3))
    with pytest.raises(UnsupportedModel, match="overwritten"):
        Engine(model, loss).check(rows(6, 5, torch.float32))


@pytest.mark.parametrize("packed", ["", "any order"])
@pytest.mark.parametrize("kind", some(sorted(KINDS), 1))
def test_autocast_is_followed(kind: str, packed: str) -> None:
    def cast(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, batch).float()

    torch.manual_seed(0)
    model = Reader(kind, layers=2, packed=packed, reads="last")
    batch = rows(9, 5, torch.float32)
    engine = Engine(model, cast)
    if not has_kernels(lambda: engine.per_example_norms(batch)):
        pytest.skip("torch itself has no such layer")
    found, expected = engine.per_example_norms(batch), Reference(model, loss).per_example_norms(batch)
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=1e-2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
def test_a_compiled_model_is_recorded_uncompiled() -> None:
    torch.manual_seed(0)
    model = Reader("lstm").double()
    check_equal(torch.compile(model), rows(5, 4, torch.float64), torch.float64, EngineSettings())


def test_the_gradient_of_a_recurrent_weight_inside_the_loss_is_refused() -> None:
    def penalised(model: Any, batch: Any) -> Tensor:
        losses = loss(model, batch)
        (inner,) = torch.autograd.grad(losses.sum(), [model.layer.weight_hh_l0], retain_graph=True)
        return losses + inner.square().sum()

    torch.manual_seed(0)
    with pytest.raises(UnsupportedModel, match="asked for by the engine alone"):
        Engine(Reader("lstm"), penalised).check(rows(5, 4, torch.float32))


@pytest.mark.parametrize("part", some(["gates", "hidden", "state"], 1))
def test_a_pass_back_that_is_wrong_by_a_percent_is_found(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """The power of the self-check: it compares with a pass that is not recorded, so the scan itself is checked."""
    from dataclasses import replace

    from decrescendo.clipping.recurrent import scan as recurrent

    torch.manual_seed(0)
    model = Reader("gru", layers=2, given=True).double()
    batch = rows(8, 5, torch.float64)
    Engine(model, loss).check(batch)
    true = recurrent.Trace.gradients

    def off(*args: Any, **kwargs: Any) -> Any:
        found = true(*args, **kwargs)
        return replace(found, **{part: 1.01 * getattr(found, part)})

    monkeypatch.setattr(recurrent.Trace, "gradients", off)
    with pytest.raises(UnsupportedModel, match="must be autograd's"):
        Engine(model, loss).check(batch)


def test_a_pass_forward_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from decrescendo.clipping.recurrent import scan_functions as recurrent

    torch.manual_seed(0)
    model = Reader("gru")
    true = recurrent.forward

    def off(*args: Any, **kwargs: Any) -> Any:
        trace = true(*args, **kwargs)
        with torch.enable_grad():
            return replace(trace, last=1.05 * trace.last)

    monkeypatch.setattr(recurrent, "forward", off)
    with pytest.raises(UnsupportedModel, match="recording must not change a loss"):
        Engine(model, loss).check(rows(8, 5, torch.float32))


def test_a_selection_of_features_is_not_taken_for_the_order_of_sequences() -> None:
    torch.manual_seed(0)

    def run(m: Any, x: Tensor) -> Tensor:
        turned = x.index_select(2, torch.tensor([2, 0, 1]))
        lengths = torch.full((x.shape[0],), x.shape[1])
        return m.out(m.layer(pack_padded_sequence(turned, lengths, True))[1][0])

    model = Made(run, layer=nn.GRU(WIDTH, STATE), out=nn.Linear(STATE, 3)).double()
    for batch in (5, WIDTH):
        check_equal(model, rows(batch, 4, torch.float64), torch.float64, EngineSettings())


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_outputs_lie_in_memory_as_torchs_do(kind: str, batch_first: bool) -> None:
    """One step after another: what follows may ask for a view of it (``output.view(-1, hidden)``)."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"layer": getattr(nn, kind)(3, 4, 2, batch_first=batch_first), "head": nn.Linear(4, 1)})
    seen = []

    def loss(m: Any, x: Tensor) -> Tensor:
        outputs = m["layer"](x if batch_first else x.transpose(0, 1))[0]
        seen.append(outputs.stride())
        by_steps = outputs.transpose(0, 1) if batch_first else outputs
        return m["head"](by_steps.view(-1, 4)).view(6, len(x)).square().sum(0)

    batch = torch.randn(5, 6, 3)
    loss(model, batch)
    found = Engine(model, loss).clipped_sum(batch, 1.0).gradients
    assert seen.count(seen[0]) > 1
    torch.testing.assert_close(found, Reference(model, loss).clipped_sum(batch, 1.0).gradients)
