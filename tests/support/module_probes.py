"""Every class of torch.nn that has parameters, found by looking at torch, and a small model around each."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from clipping_cases import Made
from torch import Tensor, nn
from torch.nn.utils import rnn

_MAKES_PARAMETERS = re.compile(
    r"Parameter\(|register_parameter\(|\b(Linear|MultiheadAttention|LayerNorm|Transformer\w+)\(|_get_clones\("
)
# Classes that are only parts of others.
_ABSTRACT = {"Module", "Container", "RNNBase", "RNNCellBase", "ParameterDict", "ParameterList"}


def parameterised() -> dict[str, type[nn.Module]]:
    """The classes in torch.nn whose construction makes parameters, by name."""
    found: dict[str, type[nn.Module]] = {}
    for name, kind in vars(nn).items():
        if not inspect.isclass(kind) or not issubclass(kind, nn.Module) or name in _ABSTRACT:
            continue
        sources = [
            inspect.getsource(base.__init__)
            for base in kind.__mro__
            if base not in (nn.Module, object) and issubclass(base, nn.Module) and "__init__" in vars(base)
        ]
        if any(_MAKES_PARAMETERS.search(source) for source in sources):
            found[name] = kind
    return found


@dataclass(frozen=True)
class Probe:
    """A model around one module: ``run`` turns an input (rows, *shape) into one vector or more an example."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    run: Callable[[nn.Module, Tensor], Tensor] = lambda module, x: module(x)
    ids: int = 0
    before: int = 0

    def make(self, dtype: torch.dtype, rows: int) -> tuple[nn.Module, Tensor]:
        """The model in training mode and its inputs."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            parts: dict[str, Any] = {"module": self.build()}
            run = self.run

            def forward(model: Any, x: Tensor) -> Tensor:
                return run(model.module, x)

            model = Made(forward, **parts).to(dtype)
            x = (
                torch.randint(self.ids, (rows, *self.shape))
                if self.ids
                else torch.randn(rows, *self.shape, dtype=dtype)
            )
            if any(isinstance(module, nn.modules.lazy.LazyModuleMixin) for module in model.modules()):
                with torch.no_grad():
                    model(x)
            model.train()
            for module in model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm) and self.before:
                    module.eval()
        return model, x


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).reshape(len(x), -1).square().sum(1) / 2


def _first(module: nn.Module, x: Tensor) -> Tensor:
    return module(x)[0]


def _batch_first(module: nn.Module, x: Tensor) -> Tensor:
    return module(x.transpose(0, 1))[0].transpose(0, 1)


def _packed(module: nn.Module, x: Tensor) -> Tensor:
    lengths = torch.full((len(x),), x.shape[1])
    packed, _ = module(rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    return rnn.pad_packed_sequence(packed, batch_first=True)[0]


def _twice(module: nn.Module, x: Tensor) -> Tensor:
    return module(x, x.tanh())


def _self_attention(module: nn.Module, x: Tensor) -> Tensor:
    return module(x, x, x, need_weights=False)[0]


def _cross_attention(module: nn.Module, x: Tensor) -> Tensor:
    return module(x[:, :2], x, x.tanh())[0]


def _columns_attention(module: nn.Module, x: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    return module(x, x, x)[0].transpose(0, 1)


def _columns(module: nn.Module, x: Tensor) -> Tensor:
    return module(x.transpose(0, 1)).transpose(0, 1)


def _columns_twice(module: nn.Module, x: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    return module(x, x.tanh()).transpose(0, 1)


def _targets(module: nn.Module, x: Tensor) -> Tensor:
    return module(x, (x[:, 0] > 0).long() * 4).output


def _classes(module: nn.Module, x: Tensor) -> Tensor:
    return module(x, (x[:, 0] > 0).long() * 4)


def _state(module: nn.Module, x: Tensor) -> Tensor:
    found = module(x[:, 1], None)
    return found[0] if isinstance(found, tuple) else module(x[:, 0], found)


def _bags(module: nn.Module, x: Tensor) -> Tensor:
    return module(x)


def _offsets(module: nn.Module, x: Tensor) -> Tensor:
    return module(x.flatten(), torch.arange(len(x)) * x.shape[1])


_SIZES = {1: 8, 2: 5, 3: 4}
_ENCODER = {"d_model": 4, "nhead": 2, "dim_feedforward": 8, "dropout": 0.0}


def _images(kind: type[nn.Module], *args: Any, **kwargs: Any) -> Probe:
    dimensions = int(kind.__name__[-2])
    return Probe(lambda: kind(*args, **kwargs), (4, *[_SIZES[dimensions]] * dimensions))


def _lazy(kind: type[nn.Module], *args: Any) -> Probe:
    return _images(kind, *args)


def _probes() -> dict[str, dict[str, Probe]]:
    found: dict[str, dict[str, Probe]] = {}
    for name in ("Conv1d", "Conv2d", "Conv3d"):
        kind = getattr(nn, name)
        found[name] = {
            "": _images(kind, 4, 6, 3, stride=2, padding=1),
            "groups, dilation": _images(kind, 4, 6, 2, groups=2, dilation=2),
            "padding_mode": _images(kind, 4, 6, 3, padding=1, padding_mode="circular"),
        }
        found[f"Lazy{name}"] = {"": _lazy(getattr(nn, f"Lazy{name}"), 6, 3)}
    for name in ("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"):
        kind = getattr(nn, name)
        found[name] = {
            "": _images(kind, 4, 6, 3, stride=2, padding=1, output_padding=1),
            "groups": _images(kind, 4, 6, 2, groups=2),
        }
        found[f"Lazy{name}"] = {"": _lazy(getattr(nn, f"Lazy{name}"), 6, 3)}
    for dimensions in (1, 2, 3):
        kind = getattr(nn, f"BatchNorm{dimensions}d")
        shape = (4, *[_SIZES[dimensions]] * dimensions)
        evaluation = Probe(lambda kind=kind: kind(4), shape, before=1)
        found[f"BatchNorm{dimensions}d"] = {"training": _images(kind, 4), "evaluation": evaluation}
        lazy = getattr(nn, f"LazyBatchNorm{dimensions}d")
        found[f"LazyBatchNorm{dimensions}d"] = {"training": _lazy(lazy)}
        kind = getattr(nn, f"InstanceNorm{dimensions}d")
        found[f"InstanceNorm{dimensions}d"] = {
            "affine": _images(kind, 4, affine=True),
            "affine, running statistics": _images(kind, 4, affine=True, track_running_stats=True),
        }
        lazy = getattr(nn, f"LazyInstanceNorm{dimensions}d")
        found[f"LazyInstanceNorm{dimensions}d"] = {"affine": _images(lazy, affine=True)}
    found["SyncBatchNorm"] = {"training": Probe(lambda: nn.SyncBatchNorm(4), (4, 5, 5))}
    sequence = (5, 4)
    for name in ("LSTM", "GRU", "RNN"):
        kind = getattr(nn, name)
        found[name] = {
            "": Probe(lambda kind=kind: kind(4, 3, batch_first=True), sequence, _first),
            "sequence first, two layers, bidirectional": Probe(
                lambda kind=kind: kind(4, 3, num_layers=2, bidirectional=True), sequence, _batch_first
            ),
            "packed": Probe(lambda kind=kind: kind(4, 3, batch_first=True), sequence, _packed),
        }
        cell = getattr(nn, f"{name}Cell")
        found[f"{name}Cell"] = {"": Probe(lambda cell=cell: cell(4, 4), sequence, _state)}
    found["LSTM"]["projections"] = Probe(lambda: nn.LSTM(4, 3, proj_size=2, batch_first=True), sequence, _first)
    found |= {
        "Linear": {"": Probe(lambda: nn.Linear(4, 3), (4,)), "sequences": Probe(lambda: nn.Linear(4, 3), sequence)},
        "LazyLinear": {"": Probe(lambda: nn.LazyLinear(3), sequence)},
        "Bilinear": {"": Probe(lambda: nn.Bilinear(4, 4, 3), sequence, _twice)},
        "Embedding": {
            "": Probe(lambda: nn.Embedding(7, 3), (5,), ids=7),
            "padding_idx": Probe(lambda: nn.Embedding(7, 3, padding_idx=1), (5,), ids=7),
            "sparse": Probe(lambda: nn.Embedding(7, 3, sparse=True), (5,), ids=7),
            "max_norm": Probe(lambda: nn.Embedding(7, 3, max_norm=1.0), (5,), ids=7),
            "scale_grad_by_freq": Probe(lambda: nn.Embedding(7, 3, scale_grad_by_freq=True), (5,), ids=7),
        },
        "EmbeddingBag": {
            f"{mode}": Probe(lambda mode=mode: nn.EmbeddingBag(7, 3, mode=mode), (5,), _bags, ids=7)
            for mode in ("mean", "sum", "max")
        } | {"offsets": Probe(lambda: nn.EmbeddingBag(7, 3), (5,), _offsets, ids=7)},
        "LayerNorm": {"": Probe(lambda: nn.LayerNorm(4), sequence)},
        "RMSNorm": {"": Probe(lambda: nn.RMSNorm(4), sequence)},
        "GroupNorm": {"": Probe(lambda: nn.GroupNorm(2, 4), (4, 5, 5))},
        "PReLU": {"": Probe(lambda: nn.PReLU(), sequence), "channels": Probe(lambda: nn.PReLU(5), sequence)},
        "MultiheadAttention": {
            "batch_first": Probe(lambda: nn.MultiheadAttention(4, 2, batch_first=True), sequence, _self_attention),
            "queries of their own": Probe(
                lambda: nn.MultiheadAttention(4, 2, batch_first=True), sequence, _cross_attention
            ),
            "sequence first": Probe(lambda: nn.MultiheadAttention(4, 2), sequence, _columns_attention),
            "kdim, vdim": Probe(
                lambda: nn.MultiheadAttention(4, 2, kdim=4, vdim=4, batch_first=True), sequence, _self_attention
            ),
            "add_bias_kv, batch_first": Probe(
                lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True, batch_first=True), sequence, _self_attention
            ),
            "add_bias_kv, sequence first": Probe(
                lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True), sequence, _columns_attention
            ),
        },
        "TransformerEncoderLayer": {
            "batch_first": Probe(lambda: nn.TransformerEncoderLayer(**_ENCODER, batch_first=True), sequence),
            "norm_first, gelu": Probe(
                lambda: nn.TransformerEncoderLayer(
                    **_ENCODER, batch_first=True, norm_first=True, activation="gelu"
                ),
                sequence,
            ),
            "sequence first": Probe(lambda: nn.TransformerEncoderLayer(**_ENCODER), sequence, _columns),
        },
        "TransformerEncoder": {
            "": Probe(
                lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(**_ENCODER, batch_first=True), 2), sequence
            )
        },
        "TransformerDecoderLayer": {
            "batch_first": Probe(lambda: nn.TransformerDecoderLayer(**_ENCODER, batch_first=True), sequence, _twice),
            "sequence first": Probe(lambda: nn.TransformerDecoderLayer(**_ENCODER), sequence, _columns_twice),
        },
        "TransformerDecoder": {
            "": Probe(
                lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(**_ENCODER, batch_first=True), 2),
                sequence,
                _twice,
            )
        },
        "Transformer": {
            "": Probe(
                lambda: nn.Transformer(4, 2, 1, 1, 8, 0.0, batch_first=True), sequence, _twice
            )
        },
        "AdaptiveLogSoftmaxWithLoss": {
            "": Probe(lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 9, [3, 6]), (4,), _targets)
        },
    }  # fmt: skip
    if hasattr(nn, "LinearCrossEntropyLoss"):  # torch 2.13
        found["LinearCrossEntropyLoss"] = {
            "reduction none": Probe(
                lambda: nn.LinearCrossEntropyLoss(4, 9, bias=True, reduction="none"), (4,), _classes
            )
        }
    return found


PROBES = _probes()
