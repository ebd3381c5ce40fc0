"""`hmas lab`: experiments whose figures the documentation quotes; each can be run again."""

from collections.abc import Mapping
from types import MappingProxyType

import click

from hmas.cli.lazy import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "fidelity": ("hmas.lab.fidelity.cli:fidelity", "How far the simulator can be trusted: predicted against measured."),
        "parity": ("hmas.lab.parity.cli:parity", "Whether simulation and live gateway decide alike, entry by entry."),
        "policies": ("hmas.lab.policies.cli:policies", "Every queueing policy beside the best FCFS: on a real vLLM, and by slices."),
        "agents": ("hmas.lab.agents.cli:agents", "What the agents that read requests are worth: rules, trained models, the truth."),
        "live": ("hmas.lab.live.cli:live", "H-MAS on a real vLLM against the engine's default, plain baselines and fixed policies."),
        "paper": ("hmas.lab.paper.cli:paper", "H-MAS's evaluation in simulation: its scenarios, baselines and ablations."),
        "teller": ("hmas.lab.agents.teller:teller", "Answers for perception and prediction; `hmas lab agents` starts it."),
        "overload": ("hmas.lab.overload.cli:overload", "Goodput past saturation: H-MAS, the engine alone, and the best FCFS."),
        "statera": ("hmas.lab.statera.cli:statera", "Statera alone: coverage of its bounds, responses of its window, oscillation."),
        "frontdoor": ("hmas.lab.frontdoor.cli:frontdoor", "What clients really send, cell by cell: the product beside pass-through."),
        "hetero": ("hmas.lab.hetero.cli:hetero", "HeteroServe's cluster: uniform dispatch against queue feedback."),
    }
)
"""Every experiment: where it is, and its line in `hmas lab --help`."""


@click.group(cls=LazyGroup, lazy=COMMANDS)
def lab() -> None:
    """Run the experiments behind the documentation's figures."""
