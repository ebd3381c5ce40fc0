"""Which of the public prompts the shipped tagger was not trained on: the test part of the split that its training makes."""

from pathlib import Path

from agents.perception.training.data import PROMPTS_FILE, read_rows
from agents.perception.training.split import split
from hmas.lab.agents.asked import Keep

SEED = 0
"""Of the split with which the shipped tagger was trained (`agents.perception.training.trainer`, which needs torch to be read)."""


def held_out(folder: Path) -> Keep:
    """A test on rows of the typed prompts: true for those of the test part and their twins.

    Raises:
        ModelError: The prompts cannot be read.
    """
    rows = read_rows([folder / PROMPTS_FILE])
    prompts = frozenset(rows[place].prompt for place in split(rows, SEED)["test"])
    return lambda row: row["prompt"] in prompts
