"""The shipped model's network: bags of words and pairs beside a small transformer over the first and last words. Needs torch."""

import torch
from torch import Tensor, nn

from hmas.agents.perception.encoder import DENSE, PATCH
from hmas.agents.perception.reading import TASKS
from hmas.agents.perception.text import WORDS
from hmas.controller.core.lengths import LEVELS

WIDTH = 64
HEADS = 4
LAYERS = 2
BAG_WIDTH = 32
HIDDEN = 128
SIZES_HIDDEN = 32
SIZES_SCALE = 6.0
"""The dense features lie within 0 and 1; a few words more or less must make a difference."""
NO_TEXT = DENSE.index("no_text")


class Layer(nn.Module):  # type: ignore[misc]  # torch is not there where types are checked
    """One transformer layer, normalised before attention and feed-forward; written out so that it exports to few operators."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, blocked: Tensor) -> Tensor:
        """`x` batch x places x width; `blocked` batch x 1 x 1 x places, very negative where there is padding."""
        batch, places, _ = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, places, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(qkv[0] @ qkv[1].transpose(-1, -2) * (WIDTH // HEADS) ** -0.5 + blocked, dim=-1)
        mixed = (weights @ qkv[2]).permute(0, 2, 1, 3).reshape(batch, places, WIDTH)
        x = x + self.dropout(self.out(mixed))
        return x + self.dropout(self.down(torch.relu(self.up(self.norm2(x)))))


class Network(nn.Module):  # type: ignore[misc]  # as above
    """Logits over `TASKS` and quantiles of the log output length at `LEVELS`, for so many known words and features of the bag."""

    def __init__(self, words: int, bag: int, dropout: float = 0.15) -> None:
        super().__init__()
        self.words = nn.Embedding(words, WIDTH, padding_idx=0)
        self.places = nn.Parameter(torch.zeros(WORDS // PATCH, WIDTH))
        self.patch = nn.Linear(PATCH * WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer(dropout) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.bag = nn.Embedding(bag, BAG_WIDTH, padding_idx=0)
        self.mix = nn.Linear(2 * WIDTH + 4 * BAG_WIDTH + len(DENSE), HIDDEN)
        self.tasks = nn.Linear(HIDDEN, len(TASKS))
        self.wide = nn.Linear(3 * BAG_WIDTH, len(TASKS), bias=False)
        self.lengths = nn.Linear(HIDDEN, len(LEVELS))
        self.sizes = nn.Sequential(nn.Linear(len(DENSE), SIZES_HIDDEN), nn.Tanh(), nn.Linear(SIZES_HIDDEN, len(TASKS)))
        self.dropout = nn.Dropout(2 * dropout)
        nn.init.normal_(self.words.weight, std=0.05)
        nn.init.normal_(self.bag.weight, std=0.05)
        with torch.no_grad():
            self.words.weight[0].zero_()
            self.bag.weight[0].zero_()

    def forward(self, words: Tensor, bag: Tensor, system: Tensor, history: Tensor, dense: Tensor) -> tuple[Tensor, Tensor]:
        """Args are what `Encoder.encode` gives; see the class for what comes back."""
        bags = [(ids, self.bag(ids)) for ids in (bag, system, history)]
        return self.head(self.words(words), words, bags, dense)

    def head(self, embedded: Tensor, words: Tensor, bags: list[tuple[Tensor, Tensor]], dense: Tensor) -> tuple[Tensor, Tensor]:
        """Everything after the look-ups, which the exported form does on 8-bit tables.

        `bags` are the features of question, system prompt and history: their numbers, and what was looked up for these.
        """
        (bag, looked_up), *beside = bags
        batch, length = words.shape
        x = self.patch(embedded.reshape(batch, length // PATCH, PATCH * WIDTH))
        x = x + self.places[: length // PATCH]
        there = (words.reshape(batch, length // PATCH, PATCH).amax(dim=-1) > 0).to(x.dtype)
        blocked = (there - 1.0).reshape(batch, 1, 1, -1) * 1e4
        for layer in self.layers:
            x = layer(x, blocked)
        x = self.norm(x)
        count = there.sum(dim=1, keepdim=True)
        mean = (x * there.unsqueeze(-1)).sum(dim=1) / count.clamp(min=1.0)
        # Without any text both are zero, so that the dense features are heard.
        most = (x + (there.unsqueeze(-1) - 1.0) * 1e4).amax(dim=1).clamp(min=-10.0) * count.clamp(max=1.0)
        features = _count(bag, x)
        total = looked_up.sum(dim=1)
        sums = [found.sum(dim=1) for _, found in beside]
        counts = [_count(ids, x) for ids, _ in beside]
        # The mean forgets how long the text is; over the root, many weak parameters still add up.
        sides = [found / count for found, count in zip(sums, counts, strict=True)]
        rooted = [found / torch.sqrt(count) for found, count in zip([total, *sums], [features, *counts], strict=True)]
        joined = torch.cat([mean, most, total / features, rooted[0], *sides, dense], dim=1)
        hidden = self.dropout(torch.relu(self.mix(self.dropout(joined))))
        steps = nn.functional.softplus(self.lengths(hidden))
        logits = self.tasks(hidden) + self.wide(torch.cat(rooted, dim=1))
        blind = dense[:, NO_TEXT : NO_TEXT + 1]
        # Quantiles ascend by construction: the first, then what each adds.
        return logits * (1.0 - blind) + self.without_text(dense) * blind, torch.cumsum(steps, dim=1)

    def without_text(self, dense: Tensor) -> Tensor:
        """Logits from sizes and flags alone, for prompts that stay in the gateway."""
        return self.sizes(dense * SIZES_SCALE)


def _count(ids: Tensor, like: Tensor) -> Tensor:
    return (ids > 0).to(like.dtype).sum(dim=1, keepdim=True).clamp(min=1.0)
