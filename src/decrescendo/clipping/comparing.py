"""How near two passes of one program must come to each other, and the words where they do not."""

import torch
from torch import Tensor

from decrescendo.errors import UnsupportedModel


def norm_of(gradient: Tensor) -> Tensor:
    """The norm in float64, one part at a time: in float32 a million squares lose digits."""
    flat = gradient.detach().coalesce().values() if gradient.is_sparse else gradient.detach()
    parts = [part.abs().double().square().sum() for part in flat.flatten().split(2**20)]
    return torch.stack(parts).sum().sqrt().cpu() if parts else torch.zeros((), dtype=torch.float64, device="cpu")


def compare_losses(recorded: Tensor, plain: Tensor, asked: list[str], computed: torch.dtype = torch.float64) -> None:
    """Losses of a pass against those of another, up to rounding; or raise, with the lines that ``asked``."""
    scale = plain.abs() + plain.abs().mean()
    error = (recorded - plain).abs()
    if bool((error > max(tolerance_of(plain.dtype), tolerance_of(computed)) * scale).any()):
        raise UnsupportedModel(
            steered(asked)
            if asked
            else f"recording must not change a loss, got losses that moved by {float((error / scale).max()):.1e}. Is "
            "there randomness that torch's global generator does not give, or a model that counts its calls or keeps a "
            "state from batch to batch? Leave it out of the loss, or begin each batch with a new state"
        )


def steered(asked: list[str]) -> str:
    """That lines of Python ask for truth values of the data."""
    return (
        f"the data must not steer the pass, but {', '.join(sorted(set(asked)))} asks for a truth value of them, on "
        "which "
        "losses or gradients depend. Use tensor operations there (torch.where), or declare the line: "
        f'EngineSettings(declared=("{asked[-1]}",))'
    )


def tolerance_of(dtype: torch.dtype) -> float:
    """Relative, of numbers computed in a dtype."""
    wide, usual = (torch.float64, torch.complex128), (torch.float32, torch.complex64)
    return 1e-8 if dtype in wide else 2e-4 if dtype in usual else 5e-2
