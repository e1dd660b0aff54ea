"""The private names of torch's modules that the library uses: a new version of torch may change this file only.

tests/base/test_torch_private.py says of each what the library relies on, and that no other file names one. (Private
attributes of tensors, modules and optimisers, such as ``tensor._version``, are used where they are needed, and so are
torch's operators, whose names begin as they like: ``torch.ops.aten._unsafe_view``, ``torch._foreach_mul``.)
"""

from typing import Any, TypeAlias, cast

import torch
from torch import distributed as _distributed
from torch import overrides as _overrides
from torch._functorch import pyfunctorch as _pyfunctorch
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch.nn.modules import module as _module
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase
from torch.nn.modules.loss import _Loss
from torch.nn.utils import parametrize as _parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.utils import _python_dispatch
from torch.utils._device import DeviceContext as DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_map_only as tree_map_only
from torch.utils._pytree import tree_unflatten as tree_unflatten
from torch.utils.data._utils import fetch as fetching  # noqa: F401 (the doctor watches it)
from torch.utils.data.dataloader import _BaseDataLoaderIter

_C: Any = cast("Any", torch)._C

# Contexts that turn off modes for torch functions, or dispatch modes; and whether such modes are on. (The dispatcher
# would call a mode for torch functions from TorchScript and from backward passes.)
FUNCTIONS_OFF: Any = _C.DisableTorchFunction
SUBCLASSES_OFF: Any = _C.DisableTorchFunctionSubclass
DISPATCH_OFF: Any = _C._DisableTorchDispatch
HAS_FUNCTION_MODES: Any = _C._is_torch_function_mode_enabled
function_modes: Any = cast("Any", _overrides)._get_current_function_mode_stack
dispatch_modes: Any = cast("Any", _python_dispatch)._get_current_dispatch_mode_stack
count_of_dispatch_modes: Any = _C._len_torch_dispatch_stack

# The number of owners of a storage, given its ``_cdata``: tensors, and Python objects of the storage.
count_of_storage_users: Any = _C._storage_Use_Count

# Transforms of torch.func: wrapped tensors, and the transform that runs.
is_wrapped_by_transform: Any = _C._functorch.is_functorch_wrapped_tensor
unwrapped_by_transform: Any = _C._functorch.get_unwrapped
running_transform: Any = _C._functorch.peek_interpreter_stack
outside_transforms: Any = cast("Any", _pyfunctorch).temporarily_clear_interpreter_stack
TransformType: Any = _C._functorch.TransformType

# Base classes of iterators over loaders, of batch normalisation, of its lazy layers, and of losses.
LoaderIterator: TypeAlias = _BaseDataLoaderIter
BatchNorm: TypeAlias = _BatchNorm
LazyNorm: TypeAlias = _LazyNormBase
LossModule: TypeAlias = _Loss


def hooks_of_all_modules() -> list[dict[Any, Any]]:
    """torch's global module hooks, which run for every module: one dict per kind."""
    kinds = vars(_module).items()
    return [hooks for name, hooks in kinds if name.startswith("_global_") and isinstance(hooks, dict)]


def default_store() -> Any:
    """The key-value store of torch.distributed's default group."""
    return cast("Any", _distributed).distributed_c10d._get_default_store()


def is_traced() -> bool:
    """Whether operations are being traced to run again later (`torch.func.linearize`)."""
    return _C._get_dispatch_mode(_C._TorchDispatchModeKey.PROXY) is not None


def python_is_excluded() -> bool:
    """Whether the dispatcher has passed Python's dispatch modes already."""
    return _C._dispatch_tls_is_dispatch_key_excluded(_C.DispatchKey.Python)


# Whether convolutions may round to TF32: torch's public property raises a deprecation warning.
get_cudnn_tf32: Any = _C._get_cudnn_allow_tf32
set_cudnn_tf32: Any = _C._set_cudnn_allow_tf32

# The layout of oneDNN; and operations without a public name.
mkldnn_layout: Any = cast("Any", torch)._mkldnn
shape_as_tensor: Any = cast("Any", torch)._shape_as_tensor
pack_padded_sequence: Any = cast("Any", torch)._VF._pack_padded_sequence
pad_packed_sequence: Any = cast("Any", torch)._VF._pad_packed_sequence
# The name of a reduction, from the old arguments ``size_average`` and ``reduce``.
reduction_of: Any = cast("Any", torch).nn._reduction.legacy_get_string
# The parametrization of spectral norm, and the module with the cache of parametrized weights (``_cache``).
SpectralNorm: Any = _SpectralNorm
parametrize: Any = _parametrize


def kernel_of(code: str, **numbers: object) -> Any:
    """The function of tensors that runs a CUDA kernel, compiled from its code and constants."""
    return cast("Any", torch).cuda.jiterator._create_jit_fn(code, **numbers)
