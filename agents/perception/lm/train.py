"""Trains a perception model on a Hugging Face base: settings in, artefact folder out. This module itself needs no torch."""

import importlib.util
from collections.abc import Callable

from hmas.agents.perception.lm.settings import TrainSettings, check
from hmas.agents.perception.lm.trained import Trained
from hmas.controller.core.errors import ConfigError
from hmas.controller.runtime.clock import Clock


def run(settings: TrainSettings, *, clock: Clock, say: Callable[[str], None], command: str = "") -> Trained:
    """Trains, calibrates and evaluates a model and writes the artefact; reports progress line by line.

    The artefact is written only after it was reloaded and gave the same answers. SIGINT and SIGTERM end the run with a checkpoint.

    Args:
        settings: Checked here.
        clock: For the card and for the remaining time.
        say: Takes one line of text for people.
        command: The command line that reproduces the model, for its card.

    Raises:
        ConfigError: A setting, a file or the base cannot be used; or torch, transformers and peft are not installed.
        ModelError: The artefact does not answer like the model in training.
    """
    check(settings)
    found = importlib.util.find_spec("datasets")
    if found is not None and found.origin is None:
        # transformers takes any folder of that name on the path for the package, and fails later with an unclear message.
        raise ConfigError(
            "a folder named datasets in the working directory hides the package that transformers looks for; use the hmas command"
        )
    try:
        # The import takes seconds, and only this command needs it.
        from hmas.agents.perception.lm.fitting import fit  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"training on a base needs {error.name or 'torch'}; install the extra: pip install 'h-mas[train]'") from error
    return fit(settings, clock=clock, say=say, command=command)
