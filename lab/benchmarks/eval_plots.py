"""The plots of `eval_agents.py`: whether confidence means what it says, whether quantiles do, and predicted beside actual."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

SIZE = (6.4, 3.2)
QUANTITIES = {
    "decode_ms_per_token": "decode, ms a token",
    "throughput_tokens_per_s": "throughput, tokens/s",
    "latency_ms_per_token": "latency, ms a token",
    "prefill_ms": "prefill, ms",
}
POINTS = 400
"""Points of the scatter: more only make the file larger."""


def draw_all(document: dict[str, Any], folder: Path) -> dict[str, str]:
    """Draws what the document holds; returns file names by plot."""
    mpl.rcParams.update({"svg.hashsalt": "hmas", "font.size": 8, "axes.spines.top": False, "axes.spines.right": False})
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for name, draw in (("reliability", reliability), ("coverage", coverage), ("prediction", scatter)):
        figure = draw(document)
        if figure is not None:
            made[name] = f"agents-{name}.svg"
            figure.savefig(folder / made[name], metadata={"Date": None}, bbox_inches="tight")
            plt.close(figure)
    return made


def reliability(document: dict[str, Any]) -> Any:
    """Accuracy over stated confidence, for the tagger and for the rules."""
    if "task" not in document:
        return None
    contenders = [name for name in ("shipped", "rules", "shipped, no text") if name in document["task"]["contenders"]]
    figure, axes = plt.subplots(1, len(contenders), figsize=(2.2 * len(contenders), 2.4), sharey=True)
    for axis, name in zip(axes, contenders, strict=True):
        found = document["task"]["contenders"][name]
        bins = found["reliability"]
        axis.plot([0, 1], [0, 1], color="0.7", linewidth=0.8)
        most = max(entry["n"] for entry in bins)
        axis.scatter(
            [entry["confidence"] for entry in bins],
            [entry["accuracy"] for entry in bins],
            s=[6 + 60 * entry["n"] / most for entry in bins],
        )
        axis.set_title(f"{name}: ECE {found['ece']:.3f}")
        axis.set_xlabel("confidence")
    axes[0].set_ylabel("right")
    return figure


def coverage(document: dict[str, Any]) -> Any:
    """Share of lengths at or below each stated quantile."""
    if "lengths" not in document:
        return None
    found = document["lengths"]
    figure, axes = plt.subplots(1, len(found["regimes"]), figsize=(2.2 * len(found["regimes"]), 2.4), sharey=True, squeeze=False)
    for axis, (regime, contenders) in zip(axes[0], found["regimes"].items(), strict=True):
        axis.plot([0, 1], [0, 1], color="0.7", linewidth=0.8)
        for name, entry in contenders.items():
            axis.plot(found["levels"], entry["overall"]["coverage"], marker=".", linewidth=0.9, label=name)
        axis.set_title(regime)
        axis.set_xlabel("stated level")
    axes[0][0].set_ylabel("lengths at or below")
    axes[0][-1].legend(fontsize=5, frameon=False)
    return figure


def scatter(document: dict[str, Any]) -> Any:
    """Predicted over actual, logarithmic, a sample of requests."""
    if "prediction" not in document:
        return None
    sample = document["prediction"]["sample"]
    figure, axes = plt.subplots(1, len(QUANTITIES), figsize=(8.4, 2.3))
    for axis, (name, words) in zip(axes, QUANTITIES.items(), strict=True):
        pairs = [pair for pair in sample[name] if all(value is not None and value > 0 for value in pair)][:POINTS]
        came, said = zip(*pairs, strict=True)
        axis.loglog(came, said, ".", markersize=2, alpha=0.5)
        ends = [min(came), max(came)]
        axis.plot(ends, ends, color="0.7", linewidth=0.8)
        axis.set_title(words)
        axis.set_xlabel("came")
    axes[0].set_ylabel("predicted")
    return figure
