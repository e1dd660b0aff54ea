"""What the other files say of the engine, on a CUDA device: torch computes there with kernels of its own (attention,
recurrent layers, normalisation, dropout), which the proof and the rules must know as well."""

import dataclasses
import itertools
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES, OTHERS
from clipping_cases import CASES, loss
from corpus.judge import Truth, exact, judge
from corpus.program import Program, programs
from equality import check_equal
from operation_cases import OPERATIONS
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import decrescendo as dc
from decrescendo.base.batches import map_rows
from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.clipping.memory import metered
from decrescendo.errors import DecrescendoError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning"),
]
DEVICE = "cuda"
# What torch itself does not run there: lengths of packed sequences must be in the processor's memory, and these have
# theirs on the device (`Packed` below has not); first states that are expanded, cuDNN does not take.
NOT_THERE = {"packed lstm", "recurrent layer from a trained state", "LSTM over a parameter only"} | {
    f"{kind}, packed{how}" for kind in ("RNN", "GRU", "LSTM") for how in ("", " and sorted")
}
SINGLE_CASES = {name: case for name, case in (CASES | OPERATIONS).items() if name not in NOT_THERE}
FAMILIES = {name: each for name, each in (ARCHITECTURES | OTHERS).items() if "LSTM" not in name}
# It reads the device's memory as if it were the processor's, which ends the process.
DEADLY = {"scaled by the memory itself"}


@pytest.fixture(autouse=True)
def _convolutions_are_exact() -> Iterator[None]:
    """torch rounds what convolutions and recurrent layers of cuDNN multiply to 10 bits, unless it is told not to."""
    switches: Any = (torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee"
    yield
    for switch, value in zip(switches, before, strict=True):
        switch.fp32_precision = value


def there(batch: Any) -> Any:
    """The same rows on the device."""
    return map_rows(lambda rows: rows.to(DEVICE), batch)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", SINGLE_CASES)
def test_a_layer_or_operation_equals_the_reference(name: str, dtype: torch.dtype) -> None:
    for size in (6, 1, 4):
        model, batch = SINGLE_CASES[name].make(dtype, size, seed=size)
        with torch.device(DEVICE):
            check_equal(model.to(DEVICE), there(batch), dtype, EngineSettings(), widened=dtype == torch.float32)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_architecture_equals_the_reference(name: str) -> None:
    architecture = FAMILIES[name]
    model, batch = architecture.make(torch.float32, 5)
    model.to(DEVICE).eval()
    check_equal(model, there(batch), torch.float32, EngineSettings(), architecture.loss, widened=name != "Mamba")


CAPTURE = EngineSettings(capture=True)
# What no graph can hold: torch waits for the device in these (masks and ids that are counted there), copies numbers to
# it, or goes back to the stream on which a parameter was used first; OPT leaves out layers by Python's random numbers.
NOT_CAPTURED = {
    "bag of embeddings", "bag of embeddings, maxima", "masked_fill", "position table of ids that repeat",
    "a parameter read as complex numbers", "BEiT", "DeBERTa", "Mamba", "OPT", "Swin", "T5",
}  # fmt: skip


def _by_graphs(name: str, model: nn.Module, loss: Any, batch: Any, **options: Any) -> list[tuple[Any, Any]]:
    """Of several steps the sum with graphs, and the one without."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore" if name in NOT_CAPTURED else "error", "no pass is captured")
        captured, plain = Engine(model, loss, CAPTURE, **options), Engine(model, loss, **options)
        found = []
        for step in range(6):
            given = map_rows(lambda rows: rows.roll(step, 0), batch)  # noqa: B023
            found.append((captured.clipped_sum(given, 0.1 + step), plain.clipped_sum(given, 0.1 + step)))
    # By a graph: the third and the fifth of those that are written down.
    assert (captured._captures._done, captured._captures._missed) == (2, 0) or name in NOT_CAPTURED
    return found


@pytest.mark.parametrize("name", SINGLE_CASES)
def test_a_layer_or_operation_is_done_again_by_a_graph(name: str) -> None:
    model, batch = SINGLE_CASES[name].make(torch.float32, 6, seed=1)
    with torch.device(DEVICE):
        for found, expected in _by_graphs(name, model.to(DEVICE), loss, there(batch), seeds=lambda: 3):
            for parameter, total in expected.gradients.items():
                torch.testing.assert_close(found.gradients[parameter], total, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_architecture_is_done_again_by_a_graph(name: str) -> None:
    """In training mode: masks of dropout are those of the pass."""
    architecture = FAMILIES[name]
    model, batch = architecture.make(torch.float32, 5)
    model.to(DEVICE)
    seeds = [iter(range(100)), iter(range(100))]
    for found, expected in _by_graphs(name, model, architecture.loss, there(batch), seeds=_turns(seeds)):
        scale = max(float(total.abs().max()) for total in expected.gradients.values())
        for parameter, total in expected.gradients.items():
            torch.testing.assert_close(found.gradients[parameter], total, rtol=1e-2, atol=1e-4 * scale)


def _turns(seeds: Any) -> Any:
    """One seed for each of two engines in turn (`_by_graphs` asks one after the other)."""
    numbers = itertools.count()
    return lambda: next(numbers) // 2


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["GPT-2 small", "BERT-tiny", "ViT-tiny", "Llama"])
def test_autocast_is_followed(name: str, kind: torch.dtype) -> None:
    """Attention takes its fused kernels for numbers of 16 bits only there."""
    architecture = FAMILIES[name]

    def cast(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast(DEVICE, kind):
            return architecture.loss(model, batch).float()

    model, batch = architecture.make(torch.float32, 5)
    model.to(DEVICE)
    found, expected = (build(model, cast).per_example_norms(there(batch)).cpu() for build in (Engine, Reference))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=1e-3)


def test_products_that_torch_rounds_are_taken() -> None:
    """As torch is when it is imported (convolutions), and as people set it (all products)."""
    architecture = FAMILIES["ConvNeXt-tiny"]
    model, batch = architecture.make(torch.float32, 5)
    model.to(DEVICE).eval()
    expected = Reference(model, architecture.loss).per_example_norms(there(batch))
    switches: Any = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "tf32"
    try:
        found = Engine(model, architecture.loss).per_example_norms(there(batch)).cpu()
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-3)
    assert not torch.allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=["one", "both ways"])
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_recurrent_layer_of_cudnn_equals_the_reference(
    kind: Any, options: dict[str, Any], dtype: torch.dtype
) -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = kind(5, 4, batch_first=True, **options)
            self.out = nn.Linear(4 * (1 + ("bidirectional" in options)), 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.layer(x)[0]).mean(1)

    torch.manual_seed(0)
    batch = there((torch.randn(6, 7, 5, dtype=dtype), torch.randint(3, (6,))))
    check_equal(Reader().to(dtype).to(DEVICE), batch, dtype, EngineSettings(), widened=dtype == torch.float32)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.parametrize("in_order", [False, True], ids=["any order", "sorted"])
def test_packed_sequences_equal_the_reference(kind: Any, in_order: bool) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = kind(5, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            lengths = (x[:, 0, 0].abs() * 3).long().clamp(max=x.shape[1] - 1) + 1
            lengths = torch.full_like(lengths, 4) if in_order else lengths
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=in_order)
            outputs, _ = pad_packed_sequence(self.layer(packed)[0], True, total_length=x.shape[1])
            return self.out(outputs).mean(1)

    torch.manual_seed(0)
    batch = there((torch.randn(6, 7, 5, dtype=torch.float64), torch.randint(3, (6,))))
    check_equal(Packed().double().to(DEVICE), batch, torch.float64, EngineSettings())


ATTENTIONS = {
    "flash": torch.nn.attention.SDPBackend.FLASH_ATTENTION,
    "efficient": torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": torch.nn.attention.SDPBackend.CUDNN_ATTENTION,
    "math": torch.nn.attention.SDPBackend.MATH,
}


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_each_kernel_of_attention_is_followed(name: str, causal: bool) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.given, self.out = nn.Linear(32, 96), nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast(DEVICE, torch.bfloat16), torch.nn.attention.sdpa_kernel([ATTENTIONS[name]]):
                parts = self.given(x).unflatten(2, (3, 2, 16)).permute(2, 0, 3, 1, 4)
                seen = functional.scaled_dot_product_attention(*parts, is_causal=causal)
                return self.out(seen.transpose(1, 2).flatten(2)).mean(1).float()

    torch.manual_seed(0)
    model, batch = Attention().to(DEVICE), there((torch.randn(6, 8, 32), torch.randint(3, (6,))))
    found, expected = (build(model, loss).per_example_norms(batch).cpu() for build in (Engine, Reference))
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=1e-3)


def _engine(model: nn.Module, loss: Any) -> Any:
    engine = Engine(model, loss)

    def run(batch: Any, limit: float) -> Mapping[str, Tensor]:
        return engine.clipped_sum(batch, limit).gradients

    return run


def _moved(program: Program) -> Program:
    """The program with its model and batches on the device; what it makes itself lies there too."""

    def make() -> Any:
        torch.manual_seed(0)
        with torch.device(DEVICE):
            model, loss = program.make()

        def there_too(model: Any, batch: Any) -> Tensor:
            with torch.device(DEVICE):
                return loss(model, batch)

        return model.to(DEVICE), there_too if program.late is None else loss

    return dataclasses.replace(program, make=make, batch=lambda n, g: there(program.batch(n, g)))


def _each(kind: str) -> list[Any]:
    found = [program for family in programs(kind).values() for program in family]
    return [
        pytest.param(program, id=f"{program.family}: {program.name}")
        for program in found
        if program.name not in DEADLY | NOT_THERE
    ]


@pytest.mark.parametrize("program", _each("hostile"))
def test_a_hostile_program_is_refused_or_does_no_harm(program: Program) -> None:
    moved = _moved(program)
    right, verdict = judge(moved, Truth(moved, True), _engine, DecrescendoError)
    assert right, verdict


@pytest.mark.parametrize("program", _each("benign"))
def test_a_benign_program_is_taken_and_exact(program: Program) -> None:
    moved = _moved(program)
    truth = Truth(moved, False)
    if program.conditional:
        right, verdict = judge(moved, truth, _engine, DecrescendoError)
    else:
        right, verdict = exact(moved, truth, _engine)
    assert right, verdict


def test_a_stated_limit_of_memory_is_kept_and_used() -> None:
    torch.manual_seed(0)
    limit = 64_000_000
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 3))
    model.to(DEVICE)
    batch = there((torch.randn(20_000, 256), torch.randint(3, (20_000,))))
    engine = Engine(model, loss, EngineSettings(memory_limit=limit))
    expected = Engine(model, loss).clipped_sum(batch, 0.1)
    engine.clipped_sum(batch, 0.1)
    with metered(torch.device(DEVICE)) as peak:
        found = engine.clipped_sum(batch, 0.1)
    assert limit / 4 <= peak.bytes <= limit
    for name, gradient in expected.gradients.items():
        torch.testing.assert_close(found.gradients[name], gradient, rtol=1e-3, atol=1e-4)


def test_a_device_that_runs_out_of_memory_goes_on_with_smaller_parts() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 4096), nn.Tanh(), nn.Dropout(0.1), nn.Linear(4096, 4096), nn.Tanh())
    model.append(nn.Linear(4096, 3)).to(DEVICE)
    batch = there((torch.randn(20_000, 8, 64), torch.randint(3, (20_000,))))
    engine = Engine(model, loss, seeds=lambda: 1)
    whole = torch.cuda.get_device_properties(DEVICE).total_memory
    # One activation of the whole batch takes 2.6 GB, and four of them are kept.
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + 3e9) / whole)
    try:
        found = engine.clipped_sum(batch, 0.1)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert found.diagnostics.examples == 20_000
    (known,) = engine._sizes.known.values()
    assert 1 < known.most < 20_000


def _problem() -> tuple[nn.Module, tuple[Tensor, Tensor], Any]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3)).to(DEVICE)
    x = torch.randn(2000, 20)
    plan = dc.calibrate(
        dc.Budget(3.0, 1e-5), dc.PoissonSampling(2000, 100), steps=60, privacy=dc.curves.constant(1.0),
        clip=dc.curves.constant(1.0),
    )  # fmt: skip
    return model, (x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()), plan


@pytest.mark.parametrize("where", ["cpu", DEVICE])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "fused"])
def test_a_private_run_learns_and_is_proven(optimizer: str, where: str) -> None:
    """With data in the processor's memory, and with data on the device."""
    model, data, plan = _problem()
    make = {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.5),
        "Adam": lambda p: torch.optim.Adam(p, lr=0.02),
        "fused": lambda p: torch.optim.AdamW(p, lr=0.02, fused=True),
    }[optimizer]
    data = tuple(column.to(where) for column in data)
    run = dc.train(model, loss, data, plan, make(model.parameters()), seed=dc.Secure())
    assert run.ledger == plan.ledger
    model.eval()
    right = (model(data[0].to(DEVICE)).argmax(1) == data[1].to(DEVICE)).float().mean()
    assert float(right) > 0.6


def test_a_run_that_is_interrupted_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    found = []
    for crash in (None, 31):
        model, data, plan = _problem()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        folder = tmp_path / str(crash)
        if crash is not None:
            trainer = dc.Trainer(model, loss, plan, optimizer, seed=4, checkpoints=dc.Checkpoints(folder, 10))
            for step, batch in enumerate(trainer.batches(data)):
                if step == crash:
                    break
                trainer.step(batch)
            model, data, plan = _problem()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        checkpoints = dc.Checkpoints(folder, 10, resume=crash is not None)
        dc.train(model, loss, data, plan, optimizer, seed=4, checkpoints=checkpoints)
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*found)


def test_a_private_run_by_graphs_is_the_run_without() -> None:
    """Batches of a hundred rows or so, filled up."""
    found = []
    for settings in (CAPTURE, EngineSettings()):
        model, data, plan = _problem()
        model[2].p = 0.0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "no pass is captured")
            run = dc.train(model, loss, data, plan, optimizer, seed=4, settings=settings)
        assert run.ledger == plan.ledger
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_what_a_graph_cannot_hold_is_said() -> None:
    """What goes to the processor and comes back; random numbers of its."""
    for change in (
        lambda x: x.cpu().to(DEVICE),
        lambda x: x * torch.rand(len(x), 1, device="cpu").to(DEVICE),
    ):

        def there_and_back(model: Any, batch: Any) -> Tensor:
            return loss(model, (change(batch[0]), batch[1]))  # noqa: B023

        model = nn.Linear(5, 3).to(DEVICE)
        batch = there((torch.randn(6, 5), torch.randint(3, (6,))))
        engine = Engine(model, there_and_back, CAPTURE, seeds=lambda: 1)
        plain = Engine(model, there_and_back, seeds=lambda: 1)
        with pytest.warns(UserWarning, match="no pass is captured"):  # noqa: PT031
            for _ in range(4):
                found, expected = engine.clipped_sum(batch, 1.0), plain.clipped_sum(batch, 1.0)
                torch.testing.assert_close(found.gradients["weight"], expected.gradients["weight"])
        assert float(torch.randn(3, device=DEVICE).sum()) != 0  # the device goes on


def test_a_graph_that_runs_out_of_memory_leaves_the_device_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 2048), nn.Tanh(), nn.Linear(2048, 3)).to(DEVICE)
    batch = there((torch.randn(20_000, 8, 64), torch.randint(3, (20_000,))))
    engine = Engine(model, loss, CAPTURE)
    expected = engine.clipped_sum(batch, 0.1)
    whole = torch.cuda.get_device_properties(DEVICE).total_memory
    taken = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((taken + 1e8) / whole)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(4):
                found = engine.clipped_sum(batch, 0.1)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    for name, total in expected.gradients.items():
        torch.testing.assert_close(found.gradients[name], total, rtol=1e-3, atol=1e-4)
