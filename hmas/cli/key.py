"""`hmas key`: makes keys of tenants and the operators' token. Only their hashes are stored."""

import hashlib
import secrets

import click

from hmas.cli.output import example, json_option, say, say_json

KEY_BYTES = 32


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
    secret = f"hmas-{secrets.token_urlsafe(KEY_BYTES)}"
    digest = hashlib.sha256(secret.encode()).hexdigest()
    if as_json:
        say_json({"key": secret, "sha256": digest, "for": "admin" if admin else tenant})
        return
    snippet = f'gateway:\n  admin_token_sha256: "{digest}"' if admin else f'tenants:\n  {tenant}:\n    key_sha256:\n      - "{digest}"'
    used = "set HMAS_ADMIN_TOKEN to it" if admin else "clients send it as `Authorization: Bearer KEY`"
    say(f"key:    {secret}\nsha256: {digest}\n\nShown this once; {used}. Into the configuration:\n\n{snippet}")
