"""The recurrent network of the name task."""

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from decrescendo.training import initialised

PADDING = 0


class LastStateClassifier(nn.Module):
    """Letter codes to class scores: embedding, one LSTM layer, its state after the last true letter, linear.

    Rows are packed, so that nothing is computed for padding. (Cutting the columns that are padding in every row
    of a batch would also be harmless, because a row's score and gradient do not depend on its padding; packing
    leaves out each row's own.)

    Args:
        codes: number of letter codes, with 0 for padding.
        embedding: width of the embedding.
        hidden: width of the LSTM.
        classes: number of classes.

    >>> import torch
    >>> scores = LastStateClassifier(5, embedding=3, hidden=4, classes=2)(torch.tensor([[1, 2, 0], [4, 0, 0]]))
    >>> scores.shape
    torch.Size([2, 2])
    """

    def __init__(self, codes: int, *, embedding: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(codes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.linear = nn.Linear(hidden, classes)

    def forward(self, inputs: Int[Tensor, "batch length"]) -> Float[Tensor, "batch classes"]:
        """One score a class. A row of padding alone is read as one letter of padding."""
        lengths = (inputs != PADDING).sum(dim=1).clamp(min=1).cpu()
        letters = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        # Embedded after packing: only what the LSTM will read.
        embedded = PackedSequence(self.embedding(letters.data), *letters[1:])
        last_states: Tensor = self.lstm(embedded)[1][0]
        return self.linear(last_states[-1])


def name_lstm(seed: int) -> nn.Module:
    """The LSTM of the name task: embedding 64, LSTM 128, linear 18; 105,426 parameters.

    For rows of 20 codes 0 .. 58, as `data.names` has them. The sizes are those of Du et al.,
    appendix A.9.

    Args:
        seed: of the whole run; the stream "init" is used.

    >>> import torch
    >>> sum(p.numel() for p in name_lstm(0).parameters())
    105426
    >>> name_lstm(0)(torch.tensor([[40, 21, 14, 5, 26] + [0] * 15])).shape
    torch.Size([1, 18])
    """
    return initialised(lambda: LastStateClassifier(59, embedding=64, hidden=128, classes=18), seed)
