"""Tells whose code a file holds: torch's or this library's, an installed package's, or the user's."""

import functools
import os
import re
import sys
from importlib.util import find_spec
from typing import Any, cast

# Folders of torch, of type checkers and of this library, by full path: a user's folder may have the same name.
_LIBRARIES = tuple(
    os.path.join(os.path.dirname(found.origin), "")
    for found in map(
        find_spec, ("torch", "jaxtyping", "beartype", "decrescendo.clipping", "decrescendo.row_independence")
    )
    if found is not None and found.origin is not None
)
_PYTHON, _THIS = (
    os.path.join(os.path.dirname(file), "") for file in (os.__file__, os.path.dirname(os.path.abspath(__file__)))
)
# Installed libraries that are taken to keep no count of the examples they were given. Any other installed package may
# be the user's own project, and is searched like a script.
_KNOWN = """
    _pytest accelerate attr beartype bitsandbytes cloudpickle datasets deepspeed diffusers einops evaluate
    flash_attn flwr fsspec functorch gensim gpytorch huggingface_hub hypothesis jaxtyping joblib kornia
    lightning lightning_fabric linear_operator matplotlib monai nltk numba numpy opacus open_clip packaging
    pandas peft PIL pluggy pyarrow pydantic pytest pytorch_lightning ray regex requests safetensors scipy
    segmentation_models_pytorch sentence_transformers sentencepiece sklearn spacy sympy tensorboard timm
    tokenizers torch torch_geometric torch_scatter torch_sparse torchao torchaudio torchdata torchmetrics
    torchtext torchvision tqdm transformers triton trl typeguard typing_extensions wandb wrapt xdist xformers
    yaml
"""
_PACKAGE = re.compile(r"[\\/](?:site|dist)-packages[\\/](\w+)")


@functools.cache
def is_own(filename: str) -> bool:
    """Whether a source file may be the user's: not Python's, of a well-known installed library or of this one. Code
    typed into a shell or a notebook has no file (``<stdin>``, ``__main__``) and counts as the user's."""
    if filename.startswith(("<frozen", _THIS)):
        return False
    if (installed := _PACKAGE.search(filename)) is not None:
        return installed[1] not in _KNOWN.split()
    named = filename.startswith("<") or filename == "__main__" or filename.endswith(".py") or os.sep in filename
    return named and not filename.startswith(_PYTHON)


def line() -> str:
    """The innermost line of code that is neither torch's nor the engine's."""
    frame = _innermost()
    return "the model" if frame is None else _place_of(frame)


def own_line(*, around: bool = False) -> str | None:
    """`line`, if that code may be the user's; ``None`` if a library's.

    ``around``: then the innermost line of the user's that called it in this pass, or the library's own.
    """
    frame = innermost = _innermost()
    while frame is not None and not frame.f_code.co_filename.startswith(_THIS):
        if is_own(frame.f_code.co_filename):
            return _place_of(frame)
        frame = frame.f_back if around else None
    return _place_of(innermost) if around and innermost is not None else None


def _innermost() -> Any:
    frame = cast("Any", sys)._getframe(2)
    while frame is not None and (
        frame.f_code.co_filename.startswith(_LIBRARIES) or _is_generated(frame) or "__tracebackhide__" in frame.f_locals
    ):
        frame = frame.f_back
    return frame


def _is_generated(frame: Any) -> bool:
    """Whether a program wrote this code, and nobody typed it into a shell."""
    return frame.f_code.co_filename.startswith("<") and frame.f_globals.get("__name__") != "__main__"


def _place_of(frame: Any) -> str:
    return f"{frame.f_code.co_filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.f_lineno}"
