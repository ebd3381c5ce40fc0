"""How good perception and prediction are: everything that docs/agents.md says of them in figures, in one run.

HMAS_DATA_DIR=... python lab/benchmarks/eval_agents.py                  # all parts; writes build/eval/agents.json and plots
HMAS_DATA_DIR=... python lab/benchmarks/eval_agents.py --parts task     # one part; the others stay as they lie in the file
HMAS_DATA_DIR=... python lab/benchmarks/eval_agents.py --page docs/agents.md   # runs nothing: writes the page between its markers

`task`: the shipped tagger, the rules and TF-IDF with logistic regression on the test part of the typed prompts: split by groups of twins,
in the same shares in every source. Without the text, too, as where prompts may not leave the gateway. `sources`: trained again without a
source, judged on it; needs torch (`make eval-agents` runs in build/train). `targets`: how far the TTFT and TPOT targets that follow from
task type and importance are from the true ones. `lengths`: quantiles on real outputs of many models, beside the
moving histogram by prompt length (AIBrix), the model's mean and TF-IDF. `prediction`: LLM-Pilot, by rows, by unseen load, by unseen GPU.
`pretrained` runs only where it is named: the models in `--model`, as `task` judges the shipped one.
"""

import argparse
import hashlib
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from eval_plots import draw_all
from eval_tables import BLOCKS
from hmas_lab.lengths.judge import judge
from hmas_lab.llm_pilot.evaluation import actual, cross_validate, evaluate_files, quantities
from hmas_lab.llm_pilot.files import load_profile_model
from hmas_lab.llm_pilot.rows import read_rows as read_requests
from hmas_lab.page import between
from hmas_lab.result_files import write_result
from hmas_lab.training.answers import answers_of, gather, read_multi_model
from hmas_lab.training.recipe import recipe_sha256
from hmas_lab.training.shapes import evaluate_shapes
from hmas_lab.training.targets import evaluate_targets
from hmas_lab.training.typed import PROMPTS_FILE, load, own_rows, typed_rows

from hmas.agents.model_store.card import file_sha256, read_card
from hmas.agents.model_store.store import ModelStore
from hmas.agents.perception.lm.reader import open_reader
from hmas.agents.perception.readers import ReaderSource
from hmas.agents.perception.reading import TASKS, Reader
from hmas.agents.perception.training.data import Row
from hmas.agents.perception.training.evaluation import evaluate_reader
from hmas.agents.perception.training.metrics import report, summary
from hmas.agents.perception.training.split import parts_of
from hmas.controller.config.schema import AgentsConfig

LENGTHS = ("prompts/multi_model_output_lengths.csv.gz", "prompts/multi_model_prompts.jsonl.gz")
PILOT = "profiles/llm_pilot_requests.csv.gz"
UNSEEN_SOURCES = ("IFEval", "Quehry/HelloBench", "lmarena/arena-hard-auto", "chaitanyamalaviya/ExpertQA", "sierra-research/tau-bench")
"""Sources without templates: each is left out of training once and judged whole."""
JOINT = "all five"
"""All of them left out at once: then some task types have nothing but generated prompts to be learnt from."""
Say = Callable[[str], None]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def reader_of(name: str) -> Reader:
    return ReaderSource(AgentsConfig(perception_reader=name), ModelStore(Path("no-models"))).open().reader


def test_rows(data: Path) -> tuple[list[Row], list[Row]]:
    """Rows for training and rows for testing, as the shipped tagger was trained."""
    parts = parts_of(typed_rows(data / PROMPTS_FILE))
    return parts.train, parts.test


def task(data: Path, _options: argparse.Namespace) -> dict[str, Any]:
    """Task types on the test part: who is right how often, by class, by source, and whether confidence means what it says."""
    train, test = test_rows(data)
    say(f"task: {len(test)} prompts of the test part")
    shipped = reader_of("shipped")
    licensed = [row for row in test if row.licence is not None]
    found: dict[str, Any] = {
        "rows": len(test),
        "sources": dict(Counter(row.source for row in test)),
        "contenders": {
            "shipped": evaluate_reader(shipped, test),
            "rules": evaluate_reader(reader_of("rules"), test),
            "shipped, no text": evaluate_reader(shipped, test, features_only=True),
            "rules, no text": evaluate_reader(reader_of("rules"), test, features_only=True),
        },
        "trained_sources_only": evaluate_reader(shipped, licensed),
        "shapes": evaluate_shapes(shipped, test),
    }
    baseline = tfidf(train, test)
    if baseline is not None:
        found["contenders"]["TF-IDF + logistic regression"] = baseline
    for name, one in found["contenders"].items():
        say(f"task, {name}: accuracy {one['accuracy']:.4f}, macro-F1 {one['macro_f1']:.4f}, ECE {one['ece']:.4f}")
    return found


def targets(data: Path, _options: argparse.Namespace) -> dict[str, Any]:
    """Targets on the test part: their errors against those of the true task types, by reader, and by shape of request."""
    _, test = test_rows(data)
    shipped, rules = reader_of("shipped"), reader_of("rules")
    found = {
        "shipped": evaluate_targets(shipped, test),
        "rules": evaluate_targets(rules, test),
        "shipped, no text": evaluate_targets(shipped, test, features_only=True),
        "no reader": evaluate_targets(None, test),
    }
    for name, one in found.items():
        say(f"targets, {name}: MAE {one.ttft_mae_ms:.1f} ms of TTFT, {one.tpot_mae_ms:.2f} ms of TPOT, {one.exact:.1%} exact")
    return {"rows": len(test), "who": msgspec.to_builtins(found), "shapes": evaluate_shapes(shipped, test)}


def tfidf(train: list[Row], test: list[Row]) -> dict[str, Any] | None:
    """The plain baseline on the rows that the shipped tagger learns from; None without scikit-learn."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415 - not in every environment
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - likewise
    except ImportError:
        say("task: no scikit-learn here, so no TF-IDF baseline; `make eval-agents` runs where it is")
        return None
    vectors = TfidfVectorizer(ngram_range=(1, 2), min_df=3, max_features=100_000, sublinear_tf=True)
    model = LogisticRegression(C=8.0, max_iter=300)
    model.fit(vectors.fit_transform([row.view().excerpt for row in train]), [row.label for row in train])
    guessed = np.zeros((len(test), len(TASKS)))
    guessed[:, model.classes_] = model.predict_proba(vectors.transform([row.view().excerpt for row in test]))
    return report(guessed, np.array([row.label for row in test]), [row.source for row in test])


def looked_at(row: Row) -> bool:
    """Whether the row is in the half whose mistakes may be looked at when the grammars are widened; the other half is only counted."""
    return hashlib.sha256(row.prompt.encode("utf-8", "surrogatepass")).digest()[0] % 2 == 0


def sources(data: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The tagger trained again without a source, judged on all of that source. Finished ones are kept under build/eval/sources."""
    try:
        from hmas.agents.perception.training.feeding import Settings  # noqa: PLC0415 - torch is not in every environment
        from hmas.agents.perception.training.trainer import evaluate_fitted, fit_parts  # noqa: PLC0415 - likewise
    except ImportError as error:
        raise SystemExit(f"sources: training needs {error.name}; `make eval-agents` runs in build/train, which has it") from error
    settings = Settings(**({"epochs": options.epochs} if options.epochs else {}))
    recipe = {"settings": msgspec.to_builtins(settings), "sha256": recipe_sha256(), "data": file_sha256(data / PROMPTS_FILE)}
    found: dict[str, Any] = {"settings": recipe["settings"], "sources": {}}
    folder = options.out.parent / "sources"
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    rules = reader_of("rules")
    for source in (*UNSEEN_SOURCES, JOINT) if not options.sources else options.sources.split(","):
        left_out = UNSEEN_SOURCES if source == JOINT else (source,)
        # A finished training stands only for this very recipe: settings, grammar and generator, data.
        stamp = hashlib.sha256(json.dumps([source, recipe], sort_keys=True).encode()).hexdigest()[:12]
        kept = folder / f"{stamp}.json"
        if not kept.exists():
            rows = rows or load(data)
            judged = [row for row in rows if any(name in row.source for name in left_out)]
            say(f"sources: training without {source} ({len(judged)} prompts)")
            began = time.monotonic()
            fitted = fit_parts(parts_of(rows, without=left_out), own_rows(rows, without=left_out), settings, say)
            one = {
                "source": source,
                "shipped": evaluate_fitted(fitted, judged),
                "unlooked_half": evaluate_fitted(fitted, [row for row in judged if not looked_at(row)]),
                "rules": evaluate_reader(rules, judged),
                "training_s": round(time.monotonic() - began),
            }
            kept.write_text(json.dumps(one))
        one = json.loads(kept.read_text())
        found["sources"][source] = one
        say(
            f"sources, {source}: accuracy {one['shipped']['accuracy']:.4f} (rules {one['rules']['accuracy']:.4f}); "
            f"on the half that was never looked at {one['unlooked_half']['accuracy']:.4f}"
        )
    return found


def pretrained(data: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Models that `hmas train perception --base` wrote, as `task` judges the shipped one; the card has what it says of left-out sources."""
    _, test = test_rows(data)
    found: dict[str, Any] = {}
    for folder in options.model:
        reader = open_reader(folder, batch=256)
        bare = evaluate_reader(reader, test)
        found[folder.name] = {
            "bare": summary(bare),
            "shapes": evaluate_shapes(reader, test),
            "left_out": read_card(folder).metrics.get("left_out"),
        }
        say(f"pretrained, {folder.name}: accuracy {bare['accuracy']:.4f}, ECE {bare['ece']:.4f}")
    return found


def lengths(data: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Output lengths as quantiles on real outputs of many models, beside plain baselines."""
    found, prompts, typed = (data / name for name in (*LENGTHS, PROMPTS_FILE))
    rows = read_multi_model(found, prompts)
    trained, _ = answers_of(found, prompts, typed)
    document = judge(rows, most=options.rows or None, trained=trained, shapes=False, say=say)
    unseen = judge(rows, most=options.rows or None, regimes=(), held_out=gather(found, prompts, typed), say=say)
    return document | {name: unseen[name] for name in ("by_shape", "beside_bare")}


def prediction(data: Path, _options: argparse.Namespace) -> dict[str, Any]:
    """R² on LLM-Pilot by rows, by unseen load, by unseen GPU, beside plain baselines, and what the shipped model says of the whole file.

    The whole file is what that model was fitted to: the figure is for comparing with `hmas-lab llm-pilot --data` on unseen files.
    """
    path = data / PILOT
    rows = read_requests([path])
    splits = cross_validate(rows, on_progress=say)
    model, card = load_profile_model()
    return {
        "splits": splits,
        "shipped_on_its_own_data": evaluate_files([path], model),
        "trained_on": msgspec.to_builtins(card.data_sha256),
        "sample": _sample(rows, model),
    }


def _sample(rows: Any, model: Any, most: int = 1500) -> dict[str, Any]:
    """Some requests with what was predicted and what came, for the plot."""
    place = np.sort(np.random.default_rng(1).choice(len(rows), min(most, len(rows)), replace=False))
    part = rows.take(place)
    said, came = quantities(model.predict(part, live=False)), actual(part)
    return {name: [[round(float(a), 3), round(float(b), 3)] for a, b in zip(came[name], said[name], strict=True)] for name in said}


PARTS: Mapping[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = MappingProxyType(
    {"task": task, "targets": targets, "lengths": lengths, "prediction": prediction, "sources": sources, "pretrained": pretrained}
)


def plain(value: Any) -> Any:
    """For JSON: floats cut, what is no number to null."""
    if isinstance(value, float | np.floating):
        return round(float(value), 5) if np.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/eval/agents.json"))
    usual = ",".join(name for name in PARTS if name != "pretrained")
    parser.add_argument("--parts", default=usual, help=f"with commas between, of {', '.join(PARTS)}")
    parser.add_argument("--model", type=Path, action="append", default=[], help="pretrained: a folder of such a model; repeatable")
    parser.add_argument("--rows", type=int, default=0, help="lengths: so many answers drawn at random; 0 for all")
    parser.add_argument("--sources", default="", help="sources: only these, with commas between")
    parser.add_argument("--epochs", type=int, default=0, help="sources: passes of each training; 0 for the shipped model's")
    parser.add_argument("--page", type=Path, help="write what lies in --out into this page, between its markers, and its plots beside it")
    options = parser.parse_args()
    if options.page is not None:
        document = json.loads(options.out.read_text())
        text = options.page.read_text(encoding="utf-8")
        plots = draw_all(document, options.page.parent / "img")
        # A block of which no part was measured stays as it is on the page.
        blocks = {kind: body for kind, (parts, body) in BLOCKS.items() if any(part in document for part in parts)}
        for kind, body in blocks.items():
            text = between(text, kind, body(document, plots), options.page)
        options.page.write_text(text, encoding="utf-8")
        say(f"{options.page}: {', '.join(blocks)} written from {options.out}; plots: {', '.join(plots.values())}")
        return
    named = os.environ.get("HMAS_DATA_DIR")
    if not named:
        raise SystemExit("set HMAS_DATA_DIR to the folder of the public data (prompts/, profiles/): this project does not carry it")
    wanted = options.parts.split(",")
    unknown = sorted(set(wanted) - set(PARTS))
    if unknown:
        raise SystemExit(f"--parts: {', '.join(unknown)}; allowed: {', '.join(PARTS)}")
    document: dict[str, Any] = {}
    for part in wanted:
        began = time.monotonic()
        found = PARTS[part](Path(named), options)
        # Read only now: a run of another part may have written meanwhile.
        document = json.loads(options.out.read_text()) if options.out.exists() else {}
        document |= {
            "version": 1,
            "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
            part: {**found, "took_s": round(time.monotonic() - began, 1)},
        }
        write_result(options.out, plain(document))
        say(f"{part}: done in {document[part]['took_s']:.0f} s")
    draw_all(document, options.out.parent)
    say(f"written to {options.out}")


if __name__ == "__main__":
    main()
