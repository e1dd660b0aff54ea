"""Networks of linear layers: that of the film review task, one for scattering coefficients, and a wide one for
principal components."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from decrescendo.training import initialised
from decrescendo_papers.models.cnn import Normalised

PADDING = 0


class MeanEmbedding(nn.Module):
    """Codes to the mean embedding of those that are not padding; a row of padding alone has the mean zero.

    Args:
        codes: number of codes, with 0 for padding.
        width: of the embedding.

    >>> layer = MeanEmbedding(3, 1)
    >>> _ = layer.embedding.weight.data.copy_(torch.tensor([[9.0], [1.0], [3.0]]))
    >>> layer(torch.tensor([[1, 2, 0], [2, 0, 0], [0, 0, 0]])).flatten().tolist()
    [2.0, 3.0, 0.0]
    """

    def __init__(self, codes: int, width: int) -> None:
        super().__init__()
        # No padding_idx: the weights below are zero at padding, so its row has no gradient, and noise moves it
        # in private training in either case.
        self.embedding = nn.Embedding(codes, width)

    def forward(self, inputs: Int[Tensor, "batch length"]) -> Float[Tensor, "batch width"]:
        """The mean over each row."""
        embedded: Tensor = self.embedding(inputs)
        real = (inputs != PADDING).to(embedded.dtype)
        shares = real / real.sum(dim=1, keepdim=True).clamp(min=1)
        return torch.bmm(shares.unsqueeze(1), embedded).squeeze(1)


def linear_scattered(seed: int) -> nn.Module:
    """A linear layer from the coefficients of an image of 28x28, `data.scattered`, to 10 classes: 39,700 parameters.

    It starts at zero whatever the seed is; the seed is that of batches and noise alone.

    >>> sum(p.numel() for p in linear_scattered(0).parameters())
    39700
    """
    layer = initialised(lambda: nn.Linear(81 * 7 * 7, 10), seed)
    for weights in layer.parameters():
        nn.init.zeros_(weights)
    return layer


def imdb_mlp(seed: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    """The embedding MLP of the film review task: mean embedding 16, linear 16, linear 2; 160,338 parameters.

    For rows of codes 0 .. 10,001, as `data.imdb` has them.

    Args:
        seed: of the whole run; the stream "init" is used.
        activation: builds one activation module.

    >>> sum(p.numel() for p in imdb_mlp(0).parameters())
    160338
    >>> imdb_mlp(0)(torch.tensor([[2, 10_001, 0]])).shape
    torch.Size([1, 2])
    """
    return initialised(
        lambda: nn.Sequential(MeanEmbedding(10_002, 16), nn.Linear(16, 16), activation(), nn.Linear(16, 2)),
        seed,
    )


def wide_mlp(
    seed: int,
    activation: Callable[[], nn.Module] = nn.ReLU,
    *,
    classes: int = 10,
    features: int = 60,
    factor: float = 1.0,
) -> nn.Module:
    """The network of Hong et al.: one hidden layer of 1,000 units. They do not name the activation.

    Args:
        seed: of the whole run; the stream "init" is used.
        activation: builds one activation module.
        classes: outputs, >= 2.
        features: inputs.
        factor: > 0, inputs are multiplied by it before the first layer, as if the data were so much longer.

    >>> sum(p.numel() for p in wide_mlp(0, classes=2).parameters())
    63002
    """
    network = initialised(
        lambda: nn.Sequential(nn.Linear(features, 1000), activation(), nn.Linear(1000, classes)), seed
    )
    return network if factor == 1.0 else nn.Sequential(Normalised(1 / factor, 0.0, 1.0), network)
