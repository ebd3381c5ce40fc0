"""The operators' token that a gateway makes for itself, in a file that only its user can read."""

import logging
import os
import secrets
from pathlib import Path

from hmas.controller.core.errors import ConfigError

SECRET_BYTES = 32
MAX_BYTES = 1024
log = logging.getLogger(__name__)


def new_secret() -> str:
    """A random API key or token."""
    return f"hmas-{secrets.token_urlsafe(SECRET_BYTES)}"


def read_token(path: Path) -> str:
    """The token in the file; empty if there is no file, or none that this user can read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode("ascii", "ignore").strip()
    except OSError:
        return ""


def kept_token(path: Path) -> str:
    """The token in the file, which is made with mode 0600 if there is none yet.

    Of two gateways that start together, the second uses the token of the first.

    Raises:
        ConfigError: The file cannot be made or read.
    """
    try:
        if not path.exists():
            _make(path)
        mode = path.stat().st_mode
    except OSError as error:
        text = f"cannot make the operators' token {path}: {error.strerror}"
        raise ConfigError(f"{text}; state_dir must be writable for the gateway's user, or set gateway.admin_token_sha256") from error
    if mode & 0o077:
        log.warning("other users can read or change the operators' token %s; run `chmod 600` on it, or remove it and restart", path)
    token = read_token(path)
    if not token:
        raise ConfigError(f"the operators' token {path} is empty or cannot be read; remove it, and the gateway makes another one")
    return token


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="ascii") as file:
        file.write(new_secret() + "\n")
    try:
        # A link, unlike a renaming, does not replace a token that another gateway has just made.
        os.link(temporary, path)
    except FileExistsError:
        return
    finally:
        temporary.unlink()
