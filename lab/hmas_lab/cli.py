"""`hmas-lab`: experiments whose figures the documentation quotes; each can be run again."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import click

from hmas.cli.lazy import LazyGroup
from hmas.cli.main import run_group

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "fidelity": ("hmas_lab.fidelity.cli:fidelity", "How far the simulator can be trusted: predicted against measured."),
        "parity": ("hmas_lab.parity.cli:parity", "Whether simulation and live gateway decide alike, entry by entry."),
        "policies": ("hmas_lab.policies.cli:policies", "Every queueing policy beside the best FCFS: on a real vLLM, and by slices."),
        "agents": ("hmas_lab.agents.cli:agents", "What the agents that read requests are worth: rules, trained models, the truth."),
        "live": ("hmas_lab.live.cli:live", "H-MAS on a real vLLM against the engine's default, plain baselines and fixed policies."),
        "paper": ("hmas_lab.paper.cli:paper", "H-MAS's evaluation in simulation: its scenarios, baselines and ablations."),
        "paper-preset": ("hmas_lab.paper.preset_cli:paper_preset", "The paper's own system beside ours, and the parts of the difference."),
        "teller": ("hmas_lab.agents.teller:teller", "Answers for perception and prediction; `hmas-lab agents` starts it."),
        "overload": ("hmas_lab.overload.cli:overload", "Goodput past saturation: H-MAS, the engine alone, and the best FCFS."),
        "statera": ("hmas_lab.statera.cli:statera", "Statera alone: coverage of its bounds, responses of its window, oscillation."),
        "frontdoor": ("hmas_lab.frontdoor.cli:frontdoor", "What clients really send, cell by cell: the product beside pass-through."),
        "abuse": ("hmas_lab.abuse.cli:abuse", "Whether hostile clients harm a steady one."),
        "tenants": ("hmas_lab.tenants.cli:tenants", "Whether a tenant that floods takes another's share."),
        "demo-vllm": ("hmas_lab.demo_vllm.cli:demo_vllm", "The demo's comparison on a real vLLM on this CPU."),
        "training-data": ("hmas_lab.training.cli:training_data", "What the shipped perception models learn from, from public data."),
        "cost-model": ("hmas_lab.training.cli:cost_model", "The cost model of prediction, trained on episodes of random engines."),
        "llm-pilot": ("hmas_lab.training.cli:llm_pilot", "A model of the times in request logs of known hardware."),
        "train-meta": ("hmas_lab.meta.cli:train_meta", "Meta's classifier and table: which policy serves which workload best."),
        "intents": ("hmas_lab.intents.cli:intents", "A hundred intentions of operators in words: what a language model makes of them."),
        "selectors": ("hmas_lab.selectors.cli:selectors", "Which policy a language model chooses for meta, and how often it is right."),
        "prefix": ("hmas_lab.prefix.cli:prefix", "Prefix caches of a fleet: the product's routers beside those of other gateways."),
        "prefix-live": ("hmas_lab.prefix_live.cli:prefix_live", "The same live: two real vLLM behind those routers."),
        "unequal": ("hmas_lab.unequal.cli:unequal", "Routers on two real vLLM, one of which is slow, through the front door."),
        "traces": ("hmas_lab.traces.cli:traces", "What the recorded traces are like: bursts, drift, lengths, slow changes, targets."),
        "heteroserve": ("hmas_lab.hetero.cli:heteroserve", "HeteroServe's evaluation: its dispatchers beside the product's routers."),
    }
)
"""Every experiment: where it is, and its line in `hmas-lab --help`."""


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="h-mas-lab", prog_name="hmas-lab")
def lab() -> None:
    """Run the experiments behind the documentation's figures."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    return run_group(lab, "hmas-lab", argv)
