"""`hmas models`: lists the agents' trained models, activates one, and rolls back."""

import contextlib
from pathlib import Path
from typing import Any

import click
import msgspec

from hmas.agents.model_store.card import read_card, verified
from hmas.agents.model_store.store import FOLLOWED, KINDS, SHIPPED, ModelStore
from hmas.cli.admin import admin_url_option, config_option, connect, read_config, read_for_client
from hmas.cli.output import clock_words, example, hint, json_option, say, say_json, table
from hmas.cli.output import show as show_result
from hmas.cli.status import model_line
from hmas.controller.config.derived import models_dir
from hmas.controller.config.loader import STATE_DIR
from hmas.controller.core.errors import AdminError, ConfigError, ModelError

SHOWN_METRICS = 3
kind_argument = click.argument("kind", type=click.Choice(KINDS))


@click.group()
def models() -> None:
    """List the agents' trained models, activate one, go back, or try one in the shadow.

    The models are stored in `models` under the state directory. Running agents load a change within seconds without a restart; only
    meta's classifier, which comes with h-mas-lab, is loaded when meta starts.
    """


@models.command("list", epilog=example("hmas models list perception"))
@click.argument("kind", type=click.Choice(KINDS), required=False)
@json_option
@admin_url_option
@config_option
def list_models(*, kind: str | None, as_json: bool, admin_url: str | None, config_file: str | None) -> None:
    """List every stored version, the active one, and the figures of running models on live traffic."""
    store = _store(config_file)
    kinds = [kind] if kind else list(KINDS)
    live = _live(admin_url, config_file)
    document = {name: _told(store, name, live) for name in kinds}
    if as_json:
        say_json(document)
        return
    rows = [_row(name, item) for name, told in document.items() for item in told["versions"]]
    say(table(["kind", "version", "state", "format", "made", "figures", "licence"], rows))
    reports = [report for told in document.values() for report in told["live"]]
    if reports:
        say("\nlive: " + "\n      ".join(model_line(report) for report in reports))
    elif live is None:
        hint("no gateway answers, so how they do on live traffic is not shown")


@models.command("show", epilog=example("hmas models show perception v3"))
@kind_argument
@click.argument("version")
@json_option
@config_option
def show(*, kind: str, version: str, as_json: bool, config_file: str | None) -> None:
    """Show one version's card: its origin, its figures, and whether its files are unchanged."""
    folder = _shipped_folder(kind) if version == SHIPPED else _store(config_file).folder(kind, version)
    broken = ""
    try:
        card = verified(folder)
    except ModelError as error:
        broken, card = str(error), read_card(folder)
    document = {**msgspec.to_builtins(card), "folder": str(folder), "broken": broken}
    if as_json:
        say_json(document)
        return
    say(f"{kind} {version}, {card.format or 'no format'}, in {folder}")
    say(f"files     {len(card.sha256)}, " + (f"BROKEN: {broken}" if broken else "all as they were stored"))
    for name, value in (("made", clock_words(card.created_s) if card.created_s else ""), ("by", card.command), ("licence", card.licence)):
        say(f"{name:9} {value or '-'}")
    for name, digest in card.data_sha256.items():
        say(f"data      {name}, sha256 {digest[:16]}...")
    for name, number in _flat(card.metrics):
        say(f"figure    {name} {number:.4g}" if isinstance(number, int | float) else f"figure    {name} {number}")


@models.command("add", epilog=example("hmas models add perception ./trained"))
@kind_argument
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
@config_option
def add(*, kind: str, folder: Path, as_json: bool, config_file: str | None) -> None:
    """Copy a model that was trained elsewhere into the store. This does not activate it."""
    version = _store(config_file).add(kind, folder, read_card(folder))
    _say_done({"kind": kind, "version": version}, f"{kind} {version} added; `hmas models use {kind} {version}` takes it", as_json=as_json)


@models.command("use", epilog=example("hmas models use perception v3"))
@kind_argument
@click.argument("version")
@json_option
@config_option
def use(*, kind: str, version: str, as_json: bool, config_file: str | None) -> None:
    """Activate VERSION, or `shipped` for the model that comes with H-MAS."""
    store = _store(config_file)
    before = store.choice(kind).current or SHIPPED
    store.use(kind, version)
    warn_of_settings(kind, config_file)
    switched = f"{before} -> {version}; `hmas models rollback {kind}` goes back"
    text = f"{kind}: {switched if version != before else f'{version} is in force already'}"
    _say_done({"kind": kind, "before": before, "version": version}, text, as_json=as_json)


@models.command("rollback", epilog=example("hmas models rollback perception"))
@kind_argument
@json_option
@config_option
def rollback(*, kind: str, as_json: bool, config_file: str | None) -> None:
    """Activate the previous version again."""
    store = _store(config_file)
    before = store.choice(kind).current or SHIPPED
    version = store.rollback(kind)
    warn_of_settings(kind, config_file)
    _say_done({"kind": kind, "before": before, "version": version}, f"{kind}: {before} -> {version}", as_json=as_json)


@models.command("shadow", epilog=example("hmas models shadow perception v4", "hmas models shadow perception --off"))
@click.argument("kind", type=click.Choice(FOLLOWED))
@click.argument("version", required=False)
@click.option("--off", is_flag=True, help="Try none any more.")
@json_option
@config_option
def shadow(*, kind: str, version: str | None, off: bool, as_json: bool, config_file: str | None) -> None:
    """Let VERSION read the same live traffic without effect; `hmas models list` shows how it compares."""
    if bool(version) is off:
        raise click.UsageError("name a version, or give --off")
    _store(config_file).set_shadow(kind, version or "")
    if version:
        warn_of_settings(kind, config_file)
    text = f"{kind} {version} reads along; `hmas models list {kind}` shows how it compares" if version else f"{kind}: nothing reads along"
    _say_done({"kind": kind, "shadow": version or ""}, text, as_json=as_json)


def _store(config_file: str | None) -> ModelStore:
    return ModelStore(models_dir(read_for_client(config_file, (STATE_DIR,), "HMAS_STATE_DIR")))


def _shipped_folder(kind: str) -> Path:
    if kind == "meta":
        raise ModelError("no meta model is shipped; allowed: a version that `hmas models list meta` names")
    # These imports take a while, and only this command needs them.
    from hmas.agents.perception.readers import SHIPPED_TAGGER  # noqa: PLC0415
    from hmas.agents.prediction.regressor import SHIPPED as SHIPPED_COSTS  # noqa: PLC0415

    return SHIPPED_TAGGER if kind == "perception" else SHIPPED_COSTS


def _live(admin_url: str | None, config_file: str | None) -> list[dict[str, Any]] | None:
    """The last reports of running agents; None if no gateway answers."""
    with contextlib.suppress(AdminError):
        found: list[dict[str, Any]] = connect(admin_url, config_file).status().get("models", [])
        return found
    return None


def _told(store: ModelStore, kind: str, live: list[dict[str, Any]] | None) -> dict[str, Any]:
    choice = store.choice(kind)
    versions = [{"version": SHIPPED, "state": "in force" if not choice.current else ""}]
    for card in store.list(kind):
        state = "in force" if card.version == choice.current else "in the shadow" if card.version == choice.shadow else ""
        versions.append({**msgspec.to_builtins(card), "state": state})
    return {
        "current": choice.current or SHIPPED,
        "shadow": choice.shadow,
        "before": [version or SHIPPED for version in choice.before],
        "versions": versions,
        "live": [report for report in live or [] if report["agent"] == kind],
    }


def _row(kind: str, item: dict[str, Any]) -> list[object]:
    figures = [f"{name} {value:.4g}" for name, value in _flat(item.get("metrics", {})) if isinstance(value, int | float)]
    state = "BROKEN" if "broken" in item.get("details", {}) else item["state"]
    made = clock_words(item["created_s"]) if item.get("created_s") else ""
    return [kind, item["version"], state, item.get("format", ""), made, ", ".join(figures[:SHOWN_METRICS]), item.get("licence", "")]


def _flat(metrics: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Figures of a card by their full names, such as `task.accuracy`."""
    found: list[tuple[str, Any]] = []
    for name, value in metrics.items():
        found += _flat(value, f"{before}{name}.") if isinstance(value, dict) else [(before + name, value)]
    return found


def warn_of_settings(kind: str, config_file: str | None) -> None:
    """Prints a note if the store's choice takes effect only later, or not at all with the present configuration."""
    try:
        agents = read_config(config_file).agents
    except ConfigError as error:
        hint(f"whether the choice counts is not known, because the configuration has a mistake: {error}")
        return
    if kind == "prediction" and agents.prediction_model:
        hint(_stands_above("prediction_model", agents.prediction_model, "empty it"))
    elif kind == "perception" and agents.perception_reader != "store":
        hint(_stands_above("perception_reader", agents.perception_reader, "set it to 'store'"))
    elif kind == "meta" and agents.meta_selector != "classifier":
        hint(_stands_above("meta_selector", agents.meta_selector, "set it to 'classifier'"))
    elif kind == "meta" and agents.meta_model:
        hint(_stands_above("meta_model", agents.meta_model, "empty it"))
    elif kind == "meta":
        hint("meta takes it at its next start: restart the agent meta")


def _stands_above(setting: str, value: str, remedy: str) -> str:
    return f"agents.{setting} is {value!r}, which stands above the store: {remedy} for the choice to count"


def _say_done(document: dict[str, Any], text: str, *, as_json: bool) -> None:
    show_result(document, lambda _: text, as_json=as_json)
