"""What a training depends on besides its settings and its data: grammar, generator, network. Its hash tells two recipes apart."""

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

PACKAGE = "hmas.agents.perception"
MODULES = (
    "bodies.py",
    "encoder.py",
    "text.py",
    "training/augment.py",
    "training/clients.py",
    "training/data.py",
    "training/exchanges.py",
    "training/feeding.py",
    "training/fitting.py",
    "training/generator.py",
    "training/grammar.py",
    "training/licences.py",
    "training/network.py",
    "training/parts.py",
    "training/shapes.py",
    "training/split.py",
)
CORE = "hmas.controller.core"
CORE_MODULES = ("client_bodies.py", "client_systems.py", "client_texts.json", "prompt_texts.py", "request_body.py")
MODELS = "hmas.agents.model_store"
MODELS_MODULES = ("ranges.py",)
"""Modules that decide what is learnt from which rows; a change to any of them may change the model."""
GRAMMAR = "training/grammar"


def recipe_sha256() -> str:
    """Hash of the modules and of every grammar file, by name and content: equal where the same settings and data give the same model."""
    root, core, models = files(PACKAGE), files(CORE), files(MODELS)
    parts = [root.joinpath(*name.split("/")) for name in MODULES] + [core.joinpath(name) for name in CORE_MODULES]
    parts += [models.joinpath(name) for name in MODELS_MODULES]
    parts += sorted(_grammars(root.joinpath(*GRAMMAR.split("/"))), key=lambda entry: entry.name)
    total = hashlib.sha256()
    for part in parts:
        total.update(f"{part.name} {hashlib.sha256(part.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _grammars(folder: Traversable) -> list[Traversable]:
    return [entry for entry in folder.iterdir() if entry.name.endswith(".grammar")]
