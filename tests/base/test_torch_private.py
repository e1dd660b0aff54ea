"""What the library relies on of each private name of torch; and that no other file names one of torch's modules."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from nodes import nodes
from torch import nn

from decrescendo.base import torch_private as private

SOURCE = Path(__file__).resolve().parents[2] / "src"
OPERATORS = re.compile(r"\.ops\.|_foreach_|\._ctc_loss")


def names_in(text: str) -> list[str]:
    """Private names of modules of torch, whatever a file calls these: imported, or asked for as attributes."""
    if "torch" not in text or not re.search(r"\._[A-Za-z]|import .*\b_[A-Za-z]", text):
        return []
    tree, roots, found = ast.parse(text), set[str](), list[str]()
    every = list(nodes(tree))
    for node in every:
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.startswith("torch.") and "._" in name.name]
            roots |= {(name.asname or "torch") for name in node.names if name.name.split(".")[0] == "torch"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            named = [f"{node.module}.{name.name}" for name in node.names]
            found += [name for name in named if "._" in name]
            roots |= {name.asname or name.name for name in node.names}
    asked = [node for node in every if isinstance(node, ast.Attribute)]
    private = [node for node in asked if re.match("_[A-Za-z]", node.attr) and root_of(node) in roots]
    return [*found, *(name for name in map(ast.unparse, private) if not OPERATORS.search(name))]


def root_of(node: ast.expr) -> str:
    while True:
        match node:
            case ast.Attribute(value=inner) | ast.Call(func=ast.Name(id="cast"), args=[_, inner]):
                node = inner
            case ast.Name(id=name):
                return name
            case _:
                return ""


def test_no_other_file_names_a_private_module_or_function() -> None:
    found = {
        str(path.relative_to(SOURCE / "decrescendo")): names_in(path.read_text(encoding="utf-8"))
        for path in (SOURCE / "decrescendo").rglob("*.py")
    }
    named = {path: len(names) for path, names in found.items() if names}
    assert named.pop("base/torch_private.py") > 3
    assert named == {}


def test_a_private_name_is_found() -> None:
    """The power of the test above."""
    for text in (
        "from torch.utils._pytree import tree_leaves", "from torch.utils import _pytree", "import torch._dynamo",
        'import torch\nx = cast("Any", torch)._C._len()', "import torch\nx = torch.jit._state.on()",
        "from torch.nn.modules.loss import _Loss", "from torch import nn\nx = nn.modules.loss._Loss",
        'import torch.distributed as dist\nx = cast("Any", dist).distributed_c10d._get_default_store()',
    ):  # fmt: skip
        assert names_in(text), text
    assert not names_in("import torch\nx = torch.nn.functional.linear(y); z._version; self._torch._x")


class Seen(private.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_operations_and_is_listed() -> None:
    assert private.count_of_dispatch_modes() == 0
    with Seen() as mode:
        torch.ones(2) + 1
        assert private.dispatch_modes() == [mode]
        assert private.count_of_dispatch_modes() == 1
        with private.DISPATCH_OFF():
            torch.ones(2).neg()
    assert torch.ops.aten.add.Tensor in mode.calls
    assert torch.ops.aten.neg.default not in mode.calls


def test_function_modes_are_known_and_turned_off() -> None:
    class Functions(torch.overrides.TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return func(*args, **(kwargs or {}))

    assert not private.HAS_FUNCTION_MODES()
    with Functions() as mode:
        assert private.HAS_FUNCTION_MODES()
        torch.ones(2).neg()
        before = mode.seen
        with private.FUNCTIONS_OFF():
            torch.ones(2).neg()
        assert mode.seen == before > 0


def test_a_default_device_is_a_mode_of_its_own() -> None:
    with torch.device("meta"):
        assert [type(mode) for mode in private.function_modes()] == [private.DeviceContext]


def test_hooks_of_all_modules_are_known() -> None:
    assert not any(private.hooks_of_all_modules())
    handle = nn.modules.module.register_module_forward_pre_hook(lambda module, args: None)
    assert any(private.hooks_of_all_modules())
    handle.remove()
    assert not any(private.hooks_of_all_modules())


def test_base_classes_of_layers_and_losses() -> None:
    assert isinstance(nn.SyncBatchNorm(2), private.BatchNorm)
    assert not isinstance(nn.GroupNorm(1, 2), private.BatchNorm)
    assert isinstance(nn.LazyBatchNorm1d(), private.LazyNorm)
    assert isinstance(nn.CrossEntropyLoss(), private.LossModule)


def test_an_iterator_over_a_loader_counts_its_batches() -> None:
    iterator = iter(torch.utils.data.DataLoader(range(4)))
    next(iterator)
    assert isinstance(iterator, private.LoaderIterator)
    assert iterator._num_yielded == 1


def test_the_store_of_the_default_group() -> None:
    with pytest.raises(ValueError, match="process group"):
        private.default_store()
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        private.default_store().set("a", "b")
        assert private.default_store().get("a") == b"b"
        assert private.default_store() is private.default_store()
    finally:
        torch.distributed.destroy_process_group()


def test_transforms_wrap_tensors_and_say_which_runs() -> None:
    found = []

    def square(x: torch.Tensor) -> torch.Tensor:
        found.append((private.is_wrapped_by_transform(x), private.running_transform().key()))
        assert not private.is_wrapped_by_transform(private.unwrapped_by_transform(x))
        with private.outside_transforms():
            assert private.running_transform() is None
        return x.square().sum()

    torch.func.grad(square)(torch.ones(2))
    torch.func.vmap(square)(torch.ones(2, 2))
    assert found == [(True, private.TransformType.Grad), (True, private.TransformType.Vmap)]
    assert private.running_transform() is None


@pytest.mark.filterwarnings("ignore")  # of torch's own tracer
def test_a_traced_function_is_known() -> None:
    found = []

    def double(x: torch.Tensor) -> torch.Tensor:
        found.append(private.is_traced())
        return x * 2

    torch.func.linearize(double, torch.ones(2))
    assert any(found)
    assert not private.is_traced()


def test_below_dispatch_modes_pythons_key_is_excluded() -> None:
    assert not private.python_is_excluded()
    with private.DISPATCH_OFF():
        assert private.python_is_excluded()


def test_users_of_a_storage_are_counted() -> None:
    alone = torch.zeros(3)
    storage = alone.untyped_storage()
    assert private.count_of_storage_users(storage._cdata) == 2
    for made in (lambda: alone.data, lambda: alone[1:], alone.numpy):
        other = made()
        assert private.count_of_storage_users(storage._cdata) == 3
        del other
    assert private.count_of_storage_users(storage._cdata) == 2


def test_trees_are_flattened_and_put_together_again() -> None:
    tree = {"a": [1, torch.ones(2)], "b": (None, 2.0)}
    leaves, spec = private.tree_flatten(tree)
    assert private.tree_leaves(tree)[0] == 1
    assert len(leaves) == 4
    assert private.tree_unflatten(leaves, spec)["b"] == (None, 2.0)
    changed = private.tree_map_only(torch.Tensor, torch.neg, tree)
    assert changed["a"][1].tolist() == [-1.0, -1.0]
    assert changed["a"][0] == 1


def test_tf32_of_cudnn_is_read_and_set() -> None:
    before = private.get_cudnn_tf32()
    private.set_cudnn_tf32(not before)
    assert private.get_cudnn_tf32() is not before
    private.set_cudnn_tf32(before)


def test_operations_without_a_public_name() -> None:
    assert private.shape_as_tensor(torch.zeros(2, 3)).tolist() == [2, 3]
    packed, sizes = private.pack_padded_sequence(torch.arange(6.0).reshape(2, 3), torch.tensor([3, 1]), True)
    assert packed.tolist() == [0, 3, 1, 2]
    assert sizes.tolist() == [2, 1, 1]
    padded, lengths = private.pad_packed_sequence(packed, sizes, True, 0.0, 3)
    assert padded.tolist() == [[0, 1, 2], [3, 0, 0]]
    assert lengths.tolist() == [3, 1]
    with pytest.warns(UserWarning, match="will be deprecated"):
        assert private.reduction_of(False, None) == "sum"
    assert isinstance(torch.ops.higher_order.cond, private.HigherOrderOperator)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch is built without oneDNN")
def test_the_layout_of_onednn() -> None:
    assert torch.ones(2).to_mkldnn().layout is private.mkldnn_layout


def test_parametrized_weights_have_a_cache_and_spectral_norm_a_class() -> None:
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2))
    assert isinstance(layer.parametrizations.weight[0], private.SpectralNorm)
    with private.parametrize.cached():
        layer(torch.ones(1, 2))
        assert len(private.parametrize._cache) == 1
    assert private.parametrize._cache == {}


@pytest.mark.gpu
def test_a_kernel_is_made_of_its_code() -> None:
    code = "template <typename T> T doubled(T x) { return 2 * x; }"
    assert private.kernel_of(code)(torch.ones(2, device="cuda")).tolist() == [2.0, 2.0]
