"""Locates the project's data files."""

import os
from pathlib import Path

DATASETS_ENV = "HMAS_DATASETS_DIR"


def datasets_dir() -> Path:
    """HMAS_DATASETS_DIR if set, else the package's own `hmas/data`, which is datasets/ in a source tree."""
    named = os.environ.get(DATASETS_ENV)
    return Path(named) if named else Path(__file__).parent.parent / "data"
