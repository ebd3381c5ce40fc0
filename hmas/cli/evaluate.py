"""`hmas eval`: evaluates models on data that they have not seen."""

from collections.abc import Mapping
from types import MappingProxyType

import click

from hmas.cli.lazy import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "lengths": ("hmas.cli.eval_lengths:eval_lengths", "Output lengths alone: every regime, baseline, data set and task."),
        "perception": ("hmas.cli.eval_perception:perception", "Task types and output lengths, on labelled prompts or measured lengths."),
        "prediction": ("hmas.cli.eval_prediction:eval_prediction", "Times to first token and between tokens, on request logs."),
    }
)
"""Every model that can be evaluated: the location of its command, and its line in `hmas eval --help`."""


@click.group("eval", cls=LazyGroup, lazy=COMMANDS)
def evaluate() -> None:
    """Evaluate the models of the perception and prediction agents."""
