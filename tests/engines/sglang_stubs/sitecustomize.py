"""What Python runs first in every process of an SGLang that is assembled from the package registry for CPU (`make setup-sglang`).

torchvision 0.29.2, the release that works with transformers 5.19.0, is built for a newer PyTorch than the one there is a CPU build of: its
compiled operators do not load. Importing it still works where the two operators that it describes unconditionally are declared before;
nothing here calls them, since the tiny model has no images.
"""

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType

DECLARED = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class DeclareFirst(importlib.abc.MetaPathFinder):
    """Declares the operators when torchvision is about to be imported, so that processes without it need not load PyTorch."""

    library: object = None

    def find_spec(self, name: str, _path: object = None, _target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name == "torchvision" and DeclareFirst.library is None:
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for schema in DECLARED:
                library.define(schema)
            DeclareFirst.library = library
        return None


sys.meta_path.insert(0, DeclareFirst())
