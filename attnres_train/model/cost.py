"""What a part of the model asks of a machine, as facts of the model: no clocks, no ranks, no bytes.

A part's products take 2 FLOPs a matrix parameter and token forward, and twice that backward.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Elements:
    """Elements a token: on every tensor rank (divided by sequence parallelism alone), and divided over them."""

    whole: int = 0
    divided: int = 0

    def __add__(self, other: Elements) -> Elements:
        return Elements(self.whole + other.whole, self.divided + other.divided)


@dataclass(frozen=True)
class Cost:
    """Of one part (the embedding, a sublayer, the head), its reader of the depth left out; of several, their sum."""

    matrices: int = 0
    """Parameters that take part in a product for every token: the active ones."""
    attended: tuple[tuple[int, int | None], ...] = ()
    """Of every attention, FLOPs a token for two positions that it sees, which scores and their weighted sum take; and
    how many positions it sees at most, None for all before the token."""
    kept: Elements = Elements()
    """Elements that stand from forward to backward, the branch's input left out."""
    passes: Elements = Elements()
    """Elements that forward's operations without a product read and write."""
    operations: int = 0
    """Operations of torch in forward, an estimate: they weigh only where layers are small."""
    gathers: int = 0
    """Of the tokens over tensor ranks, before products that are cut by columns. Backward scatters as often, and with
    sequence shards gathers once more."""
    scatters: int = 0
    """Of partial sums over tensor ranks, after products that are cut by rows. Backward gathers as often."""
    moment: Elements = Elements()
    """Elements that stand at once in backward, beyond what it frees; zero where another part has more."""
    moment_parameters: int = 0
    """Divided ones, whose gradient stands with `moment`."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def forward_flops(self, sequence_length: int) -> int:
        """Of one token in a window of `sequence_length`."""
        return 2 * self.matrices + self.attention_flops(sequence_length)

    def attention_flops(self, sequence_length: int) -> int:
        """Of one token, a mean over the window, forward. Causal: all positions are seen by half of the tokens.

        An upper bound where attention stays inside documents.
        """
        return sum(flops * twice_seen(sequence_length, sees) for flops, sees in self.attended)


def twice_seen(sequence_length: int, sees: int | None) -> int:
    """Twice the positions that a token sees, a mean over the window: T where it sees all before it, else a band."""
    width = sequence_length if sees is None else min(sees, sequence_length)
    return (2 * width * sequence_length - width * width) // sequence_length
