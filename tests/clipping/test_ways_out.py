"""Graphs, detectors and speech models: the way that their refusal names gives what the slow loop gives."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.errors import UnsupportedModel

NODES, EDGES = 6, 8


class Isomorphism(nn.Module):
    """Two rounds of messages (GIN), and a head over the sum of each graph's nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 1)


def _graphs(count: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes filled up to one number, which of them there are, and edges between those."""
    draw = torch.Generator().manual_seed(1)
    sizes = torch.randint(2, NODES + 1, (count,), generator=draw)
    edges = (torch.rand(count, EDGES, 2, generator=draw) * sizes[:, None, None]).long()
    return torch.randn(count, NODES, 4, generator=draw), torch.arange(NODES) < sizes[:, None], edges


def _one_list(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """All graphs' nodes in one list, with a vector that says whose each is."""
    nodes, there, edges = batch
    h, before = nodes[there], (there.sum(1).cumsum(0) - there.sum(1))[:, None]
    source, target = (edges[..., 0] + before).flatten(), (edges[..., 1] + before).flatten()
    for layer in (model.first, model.second):
        h = layer(h + torch.zeros_like(h).index_add_(0, target, h[source])).relu()
    whose = torch.arange(len(nodes)).repeat_interleave(there.sum(1))
    return model.head(torch.zeros(len(nodes), 6).index_add_(0, whose, h)).squeeze(1).square()


def _each_row(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """`gather` and `scatter_add` along each graph's nodes."""
    h, there, edges = batch
    for layer in (model.first, model.second):
        source, target = (edges[..., at, None].expand(-1, -1, h.shape[2]) for at in (0, 1))
        h = layer(h + torch.zeros_like(h).scatter_add(1, target, h.gather(1, source))).relu()
    return model.head((h * there[..., None]).sum(1)).squeeze(1).square()


def _other_graphs(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Broken: each graph reads the edges of the one before."""
    nodes, there, edges = batch
    return _each_row(model, (nodes, there, edges.roll(1, 0)))


def _over_all(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Broken: messages are gathered along the graphs."""
    nodes, there, edges = batch
    index = (edges[:, :NODES, :1] % len(nodes)).expand(-1, -1, 4)
    return _each_row(model, (nodes + nodes.gather(0, index), there, edges))


def _sums(kind: Any, model: nn.Module, loss: Any, batch: Any, **options: Any) -> Any:
    return kind(model, loss, **options).clipped_sum(batch, 1.0).gradients


@pytest.mark.parametrize("part", [None, 1])
def test_a_graph_network_is_told_of_gather_along_each_graphs_nodes_which_is_exact(part: int | None) -> None:
    torch.manual_seed(0)
    model, batch, settings = Isomorphism(), _graphs(), EngineSettings(microbatch_size=part)
    with pytest.raises(UnsupportedModel, match=r"h\.gather\(1, index\) and scatter_add"):
        _sums(Engine, model, _one_list, batch, settings=settings)
    found = _sums(Engine, model, _each_row, batch, settings=settings)
    torch.testing.assert_close(found, _sums(Reference, model, _each_row, batch))


@pytest.mark.parametrize("loss", [_other_graphs, _over_all])
def test_a_graph_that_reads_other_graphs_is_refused(loss: Any) -> None:
    for count in (5, 6, 8):
        with pytest.raises(UnsupportedModel):
            _sums(Engine, Isomorphism(), loss, _graphs(count))


class Detector(nn.Module):
    """Features of a picture, a score at each place, and a head over proposals."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.score, self.head = (
            nn.Conv2d(1, 4, 3, padding=1),
            nn.Conv2d(4, 1, 1),
            nn.Linear(4, 2),
        )

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.features(pictures).relu()
        return seen.flatten(2).mT, self.score(seen).flatten(1)


def _a_loop(model: Any, pictures: Tensor) -> Tensor:
    losses = []
    for one, scores in zip(*model(pictures), strict=True):
        kept = torch.where(scores > 0.1)[0]
        losses.append(model.head(one[kept]).square().sum() + scores.square().mean())
    return torch.stack(losses)


def _cut_out(model: Any, pictures: Tensor) -> Tensor:
    seen, scores = model(pictures)
    boxes = (scores > 0.1).nonzero()
    crops = [seen[int(box[0]), int(box[1])] for box in boxes]
    return scores.square().mean(1) + model.head(torch.stack(crops)).square().sum()


def _as_many(model: Any, pictures: Tensor) -> Tensor:
    seen, scores = model(pictures)
    best = scores.topk(3, 1).indices[..., None].expand(-1, -1, 4)
    return model.head(seen.gather(1, best)).square().mean((1, 2)) + scores.square().mean(1)


def _one_stage(model: Any, pictures: Tensor) -> Tensor:
    seen, scores = model(pictures)
    return (model.head(seen).square().sum(2) * (scores > 0.1)).sum(1) + scores.square().mean(1)


@pytest.mark.parametrize("part", [None, 1])
def test_a_detector_of_two_stages_is_told_of_one_stage_or_as_many_proposals_which_are_exact(
    part: int | None,
) -> None:
    torch.manual_seed(0)
    model, pictures, settings = Detector(), torch.randn(5, 1, 6, 6), EngineSettings(microbatch_size=part)
    for loss in (_a_loop, _cut_out):
        with pytest.raises(UnsupportedModel, match="a one-stage head, or as many proposals per example"):
            _sums(Engine, model, loss, pictures, settings=settings)
    for loss in (_as_many, _one_stage):
        found = _sums(Engine, model, loss, pictures, settings=settings)
        torch.testing.assert_close(found, _sums(Reference, model, loss, pictures))


def _speech(kind: str) -> Any:
    import transformers

    torch.manual_seed(0)
    augmented: dict[str, Any] = {"mask_time_prob": 0.2, "mask_time_length": 3}
    if kind == "Whisper":
        config = transformers.WhisperConfig(
            vocab_size=30, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_mel_bins=4, max_source_positions=20,
            max_target_positions=10, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
            dropout=0.1, apply_spec_augment=True, **augmented,
        )  # fmt: skip
        return transformers.WhisperForConditionalGeneration(config).train()
    config = getattr(transformers, f"{kind}Config")(
        conv_dim=(8, 8), conv_stride=(2, 2), conv_kernel=(3, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, vocab_size=12, feat_extract_norm="layer", do_stable_layer_norm=True, layerdrop=0.0,
        mask_feature_prob=0.0, mask_feature_length=2, **augmented,
    )  # fmt: skip
    return getattr(transformers, f"{kind}Model")(config).train()


def _heard(model: Any, batch: tuple[Tensor, ...]) -> Tensor:
    if model.config.model_type == "whisper":
        logits = model(input_features=batch[0], decoder_input_ids=batch[1]).logits
        return functional.cross_entropy(logits.mT, batch[1], reduction="none").mean(1)
    return (
        model(batch[0], mask_time_indices=None if len(batch) < 2 else batch[1]).last_hidden_state.square().mean((1, 2))
    )


@pytest.mark.parametrize("kind", ["Wav2Vec2", "Hubert", "WavLM", "Whisper"])
def test_spec_augment_is_told_to_be_left_out_or_given_with_the_batch_which_work(kind: str) -> None:
    model, draw = _speech(kind), torch.Generator().manual_seed(1)
    batch: tuple[Tensor, ...] = (torch.randn(5, 200, generator=draw),)
    if kind == "Whisper":
        batch = (torch.randn(5, 4, 40, generator=draw), torch.randint(3, 30, (5, 6), generator=draw))
    with pytest.raises(UnsupportedModel, match=r"model\.config\.apply_spec_augment = False"):
        _sums(Engine, model, _heard, batch, seeds=lambda: 1)
    if kind != "Whisper":
        steps = model(batch[0]).last_hidden_state.shape[1]
        masked = (*batch, torch.rand(5, steps, generator=draw) < 0.3)
        _sums(Engine, model, _heard, masked, seeds=lambda: 1)  # (dropout is on)
    model.config.apply_spec_augment = False
    _sums(Engine, model, _heard, batch, seeds=lambda: 1)


def test_spec_augment_that_reads_the_padding_is_told_to_be_left_out() -> None:
    model, padding = _speech("Wav2Vec2"), torch.ones(5, 200, dtype=torch.long)
    padding[0, 150:] = 0

    def heard(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        return m(batch[0], attention_mask=batch[1]).last_hidden_state.square().mean((1, 2))

    with pytest.raises(UnsupportedModel, match=r"model\.config\.apply_spec_augment = False"):
        _sums(Engine, model, heard, (torch.randn(5, 200), padding), seeds=lambda: 1)
