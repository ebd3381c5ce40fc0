"""The paper's figures from our runs: load scaling (Fig. 5), courses (Fig. 7a, 8, 10a), radars (Fig. 7b, 10b), parts of ESG (Fig. 9)."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hmas.planning.charts import save
from hmas_lab.paper.arms import BASELINES, DEFAULT, PRODUCT, STRONG
from hmas_lab.paper.figures import has, of_product, value
from hmas_lab.paper.over_time import WINDOW_S
from hmas_lab.paper.radar import RADAR, SYSTEMS, radar_shares, shaped
from hmas_lab.paper.tables import MEANINGFUL

Document = Mapping[str, Any]
COLOURS: Mapping[str, str] = MappingProxyType(dict(zip((*BASELINES, PRODUCT), ("0.4", "C1", "C2", "C4", "C3", "C5", "C0"), strict=True)))
SCALING = {"goodput_rps": "goodput, requests/s", "esg_rate": "ESG/s", "ttft_compliance": "TTFT in time", "tpot_compliance": "TPOT in time"}
LOADS = ("low", "load-30", "load-40", "load-50")
COURSE = {"good": "good requests/s", "esg": "ESG/s", "ttft_s": "TTFT of those started, s"}
ESG_COURSE = {"esg": "ESG/s"}
PARTS = {"ttft": "with TTFT kept", "tpot": "with TPOT kept", "throughput": "all gained"}


def draw_all(folder: Path, document: Document) -> list[str]:
    """Writes every plot that there is something to show in; returns their names without `.svg`."""
    model = document["summary"][0]["model"] if document["summary"] else ""
    places = {place["scenario"]: place for place in document["summary"] if place["model"] == model}
    drawn = []
    loads = [places[name] for name in LOADS if name in places]
    if len(loads) > 1:
        _scaling(folder / "hmas-load.svg", loads)
        drawn.append("hmas-load")
    courses = {name: places[name] for name in ("phases", "semantic") if name in places and places[name]["series"]}
    if courses:
        _courses(folder / "hmas-time.svg", courses, COURSE)
        drawn.append("hmas-time")
    if "phases" in places:
        _parts(folder / "hmas-esg.svg", places["phases"])
        drawn.append("hmas-esg")
    if document["summary"]:
        _ratios(folder / "hmas-ratios.svg", document)
        drawn.append("hmas-ratios")
    return drawn


def draw_shapes(folder: Path, document: Document) -> list[str]:
    """Writes the radars and the courses of ESG of the places of `SHAPED`; returns the names without `.svg`."""
    places = shaped(document)
    drawn = []
    if places:
        _radars(folder / "hmas-radar.svg", places)
        drawn.append("hmas-radar")
    courses = {name: place for name, place in places.items() if place["series"]}
    if courses:
        _courses(folder / "hmas-esg-time.svg", courses, ESG_COURSE)
        drawn.append("hmas-esg-time")
    return drawn


def _radars(path: Path, places: Mapping[str, Mapping[str, Any]]) -> None:
    angles = np.linspace(0.0, 2.0 * np.pi, len(RADAR), endpoint=False)
    round_trip = np.append(angles, angles[0])

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(places), subplot_kw={"projection": "polar"}, squeeze=False)[0]
        for axes, (scenario, place) in zip(panels, places.items(), strict=True):
            for arm, shares in radar_shares(place).items():
                axes.plot(round_trip, [*shares, shares[0]], linewidth=1.3, color=COLOURS[arm], label=arm)
            axes.set_theta_offset(np.pi / 2.0)
            axes.set_xticks(angles, list(RADAR.values()), fontsize=7)
            axes.tick_params(axis="x", pad=9.0)
            axes.set_ylim(0.0, 1.0)
            axes.set_yticks((0.25, 0.5, 0.75, 1.0), labels=())
            axes.set_title(scenario, fontsize=9)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(SYSTEMS), fontsize=8, frameon=False)

    save(path, draw, width=2.9 * len(places), height=3.4)


def _scaling(path: Path, places: list[Mapping[str, Any]]) -> None:
    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(SCALING))
        for axes, (name, words) in zip(panels, SCALING.items(), strict=True):
            for arm, colour in COLOURS.items():
                points = [(place["load"], value(place, arm, name)) for place in places if has(place, arm)]
                axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=3.0, color=colour, label=arm)
            axes.set_xlabel("load over capacity")
            axes.set_title(words, fontsize=9)
            axes.set_ylim(bottom=0.0)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)

    save(path, draw, width=11.0, height=3.6)


def _courses(path: Path, places: Mapping[str, Mapping[str, Any]], shown: Mapping[str, str]) -> None:
    """One column per place and one row per figure, every arm a line."""

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(shown), len(places), sharex="col", squeeze=False)
        for column, (scenario, place) in enumerate(places.items()):
            for row, (name, words) in enumerate(shown.items()):
                axes: Axes = grid[row][column]
                for arm, series in place["series"].items():
                    times = [WINDOW_S * (number + 0.5) for number in range(len(series[name]))]
                    axes.plot(times, series[name], linewidth=1.2, color=COLOURS.get(arm, "0.4"), label=arm)
                if name == "good":
                    arrived = next(iter(place["series"].values()))["arrived"]
                    times = [WINDOW_S * (number + 0.5) for number in range(len(arrived))]
                    axes.plot(times, arrived, linewidth=0.8, color="0.7", label="arrivals")
                if row == 0:
                    axes.set_title(scenario, fontsize=9)
                axes.set_ylabel(words if column == 0 else "")
                axes.set_ylim(bottom=0.0)
            grid[-1][column].set_xlabel("virtual time, s")
        figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8, frameon=False)

    save(path, draw, width=max(10.0, 3.0 * len(places)), height=0.9 + 1.7 * len(shown))


def _parts(path: Path, place: Mapping[str, Any]) -> None:
    arms = [arm for arm in (*BASELINES, PRODUCT) if has(place, arm)]

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (when, words) in zip(panels, (("peak", "most congested tenth"), ("run", "whole run")), strict=True):
            for number, (part, label) in enumerate(PARTS.items()):
                places = [index + 0.27 * (number - 1) for index in range(len(arms))]
                axes.barh(places, [value(place, arm, f"{when}_{part}") for arm in arms], height=0.25, label=label)
            axes.set_yticks(range(len(arms)), arms)
            axes.set_title(f"{place['scenario']}: {words}", fontsize=9)
            axes.set_xlabel("ESG/s")
        panels[0].invert_yaxis()
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)

    save(path, draw, width=10.0, height=1.2 + 0.45 * len(arms))


def _ratios(path: Path, document: Document) -> None:
    places = [place for place in document["summary"] if has(place, PRODUCT)]
    labels = [f"{place['model']}, {place['scenario']}" for place in places]

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 3, sharey=True)
        for axes, words in zip(panels, ("best fixed policy in hindsight", STRONG, DEFAULT), strict=True):
            for number, place in enumerate(places):
                base = words if words in {STRONG, DEFAULT} else place["best_fixed"]
                found = of_product(place, base, "goodput_rps") if base else None
                if found is not None and (found["base_is_zero"] or found["mean"] > MEANINGFUL):
                    axes.plot([MEANINGFUL], [number], ">", color="C0", markersize=4.0)
                elif found is not None:
                    half = found["half"] or 0.0
                    axes.plot([found["mean"] - half, found["mean"] + half], [number, number], color="C0", linewidth=1.4)
                    axes.plot([found["mean"]], [number], "o", color="C0", markersize=4.0)
            axes.axvline(1.0, color="0.4", linewidth=0.8)
            axes.set_title(f"over {words}", fontsize=9)
            axes.set_xlabel("goodput of H-MAS over it")
        panels[-1].set_xscale("log")
        panels[0].set_yticks(range(len(labels)), labels)
        panels[0].invert_yaxis()

    save(path, draw, width=10.0, height=1.0 + 0.24 * len(labels))
