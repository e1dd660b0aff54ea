"""Models whose examples cannot be passed as a batch: detectors, graph networks, images in texts, SpecAugment.

Each with records, and what makes a batch of some: of one for this library, of all for training without privacy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from decrescendo.base.batches import OneByOne


class Case(NamedTuple):
    """A model, its loss of a batch (the mean over examples), and records with their ``collate_fn``."""

    model: nn.Module
    loss: Callable[[nn.Module, Any], Tensor]
    records: list[Any]
    collate_fn: Callable[[list[Any]], Any]

    @property
    def batch(self) -> OneByOne:
        """The records as batches of one."""
        return OneByOne(tuple(self.collate_fn([record]) for record in self.records))


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


def _images(count: int, size: int) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Of several sizes, with none, one or two boxes each."""
    found: list[tuple[Tensor, dict[str, Tensor]]] = []
    for at in range(count):
        low = torch.rand(at % 3, 2) * (size - 6)
        boxes = {"boxes": torch.cat([low, low + size / 4], 1), "labels": torch.randint(0, 2, (at % 3,))}
        found.append((torch.rand(3, size + 4 * (at % 5), size + 4), boxes))
    return found


def _listed(records: list[tuple[Tensor, Any]]) -> tuple[list[Tensor], list[Any]]:
    images, targets = zip(*records, strict=True)
    return list(images), list(targets)


def detections(count: int = 5, size: int = 16, width: int = 4) -> Case:
    """Of images of several sizes, with none, one or two boxes each."""
    return Case(Detector(width), lambda model, batch: model(*batch), _images(count, size), _listed)


def _joined(records: list[Graph]) -> Graph:
    starts = torch.tensor([0, *(len(graph.x) for graph in records)]).cumsum(0)
    return Graph(
        torch.cat([graph.x for graph in records]),
        torch.cat([graph.edges + start for graph, start in zip(records, starts[:-1], strict=True)], 1),
        torch.cat([graph.y for graph in records]),
        torch.cat([graph.of + at for at, graph in enumerate(records)]),
    )


def graphs(count: int = 6, size: int = 2, width: int = 6) -> Case:
    """Of graphs with several numbers of nodes."""
    found: list[Graph] = []
    for at in range(count):
        nodes = size + at
        edges = torch.randint(0, nodes, (2, 3 * nodes))
        of = torch.zeros(nodes, dtype=torch.long)
        found.append(Graph(torch.randn(nodes, 3), edges, torch.tensor([at % 2]), of))
    return Case(Gin(width), lambda model, graph: model(graph), found, _joined)


def llava(count: int = 4, size: int = 6, width: int = 16) -> Case:
    """Of Transformers: features of an image take the places of its tokens; texts of several lengths."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    common: dict[str, Any] = {
        "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2, "num_attention_heads": 2,
        "attention_dropout": 0.1,
    }  # fmt: skip
    vision = CLIPVisionConfig(image_size=16, patch_size=8, **common)
    text = LlamaConfig(vocab_size=50, num_key_value_heads=2, **common)
    model = LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text, image_token_index=49)
    ).train()
    records: list[dict[str, Tensor]] = []
    for at in range(count):
        words = torch.randint(2, 49, (size + at % 3,))
        ids = torch.cat([torch.full((4,), 49), words])
        labels = torch.where(ids == 49, -100, ids)
        records.append({"input_ids": ids, "labels": labels, "pixel_values": torch.randn(3, 16, 16)})

    def padded(given: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        def column(name: str, value: int) -> Tensor:
            rows = [record[name] for record in given]
            return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)

        ids, images = column("input_ids", 0), torch.stack([record["pixel_values"] for record in given])
        return {
            "input_ids": ids, "attention_mask": (ids > 0).long(), "labels": column("labels", -100),
            "pixel_values": images,
        }  # fmt: skip

    return Case(model, lambda model, batch: model(**batch).loss, records, padded)


def speech(count: int = 4, size: int = 400, width: int = 16) -> Case:
    """Of Transformers: SpecAugment masks stretches of time that NumPy draws, and whole layers are left out."""
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

    config = Wav2Vec2Config(
        vocab_size=8, hidden_size=width, num_hidden_layers=2, num_attention_heads=2, intermediate_size=2 * width,
        conv_dim=(width, width), conv_stride=(4, 4), conv_kernel=(8, 8), num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, mask_time_prob=0.5, mask_time_length=2, apply_spec_augment=True,
        layerdrop=0.3, ctc_loss_reduction="mean", num_feat_extract_layers=2,
    )  # fmt: skip
    sounds, labels = np.random.default_rng(0).standard_normal((count, size)), torch.randint(1, 8, (count, 4))
    extract = Wav2Vec2FeatureExtractor()

    def extracted(given: list[tuple[np.ndarray, Tensor]]) -> Any:
        found = extract([sound for sound, _ in given], sampling_rate=16_000, return_tensors="pt")
        found["labels"] = torch.stack([text for _, text in given])
        return found

    records = list(zip(sounds, labels, strict=True))
    model = Wav2Vec2ForCTC(config).train()
    return Case(model, lambda model, batch: model(**batch).loss, records, extracted)


def _declare_operators() -> None:
    """Import torchvision where its C operators do not load, as in its wheel on PyPI with torch for the CPU: two must be
    known by name. The loss of RetinaNet calls none."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)


def retinanet(count: int = 3, size: int = 64, layers: int = 18) -> Case:
    """Of torchvision: FrozenBatchNorm by its default."""
    _declare_operators()
    from torchvision.models.detection import RetinaNet
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
    from torchvision.ops.feature_pyramid_network import LastLevelP6P7

    backbone = resnet_fpn_backbone(
        backbone_name=f"resnet{layers}", weights=None, trainable_layers=3, returned_layers=[2, 3, 4],
        extra_blocks=LastLevelP6P7(256, 256),
    )  # fmt: skip
    model = RetinaNet(backbone, 2, min_size=(size, size + 8), max_size=2 * size).train()
    return Case(model, lambda model, batch: sum(model(*batch).values()), _images(count, size), _listed)


def gin(count: int = 6, size: int = 4, width: int = 8) -> Case:
    """Of torch_geometric, with dropout."""
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GIN, global_add_pool

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gin = GIN(7, width, num_layers=3, out_channels=2, dropout=0.2)

        def forward(self, graph: Any) -> Tensor:
            return global_add_pool(self.gin(graph.x, graph.edge_index), graph.batch)

    records: list[Any] = []
    for at in range(count):
        nodes = size + at
        edges = torch.randint(0, nodes, (2, 3 * nodes))
        records.append(Data(x=torch.randn(nodes, 7), edge_index=edges, y=torch.tensor([at % 2])))
    return Case(
        Classifier(),
        lambda model, graph: functional.cross_entropy(model(graph), graph.y),
        records,
        Batch.from_data_list,
    )


# Small models of our own for libraries that the tests do without, and one whose library is imported quickly.
MODELS: dict[str, Callable[..., Case]] = {"detector": detections, "graphs": graphs, "wav2vec2": speech}
# Of the libraries themselves, by the name of the package.
INSTALLED: dict[str, tuple[str, Callable[..., Case]]] = {
    "RetinaNet": ("torchvision", retinanet),
    "GIN": ("torch_geometric", gin),
    "LLaVA": ("transformers", llava),
}
