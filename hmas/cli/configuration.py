"""`hmas config`: checks a file, prints active settings, an example, the reference. `hmas key`: makes keys, stored as hashes."""

import hashlib
import os

import click
import msgspec
import yaml

from hmas.cli.admin import config_option
from hmas.cli.output import EXIT_FAILED, complain, example, hint, json_option, say, say_json, show
from hmas.controller.admin.token import new_secret
from hmas.controller.bus.address import without_secrets
from hmas.controller.config.loader import ConfigMistakes, advice, load_config
from hmas.controller.config.reference import example_config, reference
from hmas.controller.config.schema import Config
from hmas.controller.config.section import Name
from hmas.controller.core.errors import ConfigError


@click.group()
def config() -> None:
    """Check a configuration, print an example or the reference."""


@config.command("check", epilog=example("hmas config check hmas.yaml"))
@click.argument("file", required=False)
@config_option
@json_option
@click.pass_context
def check(ctx: click.Context, file: str | None, config_file: str | None, as_json: bool) -> None:
    """Check FILE and the HMAS_* variables; print the line of every mistake.

    Exit code 0 if the configuration can be used, 1 if not. Settings that are allowed but probably not intended are listed on stderr.
    """
    path = file or config_file or None
    try:
        loaded = load_config(path, os.environ)
    except ConfigError as error:
        if as_json:
            mistakes = error.mistakes if isinstance(error, ConfigMistakes) else []
            say_json({"ok": False, "error": str(error), "mistakes": msgspec.to_builtins(mistakes), "advice": []})
        else:
            complain(str(error))
        ctx.exit(EXIT_FAILED)
    words = advice(loaded, os.environ)
    if as_json:
        say_json({"ok": True, "mistakes": [], "advice": words, "config": msgspec.to_builtins(shown(loaded))})
        return
    say(f"{path or 'defaults and environment'}: ok, {len(loaded.engines)} engines, {len(loaded.tenants)} tenants")
    for word in words:
        hint(f"note: {word}")


@config.command("show", epilog=example("hmas config show --config hmas.yaml", "HMAS_PRESET=paper hmas config show"))
@config_option
@json_option
def show_active(config_file: str | None, as_json: bool) -> None:
    """Print every setting as it is in force: preset, file and HMAS_* variables together."""
    document = msgspec.to_builtins(shown(load_config(config_file or None, os.environ)))
    show(document, lambda found: yaml.safe_dump(found, sort_keys=False, allow_unicode=True).rstrip(), as_json=as_json)


@config.command("example", epilog=example("hmas config example > hmas.yaml"))
def show_example() -> None:
    """Print a short configuration to start from."""
    click.echo(example_config(), nl=False)


@config.command("reference", epilog=example("hmas config reference | less"))
def show_reference() -> None:
    """Print every setting with its type, range, default and variable, as Markdown."""
    click.echo(reference(), nl=False)


def shown(loaded: Config) -> Config:
    """The configuration without the user and password that the bus address may contain."""
    return msgspec.structs.replace(loaded, bus=msgspec.structs.replace(loaded.bus, url=without_secrets(loaded.bus.url)))


@click.group()
def key() -> None:
    """Make API keys and tokens."""


@key.command("new", epilog=example("hmas key new --tenant team-a"))
@click.option("--tenant", metavar="NAME", default="team-a", show_default=True, help="Tenant that the snippet is written for.")
@click.option("--admin", is_flag=True, help="Make the operators' token instead.")
@json_option
def new(tenant: str, admin: bool, as_json: bool) -> None:
    """Print a new random key, once, and the hash that goes into the configuration.

    The key itself is not stored anywhere: copy it now.
    """
    try:
        msgspec.convert(tenant, Name)
    except msgspec.ValidationError:
        raise click.UsageError(f"--tenant is {tenant!r}; allowed: letters, digits, dot, underscore, hyphen; 64 at most") from None
    secret = new_secret()
    digest = hashlib.sha256(secret.encode()).hexdigest()
    if as_json:
        say_json({"key": secret, "sha256": digest, "for": "admin" if admin else tenant})
        return
    snippet = f'gateway:\n  admin_token_sha256: "{digest}"' if admin else f'tenants:\n  {tenant}:\n    key_sha256:\n      - "{digest}"'
    used = "set HMAS_ADMIN_TOKEN to it" if admin else "clients send it as `Authorization: Bearer KEY`"
    say(f"key:    {secret}\nsha256: {digest}\n\nShown this once; {used}. Into the configuration:\n\n{snippet}")
