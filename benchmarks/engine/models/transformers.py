"""ViT-tiny, GPT-2-like, mixtures of experts: pre-norm blocks around ``scaled_dot_product_attention``."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Self-attention with one linear layer for queries, keys and values."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a feed-forward part four times as wide, each with its norm before it."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp: nn.Module = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class Positions(nn.Module):
    """A learned vector for each place, added."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(places, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table


class ClassToken(nn.Module):
    """A learned token put before the others."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)


class ViT(nn.Module):
    """Patches through one strided convolution, a class token, positions, blocks, a linear classifier."""

    def __init__(
        self, *, image: int, patch: int, width: int = 192, layers: int = 12, heads: int = 3, classes: int = 10
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = ClassToken(width)
        self.positions = Positions((image // patch) ** 2 + 1, width)
        self.blocks = nn.Sequential(*[Block(width, heads, causal=False) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = self.blocks(self.positions(self.token(x)))
        return self.out(self.norm(x)[:, 0])


class GPT(nn.Module):
    """Token and position embeddings, causal blocks, and an output layer of its own or tied to the embedding."""

    def __init__(
        self, *, vocabulary: int, length: int, width: int, layers: int, heads: int, tied: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = Positions(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads, causal=True) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.out.weight, std=0.02)
        if tied:
            self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.norm(self.blocks(self.positions(self.embedding(tokens)))))


class SoftExperts(nn.Module):
    """Every expert, a feed-forward part, computes every token; a router weighs what they give."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList([_expert(width) for _ in range(experts)])

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(-1)
        return (torch.stack([expert(x) for expert in self.experts], -1) * shares.unsqueeze(-2)).sum(-1)


class RoutedExperts(SoftExperts):
    """Every token is computed by the one expert that the router weighs most, as in Switch Transformers."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        share, chosen = self.router(tokens).softmax(-1).max(-1)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            (places,) = torch.where(chosen == number)
            out = out.index_add(0, places, expert(tokens[places]) * share[places].unsqueeze(-1))
        return out.view_as(x)


def _expert(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


class ExpertBlock(Block):
    """A `Block` with a mixture of experts for its feed-forward part."""

    def __init__(self, width: int, heads: int, experts: nn.Module) -> None:
        super().__init__(width, heads, causal=False)
        self.mlp = experts


class MixtureOfExperts(nn.Module):
    """Text classification by blocks with mixtures of experts."""

    def __init__(
        self, kind: type[SoftExperts], *, vocabulary: int = 1_000, length: int = 64, width: int = 128, layers: int = 2,
        heads: int = 4, experts: int = 4, classes: int = 4,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = Positions(length, width)
        self.blocks = nn.Sequential(*[ExpertBlock(width, heads, kind(width, experts)) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.norm(self.blocks(self.positions(self.embedding(tokens)))).mean(1))
