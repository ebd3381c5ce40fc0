"""Which of the public prompts the shipped tagger was not trained on: the test part of the split that its training makes."""

from pathlib import Path

from hmas.agents.perception.training.data import read_rows
from hmas.agents.perception.training.split import parts_of
from hmas_lab.agents.asked import Keep
from hmas_lab.training.typed import PROMPTS_FILE


def held_out(folder: Path) -> Keep:
    """A test on rows of the typed prompts: true for those of the test part and their twins.

    Raises:
        ModelError: The prompts cannot be read.
    """
    prompts = frozenset(row.prompt for row in parts_of(read_rows([folder / PROMPTS_FILE])).test)
    return lambda row: row["prompt"] in prompts
