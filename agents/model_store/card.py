"""The card of a model artefact: its kind, its origin, and the hash of every file, so that the loaded model is the trained one."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from hmas.controller.core.errors import ModelError

CARD = "card.json"
MAX_FILES = 4096
"""Most files of one artefact; a folder with more is no model's folder but a wrong path."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of `card.json`. Unknown fields are left out of a copy, so everything specific goes into `details`.

    Attributes:
        kind: `perception`, `prediction` or `meta`.
        format: The loader's format, such as `onnx`, `transformers`, `endpoint`, `catboost`; the agent of this kind evaluates it.
        version: Set by the store; empty before.
        created_s: Time of the training, seconds since the epoch, as passed by the trainer's caller.
        sha256: Hash of every file beside the card, by its path in the folder with forward slashes.
        data_sha256: Hash of the training data, by name of the data.
        command: The command line that reproduces it.
        licence: Licence of the weights; or that of their training data, if it is binding.
        metrics: Measured on held-out data, by name.
        details: Fields that its format needs (classes, sizes, temperature, base model, ...).
    """

    kind: str
    format: str = ""
    version: str = ""
    created_s: float = 0.0
    sha256: dict[str, str] = {}
    data_sha256: dict[str, str] = {}
    command: str = ""
    licence: str = ""
    metrics: dict[str, Any] = {}
    details: dict[str, Any] = {}


def read_card(folder: Path) -> ModelCard:
    """Returns the card in `folder`.

    Raises:
        ModelError: There is no card, or it is invalid; names the field.
    """
    path = folder / CARD
    try:
        return msgspec.json.decode(path.read_bytes(), type=ModelCard)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}; allowed: a model's folder, with its {CARD}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: {error}") from error


def write_card(folder: Path, card: ModelCard) -> ModelCard:
    """Hashes every file of `folder` and writes the card beside them. Returns the card as written.

    Raises:
        ModelError: A file cannot be read, is a link, or there are too many.
    """
    written = msgspec.structs.replace(card, sha256=hashes(folder))
    (folder / CARD).write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=2) + b"\n")
    return written


def verified(folder: Path) -> ModelCard:
    """Returns the card after checking every file against it.

    Raises:
        ModelError: A file is missing, added or changed; names it.
    """
    card = read_card(folder)
    found = hashes(folder)
    for name, digest in card.sha256.items():
        if name not in found:
            raise ModelError(f"{folder / name}: missing, though {CARD} lists it")
        if found[name] != digest:
            raise ModelError(
                f"{folder / name}: sha256 {found[name][:12]}..., {CARD} says {digest[:12]}...: the file was changed or cut off"
            )
    added = sorted(set(found) - set(card.sha256))
    if added:
        raise ModelError(f"{folder / added[0]}: not listed in {CARD}; allowed: exactly the files that were stored")
    return card


def hashes(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of every file in `folder` but the card, in the order of their names."""
    return {name: file_sha256(path) for name, path in files(folder)}


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields every file of an artefact but its card: name inside the folder, and path.

    Raises:
        ModelError: The path is no folder, or the folder holds a link or more than `MAX_FILES` files.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder}: not a folder; allowed: a model's folder, with its {CARD}")
    paths = []
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise ModelError(f"{path}: a link; allowed: plain files, which stay what they are when something else moves")
        if path.is_file() and path != folder / CARD:
            paths.append(path)
            if len(paths) > MAX_FILES:
                raise ModelError(f"{folder}: more than {MAX_FILES} files; allowed: a model's folder")
    yield from sorted((path.relative_to(folder).as_posix(), path) for path in paths)


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal.

    Raises:
        ModelError: It cannot be read.
    """
    try:
        with path.open("rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
