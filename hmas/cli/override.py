"""`hmas override`: override files of operators."""

import json
import sys
from http import HTTPStatus
from pathlib import Path
from typing import Any

import click

from hmas.cli.admin import complain_of_winners, not_taken_over, takes_client, winners_over
from hmas.cli.output import EXIT_FAILED, clock_words, complain, example, json_option, say, say_json, show, table
from hmas.cli.router import router_words
from hmas.controller.admin.client import AdminClient
from hmas.controller.config.override_format import MAX_BYTES, document_of, override_schema, parse_override
from hmas.controller.control.overrides import Override
from hmas.controller.core.errors import AdminError, AdminUnreachable, OverrideError
from hmas.controller.runtime.clock import SystemClock

file_argument = click.argument("file", metavar="FILE")
id_option = click.option("--id", "override_id", help="Its id; the file's name without .json by default.")


@click.group()
def override() -> None:
    """Validate, apply, list and clear override files."""


@override.command("validate", epilog=example("hmas override validate night.json"))
@file_argument
@id_option
@click.option("--here", is_flag=True, help="Check the file alone, without asking the gateway whether it knows the names in it.")
@json_option
@click.pass_context
@takes_client
def validate(client: AdminClient, ctx: click.Context, *, file: str, override_id: str | None, here: bool, as_json: bool) -> None:
    """Check FILE ('-' for standard input) and change nothing. Exit code 1 if it would be refused."""
    try:
        checked = _read(file, override_id)
        if not here:
            _ask(client, checked)
    except OverrideError as error:
        if not as_json:
            raise
        say_json({"valid": False, "error": str(error)})
        ctx.exit(EXIT_FAILED)
    if as_json:
        say_json({"valid": True, "id": checked.id, "settings": checked.settings()})
    else:
        say(f"{checked.id}: ok, holds " + ", ".join(checked.settings()))


@override.command("apply", epilog=example("hmas override apply night.json"))
@file_argument
@id_option
@json_option
@click.pass_context
@takes_client
def apply(client: AdminClient, ctx: click.Context, *, file: str, override_id: str | None, as_json: bool) -> None:
    """Activate FILE ('-' for standard input), as a whole or not at all. An override of the same id is replaced.

    Exit code 1 if another override wins, or its policy cannot take over the queue.
    """
    checked = _read(file, override_id)
    document = client.put_override(checked.id, document_of(checked))
    won_by, fault = winners_over(checked.id, document), ""
    show({**document, "won_by": won_by}, override_list, as_json=as_json)
    complain_of_winners(won_by)
    if checked.policy is not None and "policy" not in won_by:
        fault = not_taken_over(client.policy(), checked.policy, checked.parameters)
    if fault:
        complain(fault)
    ctx.exit(EXIT_FAILED if won_by or fault else 0)


@override.command("list", epilog=example("hmas override list"))
@json_option
@takes_client
def list_overrides(client: AdminClient, *, as_json: bool) -> None:
    """List active overrides, refused files with the reasons, and settings on which overrides disagree."""
    show(client.overrides(), override_list, as_json=as_json)


@override.command("clear", epilog=example("hmas override clear night"))
@click.argument("override_id", metavar="[ID]", required=False)
@click.option("--all", "everything", is_flag=True, help="Release every override.")
@json_option
@takes_client
def clear(client: AdminClient, *, override_id: str | None, everything: bool, as_json: bool) -> None:
    """Release the override ID, or all with --all."""
    if bool(override_id) == everything:
        raise click.UsageError("name one override, or give --all")
    document = client.remove_override(override_id) if override_id else client.clear_overrides()
    show(document, lambda found: "released: " + (", ".join(found["removed"]) or "nothing was held"), as_json=as_json)


@override.command("schema", epilog=example("hmas override schema > override.schema.json"))
def schema() -> None:
    """Print the JSON Schema of an override file."""
    say(json.dumps(override_schema(), indent=2))


def override_list(document: dict[str, Any]) -> str:
    """Overrides, refused files and conflicts as text."""
    lines = []
    if document["overrides"]:
        lines.append(table(["id", "holds", "until", "author", "reason"], (_row(item) for item in document["overrides"])))
    else:
        lines.append(f"nothing is held (files in {document['directory']})")
    lines += [f"refused: {item['file']}: {item['message']}" for item in document["refused"]]
    lines += [f"conflict: {item['setting']}: {item['winner']} wins over {', '.join(item['losers'])}" for item in document["conflicts"]]
    return "\n".join(lines)


def _row(item: dict[str, Any]) -> tuple[object, ...]:
    document = item["document"]
    held = [f"policy {document['policy']['name']}"] if "policy" in document else []
    for instance, part in document.get("knobs", {}).items():
        held += [f"{instance} {name}={value}" for name, value in part.items()]
    for tenant, part in document.get("tenants", {}).items():
        held += [f"{tenant} {name}={value:.12g}" for name, value in part.items()]
    for model, part in document.get("routers", {}).items():
        held.append(f"router of {'all models' if model == '*' else model}: {router_words(part['name'], part.get('weights', {}))}")
    held += [f"{engine} drained" for engine in document.get("engines", {})]
    until = clock_words(item["expires_s"]) if item["expires_s"] is not None else "released"
    return item["id"], ", ".join(held), until, document["author"], document["reason"]


def _ask(client: AdminClient, checked: Override) -> None:
    try:
        client.validate_override(checked.id, document_of(checked))
    except AdminUnreachable as error:
        raise AdminUnreachable(f"{checked.id}: well formed, but {error}; --here checks the file alone") from error
    except AdminError as error:
        if error.status != HTTPStatus.BAD_REQUEST:
            raise
        raise OverrideError(str(error)) from error


def _read(file: str, override_id: str | None) -> Override:
    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if file == "-" else _bytes_of(Path(file))
    except OSError as error:
        raise OverrideError(f"{file}: cannot be read: {error.strerror}") from error
    if file == "-" and not override_id:
        complain("no --id given for standard input; the override is called `stdin`")
    name = override_id or ("stdin" if file == "-" else Path(file).name.removesuffix(".json"))
    return parse_override(data, id=name, now_s=SystemClock().now_s())


def _bytes_of(path: Path) -> bytes:
    with path.open("rb") as handle:
        return handle.read(MAX_BYTES + 1)
