"""Models whose examples cannot be passed as a batch: a detector, a graph network, images in texts, SpecAugment.

Each with a loss of one example, and with one of several as the model is trained without privacy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from decrescendo.base.batches import OneByOne


class Case(NamedTuple):
    """A model, its loss of one example, a batch of these; and the same examples as one batch, with their mean loss."""

    model: nn.Module
    loss: Callable[[nn.Module, Any], Tensor]
    batch: OneByOne
    together: Any


class Detector(nn.Module):
    """One stage: anchors on a grid; images of several sizes, each with its number of boxes; a mean over those found."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, width, 3, stride=4, padding=1)
        self.head = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 5, 1))

    def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]]) -> Tensor:
        losses = []
        for image, target in zip(images, targets, strict=True):
            found = self.head(self.features(image[None]).relu())[0].flatten(1).t()
            width = (image.shape[2] + 3) // 4  # of the grid
            at = torch.arange(len(found))
            centres = torch.stack([at % width, at // width], 1) * 4.0
            boxes = target["boxes"]
            middle = (boxes[:, :2] + boxes[:, 2:]) / 2
            near = (centres[:, None] - middle[None]).abs().amax(2) < 6 if len(boxes) else at[:, None] < 0
            inside = near.any(1)
            loss = functional.binary_cross_entropy_with_logits(found[:, 0], inside.float())
            if inside.any():
                owner = near.float().argmax(1)[inside]
                loss = loss + functional.smooth_l1_loss(found[inside, 1:], boxes[owner])
            losses.append(loss)
        return torch.stack(losses).mean()


@dataclass
class Graph:
    """Nodes, edges between them, and a class; or several, one after another, with the graph of each node."""

    x: Tensor
    edges: Tensor
    y: Tensor
    of: Tensor


class Gin(nn.Module):
    """Two rounds of messages along edges, then the sum over the nodes of each graph."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(3, width), nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, graph: Graph) -> Tensor:
        h = graph.x
        for layer in (self.first, self.second):
            source, target = graph.edges
            h = layer(h + torch.zeros_like(h).index_add(0, target, h[source])).relu()
        pooled = h.new_zeros(len(graph.y), h.shape[1]).index_add(0, graph.of, h)
        return functional.cross_entropy(self.out(pooled), graph.y)


class Llava(nn.Module):
    """Features of an image are put where the text has its mark, as many as there are marks in the batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(4, width), nn.Embedding(7, width)
        self.mix = nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True, dropout=0.1)
        self.out = nn.Linear(width, 7)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        embedded = self.text(batch["tokens"])
        marks = batch["tokens"] == 6
        features = self.image(batch["patches"]).flatten(0, 1)
        if int(marks.sum()) != len(features):
            raise ValueError("as many marks as features")
        embedded = embedded.masked_scatter(marks[..., None], features)
        logits = self.out(self.mix(embedded))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten())


def detections(count: int = 5, size: int = 16, width: int = 4) -> Case:
    """Of images of several sizes, with none, one or two boxes each."""
    images, targets = [], []
    for at in range(count):
        low = torch.rand(at % 3, 2) * (size - 6)
        targets.append({"boxes": torch.cat([low, low + 4], 1)})
        images.append(torch.rand(3, size + 4 * (at % 5), size + 4))
    examples = tuple(([image], [target]) for image, target in zip(images, targets, strict=True))
    return Case(Detector(width), lambda model, batch: model(*batch), OneByOne(examples), (images, targets))


def graphs(count: int = 6, size: int = 2, width: int = 6) -> Case:
    """Of graphs with several numbers of nodes."""
    found = []
    for at in range(count):
        nodes = size + at
        edges = torch.randint(0, nodes, (2, 3 * nodes))
        of = torch.zeros(nodes, dtype=torch.long)
        found.append(Graph(torch.randn(nodes, 3), edges, torch.tensor([at % 2]), of))
    starts = torch.tensor([0, *(len(graph.x) for graph in found)]).cumsum(0)
    together = Graph(
        torch.cat([graph.x for graph in found]),
        torch.cat([graph.edges + start for graph, start in zip(found, starts[:-1], strict=True)], 1),
        torch.cat([graph.y for graph in found]),
        torch.cat([graph.of + at for at, graph in enumerate(found)]),
    )
    return Case(Gin(width), lambda model, graph: model(graph), OneByOne(tuple(found)), together)


def images_in_texts(count: int = 4, size: int = 9, width: int = 8) -> Case:
    """Of texts of one length, with a third of the places for features of an image."""
    tokens, patches = torch.randint(0, 6, (count, size)), torch.randn(count, size // 3, 4)
    tokens[:, 1 : 1 + size // 3] = 6
    pairs = zip(tokens.split(1), patches.split(1), strict=True)
    examples = tuple({"tokens": text, "patches": image} for text, image in pairs)
    together = {"tokens": tokens, "patches": patches}
    return Case(Llava(width), lambda model, batch: model(batch), OneByOne(examples), together)


def speech(count: int = 4, size: int = 400, width: int = 16) -> Case:
    """Of Transformers: SpecAugment masks stretches of time that NumPy draws, and whole layers are left out."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    config = Wav2Vec2Config(
        vocab_size=8, hidden_size=width, num_hidden_layers=2, num_attention_heads=2, intermediate_size=2 * width,
        conv_dim=(width, width), conv_stride=(4, 4), conv_kernel=(8, 8), num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, mask_time_prob=0.5, mask_time_length=2, apply_spec_augment=True,
        layerdrop=0.3, ctc_loss_reduction="mean", num_feat_extract_layers=2,
    )  # fmt: skip
    sound, labels = torch.randn(count, size), torch.randint(1, 8, (count, 4))
    pairs = zip(sound.split(1), labels.split(1), strict=True)
    examples = tuple({"input_values": one, "labels": text} for one, text in pairs)
    together = {"input_values": sound, "labels": labels}
    model = Wav2Vec2ForCTC(config).train()
    return Case(model, lambda model, batch: model(**batch).loss, OneByOne(examples), together)


MODELS: dict[str, Callable[..., Case]] = {
    "detector": detections,
    "graphs": graphs,
    "images in texts": images_in_texts,
    "speech": speech,
}
