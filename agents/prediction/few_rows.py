"""Several CatBoost models read at once, for few rows: a call into the library costs more than its trees do.

Trees of CatBoost are oblivious: every level of a tree asks one question, and the answers are the bits of the leaf's number. So all
questions of all trees are one comparison of arrays. What the library computes remains the truth; tests hold the two together.
"""

import json
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.core.errors import ModelError

NAMES_KEPT = 512
"""Combinations of names whose answers are remembered."""


class FewRows:
    """The trees of some models as arrays.

    Args:
        models: CatBoost models over the same columns, whose categories are one-hot.
        columns: Numeric columns.

    Raises:
        ModelError: A model asks questions of a kind that is not known here.
    """

    def __init__(self, models: Sequence[Any], columns: int) -> None:
        trees: list[tuple[list[dict[str, Any]], NDArray[np.float64]]] = []
        self._bias: list[float] = []
        self._starts: list[int] = []
        for model in models:
            document = _document(model)
            _check(document)
            scale, bias = document["scale_and_bias"]
            self._bias.append(float(bias[0] if isinstance(bias, list) else bias))
            self._starts.append(len(trees))
            trees += [(tree["splits"], np.array(tree["leaf_values"], dtype=np.float64) * scale) for tree in document["oblivious_trees"]]
        depth = max(len(splits) for splits, _ in trees)
        self._models = list(models)
        self._column = np.zeros((len(trees), depth), dtype=np.intp)
        # A question that is not asked is answered with no: nothing is above infinity.
        self._border = np.full((len(trees), depth), np.inf, dtype=np.float32)
        self._named = np.zeros((len(trees), depth), dtype=bool)
        self._leaves = np.zeros((len(trees), 1 << depth), dtype=np.float64)
        for number, (splits, leaves) in enumerate(trees):
            self._leaves[number, : len(leaves)] = leaves
            for level, split in enumerate(splits):
                if split["split_type"] == "FloatFeature":
                    self._column[number, level] = split["float_feature_index"]
                    self._border[number, level] = split["border"]
                else:
                    self._named[number, level] = True
        self._bits = 1 << np.arange(depth)
        self._tree = np.arange(len(trees))
        self._columns = columns
        self._known: OrderedDict[tuple[bytes, ...], NDArray[np.bool_]] = OrderedDict()

    def predict(self, rows: NDArray[np.float32], names: NDArray[np.object_]) -> NDArray[np.float64]:
        """What each model says of each row, shape (rows, models)."""
        answers = rows[:, self._column] > self._border
        for number in range(len(rows)):
            answers[number] |= self._answers(tuple(names[number]))
        leaves = answers @ self._bits
        return np.add.reduceat(self._leaves[self._tree, leaves], self._starts, axis=1) + self._bias

    def _answers(self, names: tuple[bytes, ...]) -> NDArray[np.bool_]:
        """The answers to questions about names: the library hashes them, and says by its leaves what came out."""
        found = self._known.get(names)
        if found is None:
            import catboost  # noqa: PLC0415

            table = np.empty((1, len(names)), dtype=object)
            table[0] = names
            pool = catboost.Pool(catboost.FeaturesData(num_feature_data=np.zeros((1, self._columns), np.float32), cat_feature_data=table))
            leaves = np.concatenate([np.asarray(model.calc_leaf_indexes(pool)).reshape(-1) for model in self._models])
            found = ((leaves[:, None] & self._bits) > 0) & self._named
            self._known[names] = found
            if len(self._known) > NAMES_KEPT:
                self._known.popitem(last=False)
        return found


def _check(document: dict[str, Any]) -> None:
    """Comparisons that a missing number fails, and one-hot categories: what the arrays can hold."""
    if "oblivious_trees" not in document:
        raise ModelError("trees that are not oblivious; allowed: CatBoost's symmetric trees")
    kinds = {split["split_type"] for tree in document["oblivious_trees"] for split in tree["splits"]}
    missing = {column.get("nan_value_treatment", "AsIs") for column in document["features_info"]["float_features"]}
    if not kinds <= {"FloatFeature", "OneHotFeature"} or not missing <= {"AsIs", "AsFalse"}:
        raise ModelError(f"splits {sorted(kinds)}, missing values {sorted(missing)}; allowed: FloatFeature, OneHotFeature; AsIs, AsFalse")


def _document(model: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        document: dict[str, Any] = json.loads(path.read_bytes())
    return document
