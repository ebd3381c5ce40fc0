"""Which sources a row was made with: rows of other sources are not those of the same study."""

import hashlib
from functools import lru_cache
from pathlib import Path

PACKAGES = ("engines", "controller", "agents", "hmas/planning", "hmas/workloads")
"""What a simulated run goes through, besides the study's own package."""


@lru_cache(maxsize=4)
def fingerprint(study: str = "paper") -> str:
    """A short name of the sources' content, the same for a compiled form of them; `study` is the lab's package."""
    root = Path(__file__).resolve().parents[3]
    found = hashlib.sha256()
    for package in (*PACKAGES, f"lab/hmas_lab/{study}"):
        for path in sorted((root / package).rglob("*.py"), key=lambda one: one.relative_to(root).as_posix()):
            found.update(path.relative_to(root).as_posix().encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:16]
