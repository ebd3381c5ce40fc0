"""Refits the cost model from telemetry; the new model runs in shadow mode until live traffic has judged it."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hmas.agents.model_store.comparison import Comparison, Verdict
from hmas.agents.model_store.store import ModelStore
from hmas.agents.prediction.experience import Labelled, Table, as_table
from hmas.agents.prediction.regressor import KIND, CatBoostRegressor
from hmas.agents.prediction.training import REFIT_LEAST, errors_of, refit


@dataclass(frozen=True, slots=True)
class Refitted:
    """The result of a refit: its version, and the errors of old and new on the newest telemetry, which it did not see.

    `in_shadow`: whether the new version runs in shadow mode.
    """

    version: str
    before: float
    after: float
    in_shadow: bool = False


class Shadow:
    """A model in shadow mode: once an outcome is known, it is evaluated on the active model's input (`Comparison`)."""

    def __init__(self, version: str, regressor: CatBoostRegressor, *, margin: float, least: int) -> None:
        self.version = version
        self.regressor = regressor
        self._comparison = Comparison(margin=margin, least=least)

    def judge(self, labelled: Sequence[Labelled], active: CatBoostRegressor | None) -> Verdict:
        """Compares both models on requests on which neither was trained, and returns the verdict."""
        if labelled:
            table = as_table(list(labelled))
            new = errors_of(self.regressor.log_ratios(table.rows, table.names), table.labels)
            # Without an active model, the comparison is with the plain formula.
            said = np.zeros((len(table), 2)) if active is None else active.log_ratios(table.rows, table.names)
            for one, other in zip(errors_of(said, table.labels), new, strict=True):
                self._comparison.add(float(one), float(other))
        return self._comparison.verdict()


def refit_into(store: ModelStore, regressor: CatBoostRegressor, learnt: Table) -> Refitted:
    """Refits, stores the new model as a version and runs it in shadow mode; one that is worse on the held-out part is not stored.

    It does not shadow if the store has a shadow by then, or another active model than the one that was refitted.

    Raises:
        ModelError: The store cannot be read or written.
    """
    fresh, errors = refit(regressor, learnt)
    if errors["new"] >= errors["old"]:
        return Refitted("", errors["old"], errors["new"])
    with tempfile.TemporaryDirectory() as folder:
        fresh.save(Path(folder))
        version = store.add(KIND, Path(folder), fresh.card)
    # Training takes a while: what an operator has chosen meanwhile stays.
    choice = store.choice(KIND)
    in_shadow = not choice.shadow and choice.current == regressor.card.version
    if in_shadow:
        store.set_shadow(KIND, version)
    return Refitted(version, errors["old"], errors["new"], in_shadow)


def due(labelled: int, since: int, every: int) -> bool:
    """Whether a refit is due: `labelled` requests in all, `since` of them at the last refit."""
    return every > 0 and labelled >= REFIT_LEAST and labelled - since >= every
