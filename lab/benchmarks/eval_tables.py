"""What `eval_agents.py` found, as the section of docs/agents.md that is made from it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hmas_lab.tables import grid
from hmas_lab.training.answers import NOT_PERMISSIVE

PAPER_ACCURACY = 0.942
PAPER_TTFT_MAE_MS, PAPER_TPOT_MAE_MS = 18.5, 3.2
"""Of H-MAS Table 5, targets."""
GOAL_UNSEEN = 0.85
GOAL_ECE = 0.05
GOAL_COVERAGE = 0.02
LEVELS_SHOWN = (0.5, 0.9, 0.95)
Document = Mapping[str, Any]


def _body(document: Document, plots: Mapping[str, str]) -> str:
    """All that there is of the block `eval`, in Markdown."""
    parts = []
    for name, section in (("task", _task), ("sources", _sources), ("lengths", _lengths), ("prediction", _prediction)):
        if name in document:
            parts.append(section(document[name], plots))
    missing = [name for name in EVAL_PARTS if name not in document]
    if missing:
        parts.append(f"Not measured in this run: {', '.join(missing)}.")
    return "\n\n".join(parts)


def _targets(document: Document, _plots: Mapping[str, str]) -> str:
    found = document["targets"]
    keys = ("ttft_mae_ms", "tpot_mae_ms")
    rows = [
        (name, *(f"{one[key]:.1f}" for key in keys), *(f"{one[key]:.1%}" for key in ("exact", "stricter", "looser")))
        for name, one in found["who"].items()
    ]
    rows.append(("paper (Qwen3-1.7B, its own data)", f"{PAPER_TTFT_MAE_MS:g}", f"{PAPER_TPOT_MAE_MS:g}", "", "", ""))
    shapes = [
        (name, str(one["n"]), f"{one['accuracy']:.1%}", f"{one['unknown']:.1%}", *(f"{one[key]:.1f}" for key in keys))
        for name, one in found["shapes"].items()
    ]
    head = ("TTFT target, MAE ms", "TPOT target, MAE ms")
    return "\n\n".join(
        [
            (
                f"{found['rows']} prompts of the test part, sent as real bodies and read by the gateway's parser; targets at a scale of 1. "
                "`no reader` has the middle of the table for all requests. `stricter` and `looser`: share of requests with a TTFT target "
                "below and above the true one."
            ),
            grid(("who", *head, "both exact", "stricter", "looser"), rows),
            "The shipped reader by shape of request, on a part of these prompts:",
            grid(("shape", "n", "type right", "unknown", *head), shapes),
        ]
    )


def _task(found: Document, plots: Mapping[str, str]) -> str:
    contenders = found["contenders"]
    rows = [(name, f"{one['accuracy']:.1%}", f"{one['macro_f1']:.3f}", f"{one['ece']:.3f}") for name, one in contenders.items()]
    rows.append(("paper (Qwen3-1.7B, its own data)", f"{PAPER_ACCURACY:.1%}", "-", "-"))
    shipped = contenders["shipped"]
    others = [name for name in ("rules", "TF-IDF + logistic regression") if name in contenders]
    classes = [
        (
            name,
            str(one["n"]),
            *(f"{one[key]:.3f}" for key in ("precision", "recall", "f1")),
            *(f"{contenders[other]['classes'][name]['f1']:.3f}" for other in others),
        )
        for name, one in shipped["classes"].items()
        if one["n"]
    ]
    sources = [
        (name, str(one["n"]), f"{one['accuracy']:.1%}", *(f"{contenders[other]['sources'][name]['accuracy']:.1%}" for other in others))
        for name, one in shipped["sources"].items()
    ]
    return "\n\n".join(
        [
            "### Task types",
            (
                f"{found['rows']} prompts of the test part: a fifth of every source, with none whose twin was trained on. Rows whose "
                "licence does not allow training (all translations among them) teach nobody, and are judged all the same. The shipped "
                "model has learnt from generated prompts besides, TF-IDF from the collected ones alone."
            ),
            grid(("who", "accuracy", "macro-F1", "ECE"), rows),
            image(plots, "reliability", "Accuracy over stated confidence"),
            (
                f"Goals: {PAPER_ACCURACY:.1%} and an ECE of {GOAL_ECE} or less. `no text` is `gateway.share_prompts: false`: only "
                "sizes and flags leave the gateway; that is what privacy costs."
            ),
            grid(("class", "n", "precision", "recall", "F1", *(f"F1 of {name}" for name in others)), classes),
            grid(("source", "n", "accuracy", *others), sources),
        ]
    )


def _sources(found: Document, _plots: Mapping[str, str]) -> str:
    rows = [
        (
            name,
            str(one["shipped"]["n"]),
            *(f"{one['shipped'][key]:{form}}" for key, form in (("accuracy", ".1%"), ("macro_f1", ".3f"), ("ece", ".3f"))),
            f"{one['unlooked_half']['accuracy']:.1%}",
            f"{one['rules']['accuracy']:.1%}",
        )
        for name, one in found["sources"].items()
    ]
    inside = [
        (name, source, str(figures["n"]), f"{figures['accuracy']:.1%}", f"{one['rules']['sources'][source]['accuracy']:.1%}")
        for name, one in found["sources"].items()
        if len(one["shipped"]["sources"]) > 1
        for source, figures in one["shipped"]["sources"].items()
    ]
    parts = [
        "### Sources never trained on",
        (
            "The tagger trained again without a source, then judged on all of it: sources without templates, where nothing gives the "
            f"phrasing away. Goal: {GOAL_UNSEEN:.0%}. `all five` leaves all of them out at once, so that some task types have nothing but "
            "generated prompts to be learnt from. `half not looked at`: the rows whose mistakes nobody looked at when the grammars of the "
            "generated prompts were widened."
        ),
        grid(("left out", "n", "accuracy", "macro-F1", "ECE", "half not looked at", "rules"), rows),
    ]
    if inside:
        parts.append(grid(("left out", "source", "n", "accuracy", "rules"), inside))
    return "\n\n".join(parts)


def _lengths(found: Document, plots: Mapping[str, str]) -> str:
    parts = [
        "### Output lengths",
        (
            f"{found['rows']} answers of many models. `cold`: nothing is learnt. `new prompts`: answers teach as they come, and only "
            "prompts are judged of which no answer was seen, by any model. `as it comes`: every answer is foretold, then learnt. The "
            "shipped net was trained on all collections but alpaca_eval, whose licence forbids it: the row to judge it by. What "
            f"was trained before, of the baselines, began with {found.get('trained_rows', 0)} answers: the same collections."
        ),
    ]
    places = [found["levels"].index(level) for level in LEVELS_SHOWN]
    for regime, contenders in found["regimes"].items():
        rows = [
            (
                name,
                f"{one['overall']['kendall_tau']:.3f}",
                f"{one['overall']['mae_tokens']:.0f}",
                f"{one['overall']['median_ape']:.0%}",
                f"{one['overall']['mape']:.0%}",
                f"{one['overall']['worst_gap']:.1%}",
                *(f"{one['overall']['coverage'][place]:.1%}" for place in places),
            )
            for name, one in contenders.items()
        ]
        head = (
            regime,
            "Kendall tau",
            "MAE tokens",
            "median APE",
            "MAPE",
            "worst gap",
            *(f"at or below {level:.0%}" for level in LEVELS_SHOWN),
        )
        parts.append(grid(head, rows))
    ours = next(iter(next(iter(found["regimes"].values()))))
    groups = [
        (
            regime,
            name,
            str(one["rows"]),
            f"{one['kendall_tau']:.3f}",
            f"{one['mae_tokens']:.0f}",
            f"{one['mape']:.0%}",
            f"{one['worst_gap']:.1%}",
        )
        for regime, contenders in found["regimes"].items()
        for name, one in contenders[ours].get("by_collection", {}).items()
    ]
    unseen = [
        (regime, name, str(one["rows"]), f"{one['kendall_tau']:.3f}", f"{one['mae_tokens']:.0f}", f"{one['worst_gap']:.1%}")
        for regime, contenders in found["regimes"].items()
        for name, contender in contenders.items()
        for collection, one in contender.get("by_collection", {}).items()
        if collection in NOT_PERMISSIVE
    ]
    parts += [
        f"Goal: the share at or below each stated quantile within {GOAL_COVERAGE:.0%} of its level (worst gap).",
        (
            f"On {', '.join(NOT_PERMISSIVE)} alone, which nobody here was trained on; of the other collections what was trained before has "
            "seen the very rows."
        ),
        grid(("regime", "who", "answers", "Kendall tau", "MAE tokens", "worst gap"), unseen),
        "How long it takes on traffic that it begins with nothing of: answers learnt, over many random orders of arrival.",
        grid(
            ("answers learnt", "Kendall tau", "MAE tokens", "worst gap", *(f"at or below {level:.0%}" for level in LEVELS_SHOWN)),
            [
                (
                    name,
                    f"{one['kendall_tau']:.3f}",
                    f"{one['mae_tokens']:.0f}",
                    f"{one['worst_gap']:.1%}",
                    *(f"{one['coverage'][place]:.1%}" for place in places),
                )
                for name, one in found.get("settling", {}).items()
            ],
        ),
        image(plots, "coverage", "Share of lengths at or below each stated quantile"),
        grid(("ours", "collection", "answers", "Kendall tau", "MAE tokens", "MAPE", "worst gap"), groups),
    ]
    whose = found["predictability"]["everything"]
    if whose:
        best = whose["oracles"]
        known = "; ".join(f"{name}: tau {one['kendall_tau']:.3f}, MAPE {one['mape']:.0%}" for name, one in best.items())
        parts.append(
            f"What can be foretold at all: of the variance of log lengths the prompt explains {whose['prompt_share']:.0%}, the model "
            f"{whose['model_share']:.0%}, neither of them {whose['residual_share']:.0%}; for one prompt lengths spread over models by "
            f"{whose['spread_across_models']:.2f} (standard deviation of the log), for one model over prompts by "
            f"{whose['spread_across_prompts']:.2f}. Whoever knew, of all other answers, reaches: {known}. The paper's MAPE of "
            f"{found['paper_mape']:.1%} is on data that it does not describe; on these it lies beyond what knowing both would give."
        )
    return "\n\n".join(parts)


def _prediction(found: Document, plots: Mapping[str, str]) -> str:
    splits = found["splits"]
    parts = [
        "### Prediction on LLM-Pilot",
        (
            f"{splits['requests']} requests in {splits['cells']} cells (model, GPU, number of users). R² over single requests, and over "
            "the means of cells. `fed` leaves out starved cells, in which almost no request ended within the run. With telemetry a "
            "prediction knows what earlier requests of its cell had told, as the agent does live. **Bold**: the paper's figure is reached."
        ),
    ]
    goals = splits["goals"]
    for split, contenders in splits.items():
        if not isinstance(contenders, Mapping) or split == "goals" or split.startswith("foretellable"):
            continue
        rows = [
            (
                who,
                quantity,
                f"{goals[quantity]:.4f}",
                *(_against(figures[key], goals[quantity]) for key in ("r2", "r2_not_starved", "r2_cells", "r2_cells_not_starved")),
                *(_number(figures[key]) for key in ("r2_log", "r2_token_weighted")),
                f"{figures['median_error']:.1%}",
            )
            for who, by_quantity in contenders.items()
            for quantity, figures in by_quantity.items()
        ]
        head = ("who", "quantity", "paper", "requests", "fed", "cells", "cells fed", "of logs", "by tokens", "median error")
        parts.append(f"Held out: {split}\n\n{grid(head, rows)}")
    parts.append(_foretellable(splits, goals))
    parts.append(image(plots, "prediction", "Predicted beside actual, a sample"))
    return "\n\n".join(parts)


def _foretellable(splits: Document, goals: Mapping[str, float]) -> str:
    """What oracles explain of single requests: over all, over loads between others, by GPU and by length."""
    rows = []
    for name, over in (("foretellable", "all"), ("foretellable between", "loads between two others")):
        rows += [_oracles(over, quantity, goals, figures) for quantity, figures in splits.get(name, {}).items()]
    for key, words in (("by_gpu", "{}"), ("by_users", "{} users"), ("by_output_tokens", "{} output tokens")):
        quantity = "decode_ms_per_token"
        groups = splits["foretellable"][quantity][key]
        ordered = sorted(groups, key=lambda group: (int(group.split("-")[0].rstrip("+")) if group[0].isdigit() else 0, group))
        rows += [_oracles(words.format(group), quantity, goals, groups[group]) for group in ordered]
    return "\n\n".join(
        [
            "What can be foretold of single requests at all (fed): R² of oracles that look into the log they foretell",
            grid(("requests", "quantity", "paper", "cell", "request", "moment", "with a twin"), rows),
            (
                "`cell` knows the mean of the very cell; `request` the mean of requests with the very same tokens in the very cell, which "
                "no forecast from cell and request alone passes; `moment` their mean at that moment, as far as two of them sent one after "
                "the other tell it."
            ),
        ]
    )


def _oracles(over: str, quantity: str, goals: Mapping[str, float], figures: Document) -> tuple[str, ...]:
    known = (_against(figures[key], goals[quantity]) for key in ("cell", "request", "moment"))
    return (over, quantity, f"{goals[quantity]:.4f}", *known, "-" if figures["twins"] is None else f"{figures['twins']:.0%}")


def _against(value: float | None, goal: float) -> str:
    return f"**{value:.4f}**" if value is not None and value >= goal else _number(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


EVAL_PARTS = ("task", "sources", "lengths", "prediction")
BLOCKS: Mapping[str, tuple[tuple[str, ...], Callable[[Document, Mapping[str, str]], str]]] = MappingProxyType(
    {"eval": (EVAL_PARTS, _body), "targets": (("targets",), _targets)}
)
"""By the name of its markers on the page: the parts that a block needs, and what makes it."""


def image(plots: Mapping[str, str], name: str, words: str) -> str:
    return f"![{words}](img/{plots[name]})" if name in plots else ""
