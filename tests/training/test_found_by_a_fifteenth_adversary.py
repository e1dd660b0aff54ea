"""What a fifteenth adversary found: what a pass does to what trains, what a loop changes, and reads that nobody saw."""

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from often import some
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset, default_collate

import decrescendo as dc
from decrescendo.accounting import Filter, RenyiFilter
from decrescendo.clipping import Engine, recording
from decrescendo.errors import InvalidType, InvalidValue, UnsupportedModel
from decrescendo.integrations.loggers import Log
from decrescendo.row_independence.tracer import OWN_GENERATOR
from decrescendo.training import Trainer
from decrescendo.training.loop.between import (
    READ_AND_ENDED,
    READ_AND_SET,
    WRITTEN,
)
from decrescendo.training.loop.progress import Progress
from decrescendo.training.steering import Adaptive, Settings

ROWS = 12
Loss = Callable[[nn.Module, Any], Tensor]


def plan(unit: dc.Unit = dc.Unit.EXAMPLE) -> dc.Plan:
    return dc.calibrate(
        dc.Budget(3.0, 1e-3, unit), dc.PoissonSampling(ROWS, 6), steps=3, privacy=[1.0] * 3, clip=[1.0] * 3
    )


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(ROWS, 3, generator=generator), torch.rand(ROWS, 1, generator=generator)


def usual(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().sum(1)


class Gated(nn.Linear):
    """With a trained parameter that no loss uses."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.gate = nn.Parameter(torch.zeros(3))


def trainer_of(loss: Loss = usual, model: nn.Module | None = None, **options: Any) -> Trainer:
    model = nn.Linear(3, 1) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Trainer(model, loss, options.pop("plan", None) or plan(), optimizer, seed=3, **options)


class TestInThePass:
    """Each wrote raw data into what is released, or steered its steps, in runs that were proven."""

    @staticmethod
    def sets_the_rate(optimizer: torch.optim.Optimizer, model: Gated, x: Tensor, losses: Tensor) -> None:
        optimizer.param_groups[0]["lr"] = x.sum()

    @staticmethod
    def has_a_hook_write(optimizer: torch.optim.Optimizer, model: Gated, x: Tensor, losses: Tensor) -> None:
        losses.register_hook(lambda _: setattr(model.gate, "data", x.sum(0)))

    @staticmethod
    def writes_when_losses_end(
        optimizer: torch.optim.Optimizer, model: Gated, x: Tensor, losses: Tensor
    ) -> None:
        total = x.detach().sum(0)
        weakref.finalize(losses, lambda: model.gate.data.copy_(total))

    @pytest.mark.parametrize(
        "does",
        [sets_the_rate, has_a_hook_write, writes_when_losses_end],
        ids=lambda does: does.__func__.__name__,
    )
    @pytest.mark.parametrize("filled", some([False, True], 1))
    def test_nothing_may_change_what_trains(self, does: Any, filled: bool) -> None:
        model = Gated()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        late = [False]

        def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
            losses = usual(model, batch)
            if late[0]:
                does.__func__(optimizer, model, batch[0], losses)
            return losses

        trainer = Trainer(model, loss, plan(), optimizer, seed=3)

        def steps() -> None:
            for batch in trainer.batches(data()):
                if filled:
                    trainer.fill_gradients(batch)
                    optimizer.step()
                else:
                    trainer.step(batch)
                late[0] = True

        with pytest.raises(UnsupportedModel):
            steps()

    def test_a_loss_of_two_trainings_carries_nothing_from_one_to_the_other(self) -> None:
        kept: list[Tensor] = []
        uses = [False]

        def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            if uses[0]:
                return usual(model, batch) * kept[0].sum()
            kept[:1] = [batch[0] * 1.0]
            return usual(model, batch)

        Engine(nn.Linear(3, 1), loss).per_example_norms(data())
        uses[0] = True
        with pytest.raises(UnsupportedModel, match="an earlier pass"):
            Engine(nn.Linear(3, 1), loss).per_example_norms(data())


# What is asked about a tensor, not about its numbers; and operations of two tensors into the first.
ABOUT = """
    sym_size _version is_signed sym_is_contiguous is_distributed retains_grad _is_zerotensor cudnn_is_acceptable
    result_type is_leaf _has_compatible_shallow_copy_type storage_offset get_device is_conj is_inference numel
    is_contiguous size sym_storage_offset is_neg is_floating_point output_nr _debug_has_internal_overlap sym_stride
    sym_numel _batch_norm_impl_index dim is_complex stride sym_is_contiguous
"""
POINTWISE = """
    __iand__ __ior__ __ixor__ arctan2_ clip_ divide_ float_power_ greater_ greater_equal_ less_ less_equal_ multiply_
    not_equal_ subtract_ true_divide_
"""


class TestReads:
    """Operations that are made of no others, or return numbers beside tensors, and reach no dispatch mode."""

    CALLS: ClassVar[dict[str, Callable[[Tensor], Any]]] = {
        "a scale": lambda b: torch.fbgemm_linear_quantize_weight(b)[2],
        "a packed matrix": lambda b: torch.fbgemm_linear_fp16_weight_fp32_activation(
            torch.ones(1, 3), torch.fbgemm_pack_gemm_matrix_fp16(b[:3, :3].contiguous()), torch.zeros(3)
        ).sum(),
        "a range": lambda b: torch.choose_qparams_optimized(b, 6, 10, 0.5, 8)[0],
        "a range, by its overload": lambda b: torch.ops.aten.choose_qparams_optimized.default(
            b, 6, 10, 0.5, 8
        )[0],
        "a sequence": lambda b: torch._sobol_engine_draw(
            b[0].long(), 2, torch.ones(3, 30).long(), 3, 0, torch.float32
        )[0].sum(),
        "an address": lambda b: b.const_data_ptr() % 7,  # type: ignore[attr-defined]
    }

    @pytest.mark.parametrize("name", CALLS)
    @pytest.mark.filterwarnings("ignore")
    def test_it_is_a_read(self, name: str) -> None:
        def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            return usual(model, batch) * self.CALLS[name](batch[0])

        with pytest.raises(UnsupportedModel, match="must not leave torch"):
            Engine(nn.Linear(3, 1), loss).per_example_norms(data())

    @pytest.mark.parametrize("name", ["a scale", "a packed matrix", "a sequence"])
    @pytest.mark.filterwarnings("ignore")
    def test_what_it_fills_shows_where_its_name_is_not_known(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Memory that was made empty, and holds something that no operation wrote there."""
        monkeypatch.setattr(recording, "READS", frozenset())

        def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            return usual(model, batch) * self.CALLS[name](batch[0])

        with pytest.raises(UnsupportedModel, match=r"must see what writes to memory|was never written"):
            Engine(nn.Linear(3, 1), loss).per_example_norms(data())

    @pytest.mark.parametrize(
        "fill",
        [
            lambda empty: None,
            lambda empty: empty.fill_(2.0),
            lambda empty: (empty[0].fill_(1.0), empty[1:].fill_(2.0)),
            lambda empty: empty.numpy().fill(2.0),
            lambda empty: torch.ones(3, out=empty),
            lambda empty: empty.add_(2.0),
        ],
    )
    def test_what_is_filled_by_operations_is_no_matter(self, fill: Callable[[Tensor], object]) -> None:
        def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            fill(empty := torch.empty(3))
            return usual(model, batch) * (1 + empty.sum())

        engine = Engine(nn.Linear(3, 1), loss)
        engine.per_example_norms(data())
        assert not engine.assumptions

    def test_which_operations_return_numbers_or_write_with_no_operation_that_shows(self) -> None:
        """Of those made of others (a new release of torch's may have more): each was looked at."""
        numbers, writers = set[str](), set[str]()
        for name in torch._C._dispatch_get_all_op_names():
            if name.split("::")[0] not in ("aten", "prims", "quantized", "mkldnn", "mkl", "prim"):
                continue
            if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
                continue
            schema = torch._C._get_schema(*(name.split(".") if "." in name else (name, "")))
            tensors = [a for a in schema.arguments if "Tensor" in str(a.type)]
            if tensors and not all("Tensor" in str(r.type) for r in schema.returns):
                numbers.add(name.removeprefix("aten::").split(".")[0])
            written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
            if len(tensors) > 1 and any(not a.kwarg_only for a in schema.arguments if a.name in written):
                writers.add(name.removeprefix("aten::").split(".")[0])
        # Of these the last are made of operations that are seen; the others count as reads.
        assert numbers - set(ABOUT.split()) <= {
            "fbgemm_linear_quantize_weight", "item", "is_nonzero", "_choose_qparams_per_tensor",
        }  # fmt: skip
        assert writers - set(POINTWISE.split()) <= {
            "fbgemm_linear_fp16_weight", "fbgemm_linear_fp16_weight_fp32_activation", "_sobol_engine_ff_",
            "_sobol_engine_scramble_", "fused_moving_avg_obs_fake_quant", "set_", "set_data",
        }  # fmt: skip

    def test_what_a_generator_of_ones_own_draws_is_said(self) -> None:
        """Its state may be made of data, where no operation shows."""

        def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            generator = torch.Generator().manual_seed(0)
            state = generator.get_state()
            state[:12] = batch[0][0].view(torch.uint8)
            generator.set_state(state)
            return usual(model, batch) * torch.rand((), generator=generator)

        engine = Engine(nn.Linear(3, 1), loss)
        try:
            engine.per_example_norms(data())
        except UnsupportedModel:
            return
        assert OWN_GENERATOR in engine.assumptions


class TestBetweenSteps:
    def test_keys_of_what_a_loss_keeps_are_in_no_sentence(self) -> None:
        kept: dict[str, float] = {}

        def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            return usual(model, batch) * (1 + len(kept))

        trainer = trainer_of(loss)
        for batch in trainer.batches(data()):
            kept[f"patient {trainer.ledger.steps} of 12.5"] = trainer.ledger.steps
            trainer.step(batch)
        found = trainer.finish().assumptions
        assert found
        assert not any("patient" in one or "12.5" in one for one in found)

    @pytest.mark.parametrize("what", ["weights", ""])
    def test_what_is_written_before_a_resumed_run_draws(self, what: str, tmp_path: Any) -> None:
        checkpoints = dc.training.Checkpoints(tmp_path, every=1, resume=True)
        first = trainer_of(checkpoints=checkpoints)
        for batch in first.batches(data()):
            if first.ledger.steps == 2:  # kept, by then
                break
            first.step(batch)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        again = Trainer(model, usual, plan(), optimizer, seed=3, checkpoints=checkpoints)
        if what == "weights":
            model.weight.data.add_(1.0)
        for batch in again.batches(data()):
            again.step(batch)
        said = (WRITTEN,) if what else ()
        assert again.finish().assumptions == said

    def test_private_losses_that_a_log_hands_out_were_read(self) -> None:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        made = plan()

        def write(values: Any, step: int) -> None:
            if "private/loss" in values:
                optimizer.param_groups[0]["lr"] *= 0.5

        log = Log(made, write, private=True)
        run = dc.train(model, usual, data(), made, optimizer, seed=1, callback=log)
        assert READ_AND_SET in run.assumptions


class TestPlans:
    @pytest.mark.parametrize("kind", [dc.PoissonSampling, dc.RandomAllocation])
    def test_a_sampling_is_used_as_it_is(self, kind: type) -> None:
        with pytest.raises(InvalidType, match="must be used as it is"):
            type("All", (kind,), {})

    def test_a_filter_of_ones_own_is_said(self) -> None:
        class Generous(RenyiFilter):
            pass

        sampling = dc.PoissonSampling(ROWS, 6)
        found = []
        for kind in (RenyiFilter, Generous):
            filter_: Filter = kind(dc.Budget(8.0, 1e-3), order=8)
            adaptive = Adaptive(sampling, filter_, lambda context: Settings(4.0, 1.0), 2)
            trainer = trainer_of(plan=adaptive)
            for batch in trainer.batches(data()):
                trainer.step(batch)
            found.append(any("Generous" in one for one in map(str, trainer.finish().assumptions)))
        assert found == [False, True]

    @pytest.mark.parametrize(
        "make",
        [
            lambda x, y: Subset(TensorDataset(x, y), [*range(ROWS - 1), -ROWS]),
            lambda x, y: [(x[0], y[0])] * ROWS,
            lambda x, y: [(x[0], y[0]) for _ in range(ROWS)],
        ],
        ids=["counted from the end", "one tuple", "tuples of views"],
    )
    def test_a_record_has_one_row(self, make: Callable[[Tensor, Tensor], Any]) -> None:
        trainer = trainer_of()
        with pytest.raises(InvalidValue, match="each record once"):
            next(iter(trainer.batches(make(*data()))))

    @pytest.mark.parametrize("indices", [[[row] for row in range(ROWS)], [row + 0.5 for row in range(ROWS)]])
    def test_a_record_is_told_by_a_whole_number(self, indices: Any) -> None:
        with pytest.raises(InvalidType, match="a row's number for each record"):
            next(iter(trainer_of().batches(Subset(TensorDataset(*data()), indices))))

    def test_no_code_of_a_record_runs_to_tell_it(self) -> None:
        class Silent:
            def __repr__(self) -> str:
                raise AssertionError("it has been asked")

        records = [(row, Silent()) for row in zip(*data(), strict=True)]
        trainer = trainer_of()
        batches = trainer.batches(records, collate_fn=lambda some: default_collate([row for row, _ in some]))
        for batch in batches:
            trainer.step(batch)
        assert trainer.finish().ledger.steps == 3

    def test_records_that_share_a_part_are_several(self) -> None:
        shared = data()[0][0]
        trainer = trainer_of(lambda m, b: usual(m, (b[0], b[1].float()[:, None])))
        for batch in trainer.batches([(shared, place) for place in range(ROWS)]):
            trainer.step(batch)
        assert trainer.finish().ledger.steps == 3


class TestClients:
    @staticmethod
    def simulated(callback: Callable[[Progress], Any], loss: Loss, model: nn.Module, x: Tensor) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return dc.federated.simulate(
            model, loss, dc.federated.Clients.equal(x, 1), plan(dc.Unit.CLIENT), optimizer, seed=1,
            placement=dc.federated.Placement.CENTRAL, callback=callback,
        )  # fmt: skip

    @pytest.mark.parametrize("ends", [False, True])
    def test_an_end_decided_by_private_diagnostics_is_said(self, ends: bool) -> None:
        def loss(model: nn.Module, batch: Tensor) -> Tensor:
            return model(batch).square().sum(1)

        def callback(progress: Progress) -> bool:
            return ends and progress.diagnostics.loss_sum > -1

        found = self.simulated(callback, loss, nn.Linear(3, 1), data()[0]).assumptions
        assert found == ((READ_AND_ENDED,) if ends else ())
