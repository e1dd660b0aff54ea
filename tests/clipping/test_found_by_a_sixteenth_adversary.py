"""What a sixteenth adversary found: numbers that torch's C++ reads or writes, and code that Python runs meanwhile.

And a seventeenth: memory that others than torch know of, and what a program keeps of the shape of others' examples. An
eighteenth to a twenty-fifth: what a program keeps anywhere, and code that torch or the engine calls by itself.
"""

import ctypes
import functools
import gc
import operator
import os
import random
import sys
import weakref
from array import array as numbers
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from often import some
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils import checkpoint as checkpoints
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from decrescendo.base.assumptions import assumed
from decrescendo.base.rng import Seeds
from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.clipping.batches import Ragged
from decrescendo.errors import DecrescendoError, UnsupportedModel
from decrescendo.row_independence.user_callbacks import called

ROWS = 8
aten: Any = torch.ops.aten
# Public rows, and layers that nobody trains.
PUBLIC = torch.arange(1.0, 5.0)[:, None]
GRU, LSTM = nn.GRU(1, 1).requires_grad_(False), nn.LSTM(1, 1).requires_grad_(False)
WEIGHTS = {kind: [p.detach() for p in layer.parameters()] for kind, layer in (("gru", GRU), ("lstm", LSTM))}
SETTINGS = (True, 1, 0.0, False, False)


def constant(value: float) -> Callable[[], float]:
    return lambda: value


def data() -> Tensor:
    return torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(0)) + 0.1


def scaled(factor: Callable[[Tensor], Any]) -> Callable[[nn.Module, Tensor], Tensor]:
    """A loss whose sign, or scale, hangs on one number for all examples."""
    return lambda model, x: model(torch.ones_like(x)).sum(1) * factor(x)


def sizes(x: Tensor) -> Tensor:
    """Of record 0: two steps with (3, 1) or (2, 2) sequences."""
    one = (x[0, 0] > 0.5).long()
    return torch.stack([2 + one, 2 - one])


def states(kind: str) -> Any:
    state = torch.zeros(1, 3, 1)
    return [state, state] if kind == "lstm" else state


class TestCounts:
    """How many rows a sequence or a part has is read from memory: no dispatch mode sees it."""

    READS: ClassVar[dict[str, Callable[[Tensor], Any]]] = {
        "padded again": lambda x: pad_packed_sequence(PackedSequence(PUBLIC, sizes(x)), True)[0].shape[0],
        "by torch's name": lambda x: torch._VF._pad_packed_sequence(PUBLIC, sizes(x), True, 0.0, 0)[0].shape[
            0
        ],  # type: ignore[attr-defined]
        "by its packet": lambda x: aten._pad_packed_sequence(PUBLIC, sizes(x), True, 0.0, 0)[0].shape[0],
        "by its overload": lambda x: aten._pad_packed_sequence.default(PUBLIC, sizes(x), True, 0.0, 0)[
            0
        ].shape[0],
        "a layer": lambda x: GRU(PackedSequence(PUBLIC, sizes(x)))[1].shape[1],
        "an overload of a layer": lambda x: aten.gru.data(
            PUBLIC, sizes(x), states("gru"), WEIGHTS["gru"], *SETTINGS
        )[1].shape[1],
        "with states": lambda x: aten.lstm.data(PUBLIC, sizes(x), states("lstm"), WEIGHTS["lstm"], *SETTINGS)[
            1
        ].shape[1],
        "a split": lambda x: torch.tensor_split(PUBLIC, sizes(x))[0].shape[0],
        "a split by its overload": lambda x: aten.tensor_split.tensor_indices_or_sections(PUBLIC, sizes(x))[
            0
        ].shape[0],
    }

    @pytest.mark.parametrize("name", READS)
    def test_data_are_not_read_for_them(self, name: str) -> None:
        with pytest.raises(UnsupportedModel, match="where to split, or how many"):
            Engine(nn.Linear(3, 1), scaled(self.READS[name])).per_example_norms(data())

    def test_nor_in_a_backward_pass(self) -> None:
        read: list[int] = [0]

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            hidden = model(x)
            hidden.register_hook(lambda g: read.append(torch.tensor_split(PUBLIC, sizes(x))[0].shape[0]))
            return hidden.sum(1)

        with pytest.raises(UnsupportedModel, match="where to split, or how many"):
            Engine(nn.Linear(3, 1), loss).per_example_norms(data())

    @pytest.mark.parametrize("enters", ["padded again", "a layer"])
    def test_rows_that_are_packed_come_with_the_sizes_that_packing_gave(self, enters: str) -> None:
        """Other sizes may be another example's: of one sequence more in the second step, or less."""

        def loss(model: Any, x: Tensor) -> Tensor:
            lengths = 2 + (x[:, 0] > 0.5).long()
            packed = pack_padded_sequence(x.unsqueeze(2), lengths, batch_first=True, enforce_sorted=False)
            other = pack_padded_sequence(
                x.unsqueeze(2), lengths.flip(0), batch_first=True, enforce_sorted=False
            ).batch_sizes
            mixed = packed._replace(batch_sizes=other * 1)
            if enters == "a layer":
                return model(torch.ones_like(x)).sum(1) + GRU(mixed)[1].sum((0, 2))
            return model(torch.ones_like(x)).sum(1) + pad_packed_sequence(mixed, True)[0].sum((1, 2))

        with pytest.raises(UnsupportedModel, match="how many sequences have each step"):
            Engine(nn.Linear(3, 1), loss).per_example_norms(data())

    def test_rows_one_example_after_another_are_not_those_of_one_step_after_another(self) -> None:
        def loss(model: Any, x: Tensor) -> Tensor:
            packed = PackedSequence(x.flatten()[:, None], torch.tensor([len(x)] * 3))
            return model(torch.ones_like(x)).sum(1) + pad_packed_sequence(packed, True)[0].sum((1, 2))

        with pytest.raises(UnsupportedModel, match="not those of the rows"):
            Engine(nn.Linear(3, 1), loss).per_example_norms(data())


class TestWrites:
    def test_statistics_that_a_schema_does_not_speak_of(self) -> None:
        def factor(x: Tensor) -> Tensor:
            mean = torch.full((3,), 0.25)
            torch.batch_norm_update_stats(x, mean, torch.ones(3), 1.0)
            return mean.sum().sign()

        with pytest.raises(UnsupportedModel, match=r"must see what writes to memory|keeps statistics"):
            Engine(nn.Linear(3, 1), scaled(factor)).per_example_norms(data())

    def test_nor_are_they_left_in_a_model(self) -> None:
        class StateSnapshot(nn.Linear):
            def __init__(self) -> None:
                super().__init__(3, 1)
                self.register_buffer("mean", torch.zeros(3))

            def forward(self, x: Tensor) -> Tensor:
                torch.batch_norm_update_stats(x, self.mean, torch.ones(3), 1.0)
                return super().forward(x)

        with pytest.raises(UnsupportedModel, match=r"must see what writes to memory|keeps statistics"):
            Engine(StateSnapshot(), lambda model, x: model(x).sum(1)).per_example_norms(data())


class TestQuantised:
    @staticmethod
    def quantised(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        return torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero, -128, 127, 1.0)

    @pytest.mark.parametrize("which", ["scale", "zero point"])
    def test_the_first_of_several_scales_is_that_of_all(self, which: str) -> None:
        def loss(model: nn.Module, x: Tensor) -> Tensor:
            own, same = x[:, 0], torch.ones(len(x))
            made = self.quantised(own, own, same) if which == "scale" else self.quantised(own, same, own)
            return (model(x) * made[:, None]).sum(1)

        with pytest.raises(UnsupportedModel, match="several examples are put together"):
            Engine(nn.Linear(3, 1), loss).per_example_norms(data())

    def test_one_that_is_public_is_fine(self) -> None:
        def loss(model: nn.Module, x: Tensor) -> Tensor:
            return model(self.quantised(x, torch.tensor([0.25]), torch.tensor([0.0]))).sum(1)

        model = nn.Linear(3, 1)
        engine = Engine(model, loss)
        torch.testing.assert_close(
            engine.per_example_norms(data()), Reference(model, loss).per_example_norms(data())
        )
        assert not engine.assumptions


class TestDraws:
    """How many random numbers an operation takes may hang on the data: where the generator is afterwards does not."""

    LAWS: ClassVar[dict[str, Callable[[Tensor], Any]]] = {
        "poisson": lambda x: torch.poisson(x[:1].repeat(1, 50)),
        "gamma": lambda x: torch._standard_gamma(x[:1].repeat(1, 50)),
        "dirichlet": lambda x: torch._sample_dirichlet(x[:1].repeat(1, 50)),
        "binomial": lambda x: torch.binomial((x[:1] * 100).ceil().repeat(1, 50), torch.full((1, 150), 0.5)),
        "rrelu": lambda x: nn.functional.rrelu(x[:1] - 0.5, training=True),
        "dropout of rows that data select": lambda x: nn.functional.dropout(x[x[:, 0] > 0.4]),
    }

    @pytest.mark.parametrize("name", LAWS)
    def test_where_the_generator_is_tells_nothing(self, name: str) -> None:
        states: list[bytes] = []

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            self.LAWS[name](x)
            states.append(bytes(torch.get_rng_state().tolist()))
            return model(x).sum(1)

        def after(x: Tensor) -> bytes:
            states.clear()
            engine = Engine(nn.Linear(3, 1), loss, seeds=lambda: 5)
            engine.per_example_norms(x)
            return states[0]

        x = torch.full((ROWS, 3), 0.75)
        other = torch.cat([torch.full((1, 3), 40.0), x[1:]])
        torch.manual_seed(5)
        self.LAWS[name](x)
        plain = torch.get_rng_state()
        torch.manual_seed(5)
        self.LAWS[name](torch.cat([torch.full((1, 3), 0.2), x[1:]]))
        # The power of it: with torch alone the state is another one.
        assert not torch.equal(plain, torch.get_rng_state())
        assert after(x) == after(other) == after(torch.cat([torch.full((1, 3), 0.2), x[1:]]))

    def test_a_checkpoint_draws_the_same_again(self) -> None:
        def part(model: nn.Module, x: Tensor) -> Tensor:
            noise = torch.poisson(x * 3)
            return model(nn.functional.dropout(x + noise, 0.5))

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            return checkpoint(part, model, x, use_reentrant=False).sum(1)

        def plain(model: nn.Module, x: Tensor) -> Tensor:
            return part(model, x).sum(1)

        model = nn.Linear(3, 1)
        found = [Engine(model, one, seeds=lambda: 5).per_example_norms(data()) for one in (loss, plain)]
        torch.testing.assert_close(*found)

    def test_a_number_of_the_data_bounds_no_random_numbers(self) -> None:
        def factor(x: Tensor) -> Tensor:
            return torch.randint_like(torch.zeros(3), (x[0, 0] * 100 + 2).long()).sum()

        with pytest.raises(UnsupportedModel, match="bounded by a number"):
            Engine(nn.Linear(3, 1), scaled(factor), seeds=lambda: 5).per_example_norms(data())

    @pytest.mark.parametrize("law", ["Gamma", "Beta", "Poisson"])
    def test_a_law_that_takes_as_many_as_it_wants_is_accepted(self, law: str) -> None:
        def loss(model: nn.Module, x: Tensor) -> Tensor:
            given = (x, 1.0) if law != "Poisson" else (x,)
            return model(getattr(torch.distributions, law)(*given).sample()).sum(1)

        engine = Engine(nn.Linear(3, 1), loss, seeds=lambda: 5)
        engine.per_example_norms(data())
        assert not engine.assumptions


class Wrapped(Tensor):
    """A tensor round another, whose operations are the program's."""

    inner: Tensor
    seen: ClassVar[list[float]] = []
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type["Wrapped"], inner: Tensor) -> "Wrapped":
        made = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        bare = tree_map(lambda value: value.inner if isinstance(value, Wrapped) else value, args)
        cls.seen.append(bare[0].tolist()[0][0])
        return func(*bare, **(kwargs or {}))


@contextmanager
def eager_collector() -> Generator[None]:
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class TestCode:
    """Code that runs where no function of the program's is called: it is kept from running, or said."""

    def test_operations_of_a_tensors_class_are_said(self) -> None:
        def factor(x: Tensor) -> float:
            torch.add(Wrapped(x), 1.0)
            return 1.0 if Wrapped.seen else -1.0

        engine = Engine(nn.Linear(3, 1), scaled(factor))
        engine.per_example_norms(data())
        assert any("Wrapped.__torch_dispatch__" in one for one in map(str, engine.assumptions))

    def test_nothing_is_collected_in_a_pass(self) -> None:
        ran: list[bool] = []
        passing = [False]

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            passing[0] = True
            for _ in range(20):
                x = x + torch.zeros(3)
            out = model(x).sum(1)
            passing[0] = False
            return out

        def called(phase: str, info: object) -> None:
            ran.append(passing[0])

        gc.callbacks.append(called)
        try:
            with eager_collector():
                assert gc.isenabled()
                engine = Engine(nn.Linear(3, 1), loss)
                engine.per_example_norms(data())
                assert gc.isenabled()
        finally:
            gc.callbacks.remove(called)
        # It does run before and after.
        assert ran
        assert not any(ran)
        assert not engine.assumptions

    def test_a_pass_that_turns_it_on_is_refused(self) -> None:
        def loss(model: nn.Module, x: Tensor) -> Tensor:
            gc.enable()
            return model(x).sum(1)

        with pytest.raises(UnsupportedModel, match="garbage collector"):
            Engine(nn.Linear(3, 1), loss).per_example_norms(data())
        assert gc.isenabled()

    def test_one_that_was_off_stays_off(self) -> None:
        gc.disable()
        try:
            Engine(nn.Linear(3, 1), lambda model, x: model(x).sum(1)).per_example_norms(data())
            assert not gc.isenabled()
        finally:
            gc.enable()

    def test_a_profile_is_said(self) -> None:
        def loss(model: nn.Module, x: Tensor) -> Tensor:
            before = sys.getprofile()
            sys.setprofile(lambda frame, event, argument: None)
            x = x + 0.0
            sys.setprofile(before)
            return model(x).sum(1)

        engine = Engine(nn.Linear(3, 1), loss)
        engine.per_example_norms(data())
        assert any("sys.setprofile" in one for one in map(str, engine.assumptions))

    def test_an_operation_in_torchs_own_name_is_said(self) -> None:
        library = torch.library.Library("aten", "FRAGMENT")
        try:
            library.define("a_sixteenth_adversarys(Tensor x) -> Tensor")
            library.impl("a_sixteenth_adversarys", lambda x: x.clone(), "CPU")

            def loss(model: nn.Module, x: Tensor) -> Tensor:
                aten.a_sixteenth_adversarys(x)
                return model(x).sum(1)

            engine = Engine(nn.Linear(3, 1), loss)
            engine.per_example_norms(data())
            assert any("a_sixteenth_adversarys" in one for one in map(str, engine.assumptions))
        finally:
            library._destroy()


def array(value: float = 0.0) -> np.ndarray:
    return np.full(1, value, np.float32)


class TestSharedMemory:
    """The data were written to an array that the pass had made, and Python read it: 57 C, *proven*."""

    MADE: ClassVar[dict[str, Callable[[np.ndarray], Tensor]]] = {
        "from_numpy": torch.from_numpy,
        "as_tensor": torch.as_tensor,
        "asarray": torch.asarray,
        "default_convert": torch.utils.data.default_convert,
        "another view": lambda held: torch.from_numpy(held.view(np.int32)).view(torch.float32),
        "its storage": lambda held: torch.empty(0).set_(torch.from_numpy(held).untyped_storage(), 0, (1,)),
        "from_dlpack": torch.from_dlpack,
        "frombuffer": lambda held: torch.frombuffer(held, dtype=torch.float32),
    }
    WRITTEN: ClassVar[dict[str, Callable[[Tensor, Tensor], Any]]] = {
        "copy_": lambda t, x: t.copy_(x.mean().reshape(1)),
        "add_": lambda t, x: t.add_(x.mean()),
        "an entry": lambda t, x: t.__setitem__(0, x.mean()),
        "out": lambda t, x: torch.sum(x.flatten(), 0, keepdim=True, out=t),
    }

    @pytest.mark.parametrize("made", MADE)
    @pytest.mark.parametrize("written", WRITTEN)
    def test_the_data_do_not_go_there(self, made: str, written: str) -> None:
        def factor(x: Tensor) -> float:
            held = array()
            self.WRITTEN[written](self.MADE[made](held), x)
            return 1.0 if held[0] > 0.3 else -1.0

        with pytest.raises(UnsupportedModel, match=r"must not leave torch in a pass|into what outlives it"):
            Engine(nn.Linear(3, 1), scaled(factor)).per_example_norms(data())

    def test_nor_through_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "held").write_bytes(bytes(4))

        def factor(x: Tensor) -> float:
            torch.from_file(str(tmp_path / "held"), shared=True, size=1).copy_(x.mean().reshape(1))
            return 1.0 if np.fromfile(tmp_path / "held", np.float32)[0] > 0.3 else -1.0

        with pytest.raises(UnsupportedModel, match="must not leave torch in a pass"):
            Engine(nn.Linear(3, 1), scaled(factor)).per_example_norms(data())
        assert (tmp_path / "held").read_bytes() == bytes(4)

    def test_nor_where_an_address_was_asked_for(self) -> None:
        def factor(x: Tensor) -> float:
            held = torch.zeros(1)
            place = held.data_ptr()
            held.copy_(x.mean().reshape(1))
            return 1.0 if ctypes.c_float.from_address(place).value > 0.3 else -1.0

        with pytest.raises(UnsupportedModel, match="must not leave torch in a pass"):
            Engine(nn.Linear(3, 1), scaled(factor)).per_example_norms(data())

    def test_the_number_of_examples_does_not_come_from_there(self) -> None:
        def within(x: Tensor) -> Tensor:
            held = array()
            found = torch.from_numpy(held)
            held[0] = len(x)
            return found

        outside, shown = array(1.0), torch.ones(1)
        constant, view = torch.from_numpy(outside), shown.numpy()

        def before(x: Tensor) -> Tensor:
            outside[0] = 1.0 if len(x) > 5 else -1.0
            return constant

        def seen(x: Tensor) -> Tensor:
            view[0] = 1.0 if len(x) > 5 else -1.0
            return shown

        for factor in (within, before, seen):
            engine = Engine(nn.Linear(3, 1), scaled(factor))
            with pytest.raises(UnsupportedModel, match=r"for any number of examples|changed in a pass where"):
                engine.per_example_norms(data())

    def test_a_buffer_that_numpy_shares_neither(self) -> None:
        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.one = nn.Linear(3, 1)
                self.register_buffer("scale", torch.ones(1))

            def forward(self, x: Tensor) -> Tensor:
                return self.one(x) * self.scale

        model = Scaled()
        view = model.get_buffer("scale").numpy()

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            view[0] = 1.0 if len(x) > 5 else -1.0
            return model(x).sum(1)

        with pytest.raises(UnsupportedModel, match="changed in a pass where nothing is seen"):
            Engine(model, loss).per_example_norms(data())

    def test_honest_arrays_are_taken_and_may_change_between_passes(self) -> None:
        """What torch wrote, or a loop between two passes, is no change in a pass."""
        table, model = np.linspace(1, 2, 3, dtype=np.float32), nn.Linear(3, 1)
        outside, counted = torch.from_numpy(table), torch.zeros(1)
        counted.numpy()

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            inside = torch.from_numpy(np.arange(3, dtype=np.float32))
            many = torch.tensor(
                list(range(100)), dtype=torch.float32
            )  # torch's own memory: the data may go there
            many[:3] += 0.0
            total = torch.zeros(ROWS if len(x) == ROWS else len(x))
            total += x.sum(1)
            return model(x * outside + inside).sum(1) + 0.0 * total

        engine = Engine(model, loss)
        for scale in (1.0, 2.0, 3.0):
            table[:] = scale
            found = engine.clipped_sum(data(), 0.5)
            expected = Reference(model, loss).clipped_sum(data(), 0.5)
            for name, value in found.gradients.items():
                torch.testing.assert_close(value, expected.gradients[name])
        assert not engine.assumptions

    def test_other_processes_are_not_asked(self, tmp_path: Path) -> None:
        """An operation of torch.distributed writes where its schema does not say so: 21 C of another rank's row."""
        torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'ranks'}", rank=0, world_size=1)
        try:

            def loss(model: nn.Module, x: Tensor) -> Tensor:
                total = x.detach().sum(1)
                torch.distributed.all_reduce(total)
                return model(x).sum(1) * total

            with pytest.raises(UnsupportedModel, match="must be of its own process alone, but allreduce_"):
                Engine(nn.Linear(3, 1), loss).per_example_norms(data())
        finally:
            torch.distributed.destroy_process_group()


class Keeping(nn.Module):
    """Remembers something of the shape of each example, and goes by it."""

    def __init__(self, keep: Callable[["Keeping", Tensor], float]) -> None:
        super().__init__()
        self.one = nn.Linear(1, 1, bias=False)
        self.keep, self.kept, self.items = keep, 0.0, list[int]()

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x[:, :, None]).sum((1, 2)) * self.keep(self, x)


def longest(model: Keeping, x: Tensor) -> float:
    model.kept = max(model.kept, float(x.shape[1]))
    return 1.0 if model.kept < 9 else -1.0


def listed(model: Keeping, x: Tensor) -> float:
    model.items.append(x.shape[1])
    return 1.0 if max(model.items) < 9 else -1.0


def first(model: Keeping, x: Tensor) -> float:
    model.kept = model.kept or float(x.shape[1])
    return 1.0 if model.kept < 9 else -1.0


def drawn(model: Keeping, x: Tensor) -> Any:
    x = nn.functional.dropout(x, 0.1)
    if not model.kept:
        model.kept = torch.randn(1)  # type: ignore[assignment]
    return torch.sign(model.kept)  # type: ignore[arg-type]


class TestOfOtherShapes:
    """ "Examples of another shape are new without that": one long record turned the sign of all others, 39 C a step."""

    @pytest.mark.parametrize("keep", [longest, listed, first, drawn])
    def test_what_is_kept_of_others_is_said(self, keep: Callable[[Keeping, Tensor], float]) -> None:
        model = Keeping(keep)
        engine = Engine(model, lambda model, x: model(x), seeds=Seeds.of(1))
        engine.clipped_sum(Ragged((torch.ones(1, 9), torch.ones(4, 5))), 1.0)
        name = "items" if keep is listed else "kept"
        assert any(
            f"Keeping.{name}, which changed between passes" in one for one in map(str, engine.assumptions)
        )

    def test_of_one_shape_nothing_is(self) -> None:
        for keep in (longest, first, drawn):
            engine = Engine(Keeping(keep), lambda model, x: model(x), seeds=Seeds.of(1))
            for rows in (1, 4, 9):
                engine.clipped_sum(torch.ones(rows, 5), 1.0)
            assert not engine.assumptions

    def test_of_shapes_that_leave_nothing_neither(self) -> None:
        engine = Engine(Keeping(lambda model, x: 2.0), lambda model, x: model(x))
        for _ in range(2):
            engine.clipped_sum(Ragged((torch.ones(1, 9), torch.ones(4, 5), torch.ones(2, 7))), 1.0)
        assert not engine.assumptions

    def test_random_numbers_of_the_first_pass_are_the_same_after_any_first_batch(self) -> None:
        """They followed a batch of two, or of three and more: +20 and -20 in the next."""
        found = set()
        for rows in (1, 2, 3, 7):
            model = Keeping(drawn)
            engine = Engine(model, lambda model, x: model(x), seeds=Seeds.of(1))
            engine.clipped_sum(torch.ones(rows, 5), 1.0)
            found.add(float(model.kept))
            assert not engine.assumptions
        assert len(found) == 1

    def test_the_same_data_withheld_again_forget_nothing(self) -> None:
        """A loop that asks for its batches anew each epoch had the proof begin anew: state by then was never seen."""

        def big(model: Keeping, x: Tensor) -> float:
            now = model.kept
            model.kept = 1.0 if len(x) > 5 else model.kept
            return -1.0 if now else 1.0

        data = torch.ones(8, 5)
        engine = Engine(Keeping(big), lambda model, x: model(x))
        for _ in range(3):
            engine.withhold([data])
            engine.clipped_sum(torch.ones(8, 5), 1.0)
        assert any(
            "Keeping.kept, which changed between passes" in one for one in map(str, engine.assumptions)
        )


def test_whether_tokens_are_special_ones_is_each_examples_own() -> None:
    """It was refused, as an operation without a rule."""
    model, tokens, special = nn.Embedding(9, 3), torch.arange(32).reshape(8, 4) % 9, torch.tensor([0, 3])

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x).sum(2) * ~torch.isin(x, special)).sum(1)

    found, expected = (kind(model, loss).clipped_sum(tokens, 0.5) for kind in (Engine, Reference))
    torch.testing.assert_close(found.gradients["weight"], expected.gradients["weight"])
    with pytest.raises(UnsupportedModel, match="no example's loss may depend on another"):
        Engine(model, lambda model, x: model(x).sum((1, 2)) * torch.isin(special, x).sum()).clipped_sum(
            tokens, 0.5
        )


class TestAnEighteenth:
    """Of many, what was mended: each was *proven*, 8 to 21 C."""

    @pytest.mark.parametrize("wrap", [torch.no_grad(), torch.enable_grad(), torch.compiler.disable])
    def test_state_behind_torchs_decorators_is_said(self, wrap: Callable[[Any], Any]) -> None:
        held = [1.0]

        @wrap
        def note(rows: int) -> float:
            before = held[0]
            held[0] = -1.0 if rows > 5 else before
            return before

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            return model(x).sum(1) * note(len(x))

        engine = Engine(nn.Linear(3, 1), loss)
        for _ in range(3):
            engine.clipped_sum(data(), 1.0)
        assert any("held" in one for one in map(str, engine.assumptions))

    def test_what_numpy_writes_after_the_last_use_is_seen(self) -> None:
        shown = torch.ones(1)
        view = shown.numpy()

        def after(model: nn.Module, x: Tensor) -> Tensor:
            out = model(x).sum(1) * shown.clone()
            view[0] = -1.0 if len(x) > 5 else 1.0
            return out

        def between(model: nn.Module, x: Tensor) -> Tensor:
            shown.zero_()
            view[0] = -1.0 if len(x) > 5 else 1.0
            return model(x).sum(1) * shown

        for loss in (after, between):
            shown.fill_(1.0)
            with pytest.raises(UnsupportedModel, match="changed in a pass where nothing is seen"):
                Engine(nn.Linear(3, 1), loss).clipped_sum(data(), 1.0)

    def test_a_mode_around_the_engine_is_said(self) -> None:
        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return func(*args, **(kwargs or {}))

        engine = Engine(nn.Linear(3, 1), lambda model, x: model(x).sum(1))
        with Mode():
            engine.per_example_norms(data())
        assert any("Mode" in one for one in map(str, engine.assumptions))

    @pytest.mark.parametrize("form", ["static", "partial", "descriptor", "wrapped", "metaclass"])
    def test_code_that_torch_calls_is_said_whatever_form_it_has(self, form: str) -> None:
        def answer(*args: Any) -> int:
            return 1

        class Descriptor:
            def __get__(self, value: object, kind: object = None) -> Callable[[], int]:
                return answer

        class Meta(type):
            pass

        forms: dict[str, Any] = {
            "static": staticmethod(answer),
            "partial": functools.partialmethod(answer),
            "descriptor": Descriptor(),
            "wrapped": torch.no_grad()(answer),
            "metaclass": answer,
        }
        kind = (Meta if form == "metaclass" else type)("Index", (), {"__index__": forms[form]})

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            return model(x).sum(1) * torch.ones(3)[kind()]

        engine = Engine(nn.Linear(3, 1), loss)
        engine.clipped_sum(data(), 1.0)
        assert assumed("rows-called-code", "Index") in engine.assumptions

    @pytest.mark.parametrize("form", ["function", "method", "partial", "object", "list"])
    def test_a_policy_of_checkpoints_is_said_whatever_form_it_has(self, form: str) -> None:
        class Policy:
            def method(self, context: object, operation: object, *args: Any, **kwargs: Any) -> Any:
                return CheckpointPolicy.PREFER_RECOMPUTE

            __call__ = method

        def policy(context: object, operation: object, *args: Any, **kwargs: Any) -> Any:
            return CheckpointPolicy.PREFER_RECOMPUTE

        forms: dict[str, Any] = {
            "function": policy, "method": Policy().method, "partial": functools.partial(policy), "object": Policy(),
            "list": [torch.ops.aten.addmm.default],
        }  # fmt: skip
        contexts = functools.partial(create_selective_checkpoint_contexts, forms[form])

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            return checkpoint(model, x, use_reentrant=False, context_fn=contexts).sum(1)

        engine = Engine(nn.Linear(3, 1), loss)
        engine.clipped_sum(data(), 1.0)
        assert bool(engine.assumptions) is (form != "list")

    @pytest.mark.parametrize("refill", ["fill_", "data.fill_", "normal_"])
    def test_a_constant_that_other_shapes_fill_is_said(self, refill: str) -> None:
        scale = torch.ones(1)

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            if x.shape[1] > 8:
                if refill == "normal_":
                    scale.normal_()
                else:
                    (scale.data if "data" in refill else scale).fill_(-1.0)
                return model(x[:, :, None]).sum((1, 2))
            return model(x[:, :, None]).sum((1, 2)) * scale

        engine = Engine(nn.Linear(1, 1), loss, seeds=Seeds.of(0))
        for batch in (torch.ones(4, 5), Ragged((torch.ones(4, 5), torch.ones(1, 9))), torch.ones(4, 5)):
            engine.clipped_sum(batch, 1.0)
        assert any("filled by an earlier pass" in one for one in map(str, engine.assumptions))

    def test_a_constant_that_each_pass_fills_before_it_uses_it_is_not(self) -> None:
        buffer, noise = torch.ones(3), torch.ones(3)

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            buffer.data.zero_()
            buffer[:2] = 1.0
            noise.normal_()
            return model(x * buffer * noise).sum(1)

        engine = Engine(nn.Linear(3, 1), loss, seeds=Seeds.of(0))
        for _ in range(3):
            engine.clipped_sum(data(), 1.0)
        assert not [one for one in map(str, engine.assumptions) if "filled by an earlier pass" in one]

    PLACES: ClassVar[dict[str, Callable[[bool], None]]] = {
        "environment": lambda on: os.environ.update(KEPT="1") if on else os.environ.pop("KEPT") and None,
        "attribute of torch": lambda on: setattr(torch, "kept", True) if on else delattr(torch, "kept"),
    }

    @pytest.mark.parametrize("place", PLACES)
    def test_a_program_that_does_something_else_than_before_is_said_wherever_it_knows_it_from(
        self, place: str
    ) -> None:
        asked = {
            "environment": lambda: "KEPT" in os.environ,
            "attribute of torch": lambda: hasattr(torch, "kept"),
        }[place]

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            if len(x) > 5 and not asked():
                self.PLACES[place](True)
            return model(x).sum(1) * (-1.0 if asked() else 1.0)

        engine = Engine(nn.Linear(3, 1), loss)
        try:
            for rows in (4, 8, 4):
                engine.clipped_sum(data()[:rows], 1.0)
        finally:
            self.PLACES[place](False)
        assert engine.assumptions

    KEPT: ClassVar[dict[str, tuple[Any, Any]]] = {
        "keys": ({0: 1}, {6: 1}), "order": ({"a": 1, "b": 1}, {"b": 1, "a": 1}), "range": (range(1), range(6)),
        "sign of zero": (0.0, -0.0), "truth": (1, True), "dtype": (torch.float32, torch.float64),
        "date": (datetime(2000, 1, 1), datetime(2001, 1, 1)), "text": ("a" * 2000, "a" * 1999 + "b"),
        "strides": (torch.zeros(3), torch.zeros(3, 3)[:, 0]), "large": (torch.zeros(2000), torch.ones(2000)),
        "gradients": (torch.zeros(3), torch.zeros(3, requires_grad=True)),
        "parameter": (nn.Parameter(torch.zeros(1), False), nn.Parameter(torch.ones(1), False)),
        "sparse": (torch.eye(2).to_sparse(), torch.ones(2, 2).to_sparse()),
        "buffers": (nn.BatchNorm1d(1), nn.BatchNorm1d(1)), "many": ([-1] * 20_000, [-2] + [-1] * 19_999),
        "lambdas": (constant(1.0), constant(-1.0)),
        "array": (np.zeros(3), np.zeros((3, 3))[:, 0]),
    }  # fmt: skip

    @pytest.mark.parametrize("kind", KEPT)
    def test_what_is_kept_of_other_shapes_is_told_apart(self, kind: str) -> None:
        one, two = self.KEPT[kind]
        kept = [one]
        if kind == "buffers":
            two.running_mean.fill_(1.0)

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            if x.shape[1] > 8:
                kept[0] = two
            return model(x[:, :, None]).sum((1, 2)) * (1.0 if kept[0] is one else -1.0)

        engine = Engine(nn.Linear(1, 1), loss)
        engine.clipped_sum(Ragged((torch.ones(1, 9), torch.ones(4, 5))), 1.0)
        assert any("Assumed: loss.kept" in said for said in map(str, engine.assumptions))

    def test_an_address_asked_for_in_the_pass_is_looked_at_after_it(self) -> None:
        shown = torch.ones(1)

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            out = model(x).sum(1) * shown.clone()
            place = ctypes.c_float.from_address(shown.data_ptr())
            place.value = -1.0 if len(x) > 5 else 1.0
            return out

        with pytest.raises(UnsupportedModel, match="changed in a pass where nothing is seen"):
            Engine(nn.Linear(3, 1), loss).clipped_sum(data(), 1.0)

    @pytest.mark.parametrize("teacher", ["dense", "attention", "recurrent"])
    def test_a_teacher_in_inference_mode_is_seen_as_any_other(self, teacher: str) -> None:
        """It was refused: nothing takes operations apart there that are made of others."""
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        lstm = nn.LSTM(3, 3, batch_first=True).requires_grad_(False)
        kinds: dict[str, Callable[[Tensor], Tensor]] = {
            "dense": nn.Linear(3, 3),
            "attention": lambda x: nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0],
            "recurrent": lambda x: lstm(x[:, None])[0][:, 0],
        }  # fmt: skip

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            with torch.inference_mode():
                soft = kinds[teacher](x).softmax(1)
            return -(soft.clone() * model(x).log_softmax(1)).sum(1)

        def mixing(model: nn.Module, x: Tensor) -> Tensor:
            with torch.inference_mode():
                soft = kinds[teacher](x - x.mean(0)).softmax(1)
            return -(soft.clone() * model(x).log_softmax(1)).sum(1)

        engine = Engine(model, loss)
        found, expected = engine.clipped_sum(data(), 0.5), Reference(model, loss).clipped_sum(data(), 0.5)
        torch.testing.assert_close(found.gradients["weight"], expected.gradients["weight"])
        assert not engine.assumptions
        with pytest.raises(UnsupportedModel, match=r"depend on another|several examples are put together"):
            Engine(model, mixing).clipped_sum(data(), 0.5)


CONSTANT = torch.ones(5040)
CONSTANT[1::2] = -1


class TestANineteenth:
    """It had an hour with what was mended for the eighteenth: nine holes of 8 to 16 C, each *proven*."""

    LONG: ClassVar[dict[str, Callable[[int], Tensor]]] = {
        "slice": lambda n: CONSTANT[:n][-1:][0], "index": lambda n: CONSTANT[:n][-1].unsqueeze(0),
        "view": lambda n: CONSTANT.view(-1, n)[1, 0], "split": lambda n: CONSTANT.split(n)[0][-1:][0],
        "unfold": lambda n: CONSTANT.unfold(0, n, 1)[1, -1:], "made": lambda n: CONSTANT.clone().view(n, -1)[1, :1],
    }  # fmt: skip

    @pytest.mark.parametrize("view", some(LONG, 1))
    def test_a_view_of_a_view_that_follows_the_number_of_examples_is_refused(self, view: str) -> None:
        def loss(model: nn.Module, x: Tensor) -> Tensor:
            return model(x).squeeze(1) * self.LONG[view](x.shape[0])

        with pytest.raises(UnsupportedModel, match="depends on the number of examples"):
            Engine(nn.Linear(3, 1), loss).clipped_sum(data(), 1.0)

    @pytest.mark.parametrize(
        "way", ["gradient mode", "one layer", "detached", "weights", "inference", "one memory"]
    )
    def test_which_of_two_uses_is_trained_is_seen(self, way: str) -> None:
        """The operations were the same ones: a count of passes decided, 11 to 14 C of one more row at step 1."""
        calls = [0]
        linear = nn.functional.linear

        def loss(model: Any, x: Tensor) -> Tensor:
            calls[0] += 1
            late = calls[0] > 8
            one, two = model[0], model[0] if way == "one layer" else model[1]
            if way in ("gradient mode", "one layer"):
                with torch.set_grad_enabled(not late):
                    a = one(x)
                with torch.set_grad_enabled(late):
                    b = two(-x)
                return (a + b).sum(1)
            if way == "inference":
                with torch.inference_mode(late):
                    a = one(x)
                with torch.inference_mode(not late):
                    b = two(x)
                return (a.clone() + b.clone()).sum(1)
            if way == "detached":
                a, b = one(x), two(x)
                return ((a + b.detach()) if not late else (a.detach() + b)).sum(1)
            p, q = one.weight, two.weight
            return (linear(x, q.detach() if not late else q) + linear(x, p if not late else p.detach())).sum(
                1
            )

        torch.manual_seed(0)
        model = nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 1)])
        if way == "one memory":
            model[1].weight.data = model[0].weight.data
        engine = Engine(model, loss)
        for _ in range(9):
            engine.clipped_sum(data(), 1.0)
        assert any("Assumed: loss.calls" in one for one in map(str, engine.assumptions))

    WRITTEN: ClassVar[dict[str, tuple[Callable[[], Any], Callable[[Any], object], Callable[[Any], Tensor]]]] = {
        "sparse": (lambda: torch.eye(4).to_sparse(), lambda c: c.zero_(), lambda c: c.to_dense().sum()),
        "its values": (
            lambda: (one := torch.eye(4).to_sparse().coalesce(), one.values()),
            lambda c: c[1].fill_(-1.0), lambda c: c[0].to_dense().sum(),
        ),
        "mean": (
            lambda: torch.ones(4),
            lambda c: nn.functional.batch_norm(-8 * torch.ones(3, 4), c, torch.ones(4), training=True, momentum=1.0),
            lambda c: c.sum(),
        ),
        "mean only": (
            lambda: torch.ones(4), lambda c: torch.batch_norm_update_stats(-8 * torch.ones(3, 4), c, None, 1.0),
            lambda c: c.sum(),
        ),
        "lifted": (
            lambda: torch.ones(4), lambda c: (aten.lift_fresh(c[:0]), c.copy_(-torch.ones(4))), lambda c: c.sum(),
        ),
        "nothing": (lambda: torch.ones(4), lambda c: c.data.fill_(-1.0), lambda c: (c.data[:0].fill_(1.0), c.sum())[1]),
    }  # fmt: skip

    @pytest.mark.parametrize("way", WRITTEN)
    def test_what_passes_of_one_shape_write_and_others_read_is_said(self, way: str) -> None:
        make, write, read = self.WRITTEN[way]
        constant = make()

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            out = model(x).sum((1, 2))
            if x.shape[1] == 2:
                write(constant)
                return out
            return out * read(constant)

        engine = Engine(nn.Linear(4, 1), loss)
        for batch in (Ragged((torch.ones(8, 3, 4), torch.ones(1, 2, 4))), torch.ones(8, 3, 4)):
            engine.clipped_sum(batch, 1.0)
        assert any(
            "filled by an earlier pass" in one or "overwrites" in one for one in map(str, engine.assumptions)
        )

    def test_shapes_that_were_forgotten_are_compared_all_the_same(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("decrescendo.clipping.checker._SHAPES", 3)
        monkeypatch.setenv("KEPT", "0")

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            if x.shape[1] == 2:
                os.environ["KEPT"] = "1"
            out = model(x).sum((1, 2))
            return -out if x.shape[1] == 3 and os.environ["KEPT"] == "1" else out

        engine = Engine(nn.Linear(4, 1), loss)
        engine.clipped_sum(torch.ones(8, 3, 4), 1.0)
        many = Ragged(tuple(torch.ones(3, length, 4) for length in (5, 6, 7, 8)))
        with pytest.warns(UserWarning, match="more than 3 shapes"):
            engine.clipped_sum(many, 1.0)
        engine.clipped_sum(torch.ones(8, 3, 4), 1.0)
        assert not engine.assumptions
        for length in (2, 5, 6, 7, 8, 3):
            engine.clipped_sum(torch.ones(3, length, 4), 1.0)
        assert any("only because of its random draws" in one for one in map(str, engine.assumptions))

    def test_a_coin_is_said(self) -> None:
        """A count that decides only where a coin falls one way was hidden by a rerun with the accepted numbers."""

        def loss(model: Any, x: Tensor) -> Tensor:
            for layer in model[1:]:
                if (
                    float(torch.rand(1)) < 0.5 or np.random.random() < 0.2
                ):  # (What checks types draws from `random`.)
                    x = x + layer(x).tanh()
            return model[0](x).sum(1)

        engine = Engine(nn.ModuleList([nn.Linear(3, 3) for _ in range(3)]), loss, seeds=Seeds.of(0))
        for _ in range(12):
            engine.clipped_sum(data(), 1.0)
        (said,) = engine.assumptions
        assert said == assumed("random-operations")

    def test_what_other_shapes_leave_where_names_lead_is_told_apart(self) -> None:
        class Meta(type):
            pass

        class Base(metaclass=Meta):
            log: ClassVar[list[int]] = []

        class Derived(Base):
            pass

        module = ModuleType("held")
        sys.modules["held"] = module
        order, parameter, hooked = (
            OrderedDict(a=1, b=1),
            nn.Parameter(torch.zeros(1)),
            torch.zeros(1, requires_grad=True),
        )
        module.__dict__["count"] = 0
        alive = Keeping(lambda model, x: 1.0)
        weak = weakref.ref(alive)

        def told() -> None:
            "0"

        ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "module": (lambda: module.count, lambda: setattr(module, "count", 1)),
            "base": (lambda: len(Derived.log), lambda: Derived.log.append(1)),
            "metaclass": (lambda: getattr(Derived, "kept", 0), lambda: setattr(Meta, "kept", 1)),
            "order": (lambda: next(iter(order)) == "b", lambda: order.move_to_end("a")),
            "words": (lambda: told.__doc__ != "0", lambda: setattr(told, "__doc__", "1")),
            "gradient": (lambda: parameter.grad is not None, lambda: setattr(parameter, "grad", torch.ones(1))),
            "hooks": (lambda: bool(hooked._backward_hooks), lambda: hooked.register_hook(print)),
            "weak": (lambda: weak().kept, lambda: setattr(weak(), "kept", 1.0)),
        }  # fmt: skip
        try:
            for name, (get, put) in ways.items():

                def loss(
                    model: nn.Module, x: Tensor, get: Callable[[], Any] = get, put: Callable[[], Any] = put
                ) -> Tensor:
                    if x.shape[1] > 8:
                        put()
                    return model(x[:, :, None]).sum((1, 2)) * (-1.0 if get() else 1.0)

                engine = Engine(nn.Linear(1, 1), loss)
                engine.clipped_sum(Ragged((torch.ones(1, 9), torch.ones(4, 5))), 1.0)
                assert any("Assumed: loss" in one for one in map(str, engine.assumptions)), name
        finally:
            del sys.modules["held"]

    def test_code_that_the_engine_calls_between_passes_is_said(self) -> None:
        class Batch(dict[str, Tensor]):
            def __init__(self, items: Any) -> None:
                super().__init__(items)

        class Telling(nn.Linear):
            def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
                return super().named_parameters(*args, **kwargs)

        for model, batch, name in (
            (nn.Linear(3, 1), Batch({"x": data()}), "Batch"),
            (Telling(3, 1), {"x": data()}, "Telling.named_parameters"),
        ):
            engine = Engine(model, lambda model, batch: model(batch["x"]).sum(1))
            engine.clipped_sum(batch, 1.0)
            assert engine.assumptions == (assumed("rows-called-code", name),)

    def test_the_end_of_the_losses_comes_after_the_sums(self) -> None:
        """Where it scaled inputs after norms were taken, eight examples moved the sum by 45 C."""
        count = [0]

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            hidden = model[0](x).relu()
            losses = model[1](hidden).sum(1)

            def scale(*kept: Tensor) -> None:
                count[0] += 1
                if count[0] > 12:
                    for tensor in kept:
                        tensor.data.mul_(1000.0)

            weakref.finalize(losses, scale, x.detach(), hidden.detach())
            return losses

        engine = Engine(nn.Sequential(nn.Linear(3, 64), nn.Linear(64, 1)), loss)
        for _ in range(20):
            total = engine.clipped_sum(data(), 1.0).gradients
            assert (
                float(torch.stack([g.double().square().sum() for g in total.values()]).sum().sqrt()) <= ROWS
            )

    @pytest.mark.parametrize("law", [torch.distributions.Beta(2.0, 2.0), torch.distributions.Gamma(2.0, 1.0)])
    def test_random_laws_before_dropout_are_no_reason_to_refuse(
        self, law: torch.distributions.Distribution
    ) -> None:
        def loss(model: nn.Module, x: Tensor) -> Tensor:
            return nn.functional.dropout(model(x), 0.5).sum(1) * law.sample((x.shape[0],))

        engine = Engine(nn.Linear(3, 2), loss, seeds=Seeds.of(0))
        engine.clipped_sum(data(), 1.0)
        assert not engine.assumptions


class TestATwentieth:
    """Twenty minutes with the mends of the nineteenth: 8 to 16 C, each *proven*."""

    @pytest.mark.parametrize("way", ["sum", "cat", "mode"])
    def test_which_part_of_a_weight_is_trained_is_seen(self, way: str) -> None:
        """What a weight is made of follows from the graph alone: the operations and their numbers are the same."""
        calls = [0]

        def loss(model: nn.Linear, x: Tensor) -> Tensor:
            calls[0] += 1
            late, weight = calls[0] > 8, model.weight
            fixed = weight.detach()
            a, b = (fixed, weight) if late else (weight, fixed)
            if way == "sum":
                made = a * 1.0 + b * -1.0
            elif way == "cat":
                made = torch.cat([a[:, :2], b[:, 2:]], 1)
            else:
                with torch.set_grad_enabled(late):
                    one = weight * 1.0
                with torch.set_grad_enabled(not late):
                    two = weight * -1.0
                made = one + two
            return nn.functional.linear(x, made).sum(1)

        engine = Engine(nn.Linear(3, 1), loss)
        for _ in range(9):
            engine.clipped_sum(data(), 1.0)
        assert any("Assumed: loss.calls" in one for one in map(str, engine.assumptions))

    READS: ClassVar[dict[str, Callable[[Tensor], float]]] = {
        "numpy": lambda c: float(c.numpy()[0]), "list": lambda c: c.tolist()[0],
        "words": lambda c: -1.0 if "-" in repr(c[:2]) else 1.0,
        "filled by itself": lambda c: float(c.data.fill_(c[0])[0]),
    }  # fmt: skip

    @pytest.mark.parametrize("read", READS)
    def test_what_python_reads_of_a_constant_that_others_fill_is_said(self, read: str) -> None:
        constant = torch.ones(3000)

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            if x.shape[1] > 8:
                constant.data.fill_(-1.0)
                return model(x[:, :, None]).sum((1, 2))
            return model(x[:, :, None]).sum((1, 2)) * self.READS[read](constant)

        engine = Engine(nn.Linear(1, 1), loss)
        for batch in (torch.ones(4, 5), Ragged((torch.ones(4, 5), torch.ones(1, 9))), torch.ones(4, 5)):
            engine.clipped_sum(batch, 1.0)
        assert any("filled by an earlier pass" in one for one in map(str, engine.assumptions))

    def test_what_stands_for_an_object_and_what_a_checkpoint_keeps_in_is_said(self) -> None:
        class Index:
            def __index__(self) -> int:
                return 1

        class StateSnapshot(defaultdict[Any, Any]):
            pass

        index = Index()
        mode: Any = checkpoints._CachingTorchDispatchMode  # type: ignore[attr-defined]

        def proxied(model: nn.Module, x: Tensor) -> Tensor:
            return model(x).sum(1) * torch.ones(3)[weakref.proxy(index)]

        engine = Engine(nn.Linear(3, 1), proxied)
        engine.clipped_sum(data(), 1.0)
        assert any(one.startswith("Assumed: ProxyType") for one in map(str, engine.assumptions))
        for kept, said in ((StateSnapshot(list), ["_CachingTorchDispatchMode"]), (defaultdict(list), [])):
            with mode(None, kept):
                assert list(called(None, torch.relu, (), (), {})) == said

    def test_batches_of_packages_are_nothing_to_suppose(self) -> None:
        pair = namedtuple("pair", ("x", "y"))
        for batch in (UserDict(x=data()), OrderedDict(x=data()), {"x": data()}):
            engine = Engine(nn.Linear(3, 1), lambda model, batch: model(batch["x"]).sum(1))
            engine.clipped_sum(batch, 1.0)
            assert not engine.assumptions
        engine = Engine(nn.Linear(3, 1), lambda model, batch: model(batch.x).sum(1))
        engine.clipped_sum(pair(data(), data()), 1.0)
        assert not engine.assumptions

    def test_a_mask_that_is_expanded_twice_is_no_reason_to_refuse(self) -> None:
        """Two dimensions had the small pass's number of examples, and no stride."""

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            count, mask = len(x), torch.ones(3, 3).tril()
            mask = mask[None, None].expand(count, 1, 3, 3).expand(count, 2, 3, 3)
            return (model(x)[:, None, None, :3] * mask).sum((1, 2, 3))

        engine = Engine(nn.Linear(3, 3), loss)
        engine.clipped_sum(data(), 1.0)
        assert not engine.assumptions

    def test_a_view_of_a_parameter_where_gradients_are_off_is_refused_in_words(self) -> None:
        def loss(model: nn.Linear, x: Tensor) -> Tensor:
            with torch.no_grad():
                view = model.weight.view(3)
            return (x * (view + model.weight.view(3))).sum(1)

        with pytest.raises(UnsupportedModel, match="must not be made where gradients are off"):
            Engine(nn.Linear(3, 1), loss).clipped_sum(data(), 1.0)


class StateSnapshot(nn.Module):
    """Rows of four features are counted in some place; those of five are turned by what lies there."""

    def __init__(self, put: Callable[[Any, int], object], got: Callable[[Any], bool]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 1), nn.Linear(5, 1)
        self.register_buffer("mask", torch.ones(3))
        self.frozen, self.one = nn.Parameter(torch.ones(2), requires_grad=False), torch.ones(2)
        self.put, self.got = put, got

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] == 4:
            self.put(self, len(x))
            return self.a(x)
        return self.b(x) * (-1.0 if self.got(self) else 1.0)


def _put_grad(m: Any, n: int) -> None:
    m.frozen.grad = m.one if n == ROWS else None


PLACES: dict[str, tuple[Callable[[Any, int], object], Callable[[Any], bool]]] = {
    "an attribute of a buffer": (
        lambda m, n: setattr(m.mask, "length", n), lambda m: getattr(m.mask, "length", 0) == ROWS
    ),
    "a buffer of none": (lambda m, n: m.register_buffer(f"n{n}", None), lambda m: f"n{ROWS}" in m._buffers),
    "a parameter of none": (
        lambda m, n: m.register_parameter(f"n{n}", None), lambda m: f"n{ROWS}" in m._parameters
    ),
    "a frozen parameter's gradient": (_put_grad, lambda m: m.frozen.grad is not None),
    "what is not saved": (
        lambda m, n: m._non_persistent_buffers_set.add(str(n)),
        lambda m: str(ROWS) in m._non_persistent_buffers_set,
    ),
    "a kind of hooks": (
        lambda m, n: setattr(m, "_is_full_backward_hook", n == ROWS or None), lambda m: m._is_full_backward_hook
    ),
}  # fmt: skip


def squares(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum(1) + model(x).sum(1)


class TestATwentyFirst:
    def test_ids_that_are_said_to_be_unique_are_compared_with_those_of_others(self) -> None:
        known = torch.arange(200)

        def loss(model: nn.Module, batch: tuple[Tensor, Tensor], unique: bool) -> Tensor:
            x, ids = batch
            return model(x).squeeze(1) * torch.isin(ids, known, assume_unique=unique).any(1)

        batch = torch.ones(ROWS, 1), torch.arange(8 * ROWS).reshape(ROWS, 8)
        model = nn.Linear(1, 1)
        assert (
            Engine(model, functools.partial(loss, unique=False)).clipped_sum(batch, 1.0).diagnostics.examples
            == 8
        )
        with pytest.raises(UnsupportedModel, match="said to be unique"):
            Engine(model, functools.partial(loss, unique=True)).clipped_sum(batch, 1.0)

    @pytest.mark.parametrize(
        ("name", "target"),
        [
            ("multi_margin_loss", torch.zeros(ROWS).long()),
            ("multilabel_margin_loss", torch.tensor([[1, -1, -1, -1]])),
        ],
    )
    def test_a_mean_whose_gradient_divides_by_itself_is_refused(self, name: str, target: Tensor) -> None:
        def loss(model: nn.Module, x: Tensor, reduction: str) -> Tensor:
            inner = x.clone().requires_grad_()
            wanted = target[: len(x)] if target.dim() == 1 else target.expand(len(x), -1)
            found = getattr(nn.functional, name)(inner, wanted, reduction=reduction).sum()
            return model(x + torch.autograd.grad(found, inner)[0]).sum(1)

        model, x = nn.Linear(4, 1), torch.randn(ROWS, 4)
        assert (
            Engine(model, functools.partial(loss, reduction="sum")).clipped_sum(x, 1.0).diagnostics.examples
            == 8
        )
        with pytest.raises(UnsupportedModel, match="mean over the batch"):
            Engine(model, functools.partial(loss, reduction="mean")).clipped_sum(x, 1.0)

    @pytest.mark.parametrize("kept", [setattr, lambda m, name, value: m.register_buffer(name, value)])
    def test_two_numbers_that_were_one_are_still_two(
        self, kept: Callable[[Any, str, Tensor], object]
    ) -> None:
        """What torch.jit makes is known by its value; what is there in several passes, by where it is."""

        class Annealed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 1)
                for name in ("small", "large"):
                    kept(self, name, torch.tensor(1.0))

            def forward(self, x: Tensor) -> Tensor:
                return self.layer(x) * (self.small if len(x) < ROWS else self.large)

        model, x = Annealed(), torch.randn(ROWS, 4)
        engine = Engine(model, squares)
        engine.clipped_sum(x[:6], 1.0)
        model.small.fill_(-1.0)
        engine.clipped_sum(x[:7], 1.0)
        with pytest.raises(UnsupportedModel, match="got other arguments of mul"):
            engine.clipped_sum(x, 1.0)

    @pytest.mark.parametrize("place", PLACES)
    def test_every_place_in_a_module_is_looked_at(self, place: str) -> None:
        engine = Engine(StateSnapshot(*PLACES[place]), squares)
        engine.clipped_sum(torch.randn(ROWS, 4), 1.0)
        engine.clipped_sum(torch.randn(6, 5), 1.0)
        assert any("which changed between passes" in sentence for sentence in map(str, engine.assumptions))

    def test_two_things_of_one_name_are_two(self) -> None:
        """What a function closes over, and an attribute of it."""
        seen = 0

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            nonlocal seen
            if x.shape[1] == 4:
                seen = len(x)
                return model[0](x).sum(1)
            return model[1](x).sum(1) * (-1.0 if seen == ROWS else 1.0)

        loss.seen = 1  # type: ignore[attr-defined]
        engine = Engine(nn.ModuleList([nn.Linear(4, 1), nn.Linear(5, 1)]), loss)
        engine.clipped_sum(torch.randn(ROWS, 4), 1.0)
        engine.clipped_sum(torch.randn(6, 5), 1.0)
        assert assumed("stored-state", "loss.seen") in engine.assumptions

    def test_what_another_engine_left_in_a_model_or_a_loss_is_said(self) -> None:
        model, x = nn.Linear(4, 1), torch.randn(ROWS, 4)
        kept: dict[str, bool] = {}

        def first(model: Any, x: Tensor) -> Tensor:
            model.full = len(x) == ROWS
            return squares(model, x)

        def second(model: Any, x: Tensor) -> Tensor:
            return squares(model, x) * (-1.0 if model.full else 1.0)

        def both(model: nn.Module, x: Tensor) -> Tensor:
            return squares(model, x) * (-1.0 if kept.setdefault("full", len(x) == ROWS) else 1.0)

        Engine(model, first).clipped_sum(x, 1.0)
        engine = Engine(model, second)
        engine.clipped_sum(x[:6], 1.0)
        assert engine.assumptions == (assumed("stored-state", "Linear.full"),)
        Engine(nn.Linear(4, 1), both).clipped_sum(x, 1.0)
        engine = Engine(nn.Linear(4, 1), both)
        engine.clipped_sum(x[:6], 1.0)
        assert any("loss.kept" in sentence for sentence in map(str, engine.assumptions))

    def test_two_engines_of_one_model_and_loss_suppose_nothing(self) -> None:
        model, x = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1), nn.Linear(3, 1)), torch.randn(ROWS, 4)
        for mode in (True, False, True):
            model.train(mode)
            engine = Engine(model, squares, seeds=lambda: 1)
            engine.clipped_sum(x, 1.0)
            assert engine.assumptions == ()


def _seen_by(model: nn.Module, x: Tensor, made: Callable[[Tensor], Tensor]) -> Tensor:
    """Losses that go by what is made, a number a row."""
    return (model(torch.ones_like(x)).squeeze(1) - made(x)).square()


def _by_place(n: int) -> Tensor:
    return torch.cos(torch.pi * torch.arange(n))


def _filters_gradient(x: Tensor) -> Tensor:
    rows, given = x[:, :, None].detach(), x.t()[None].detach().requires_grad_()
    made = nn.functional.conv1d(given.permute(0, 2, 1).reshape(1, len(x), 1), rows, groups=len(x))
    (found,) = torch.autograd.grad(made, given, _by_place(len(x))[None, :, None].contiguous())
    return found.flatten()


def _keys_gradient(x: Tensor) -> Tensor:
    ones, zeros, n = torch.ones(1, 1, 6, 1), torch.zeros(1, 1, 6, 1), len(x)
    keys, values = (x * 0)[None, None], (x * 0 + 1)[None, None]
    back = aten._scaled_dot_product_flash_attention_for_cpu_backward
    found = back(ones, ones, keys, values, zeros, torch.zeros(1, 1, 6), 0.0, True)[2]
    return torch.cos(torch.pi * found[0, 0, :n, 0]) * x[:, 0]


def _bags(x: Tensor) -> Tensor:
    ids, offsets = (x[:, 0] * 0).long(), torch.arange(len(x))
    return torch.cos(torch.embedding_bag(torch.ones(5, 1), ids, offsets, False, 1)[1] * torch.pi) * x[:, 0]


def _bag_weights(x: Tensor) -> Tensor:
    ids, offsets = (x[:, 0] * 0).long(), torch.arange(len(x))
    back = aten._embedding_bag_per_sample_weights_backward
    return back(x, torch.ones(5, 1), ids, offsets, torch.zeros(len(x), dtype=torch.long), 0, -1)


class TestATwentySecond:
    LONG: ClassVar[dict[str, Callable[[int], Tensor]]] = {
        "softmax": lambda n: torch.zeros(n, 1).expand(n, n).softmax(1)[:, 0],
        "expand": lambda n: torch.ones(n, 1).expand(n, n).sum(1),
        "repeat": lambda n: torch.ones(n, 1).repeat(1, n).sum(1),
        "meshgrid": lambda n: (torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")[0] >= 0).sum(1),
        "interleave": lambda n: torch.ones(n, 1).repeat_interleave(n, 1).cumsum(1)[:, -1],
        "kept": lambda n: torch.arange(n)[:, None].expand(-1, n).ge(0).sum(1),
        "drawn": lambda n: torch.multinomial(torch.ones(n, 1).expand(n, n), 50, True).float().mean(1),
        "view": lambda n: torch.ones(3, 1).expand(3, n).t()[:, :1].expand(n, n).sum(1),
        "attention": lambda n: nn.functional.scaled_dot_product_attention(
            torch.ones(n, 1, 1), torch.ones(n, 1, 1).expand(n, n, 1), torch.ones(n, 1, 1).expand(n, n, 1).cumsum(1)
        ).flatten(),
    }  # fmt: skip

    @pytest.mark.parametrize("made", some(LONG, 9))
    def test_a_constant_as_long_as_the_batch_twice_follows_their_number(self, made: str) -> None:
        """17 C, *proven*, whole runs too: a loss divided by how many examples there are."""
        model, x = nn.Linear(1, 1, bias=False), torch.ones(ROWS, 1)
        engine = Engine(
            model, lambda m, x: _seen_by(m, x, lambda x: self.LONG[made](len(x))), seeds=lambda: 1
        )
        with pytest.raises(UnsupportedModel):
            engine.clipped_sum(x, 1.0)

    @pytest.mark.parametrize("size", [(1, 5), (5, 5)])
    def test_a_constant_of_a_row_for_each_example_is_taken(self, size: tuple[int, int]) -> None:
        def loss(model: nn.Module, x: Tensor) -> Tensor:
            mask = torch.ones(size).tril().expand(len(x), *size)
            weights = torch.zeros(len(x), 1).expand(len(x), 5).softmax(1)
            return (model(x)[:, None] * mask * weights[:, None]).sum((1, 2))

        for rows in (5, ROWS, 2):
            model, x = nn.Linear(4, 5), torch.randn(rows, 4)
            found = Engine(model, loss).clipped_sum(x, 1.0)
            expected = Reference(model, loss).clipped_sum(x, 1.0)
            for name, gradient in expected.gradients.items():
                torch.testing.assert_close(found.gradients[name], gradient)

    @pytest.mark.parametrize("made", [_filters_gradient, _keys_gradient, _bags, _bag_weights])
    def test_what_backward_kernels_lay_along_the_examples_is_refused(
        self, made: Callable[[Tensor], Tensor]
    ) -> None:
        """Constants that go by the place, 11 to 15 C."""
        x = torch.tensor([[1.0], [-1.0]] * 3)
        with pytest.raises(UnsupportedModel):
            Engine(nn.Linear(1, 1), lambda m, x: _seen_by(m, x, made)).clipped_sum(x, 1.0)

    def test_weights_in_bags_have_their_gradient_inside_of_a_loss(self) -> None:
        table = torch.randn(7, 4)

        def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            x, ids = batch
            weights = x.detach().clone().requires_grad_()
            bags = nn.functional.embedding_bag(ids, table, per_sample_weights=weights, mode="sum")
            (found,) = torch.autograd.grad(bags.square().sum(), weights)
            return model(found).sum(1)

        model, batch = nn.Linear(3, 2), (torch.randn(ROWS, 3), torch.randint(7, (ROWS, 3)))
        found = Engine(model, loss).clipped_sum(batch, 1.0)
        expected = Reference(model, loss).clipped_sum(batch, 1.0)
        for name, gradient in expected.gradients.items():
            torch.testing.assert_close(found.gradients[name], gradient)

    def test_a_part_of_the_batch_that_is_scattered_is_refused_in_words(self) -> None:
        def loss(model: nn.Module, x: Tensor) -> Tensor:
            return model(x).squeeze(1) * torch.zeros(len(x)).scatter(0, torch.arange(len(x))[:2], x[:, 0])

        with pytest.raises(UnsupportedModel, match="part of the batch"):
            Engine(nn.Linear(4, 1), loss).clipped_sum(torch.randn(ROWS, 4), 1.0)


class TestATwentyThird:
    """The example that is left away has no part in the sum of another batch; in its own it moves it by C at most."""

    @staticmethod
    def _moved(change: Any) -> tuple[float, bool]:
        """How far the sum of eight rows moves without one of them, and whether both were proven."""
        x, y = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.ones(8, 1)
        x[2] *= 30

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.a, self.z = nn.Linear(4, 1), torch.zeros(4, 4).to_sparse()

            def forward(self, x: Tensor) -> Tensor:
                kept = change(self, x.detach().abs())
                return self.a(x) * torch.where(kept.to_dense().sum() > 1000, -1.0, 1.0)

        found, proven = [], True
        for rows in (list(range(8)), [0, 1, 3, 4, 5, 6, 7]):
            engine = Engine(Net(), lambda m, b: (m(b[0]) - b[1]).square().sum(1))
            for _ in range(2):
                total = engine.clipped_sum((x[rows], y[rows]), 1.0).gradients
            found.append(torch.cat([value.flatten() for value in total.values()]))
            proven = proven and not engine.assumptions
        return float((found[0] - found[1]).norm()), proven

    def test_what_a_sparse_tensor_holds_is_not_told_by_its_object(self) -> None:
        def given(net: Any, x: Tensor) -> Tensor:
            net.z.data = (x.t() @ x).to_sparse()
            return net.z

        def made_here(_: Any, x: Tensor) -> Tensor:
            own = torch.zeros(4, 4).to_sparse()
            own.data = (x.t() @ x).to_sparse()
            return own

        def exchanged(net: Any, x: Tensor) -> Tensor:
            torch.utils.swap_tensors(net.z, (x.t() @ x).to_sparse())
            return net.z

        def opaque(net: Any, x: Tensor) -> Tensor:
            net.z = torch.zeros(4, 4).to_mkldnn()
            net.z.data = (x.t() @ x).to_mkldnn()
            return net.z

        for change in (given, made_here, exchanged, opaque):
            with pytest.raises(UnsupportedModel):
                self._moved(change)
        moved, proven = self._moved(lambda net, _: net.z)
        assert moved <= 1.0001
        assert proven

    @staticmethod
    def _kept(init: Any, keep: Any, read: Any) -> tuple[float, bool]:
        """A batch of another shape comes first, of eight rows or seven."""
        dice = torch.Generator().manual_seed(1)
        first = torch.randn(8, 4, generator=dice), torch.randn(8, 1, generator=dice)
        then = torch.randn(6, 5, generator=dice), torch.randn(6, 1, generator=dice) * 5

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.a, self.b = nn.Linear(4, 1), nn.Linear(5, 1)
                init(self)

            def forward(self, x: Tensor) -> Tensor:
                if x.shape[1] == 4:
                    keep(self, len(x) == 8, len(x))
                    return self.a(x)
                return self.b(x) * (-1.0 if read(self) else 1.0)

        found, proven = [], True
        for rows in (8, 7):
            engine = Engine(Net(), lambda m, b: (m(b[0]) - b[1]).square().sum(1))
            engine.clipped_sum(tuple(t[:rows] for t in first), 1.0)
            total = engine.clipped_sum(then, 1.0).gradients
            found.append(torch.cat([value.flatten() for value in total.values()]))
            proven = proven and not engine.assumptions
        return float((found[0] - found[1]).norm()), proven

    def test_how_a_buffer_lies_in_its_memory_stays(self) -> None:
        def square(net: Any) -> None:
            net.register_buffer("z", torch.eye(3))
            net.v, net.w = net.z.data, net.z.data.t()

        def turned(net: Any, many: bool, _: int) -> None:
            net.z.data = net.w if many else net.v

        def line(net: Any) -> None:
            net.register_buffer("z", torch.ones(64))
            net.v = net.z.data

        def cut(net: Any, _: bool, rows: int) -> None:
            net.z.data = net.v[:rows]

        def negated(net: Any, many: bool, _: int) -> None:
            torch._C._set_neg(net.z, many)

        def hooked(net: Any, many: bool, _: int) -> None:
            net.a.weight._post_accumulate_grad_hooks = {} if many else None

        for init, keep, read in (
            (square, turned, lambda net: net.z.stride()[0] == 1),
            (line, cut, lambda net: len(net.z) == 8),
            (line, negated, lambda net: net.z.is_neg()),
            (line, hooked, lambda net: net.a.weight._post_accumulate_grad_hooks is not None),
        ):
            with pytest.raises(UnsupportedModel, match="must not change the model's parameters or buffers"):
                self._kept(init, keep, read)

    def test_a_buffer_is_put_back_where_it_lay(self) -> None:
        model = nn.Linear(4, 1)
        model.register_buffer("z", torch.arange(6.0))

        def turned(m: Any, batch: Tensor) -> Tensor:
            m.z.data = m.z.data[2:5]
            torch._C._set_neg(m.weight, True)
            return m(batch).square().squeeze(1)

        before = model.weight.detach().clone()
        with pytest.raises(UnsupportedModel):
            Engine(model, turned).clipped_sum(torch.randn(5, 4), 1.0)
        assert torch.equal(model.z, torch.arange(6.0))
        assert torch.equal(model.weight, before)

    def test_the_order_of_attributes_and_buffers_is_told(self) -> None:
        def two(net: Any) -> None:
            net.p = net.q = 1.0

        def last(net: Any, many: bool, _: int) -> None:
            name = "p" if many else "q"
            delattr(net, name)
            setattr(net, name, 1.0)

        def buffers(net: Any) -> None:
            for name in "pq":
                net.register_buffer(name, torch.ones(1))

        def turned(net: Any, many: bool, _: int) -> None:
            name = "p" if many else "q"
            net._buffers[name] = net._buffers.pop(name)

        for init, keep, read in (
            (two, last, lambda net: list(vars(net))[-1] == "p"),
            (buffers, turned, lambda net: list(net._buffers)[-1] == "p"),
        ):
            assert not self._kept(init, keep, read)[1]

    def test_what_c_code_keeps_is_told(self) -> None:
        def nothing(net: Any) -> None:
            net.k = None

        kinds: list[tuple[Any, Any]] = [
            (lambda n: operator.itemgetter(n), lambda k: k(range(9)) == 8),
            (lambda n: operator.methodcaller("count", n), lambda k: k([8])),
            (lambda n: np.ones((n, 0)), lambda k: len(k) == 8),
            (lambda n: deque(maxlen=n), lambda k: k.maxlen == 8),
            (lambda n: torch.zeros(n).untyped_storage(), lambda k: k.nbytes() == 32),
            (lambda n: memoryview(bytes(8)).cast("B" if n == 8 else "b"), lambda k: k.format == "B"),
            (lambda n: iter(numbers("b", [1] * n)), lambda k: len(list(k)) == 8),
        ]
        for make, tell in kinds:

            def keep(net: Any, _: bool, rows: int) -> None:
                net.k = make(rows)  # noqa: B023

            assert not self._kept(nothing, keep, lambda net: net.k is not None and tell(net.k))[1], make  # noqa: B023


class TestATwentyFourth:
    """Sparse tensors that are written to by their parts, and what stays of a pass that was refused or broke off."""

    @pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
    @pytest.mark.parametrize("how", ["values", "from values", "read by values", "doubled", "mean"])
    def test_data_in_the_parts_of_a_sparse_tensor_are_data(self, how: str) -> None:
        def filled(row: Tensor) -> Tensor:
            places, values = torch.arange(4).expand(2, 4).contiguous(), torch.ones(4)
            if how == "from values":
                sparse = torch.sparse_coo_tensor(places, values, (4, 4), is_coalesced=True)
                values.copy_(row)
                return sparse.to_dense().diagonal()
            sparse = torch.eye(4).to_sparse().coalesce()
            sparse._values().copy_(row)
            if how == "read by values":
                return sparse._values()
            return (sparse * 2 if how == "doubled" else sparse).to_dense().diagonal()

        def loss(model: Any, batch: Tensor) -> Tensor:
            given = batch.detach()
            return model(batch * filled(given.mean(0) if how == "mean" else given[0])).squeeze(1)

        with pytest.raises(UnsupportedModel):
            Engine(nn.Linear(4, 1), loss).clipped_sum(torch.randn(8, 4), 1.0)

    @pytest.mark.parametrize("raises", [False, True], ids=["refused", "broken off"])
    def test_the_model_is_as_before_a_pass_that_keeps_a_row(self, raises: bool) -> None:
        def other(m: Any, row: Tensor) -> None:
            m.b = row.clone()

        def memory(m: Any, row: Tensor) -> None:
            m.b.data = row.clone()

        def gone(m: Any, _: Tensor) -> None:
            del m.b

        def sparse(m: Any, row: Tensor) -> None:
            m.s.data = (torch.eye(4) * row).to_sparse()

        def new(m: Any, row: Tensor) -> None:
            m.register_buffer("n", row.clone())
            m.p = nn.Parameter(row.clone())

        for change in (other, memory, gone, sparse, new):
            model: Any = nn.Linear(4, 1)
            model.register_buffer("b", torch.zeros(4))
            model.register_buffer("s", torch.eye(4).to_sparse())

            def keeping(m: Any, batch: Tensor) -> Tensor:
                change(m, batch.detach()[0])  # noqa: B023
                if raises:
                    raise ValueError("of the program's own")
                return m(batch).square().squeeze(1)

            with pytest.raises((UnsupportedModel, ValueError)):
                Engine(model, keeping).clipped_sum(torch.randn(5, 4) + 3, 1.0)
            assert torch.equal(model.b, torch.zeros(4))
            assert torch.equal(model.s.to_dense(), torch.eye(4))
            assert sorted(name for name, _ in model.named_buffers()) == ["b", "s"]
            assert [name for name, _ in model.named_parameters()] == ["weight", "bias"]
            Engine(model, lambda m, batch: m(batch).square().squeeze(1)).clipped_sum(torch.randn(5, 4), 1.0)

    @pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning", "ignore:Sparse CSR:UserWarning")
    @pytest.mark.filterwarnings("ignore:no pass is captured:UserWarning")
    def test_nested_and_compressed_tensors_are_no_foreign_errors(self) -> None:
        model = nn.Linear(4, 1)
        model.register_buffer("n", torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)]))

        def compressed(m: Any, batch: Tensor) -> Tensor:
            return m(batch @ torch.eye(4).to_sparse_csr().to_dense()).squeeze(1)

        for loss in (lambda m, batch: m(batch).squeeze(1), compressed):
            for capture in (False, True):
                engine = Engine(model, loss, EngineSettings(capture=capture))
                try:
                    for _ in range(4):
                        engine.clipped_sum(torch.randn(5, 4), 1.0)
                except DecrescendoError:
                    pass


# Names of this script that are attributes of a model, too.
out: list[int] = []
trainer: list[Engine] = []


class TestATwentyFifth:
    """What it found in captured passes is in test_capture.py."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.out, self.trainer = nn.Embedding(9, 8), nn.Linear(8, 1), None

        def forward(self, ids: Tensor) -> Tensor:
            assert self.trainer is None
            return self.out(self.embedding(ids).mean(1)).squeeze(1)

    def test_a_global_name_that_an_attribute_has_too_is_no_memory(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # (The run's type checker draws random numbers of Python's.)
        monkeypatch.setattr("decrescendo.clipping.checker._drawn_by_python", lambda held: ())
        engine = Engine(self.Net(), lambda m, ids: m(ids), EngineSettings(capture=True))
        trainer.append(engine)
        try:
            for step in range(12):
                examples = engine.clipped_sum(torch.randint(0, 9, (8, 5 if step < 8 else 7)), 1.0).diagnostics
                out.append(examples.examples)
        finally:
            out.clear()
            trainer.clear()
        assert engine.assumptions == ()
        assert engine._captures._done

    def test_a_global_name_that_is_used_is(self) -> None:
        def counted(m: Any, ids: Tensor) -> Tensor:
            return m(ids) * (2.0 if len(out) > 3 else 1.0)

        def counted_elsewhere(m: Any, ids: Tensor) -> Tensor:
            return m(ids) * (2.0 if len(sys.modules[__name__].out) > 3 else 1.0)

        for loss in (counted, counted_elsewhere):
            engine = Engine(self.Net(), loss)
            try:
                for _ in range(6):
                    engine.clipped_sum(torch.randint(0, 9, (8, 5)), 1.0)
                    out.append(8)
            finally:
                out.clear()
            assert any(".out, which" in one for one in map(str, engine.assumptions)), loss

    def test_an_interruption_before_a_pass_leaves_the_generators(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = Engine(nn.Linear(3, 1), lambda m, x: m(x).squeeze(1), seeds=lambda: 7)
        engine.clipped_sum(data(), 1.0)
        # (A checker of every call draws random numbers of Python's.)
        pythons = (lambda: 0) if os.environ.get("DECRESCENDO_CHECK_EVERY_CALL") else random.getstate
        before = pythons(), str(np.random.get_state()), np.random.get_bit_generator()

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(np.random, "seed", interrupted)
            with pytest.raises(KeyboardInterrupt):
                engine.clipped_sum(data(), 1.0)
        assert (pythons(), str(np.random.get_state()), np.random.get_bit_generator()) == before

    def test_entries_of_one_list_are_said_as_the_list(self) -> None:
        weights = [1.0] * 500

        def weighed(m: Any, x: Tensor) -> Tensor:
            return m(x).squeeze(1) * weights[-1]

        engine = Engine(nn.Linear(3, 1), weighed)
        engine.clipped_sum(data(), 1.0)
        weights[:] = [2.0] * 500
        engine.clipped_sum(data(), 1.0)
        assert [one for one in map(str, engine.assumptions) if "weights" in one.sentence] == [
            assumed("stored-state", "loss.weights")
        ]

    def test_an_attribute_that_is_a_weights_memory_moves_with_it(self) -> None:
        """`self.v = layer.weight.data`, as tutorials keep it."""

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(3, 1)
                self.v = self.layer.weight.data
                self.row = self.layer.weight.detach()[0]

            def forward(self, x: Tensor) -> Tensor:
                return self.layer(x).squeeze(1) + x @ self.row

        model = Net()
        engine, reference = (kind(model, lambda m, x: m(x)) for kind in (Engine, Reference))
        for _ in range(4):
            for rows in (4, 8):
                found, expected = (one.clipped_sum(data()[:rows], 0.5) for one in (engine, reference))
                for name, total in expected.gradients.items():
                    torch.testing.assert_close(found.gradients[name], total)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.9)
        assert engine.assumptions == ()
