"""The example project, within one process: its apps give what its simulation gives."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason='flwr is not installed: pip install "decrescendo[federated]"')

import torch
from flwr.app import Context, RecordDict
from local_grid import LocalGrid
from safetensors.torch import load_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "federated"


def context(node: int, node_config: dict[str, object], run_config: dict[str, object]) -> Context:
    return Context(
        run_id=1, node_id=node, node_config=node_config, state=RecordDict(), run_config=run_config, series_id=1
    )  # fmt: skip


@pytest.mark.slow
def test_the_example_gives_what_its_simulation_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import simulate_it
    from digits import client_app, server_app
    from make_plan import make_plan

    plan = make_plan(8)
    plan.save(tmp_path / "plan.json")
    monkeypatch.setattr(server_app, "Secure", lambda: 7)  # a seed, so that the simulation can repeat it
    grid = LocalGrid(
        {
            11 + shard: (client_app.app, {"shard": shard, "shards": 3, "folder": str(tmp_path / f"{shard}")})
            for shard in range(3)
        }
    )
    config: dict[str, object] = {
        "plan": str(tmp_path / "plan.json"),
        "folder": str(tmp_path / "server"),
        "name": "",
        "placement": "central",
        "round-timeout": 60.0,
        "start-timeout": 1.0,
    }
    server_app.app(grid, context(1, {}, config))
    expected = simulate_it.run(plan, seed=7)
    # Each clips a hair below C, 1e-6 of it, in its own way.
    for name, value in load_file(tmp_path / "server" / "weights.safetensors").items():
        torch.testing.assert_close(value, expected.weights[name], rtol=0, atol=1e-5)
    said = (tmp_path / "server" / "statement.txt").read_text()
    assert said.startswith("(8, 0.001)-DP per client")
