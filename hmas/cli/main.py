"""The command `hmas`: the location of its subcommands, and the conversion of errors to messages and exit codes."""

import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import click

from hmas.cli.lazy import LazyGroup
from hmas.cli.output import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE, complain
from hmas.controller.core.errors import AdminUnreachable, ConfigError, HmasError, TraceError
from hmas.engines.errors import ProfileError

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "up": ("hmas.cli.up:up", "Start everything on this machine and keep it running."),
        "run": ("hmas.cli.run:run", "Run a single process: gateway, agent or embedded engine."),
        "status": ("hmas.cli.status:status", "Active settings, load, and the health of engines and agents."),
        "policy": ("hmas.cli.policy:policy", "List, show, force and release the queueing policy; check your own."),
        "router": ("hmas.cli.router:router", "List, show, force and release the routers of models; check your own."),
        "knobs": ("hmas.cli.knobs:knobs", "Show, set and release concurrency and token budget."),
        "override": ("hmas.cli.override:override", "Validate, apply, list and clear override files."),
        "intent": ("hmas.cli.intent:intent", "Say in words what tenants shall get; a language model makes an override of it."),
        "engines": ("hmas.cli.engines:engines", "List engines, drain and undrain them."),
        "models": ("hmas.cli.models:models", "List the agents' trained models, activate one, roll back, try one in the shadow."),
        "explain": ("hmas.cli.explain:explain", "The outcome of one request, and the reasons."),
        "views": ("hmas.cli.views:views", "What the agents see: the figures of the last seconds and of the last minute."),
        "decisions": ("hmas.cli.decisions:decisions", "Meta's decisions with reasons, expected results and outcomes."),
        "events": ("hmas.cli.events:events", "Every change with its reason, and the values before and after."),
        "mqtt": ("hmas.cli.mqtt:mqtt", "Check the connection to the MQTT broker."),
        "config": ("hmas.cli.configuration:config", "Check a configuration, print an example or the reference."),
        "key": ("hmas.cli.configuration:key", "Make API keys and tokens."),
        "doctor": ("hmas.cli.doctor:doctor", "Check this installation and say what to fix."),
        "simulate": ("hmas.cli.simulate:simulate", "Run a workload on a fleet in virtual time."),
        "sweep": ("hmas.cli.sweep:sweep", "Run every combination of settings in virtual time."),
        "plan": ("hmas.cli.plan:plan", "Capacity: the load that meets the targets, the instances needed, the gain of one more."),
        "profile": ("hmas.cli.profile:profile", "Measure a live engine and write its performance profile."),
        "tune": ("hmas.cli.lazy:tune", "Fit control loops to the engine they run on."),
        "train": ("hmas.cli.train:train", "Train the agents' models on your own data."),
        "eval": ("hmas.cli.evaluate:evaluate", "How good the agents' models are on unseen data."),
        "replay": ("hmas.cli.replay:replay", "Replay a trace against any OpenAI-compatible address."),
        "demo": ("hmas.demo.cli:demo", "The main job on this machine: three baselines and H-MAS on the same arrivals."),
    }
)
"""Every subcommand: its location, and its line in `hmas --help`."""


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="h-mas", prog_name="hmas")
def cli() -> None:
    """H-MAS: a control plane in front of LLM engines.

    \b
    Start with:
      hmas up --engine sim --no-auth                         # try it, no GPU needed
      hmas up --engine vllm=http://127.0.0.1:8000 --no-auth  # before your own vLLM
      hmas status

    The operators' commands find a running gateway by --admin URL, else HMAS_ADMIN_URL, else the configuration
    (--config, else HMAS_CONFIG). They send HMAS_ADMIN_TOKEN, else the token in the state folder of a gateway on this machine.

    \b
    Exit codes: 0 done, 1 refused or failed, 2 the command line, the configuration or an input file cannot be used,
    3 not reachable.
    Results go to stdout, everything else to stderr. --json prints results for programs.
    """  # noqa: D301 - click reads \b as "do not rewrap"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    return run_group(cli, "hmas", argv)


def run_group(group: click.Group, program: str, argv: Sequence[str] | None = None) -> int:
    """Runs a program's group of commands, by default with this process's arguments; an error becomes a line on stderr and an exit code."""
    try:
        result = group.main(args=list(argv) if argv is not None else None, prog_name=program, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE if isinstance(error, click.UsageError) else EXIT_FAILED
    except (click.Abort, KeyboardInterrupt):
        return 130
    except AdminUnreachable as error:
        complain(str(error))
        return EXIT_UNREACHABLE
    except (ConfigError, TraceError, ProfileError) as error:
        complain(str(error))
        return EXIT_USAGE
    except HmasError as error:
        complain(str(error))
        return EXIT_FAILED
    except UnicodeEncodeError as error:
        # A byte of the command line that is not UTF-8 is a surrogate in Python's text, which nothing can send.
        if error.reason != "surrogates not allowed":
            raise
        complain("the command line has a byte that is not UTF-8; allowed: text in UTF-8")
        return EXIT_USAGE
    except BrokenPipeError:
        # The reader of stdout has ended (`hmas events | head`); Python's flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    # click returns the code of ctx.exit(), or the command's result.
    return result if isinstance(result, int) else 0
