"""Evaluates several CatBoost models at once for few rows, where a call into the library costs more than the trees do.

CatBoost's trees are oblivious: every level of a tree makes one test, and the results are the bits of the leaf's number. So all tests of all
trees are one comparison of arrays. Most tests concern the instance, which stays the same from one snapshot to the next; their results are
cached. The library's result is the reference; tests compare both.
"""

import json
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hmas.controller.core.errors import ModelError

NAMES_KEPT = 512
"""Most combinations of names with cached results."""
STILL_KEPT = 512
"""Most cached results of instances at a snapshot, with their names: 4 KB each."""


class _Still(NamedTuple):
    """The fixed part of a row.

    Attributes:
        leaves: By tree with moving tests, the index in all leaves that the fixed tests lead to, with moving tests answered no.
        total: By model, the sum of the trees without moving tests, and the bias.
    """

    leaves: NDArray[np.intp]
    total: NDArray[np.float64]


class FewRows:
    """The trees of some models as arrays.

    Args:
        models: CatBoost models over the same columns, whose categories are one-hot.
        columns: Number of numeric columns.
        moving: Those of them that differ from request to request.

    Raises:
        ModelError: A model has tests of an unsupported kind.
    """

    def __init__(self, models: Sequence[Any], columns: int, moving: Sequence[int]) -> None:
        trees: list[tuple[list[dict[str, Any]], NDArray[np.float64], int]] = []
        bias: list[float] = []
        for number, model in enumerate(models):
            document = _document(model)
            _check(document)
            scale, offset = document["scale_and_bias"]
            bias.append(float(offset[0] if isinstance(offset, list) else offset))
            trees += [
                (tree["splits"], np.array(tree["leaf_values"], dtype=np.float64) * scale, number) for tree in document["oblivious_trees"]
            ]
        depth = max(len(splits) for splits, _, _ in trees)
        self._models = list(models)
        self._columns = columns
        self._bits = 1 << np.arange(depth)
        self._first_leaf = np.arange(len(trees)) << depth
        self._leaves = np.zeros(len(trees) << depth, dtype=np.float64)
        self._column = np.zeros((len(trees), depth), dtype=np.intp)
        # A test that does not exist or is made later answers no: nothing is above infinity.
        self._border = np.full((len(trees), depth), np.inf, dtype=np.float32)
        self._named = np.zeros((len(trees), depth), dtype=bool)
        asked: list[tuple[int, float, int, int]] = []
        for number, (splits, leaves, _) in enumerate(trees):
            start = int(self._first_leaf[number])
            self._leaves[start : start + len(leaves)] = leaves
            for level, split in enumerate(splits):
                if split["split_type"] != "FloatFeature":
                    self._named[number, level] = True
                elif split["float_feature_index"] in moving:
                    asked.append((split["float_feature_index"], split["border"], 1 << level, number))
                else:
                    self._column[number, level] = split["float_feature_index"]
                    self._border[number, level] = split["border"]
        self._still_columns = np.array([column for column in range(columns) if column not in moving], dtype=np.intp)
        self._moving_column = np.array([column for column, _, _, _ in asked], dtype=np.intp)
        self._moving_border = np.array([border for _, border, _, _ in asked], dtype=np.float32)
        self._moving_bit = np.array([bit for _, _, bit, _ in asked], dtype=np.intp)
        self._moving_trees, self._moving_starts = np.unique(np.array([tree for _, _, _, tree in asked], dtype=np.intp), return_index=True)
        owners = np.zeros((len(trees), len(models)))
        owners[np.arange(len(trees)), [owner for _, _, owner in trees]] = 1.0
        self._moving_owners = owners[self._moving_trees]
        owners[self._moving_trees] = 0.0
        self._still_owners = owners
        self._bias = np.array(bias)
        self._known: OrderedDict[tuple[bytes, ...], NDArray[np.bool_]] = OrderedDict()
        self._still: OrderedDict[tuple[bytes, ...], _Still] = OrderedDict()

    def predict(self, rows: NDArray[np.float32], names: NDArray[np.object_]) -> NDArray[np.float64]:
        """Returns each model's result for each row, shape (rows, models)."""
        bare = rows[:, self._still_columns]
        still = [self._standing(bare[number].tobytes(), row, tuple(names[number])) for number, row in enumerate(rows)]
        total = np.array([one.total for one in still])
        if len(self._moving_bit) == 0:
            return total
        answers = (rows[:, self._moving_column] > self._moving_border) * self._moving_bit
        leaves = np.array([one.leaves for one in still]) + np.add.reduceat(answers, self._moving_starts, axis=1)
        said: NDArray[np.float64] = total + self._leaves.take(leaves) @ self._moving_owners
        return said

    def _standing(self, bare: bytes, row: NDArray[np.float32], names: tuple[bytes, ...]) -> _Still:
        key = (bare, *names)
        found = self._still.get(key)
        if found is None:
            answers = (row[self._column] > self._border) | self._answers(names)
            leaves = self._first_leaf + answers @ self._bits
            found = _Still(leaves[self._moving_trees], self._leaves[leaves] @ self._still_owners + self._bias)
            self._still[key] = found
            if len(self._still) > STILL_KEPT:
                self._still.popitem(last=False)
        return found

    def _answers(self, names: tuple[bytes, ...]) -> NDArray[np.bool_]:
        """Returns the results of tests on names: the library hashes names, and its leaves show the results."""
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
    """Checks that the arrays can represent the model: tests that a missing number fails, and one-hot categories."""
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
