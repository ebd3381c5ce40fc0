"""Where the project's data files lie."""

import os
from pathlib import Path

DATASETS_ENV = "HMAS_DATASETS_DIR"


def datasets_dir() -> Path:
    """HMAS_DATASETS_DIR, else datasets/ of the source tree that this code runs from."""
    named = os.environ.get(DATASETS_ENV)
    return Path(named) if named else Path(__file__).resolve().parents[1] / "datasets"
