"""Opens the configured reader of perception, and the length model that belongs to it."""

import importlib
import os
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

from hmas.agents.model_store.card import read_card
from hmas.agents.model_store.store import SHIPPED, ModelStore
from hmas.agents.perception.lengths import base as length_base
from hmas.agents.perception.lengths.base import LengthBase
from hmas.agents.perception.reading import Reader
from hmas.agents.perception.tagging import RulesReader
from hmas.controller.config.plugins import ExtensionPoint, unknown
from hmas.controller.config.schema import AgentsConfig
from hmas.controller.core.errors import ModelError

KIND = "perception"
SHIPPED_TAGGER = Path(__file__).parent / "models" / "tagger"
STORE, RULES = "store", "rules"
VERSION = re.compile(r"v[1-9][0-9]{0,8}")

ENDPOINT = "hmas.agents.perception.lm.endpoint:open_endpoint"
"""Opens a model behind an OpenAI-compatible server as a `Reader`: (url, model, api_key, its artefact's folder or None)."""
LENGTHS_ONLY = "lengths"
"""Format of an artefact that holds only a length model; the shipped tagger reads the prompts beside it."""


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """An opened model.

    Attributes:
        name: Name in events, metrics and `hmas models list`.
        lengths: Base of its length model; None for none.
    """

    name: str
    reader: Reader
    lengths: LengthBase | None


class ReaderSource:
    """Opens what `agents.perception_reader` names.

    Args:
        settings: `store` follows the store's choice, and is the shipped model without a choice; `shipped`, `rules`, a version and an
            address are fixed.
    """

    def __init__(self, settings: AgentsConfig, store: ModelStore, env: Mapping[str, str] | None = None) -> None:
        self._settings = settings
        self._store = store
        self._env = os.environ if env is None else env

    @property
    def follows_store(self) -> bool:
        """Whether the store's choice decides."""
        return self._settings.perception_reader == STORE

    def wanted(self) -> str:
        """Returns the name of the model that should be active.

        Raises:
            ModelError: The store's choice cannot be read.
        """
        wanted = self._settings.perception_reader
        return (self._store.choice(KIND).current or SHIPPED) if wanted == STORE else wanted

    def open(self) -> Opened:
        """Opens the model that should be active; this takes as long as loading takes.

        Raises:
            ModelError: It is missing, broken, or needs packages that are not installed.
        """
        wanted = self.wanted()
        if wanted == RULES:
            return Opened(name=RULES, reader=RulesReader(), lengths=shipped_lengths())
        if wanted == SHIPPED:
            return Opened(name=SHIPPED, reader=_opened(SHIPPED_TAGGER), lengths=shipped_lengths())
        if VERSION.fullmatch(wanted):
            return self.open_version(wanted)
        key = self._env.get(self._settings.perception_endpoint_key_env, "") if self._settings.perception_endpoint_key_env else ""
        # The server runs the active version: its card has the temperatures that calibrate the confidence.
        reader = _call(_imported, ENDPOINT, wanted, self._settings.perception_endpoint_model, key, self._store.current(KIND))
        return Opened(name=reader.name, reader=reader, lengths=shipped_lengths())

    def open_version(self, version: str) -> Opened:
        """Opens a stored version, whichever is active.

        Raises:
            ModelError: As `open`.
        """
        return open_folder(self._store.open(KIND, version), version)


def open_folder(folder: Path, name: str) -> Opened:
    """Opens an artefact's folder at any place, under the name `name`.

    Raises:
        ModelError: As `ReaderSource.open`.
    """
    lengths_only = read_card(folder).format == LENGTHS_ONLY
    reader = _opened(SHIPPED_TAGGER) if lengths_only else _opened(folder)
    lengths = length_base.load(folder) if (folder / length_base.FILE).exists() else shipped_lengths()
    return Opened(name=name, reader=reader, lengths=lengths)


@cache
def shipped_lengths() -> LengthBase | None:
    """Returns the shipped length model, the same one each time; None in a source tree without one.

    Raises:
        ModelError: It exists and cannot be read.
    """
    return length_base.load(length_base.SHIPPED) if (length_base.SHIPPED / length_base.FILE).exists() else None


def _opened(folder: Path) -> Reader:
    form = read_card(folder).format
    if form not in FORMATS:
        READER_PLUGINS.load()
    if form not in FORMATS:
        raise ModelError(f"{folder}: card.format is {form!r}; {unknown(form, READER_PLUGINS.group, (*FORMATS, LENGTHS_ONLY))}")
    return _call(FORMATS[form], folder)


def _call(open_reader: Callable[..., Reader], *arguments: object) -> Reader:
    try:
        return open_reader(*arguments)
    except ImportError as error:
        raise ModelError(f"a package is missing: {error}; `pip install h-mas[train]` has what trained language models need") from error


def _imported(where: str, *arguments: object) -> Reader:
    module, _, name = where.partition(":")
    reader: Reader = getattr(importlib.import_module(module), name)(*arguments)
    return reader


FORMATS: dict[str, Callable[[Path], Reader]] = {
    "onnx": partial(_imported, "hmas.agents.perception.onnx_reader:open_reader"),
    "transformers": partial(_imported, "hmas.agents.perception.lm.reader:open_reader"),
}
"""Opens an artefact's folder as a `Reader`, by `ModelCard.format`: the built-in ones, imported when needed, then those of plugins."""


def add_reader(form: str, open_reader: Any) -> None:
    """Adds a plugin's reader: a function that opens a folder whose card has this format.

    Raises:
        ModelError: It cannot be called, or the format has a meaning already.
    """
    if not callable(open_reader) or form == LENGTHS_ONLY:
        raise ModelError(f"{open_reader!r} opens no reader of format {form!r}; allowed: a function from a folder to a reader")
    FORMATS[form] = open_reader


READER_PLUGINS = ExtensionPoint("hmas.readers", "reader", FORMATS, add_reader)
