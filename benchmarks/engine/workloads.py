"""What is trained: a model, one loss an example, and a batch with a fixed seed. All data are random numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.engine.models.images import UNet, cnn_5x5, vgg_11
from benchmarks.engine.models.text import EmbeddingMLP, NameLSTM, TextEncoder
from benchmarks.engine.models.transformers import GPT, MixtureOfExperts, RoutedExperts, SoftExperts, ViT
from decrescendo.training import initialised
from decrescendo_papers.models import paper_cnn

SEED = 20_260_101
Batch = tuple[Tensor, ...]


def classification(model: Callable[..., Tensor], batch: Batch) -> Tensor:
    """Cross-entropy of each example; the last tensor of the batch is the class, the others go into the model."""
    *inputs, label = batch
    return functional.cross_entropy(model(*inputs), label, reduction="none")


def next_token(model: Callable[..., Tensor], batch: Batch) -> Tensor:
    """Mean cross-entropy over the places of each text."""
    tokens, following = batch
    logits = model(tokens)
    losses = functional.cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="none")
    return losses.reshape(following.shape).mean(1)


def denoising(model: Callable[..., Tensor], batch: Batch) -> Tensor:
    """Mean square error of the noise that was added to each image."""
    noisy, noise = batch
    return (model(noisy) - noise).square().mean((1, 2, 3))


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table.

    Args:
        name: on the command line, and of the result's file.
        title: what readers see.
        sizes: everything that decides the cost, in words.
        build: the model.
        draw: the batch, from a generator.
        rows: examples in the batch.
        clip_norm: near the median of the gradients' norms at the start, so that about half are clipped.
        loss: one value an example.
        extra: shown in the tables, not counted in medians over workloads.
    """

    name: str
    title: str
    sizes: str
    build: Callable[[], nn.Module]
    draw: Callable[[torch.Generator], Batch]
    rows: int
    clip_norm: float
    loss: Callable[[Any, Batch], Tensor] = classification
    extra: bool = False

    def model(self, device: torch.device) -> nn.Module:
        """The model in training mode; the same weights on every call."""
        return initialised(self.build, SEED).to(device).train()

    def batch(self, device: torch.device) -> Batch:
        """The batch; the same on every call."""
        generator = torch.Generator().manual_seed(SEED)
        return tuple(tensor.to(device) for tensor in self.draw(generator))


def images(rows: int, *shape: int) -> Callable[[torch.Generator], Batch]:
    """Random pictures of a shape, and one of ten classes for each."""
    return lambda g: (torch.rand(rows, *shape, generator=g), torch.randint(10, (rows,), generator=g))


def texts(rows: int, length: int, vocabulary: int, classes: int) -> Callable[[torch.Generator], Batch]:
    """Random tokens, and a class for each text."""
    return lambda g: (
        torch.randint(vocabulary, (rows, length), generator=g),
        torch.randint(classes, (rows,), generator=g),
    )


def _names(rows: int, length: int) -> Callable[[torch.Generator], Batch]:
    return lambda g: (
        torch.randint(60, (rows, length), generator=g),
        torch.randint(2, length + 1, (rows,), generator=g),
        torch.randint(18, (rows,), generator=g),
    )


def _token_pairs(rows: int, length: int, vocabulary: int) -> Callable[[torch.Generator], Batch]:
    def draw(generator: torch.Generator) -> Batch:
        text = torch.randint(vocabulary, (rows, length + 1), generator=generator)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    return draw


def _paper_cnn(rows: int) -> Workload:
    return Workload(
        "paper-cnn" if rows == 250 else f"paper-cnn-{rows}",
        "CNN of the paper",
        "1x28x28 images, convolutions 16 8x8 and 32 4x4, linear 512-32-10",
        lambda: paper_cnn(SEED),
        images(rows, 1, 28, 28),
        rows,
        1.9,
        extra=rows != 250,
    )


def _gpt(*, tied: bool, cuda: bool) -> Workload:
    rows, length, vocabulary = (16, 512, 50_257) if cuda else (8, 128, 5_000)
    width, layers, heads = (768, 12, 12) if cuda else (256, 4, 4)
    return Workload(
        "gpt-tied" if tied else "gpt",
        "GPT-2-like, tied output" if tied else "GPT-2-like",
        f"{layers} blocks x {width}, {heads} heads, {length} tokens, vocabulary {vocabulary:,}, causal, "
        f"{'output tied to the embedding' if tied else 'untied output'}",
        lambda: GPT(vocabulary=vocabulary, length=length, width=width, layers=layers, heads=heads, tied=tied),
        _token_pairs(rows, length, vocabulary),
        rows,
        3.2,
        next_token,
        extra=tied,
    )


def _vit(*, cuda: bool) -> Workload:
    rows, image, patch = (128, 224, 16) if cuda else (16, 32, 4)
    tokens = (image // patch) ** 2 + 1
    return Workload(
        "vit-tiny",
        "ViT-tiny",
        f"192 wide, 12 blocks, 3 heads, 3x{image}x{image} images in {patch}x{patch} patches ({tokens} tokens)",
        lambda: ViT(image=image, patch=patch),
        images(rows, 3, image, image),
        rows,
        37.0,
    )


def _noisy(rows: int, *shape: int) -> Callable[[torch.Generator], Batch]:
    def draw(generator: torch.Generator) -> Batch:
        noise = torch.randn(rows, *shape, generator=generator)
        return torch.rand(rows, *shape, generator=generator) + noise, noise

    return draw


def _experts(kind: type[SoftExperts], clip_norm: float) -> Workload:
    routed = kind is RoutedExperts
    return Workload(
        "experts-routed" if routed else "experts",
        "mixture of experts, routed" if routed else "mixture of experts",
        "vocabulary 1,000, 2 blocks x 128, 4 heads, 64 tokens, 4 experts 128-256-128, "
        + ("each token through one" if routed else "each token through all, weighed by a softmax"),
        lambda: MixtureOfExperts(kind),
        texts(64, 64, 1_000, 4),
        64,
        clip_norm,
        extra=routed,
    )


def workloads(device: torch.device) -> dict[str, Workload]:
    """All of them by name. ViT-tiny and GPT-2-like are larger on CUDA, where the others' sizes would fill no chip."""
    cuda = device.type == "cuda"
    rows = [
        _paper_cnn(250),
        _paper_cnn(500),
        Workload(
            "cnn-5x5",
            "CNN 32/64 5x5",
            "1x28x28 images, convolutions 32 5x5 and 64 5x5, linear 1024-512-10",
            cnn_5x5,
            images(250, 1, 28, 28),
            250,
            3.6,
        ),
        Workload(
            "embedding-mlp",
            "embedding MLP",
            "vocabulary 10,000 x 16, 256 tokens, mean over tokens, linear 16-16-2",
            EmbeddingMLP,
            texts(512, 256, 10_000, 2),
            512,
            0.82,
        ),
        Workload(
            "name-lstm",
            "NAME LSTM",
            "60 letters, embedding 64, nn.LSTM of 128, length 20, last true step, linear 128-18",
            NameLSTM,
            _names(800, 20),
            800,
            2.0,
        ),
        Workload(
            "vgg-11",
            "VGG-11",
            "1x64x64 images, eight 3x3 convolutions of 64 to 512, no normalisation, linear 2048-512-10",
            vgg_11,
            images(16, 1, 64, 64),
            16,
            1.06,
        ),
        Workload(
            "transformer",
            "transformer encoder",
            "vocabulary 1,000, nn.TransformerEncoder 2 x 128, 4 heads, feed-forward 512, 64 tokens, no dropout",
            TextEncoder,
            texts(64, 64, 1_000, 4),
            64,
            5.0,
        ),
        _vit(cuda=cuda),
        _gpt(tied=False, cuda=cuda),
        _gpt(tied=True, cuda=cuda),
        Workload(
            "u-net",
            "U-Net",
            "1x32x32 images, denoising, 32 to 128 channels at three sizes, GroupNorm of 8 groups, skip connections",
            UNet,
            _noisy(32, 1, 32, 32),
            32,
            8.1,
            denoising,
        ),
        _experts(SoftExperts, 2.5),
        _experts(RoutedExperts, 2.3),
    ]
    return {workload.name: workload for workload in rows}
