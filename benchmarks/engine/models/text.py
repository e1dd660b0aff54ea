"""Embedding network, recurrent network and transformer encoder for texts."""

from torch import Tensor, nn


class EmbeddingMLP(nn.Module):
    """The mean of the tokens' embeddings through two linear layers."""

    def __init__(self, vocabulary: int = 10_000, width: int = 16, classes: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.hidden(self.embedding(tokens).mean(1)).relu())


class NameLSTM(nn.Module):
    """Letters to a language: an LSTM read at the last true letter of each name."""

    def __init__(self, letters: int = 60, embedding: int = 64, hidden: int = 128, classes: int = 18) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.out = nn.Linear(hidden, classes)

    def forward(self, names: Tensor, lengths: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(names))
        last = (lengths - 1).reshape(-1, 1, 1).expand(-1, 1, states.shape[2])
        return self.out(states.gather(1, last).squeeze(1))


class TextEncoder(nn.Module):
    """``nn.TransformerEncoder`` over embedded tokens, its mean into a classifier."""

    def __init__(
        self,
        vocabulary: int = 1_000,
        width: int = 128,
        heads: int = 4,
        feedforward: int = 512,
        layers: int = 2,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, heads, feedforward, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.encoder(self.embedding(tokens)).mean(1))
