"""Clothes as flat shapes: outlines, seams and straps with random proportions, ten kinds."""

from collections.abc import Callable

from decrescendo_papers.data.clothes.others import bag, trousers
from decrescendo_papers.data.clothes.parts import Dice, Part
from decrescendo_papers.data.clothes.shoes import boot, sandal, sneaker
from decrescendo_papers.data.clothes.uppers import coat, dress, pullover, shirt, tshirt

# In the order of Fashion-MNIST's labels: t-shirt or top, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag,
# ankle boot.
GARMENTS: tuple[Callable[[Dice], list[Part]], ...] = (
    tshirt, trousers, pullover, dress, coat, sandal, shirt, sneaker, bag, boot,
)  # fmt: skip

__all__ = ["GARMENTS", "Dice", "Part"]
