"""Splits rows so that no test prompt has a twin in training. Pure, deterministic.

Rows that share a run of eight words belong together: questions about one passage, one essay topic with four length demands, turn 3 and
turn 5 of one conversation. Runs that many rows of one template share are the template and bind nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from hmas.agents.perception.text import words_of
from hmas.agents.perception.training.data import Row

RUN = 8
"""Words of a run that two unrelated prompts hardly share."""
COMMON = 60
"""Rows beyond which a run is common speech."""
TEMPLATE_SHARE = 0.12
TEMPLATE_LEAST = 4
"""A run that this share of a template's rows has, and at least so many of them, is part of the template."""
TEST_SHARE, VALIDATION_SHARE = 0.2, 0.1
KEPT_CHARS = 1500
"""Characters of a prompt, from its beginning, by which twins are found."""
_SPEAKER = "\nAssistant:"

_Numbers = npt.NDArray[np.uint64]


def groups(rows: Sequence[Row]) -> list[int]:
    """For each row the number of its group of twins."""
    numbers: dict[str, int] = {}
    found = [_runs(row.prompt, numbers) for row in rows]
    runs = np.concatenate(found)
    owners = np.repeat(np.arange(len(rows)), [len(part) for part in found])
    rules: dict[str, int] = {}
    rule_of = np.array([rules.setdefault(row.rule or row.source, len(rules)) for row in rows])
    size = np.bincount(rule_of)
    # Only runs of 2 to COMMON rows can bind.
    values, place, count = np.unique(runs, return_inverse=True, return_counts=True)
    binds = (count[place] >= 2) & (count[place] <= COMMON)
    place, owners = place[binds], owners[binds]
    # Of these, not the ones that make up a rule's template.
    pairs, pair_count = np.unique(rule_of[owners].astype(np.int64) * len(values) + place, return_counts=True)
    typical = pair_count >= np.maximum(TEMPLATE_LEAST, TEMPLATE_SHARE * size[pairs // len(values)])
    keep = ~np.isin(place, np.unique(pairs[typical] % len(values)))
    parent = list(range(len(rows)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[int, int] = {}
    for run, owner in zip(place[keep].tolist(), owners[keep].tolist(), strict=True):
        parent[root(owner)] = root(first.setdefault(run, owner))
    return [root(index) for index in range(len(rows))]


def split(rows: Sequence[Row], seed: int) -> dict[str, list[int]]:
    """Indices of `train`, `validation` and `test`: by groups, in the same shares within each source and task.

    Groups are dealt, large ones first and else in a drawn order, to whichever part is furthest below its share of their source and task.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for index, group in enumerate(groups(rows)):
        members[group].append(index)
    strata = [(row.source, row.task.value) for row in rows]
    total = Counter(strata)
    shares = {"test": TEST_SHARE, "validation": VALIDATION_SHARE, "train": 1.0 - TEST_SHARE - VALIDATION_SHARE}
    filled: Counter[tuple[str, tuple[str, str]]] = Counter()
    parts: dict[str, list[int]] = {name: [] for name in shares}

    def rank(group: list[int]) -> tuple[int, int]:
        return -len(group) if len(group) > 8 else 0, crc32(f"{seed}:{rows[group[0]].prompt}".encode("utf-8", "replace"))

    for twins in sorted(members.values(), key=rank):
        wanted = Counter(strata[index] for index in twins)
        part = max(shares, key=lambda name: min(1.0 - filled[name, key] / (shares[name] * total[key]) for key in wanted))
        for index in twins:
            filled[part, strata[index]] += 1
            parts[part].append(index)
    return {name: sorted(indices) for name, indices in parts.items()}


def _runs(text: str, numbers: dict[str, int]) -> _Numbers:
    # Conversations share the phrases of their trade; what tells them apart is how they open.
    text = text.split(_SPEAKER, 1)[0][:KEPT_CHARS]
    words = [word for word in words_of(text) if word[0].isalnum()]
    for word in words:
        if word not in numbers:
            numbers[word] = crc32(word.encode("utf-8", "replace"))
    codes = np.array([numbers[word] for word in words], dtype=np.uint64)
    # A short prompt is its own run: two equal ones are twins.
    length = min(RUN, len(codes))
    if not length:
        return codes
    window = np.lib.stride_tricks.sliding_window_view(codes, length)
    powers = np.array([pow(0x9E3779B97F4A7C15, k, 1 << 64) for k in range(length)], dtype=np.uint64)
    return np.unique((window * powers).sum(axis=1, dtype=np.uint64))


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by what they are for; no prompt has a twin in another part."""

    train: list[Row]
    validation: list[Row]
    test: list[Row]


def parts_of(rows: Sequence[Row], *, seed: int = 0, licensed: bool = True, without: Sequence[str] = ()) -> Parts:
    """Splits rows by groups of twins; see `split`.

    Args:
        rows: Labelled rows.
        seed: Of the order in which groups are dealt.
        licensed: Whether training and validation hold only what may be trained on. The test holds everything, so that it is as hard as
            the data.
        without: Parts of source names. Rows of such sources are in no training and no validation part: the test then shows how the model
            does on sources that it has never seen.
    """
    indices = split(rows, seed)

    def usable(part: str) -> list[Row]:
        chosen = [rows[index] for index in indices[part]]
        return [row for row in chosen if (row.licence is not None or not licensed) and not any(name in row.source for name in without)]

    return Parts(train=usable("train"), validation=usable("validation"), test=[rows[index] for index in indices["test"]])


def evenly(rows: Sequence[Row], limit: int, seed: int) -> list[Row]:
    """Returns at most `limit` rows, in turn from every source of every task, so that large sources do not dominate; 0 takes all."""
    if limit <= 0 or len(rows) <= limit:
        return list(rows)
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.task.value, row.source), []).append(row)
    ordered = [sorted(groups[key], key=lambda row: crc32(f"{seed} {row.prompt}".encode("utf-8", "replace"))) for key in sorted(groups)]
    taken: list[Row] = []
    while len(taken) < limit:
        ordered = [group for group in ordered if group]
        taken.extend(group.pop() for group in ordered[: limit - len(taken)])
    return taken
