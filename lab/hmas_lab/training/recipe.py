"""What a training of the tagger depends on besides its settings and its data. Its hash tells two recipes apart."""

import hashlib
from importlib.resources import files

MODULES = (
    ("hmas.agents.perception", ("encoder.py", "reading.py", "text.py")),
    ("hmas.agents.perception.training", ("clients.py", "data.py", "feeding.py", "fitting.py", "metrics.py", "network.py", "split.py")),
    ("hmas.agents.model_store", ("ranges.py",)),
    ("hmas.controller.core", ("client_bodies.py", "client_systems.py", "client_texts.json", "prompt_texts.py", "request_body.py")),
    ("hmas_lab.training", ("generator.py", "grammar.py", "licences.py", "typed.py")),
)
"""Modules that decide what is learnt from which rows, by package; a change to any of them may change the model."""


def recipe_sha256() -> str:
    """Hash of the modules and of every grammar file, by name and content: equal where the same settings and data give the same model."""
    parts = [files(package).joinpath(name) for package, names in MODULES for name in names]
    folder = files("hmas_lab.training").joinpath("grammar")
    parts += sorted((entry for entry in folder.iterdir() if entry.name.endswith(".grammar")), key=lambda entry: entry.name)
    total = hashlib.sha256()
    for part in parts:
        total.update(f"{part.name} {hashlib.sha256(part.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()
