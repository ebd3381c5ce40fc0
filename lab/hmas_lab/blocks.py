"""Comparisons on a real vLLM in blocks: in each the same arrivals go through every run, in an order that is drawn for it."""

import os
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from hmas.demo.calibration import Variant
from hmas.demo.outcome import run_document
from hmas.demo.progress import Reporter
from hmas.demo.settings import Span
from hmas.demo.site import Site
from hmas.loadgen.score import Score
from hmas.loadgen.streams import stream
from hmas.loadgen.workload import Arrival
from hmas_lab.controls import controls_of
from hmas_lab.demo_vllm.runs import FieldRuns
from hmas_lab.vllm_engine import VllmServer, running_vllm

STARTING = "starting vLLM"
Ground = TypeVar("Ground")


class Blocks(Protocol[Ground]):
    """A comparison: what all its blocks stand on, and one block after another."""

    async def ground(self) -> Ground:
        """Measures what has to be known before the first block.

        Raises:
            DemoBroken: The engine does not serve.
        """
        ...

    async def block(self, number: int, ground: Ground) -> dict[str, Any]:
        """One block, from 0, ready for JSON.

        Raises:
            DemoBroken: A process did not come up.
        """
        ...

    def document(self, ground: Ground, blocks: list[dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
        """Everything so far; `about` is what the caller knows of machine and engine."""
        ...


def drawn_order(names: Sequence[str], *, seed: int, number: int) -> list[str]:
    """The names in the order of block `number`; the same seed gives the same order."""
    return [names[place] for place in stream(seed, "order", number).permutation(len(names))]


async def run_each(
    runs: FieldRuns,
    variants: Mapping[str, Variant],
    arrivals: Sequence[Arrival],
    span: Span,
    *,
    agents: Collection[str],
    tell: Callable[[str, Score], None],
) -> dict[str, Any]:
    """Makes the runs of a block, in the mapping's order; each is repeated while the machine's noise has spoilt it.

    Args:
        runs: Makes them.
        variants: By name of the run.
        arrivals: The same for all.
        span: What of a run is scored.
        agents: Names of the runs in which H-MAS's agents take part.
        tell: Given name and score of every run that counts.

    Returns:
        `runs` by name as `run_document` writes them, with what statera had in force as `controls`, and `rejected`, how many by name were
        spoilt. A run that is still spoilt after its last repetition is in no figure.

    Raises:
        DemoBroken: A process did not come up.
    """
    kept: dict[str, Any] = {}
    rejected: dict[str, int] = {}
    for name, variant in variants.items():
        made = await runs.tries(variant, arrivals, span, agents=name in agents)
        spoilt = sum(run.noisy for run in made)
        if spoilt:
            rejected[name] = spoilt
        if not made[-1].noisy:
            start_s = made[-1].summary.started_s
            controls = controls_of(made[-1].actions, from_s=start_s + span.warmup_s, to_s=start_s + span.duration_s)
            kept[name] = {**run_document(made[-1]), "controls": msgspec.to_builtins(controls)}
            tell(name, made[-1].score)
    return {"runs": kept, "rejected": rejected}


async def all_on_vllm(
    study: Blocks[Ground],
    server: VllmServer,
    site: Site,
    reporter: Reporter,
    *,
    model: str,
    blocks: int,
    about: Mapping[str, Any],
    on_ground: Callable[[Ground], None],
    on_block: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Starts vLLM, makes all blocks and ends it.

    Args:
        study: The comparison.
        server: How vLLM is started.
        site: Where the gateways of the runs look for engines.
        reporter: Told where it stands.
        model: The name under which it serves.
        blocks: How many.
        about: Of the requests, for the document.
        on_ground: Given what was measured, before the first block.
        on_block: Given the document after every block, so that a long comparison which is broken off leaves what it has.

    Raises:
        DemoBroken: Something did not come up.
    """

    def known() -> dict[str, Any]:
        return {
            "elapsed_s": round(reporter.elapsed_s, 1),
            "machine": machine(),
            "engine": {"kind": "vllm", "command": server.command(0, model)[1:]},
            **about,
        }

    reporter.phase(STARTING)
    async with running_vllm(server, site.folder, model) as url:
        site.engines["vllm-1"] = url
        return await all_blocks(study, blocks, known, on_ground=on_ground, on_block=on_block)


async def all_blocks(
    study: Blocks[Ground],
    blocks: int,
    about: Callable[[], dict[str, Any]],
    *,
    on_ground: Callable[[Ground], None],
    on_block: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Makes all blocks of a comparison whose engines run.

    Args:
        study: The comparison.
        blocks: How many.
        about: What the caller knows of machine and engine, asked for each document.
        on_ground: Given what was measured, before the first block.
        on_block: Given the document after every block.

    Returns:
        The last document.

    Raises:
        DemoBroken: Something did not come up.
    """
    ground = await study.ground()
    on_ground(ground)
    made: list[dict[str, Any]] = []
    for number in range(blocks):
        made.append(await study.block(number, ground))
        on_block(study.document(ground, made, about()))
    return study.document(ground, made, about())


def machine() -> dict[str, Any]:
    """What a document says of the machine."""
    return {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}


def broken(blocks: Sequence[Mapping[str, Any]]) -> list[str]:
    """All that must not be, in words, by block and run."""
    return [f"block {block['number']}, {name}: {text}" for block in blocks for name, run in block["runs"].items() for text in run["broken"]]
