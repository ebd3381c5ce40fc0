"""`hmas train`: trains the agents' models on the operator's own data."""

from collections.abc import Mapping
from types import MappingProxyType

import click

from hmas.cli.lazy import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "lengths": ("hmas.cli.train_lengths:train_lengths", "The length model that perception begins with."),
        "perception": ("hmas.cli.train_perception:perception", "The perception agent's model: task types of prompts."),
        "prediction": ("hmas.cli.train_prediction:train_prediction", "The prediction agent's model: what requests cost."),
    }
)
"""Every model that can be trained: the location of its command, and its line in `hmas train --help`."""


@click.group(cls=LazyGroup, lazy=COMMANDS)
def train() -> None:
    """Train the models of the perception and prediction agents; `hmas-lab train-meta` trains meta's."""
