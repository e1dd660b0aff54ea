"""Code of the program's that torch's own code calls while a function of it runs: no mode for functions is on there."""

import functools
import sys
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from decrescendo.base.assumptions import template
from decrescendo.row_independence.code_origin import (
    is_found,
    is_librarys,
    is_made_in_python,
    is_own,
    is_program,
    wrapped_by,
)
from decrescendo.row_independence.library_rules import RULES as LIBRARIES
from decrescendo.row_independence.rules import DECLARED

_C = cast("Any", torch)._C
_TORCHS = frozenset({"aten", "prims", "prim", "mkldnn", "mkl", "quantized", "profiler"})
# Of these namespaces torch itself puts no code in from Python later on, but for shapes and for vmap.
_PUBLISHED = frozenset({"aten", "prim", "mkldnn", "mkl", "quantized"})
_LATER = ("/Meta", "/FuncTorchBatched", "/FuncTorchBatchedDecomposition")
_IMPLEMENTED: set[str] = cast("Any", torch.library)._impls
_TORCHS_OWN = frozenset(_IMPLEMENTED)
_OVERLOADS = frozenset({OpOverload, OpOverloadPacket})
# In the place of a method: nobody's code.
_NOBODYS = _C._disabled_torch_function_impl
# Classes of what pybind11 makes, and the form that methods have there.
_METAS = frozenset({type, type(_C.ScriptObject)})
_BOUND = type(vars(_C.ScriptObject)["__len__"])
# What stands for an object of any class.
_PROXIES = frozenset({weakref.ProxyType, weakref.CallableProxyType})
# Methods of C code.
_CS = (BuiltinFunctionType, WrapperDescriptorType, MethodDescriptorType, ClassMethodDescriptorType)
_DEPTH, _AT = _C._len_torch_dispatch_stack, _C._get_dispatch_stack_at
INDICES = frozenset({Tensor.__getitem__, Tensor.__setitem__})
# Functions that make a tensor, or an index, of numbers in lists. Tensors among these torch reads by itself.
LISTS: frozenset[Callable[..., Any]] = INDICES | frozenset(
    cast("Callable[..., Any]", method)
    for place, names in (
        (
            torch,
            "tensor as_tensor asarray sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor "
            "sparse_bsc_tensor sparse_compressed_tensor _sparse_coo_tensor_unsafe _sparse_csr_tensor_unsafe "
            "_sparse_csc_tensor_unsafe _sparse_bsr_tensor_unsafe _sparse_bsc_tensor_unsafe "
            "_sparse_compressed_tensor_unsafe",
        ),
        (Tensor, "new_tensor new"),
    )
    for name in names.split()
    if (method := getattr(place, name, None)) is not None
)
# By these Python asks a tensor for its number, and so do constructors of old (torch.FloatTensor).
ASKS: frozenset[Callable[..., Any]] = frozenset(
    cast("Callable[..., Any]", getattr(Tensor, name))
    for name in ("__index__", "__int__", "__float__", "__complex__", "__bool__", "item")
)
CALLS = template("rows-called-code")
Mode = TypeVar("Mode", bound=TorchDispatchMode)
_OURS: set[type] = set()
_ORDINARY = frozenset(
    {Tensor, nn.Parameter, int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size}
)
# What a model is asked for outside of a pass, and a container of a batch.
_HELD = (
    "training", "parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules",
    "_named_members", "__getattribute__",
)  # fmt: skip
_BUILT = ("__init__", "__new__", "__getitem__", "__len__", "__iter__", "items", "keys", "values")
_ASKED = (
    "__index__", "__int__", "__float__", "__complex__", "__bool__", "__len__", "__getitem__", "__iter__", "__array__",
    "__torch_function__", "__dlpack__",
)  # fmt: skip


def ours(kind: type[Mode]) -> type[Mode]:
    """Note that a dispatch mode is the library's own: it keeps nothing of what it sees."""
    _OURS.add(kind)
    return kind


def is_unseen() -> bool:
    """Whether what runs now reaches no dispatch mode."""
    return _C._dispatch_tls_is_dispatch_key_excluded(_C.DispatchKey.Python)


def called(
    tracer: object, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[str]:
    """What a function of torch's calls of the program: ways of a tensor's subclass, an operation of its own, a mode
    above the proof, numbers that are objects."""
    for kind in types:
        if kind is not Tensor and _is_subclass(kind):
            yield f"{kind.__name__}.__torch_function__"
    if type(func) in _OVERLOADS:
        name = str(cast("Any", func)._qualified_op_name if type(func) is OpOverloadPacket else func)
        name = name.replace(".", "::", 1) if "::" not in name else name
        known = any(name.split(".")[0] in rules for rules in (DECLARED, LIBRARIES))
        if name.split("::")[0] not in _TORCHS and not known:
            yield name.removesuffix(".default")
        if name.startswith("aten::lift"):
            yield f"{name}, called by the program"  # torch does so with what it has made of lists
    if sys.getprofile() is not None or sys.gettrace() is not None:
        yield "a function given to sys.setprofile or sys.settrace"
    if len(_IMPLEMENTED) != len(_TORCHS_OWN):
        yield from _replaced(len(_IMPLEMENTED))
    for mode in map(_AT, range(_DEPTH())):
        if mode is not tracer and type(mode) not in _OURS and not _keeps(mode):
            yield type(mode).__name__
    for value in (*args, *kwargs.values()) if kwargs else args:
        if type(value) not in _ORDINARY:
            yield from _strange(value)


def asked(model: nn.Module, batch: object) -> Iterator[str]:
    """Code of the program's that the engine calls outside of the pass, where nothing is seen: of a model that says what
    it holds by itself, of classes of batches."""
    for module in nn.Module.modules(model):
        kind, held = type(module), cast("dict[str, Any]", object.__getattribute__(module, "__dict__"))
        for name in _HELD:
            if _is_programs(kind, name, is_own) and not _is_torchs(kind, name):
                yield f"{kind.__name__}.{name}"
        for name in ("_parameters", "_buffers", "_modules"):
            if type(held.get(name, {})) not in (dict, OrderedDict) and not is_librarys(type(held[name])):
                yield f"{kind.__name__}.{name}"
        for tensor in (*held.get("_parameters", {}).values(), *held.get("_buffers", {}).values()):
            if _is_a_programs_own(type(tensor)):
                yield type(tensor).__name__
    left = [batch]
    while left:
        value = left.pop()
        if isinstance(value, (Mapping, list, tuple)) and _builds(type(cast("object", value))):
            yield type(cast("object", value)).__name__
        elif isinstance(value, Tensor) and _is_a_programs_own(type(value)):
            yield type(value).__name__
        if isinstance(value, Mapping):
            left += cast("Mapping[Any, object]", value).values()
        elif isinstance(value, (list, tuple)):
            left += cast("list[object]", value)


@functools.cache
def _builds(kind: type) -> bool:
    """Whether a program's own code makes a container."""
    return any(
        _is_programs(one, name, is_own)
        for one in kind.__mro__[:-1]
        if not ("_make" in vars(one) and "_fields" in vars(one))  # what namedtuple makes
        for name in _BUILT
        if name in vars(one)
    )


@functools.cache
def _is_a_programs_own(kind: type) -> bool:
    """Whether a class of tensors, or of batches, is a program's own: any of its code may answer."""
    return is_made_in_python(kind) and not is_found(kind, is_own)


def _is_torchs(kind: type, name: str) -> bool:
    """Whether a class has a method, or what an object has without one, from torch."""
    owner = next((one for one in kind.__mro__ if name in vars(one)), nn.Module)
    return owner is nn.Module or is_librarys(owner)


@functools.cache
def _replaced(_count: int) -> tuple[str, ...]:
    """Operations of torch's for which code was put in since the library was imported; asked when their count is new."""
    keys = (key for key in _IMPLEMENTED - _TORCHS_OWN if not key.endswith(_LATER))
    return tuple(sorted(key.replace("/", "::", 1) for key in keys if key.split("/")[0] in _PUBLISHED))


def _strange(value: object) -> Iterator[str]:
    if isinstance(value, (list, tuple)):
        if type(value) not in (list, tuple) and _answers(type(value)):
            yield type(value).__name__
        for item in cast("list[object]", value):
            if type(item) not in _ORDINARY:
                yield from _strange(item)
    elif isinstance(value, slice):
        yield from _strange((value.start, value.stop, value.step))
    elif type(value) in _PROXIES or _answers(type(value)):
        yield type(value).__name__


@functools.cache
def _answers(kind: type) -> bool:
    """Whether code of the program's answers where torch asks an object for a number, or for several."""
    # (Of a tensor's class this is asked where the function comes from.)
    names = _ASKED[:-2] if issubclass(kind, Tensor) else _ASKED
    return any(_is_programs(kind, name, is_own) for name in names)


@functools.cache
def is_answering(kind: type) -> bool:
    """Whether code of a program's runs for the operations on tensors of a class."""
    return _is_programs(kind, "__torch_dispatch__", is_program)


@functools.cache
def _is_subclass(kind: type) -> bool:
    return _is_programs(kind, "__torch_function__", is_program)


def _is_programs(kind: type, name: str, whose: Callable[[str], bool]) -> bool:
    """Whether a class has a method that is not known to be torch's or of a package: by whose class has it, and whose
    code it is, so that no form that a method may have (static, partial, a descriptor, behind a decorator) passes."""
    meta = type(kind)
    if (
        meta not in _METAS and is_made_in_python(meta) and not is_found(meta, whose)
    ):  # it may answer by itself
        return True
    owner = next((one for one in kind.__mro__ if name in vars(one)), object)
    if owner is object or not is_made_in_python(owner):
        return False
    found = vars(owner)[name]
    return found is not _NOBODYS and not (is_found(owner, whose) and _is_packages(found, whose))


def _is_packages(found: object, whose: Callable[[str], bool]) -> bool:
    """Whether what is called is a plain function, and neither it nor what it wraps is a program's."""
    around = isinstance(found, (classmethod, staticmethod)) or type(found) is _BOUND
    function = cast("Any", found).__func__ if around else found
    if isinstance(function, _CS):
        return True
    if not isinstance(function, FunctionType):
        return False
    file = function.__code__.co_filename
    if whose(file) and not file.startswith("<"):  # (of a package's class: code that it has made itself)
        return False
    return all(_is_packages(inner, whose) for inner in wrapped_by(function))


def _keeps(mode: object) -> bool:
    """Whether a mode is the one that keeps what a checkpoint says, and calls no function of the program's for that."""
    policy = getattr(mode, "policy_fn", None)
    its = type(mode).__module__ == checkpoint.__name__ and is_librarys(type(mode))
    plain = type(getattr(mode, "storage", None)) in (dict, defaultdict)
    named = isinstance(policy, FunctionType) and not policy.__code__.co_filename.startswith("<")
    return its and plain and (policy is None or (named and _is_packages(policy, is_program)))
