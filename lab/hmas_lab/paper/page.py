"""What the documentation page shows of the evaluation, and its plots beside it."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hmas.planning import StudyError
from hmas_lab import page as pages
from hmas_lab.paper import tables
from hmas_lab.paper.arms import ARMS
from hmas_lab.paper.plots import draw_shapes
from hmas_lab.paper.radar import SHAPED, SYSTEMS, radar_table
from hmas_lab.paper.scenarios import SCENARIOS
from hmas_lab.paper.settings import MODELS
from hmas_lab.result_files import read_result
from hmas_lab.tables import markdown

COMMAND = "hmas-lab paper"
KIND = "hmas"
"""Of the result, and the name of its file."""
PLOTS = {
    "hmas-ratios": "Goodput of H-MAS over the best fixed policy, the strong baseline and the engine default",
    "hmas-load": "Load scaling",
    "hmas-time": "The stress tests over time",
    "hmas-esg": "Parts of ESG",
}

SHAPES = "hmas-shapes"
"""Of the section with radars and courses of ESG, which a run of a few scenarios gives, too."""
SHAPE_PLOTS = {
    "hmas-radar": "Five figures of each system, over the greatest of all systems",
    "hmas-esg-time": "ESG a second over time",
}

FURTHER = (
    tables.slices_table,
    tables.ablation_table,
    tables.robustness_table,
    tables.decomposition_table,
    tables.low_table,
    tables.grounds_table,
)
"""Tables below the goals; those without a row are left out."""


def body(document: Mapping[str, Any]) -> str:
    """The evaluation for the page, without its plots."""
    about = "\n".join(f"- `{name}`: {words}" for name, words in document["arms"].items() if not name.startswith("fixed:"))
    settings, left_out = document["settings"], ", ".join(document["left_out"])
    models = "\n".join(f"- `{name}`: {model['words']}; simulated: {document['fleets'][name]}" for name, model in settings["models"].items())
    found = [tables.goals_table(document), tables.hindsight_table(document)]
    further = [make(document) for make in FURTHER]
    parts = [
        *_not_run(document),
        *map(markdown, found),
        *([f"Left out, because the public data was not there: {left_out}."] if left_out else []),
        f"Models, and the piece of the paper's eight A100 that was simulated:\n\n{models}",
        f"Arms (`fixed:POLICY` is the gateway's default admission with that policy and no agents):\n\n{about}",
        *(markdown(table) for table in (*further, *tables.place_tables(document)) if table.rows),
    ]
    return "\n\n".join(parts)


def _not_run(document: Mapping[str, Any]) -> list[str]:
    """What a part of the evaluation lacks, in words; nothing where it is whole."""
    settings = document["settings"]
    lacking = {
        "models": [name for name in MODELS if name not in settings["models"]],
        "scenarios": [name for name in SCENARIOS if name not in settings["scenarios"]],
        "arms": [name for name in ARMS if name not in settings["arms"]],
    }
    said = "; ".join(f"{what} {', '.join(names)}" for what, names in lacking.items() if names)
    return [f"**A part of the evaluation.** Not run for what stands here: {said}."] if said else []


def write_page(page: Path, results: Path) -> list[str]:
    """Puts the results that are there into the page, and their plots beside it; returns their kinds.

    Raises:
        StudyError: As `hmas_lab.page.write_page`.
    """

    def whole(document: Mapping[str, Any]) -> str:
        shown = []
        for name, words in PLOTS.items():
            plot = results / f"{name}.svg"
            if plot.exists():
                # By the page's own name: the results of some models have a page beside that of others.
                own = plot.name.replace(KIND, page.stem.removeprefix("results-"), 1)
                shutil.copyfile(plot, page.parent / own)
                shown.append(f"![{words}]({own})")
        return "\n\n".join([*shown, body(document)])

    return pages.write_page(page, results, {KIND: whole}, command=COMMAND)


def write_shapes(page: Path, results: Path) -> list[str]:
    """Puts radars, their figures and courses of ESG into their section of the page, and the plots beside it; returns the section's name.

    Raises:
        StudyError: The results or the page cannot be read, the page lacks the section's markers, or no scenario of the section was run.
    """
    document = read_result(results / f"{KIND}.json", command=COMMAND)
    drawn = draw_shapes(page.parent, document)
    if not drawn:
        raise StudyError(f"{results / KIND}.json holds none of the scenarios {', '.join(SHAPED)} with any of {', '.join(SYSTEMS)}")
    settings = document["settings"]
    model = document["summary"][0]["model"]
    about = f"{settings['models'][model]['words']}, of which {document['fleets'][model]} is simulated; {settings['seeds']} seeds"
    text = "\n\n".join([*(f"![{SHAPE_PLOTS[name]}]({name}.svg)" for name in drawn), f"{about}.", markdown(radar_table(document))])
    pages.write_section(page, SHAPES, text)
    return [SHAPES]
