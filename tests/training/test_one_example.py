"""A training with one example a pass: records of any form, one of them in each batch that ``collate_fn`` makes."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from one_example_cases import cases
from one_example_models import Case, Gin, Graph, graphs
from torch import Tensor, nn

import decrescendo as dc
from decrescendo.base.batches import OneByOne
from decrescendo.clipping import EngineSettings
from decrescendo.errors import InvalidType, UnsupportedModel

ONE = EngineSettings(one_example_a_pass=True)
PLAN = dc.calibrate(dc.Budget(4.0, 1e-3), dc.PoissonSampling(24, 6), steps=4, clip=0.5)
SHORT = dc.calibrate(dc.Budget(4.0, 1e-3), dc.PoissonSampling(24, 4), steps=2, clip=0.5)


def records() -> list[Graph]:
    torch.manual_seed(0)
    return graphs(24).records


def only(given: list[Graph]) -> Graph:
    (graph,) = given
    return graph


def loss(model: nn.Module, graph: Graph) -> Tensor:
    return model(graph)


def trained(data: Any, *, loss: Any = loss, collate_fn: Any = only, seed: int = 3, **others: Any) -> dc.Run:
    torch.manual_seed(1)
    model = Gin(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return dc.train(model, loss, data, PLAN, optimizer, seed=seed, collate_fn=collate_fn, settings=ONE, **others)


def test_graphs_are_trained_and_their_independence_is_no_assumption() -> None:
    run = trained(records())
    assert run.steps == 4
    assert run.rows_independent
    assert [found.code for found in run.assumptions] == ["own-collate-fn"]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_records_that_share_a_tensor_are_named() -> None:
    """The nodes of one graph: each record has the rows of all others in it."""
    dense = torch.randn(24, 3)

    def node_loss(model: nn.Module, node: dict[str, Any]) -> Tensor:
        graph = node["graph"].to_dense()
        return model(graph[node["place"]] + graph.mean(0)).square().sum()

    kinds = dense, dense.to_sparse(), dense.to_sparse_csr()
    for features, own in itertools.product(kinds, (False, True)):
        nodes = [{"graph": features.clone() if own else features, "place": place} for place in range(24)]
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = dc.train(model, node_loss, nodes, PLAN, optimizer, seed=3, collate_fn=lambda rows: rows[0], settings=ONE)
        named = {"own-collate-fn"} if own else {"own-collate-fn", "records-share-objects"}
        assert {found.code for found in run.assumptions} == named


@cases
def test_models_of_libraries_train_from_their_records_reproducibly(make: Callable[..., Case]) -> None:
    def run(seed: int) -> dc.Run:
        torch.manual_seed(0)
        case = make(24)
        optimizer = torch.optim.SGD([p for p in case.model.parameters() if p.requires_grad], lr=0.01)
        return dc.train(
            case.model, case.loss, case.records, SHORT, optimizer, seed=seed, collate_fn=case.collate_fn,
            settings=ONE,
        )  # fmt: skip

    one, again, other = run(3), run(3), run(4)
    assert one.steps == SHORT.steps == 2
    assert one.rows_independent
    assert "own-collate-fn" in [found.code for found in one.assumptions]
    assert 3.9 < one.guarantee.epsilon <= 4
    assert one.ledger == again.ledger == other.ledger
    assert all(torch.equal(one.weights[name], again.weights[name]) for name in one.weights)
    assert not all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


@pytest.mark.slow
def test_other_processes_make_the_same_batches() -> None:
    one, other = trained(records()), trained(records(), num_workers=1)
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


def test_a_training_goes_on_from_a_checkpoint_with_the_same_masks(tmp_path: Path) -> None:
    def dropped(model: nn.Module, graph: Graph) -> Tensor:
        return model(Graph(nn.functional.dropout(graph.x, 0.5), graph.edges, graph.y, graph.of))

    whole = trained(records(), loss=dropped)
    folder = dc.Checkpoints(tmp_path, every=1)
    parts = []
    for steps in (2, 4):
        torch.manual_seed(1)
        model = Gin(6)
        trainer = dc.training.Trainer(
            model, dropped, PLAN, torch.optim.SGD(model.parameters(), lr=0.1), seed=3, settings=ONE,
            checkpoints=folder,
        )  # fmt: skip
        for batch in trainer.batches(records(), only):
            assert batch is None or isinstance(batch, OneByOne)
            trainer.step(batch)
            if trainer.ledger.steps == steps:
                break
        trainer.keep()
        parts.append({name: value.detach().clone() for name, value in model.state_dict().items()})
    assert all(torch.equal(whole.weights[name], parts[-1][name]) for name in parts[-1])


def test_tensors_need_no_collate_fn_and_every_row_counts_alone() -> None:
    torch.manual_seed(0)
    x = torch.randn(24, 3)

    def mixing(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch) - batch.mean()).square().mean()

    def run(settings: EngineSettings | None) -> dc.Run:
        torch.manual_seed(1)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return dc.train(model, mixing, x, PLAN, optimizer, seed=3, settings=settings)

    with pytest.warns(UserWarning, match="another loss"):
        assert run(ONE).rows_independent
    with pytest.raises(UnsupportedModel, match="mixes rows"):
        run(None)


def test_the_refusal_of_records_that_are_no_rows_names_this_way() -> None:
    torch.manual_seed(1)
    model = Gin(6)
    with pytest.raises(InvalidType, match="one_example_a_pass=True"):
        dc.train(model, loss, records(), PLAN, torch.optim.SGD(model.parameters(), lr=0.1), seed=3, collate_fn=only)


def test_a_model_that_is_led_by_earlier_examples_is_refused_before_anything_is_released() -> None:
    seen: list[Tensor] = []

    def bank(model: nn.Module, graph: Graph) -> Tensor:
        found = model(graph)
        seen.append(found.detach())
        return found * sum(seen)

    with pytest.raises(UnsupportedModel, match="earlier pass computed"):
        trained(records(), loss=bank)
    assert len(seen) < 24


class InAttribute(torch.utils.data.Dataset[Any]):
    """Records that a data set makes of what it holds, beside a public mean."""

    def __init__(self) -> None:
        self.records, self.mean = records(), torch.zeros(3)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Graph:
        found = self.records[index]
        return Graph(found.x.clone(), found.edges.clone(), found.y.clone(), found.of.clone())


@pytest.mark.parametrize("make", [records, InAttribute])
def test_a_loss_that_reads_records_of_any_class_in_the_data_set_is_refused(make: Any) -> None:
    data = make()
    held = data if isinstance(data, list) else data.records

    def reads(model: nn.Module, graph: Graph) -> Tensor:
        return model(Graph(graph.x - held[0].x.mean(0), graph.edges, graph.y, graph.of))

    with pytest.raises(UnsupportedModel, match="no training data but its own"):
        trained(data, loss=reads)


def test_a_loss_may_read_what_a_data_set_holds_beside_its_records() -> None:
    data = InAttribute()

    def scaled(model: nn.Module, graph: Graph) -> Tensor:
        return model(Graph(graph.x - data.mean, graph.edges, graph.y, graph.of))

    assert trained(data, loss=scaled).rows_independent
