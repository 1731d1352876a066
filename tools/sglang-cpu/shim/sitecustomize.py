"""Lets torchvision be imported beside a CPU build of torch: declares the two operators that its own library would
have.

SGLang imports torchvision for its image processors; a text model never calls them. Loaded through PYTHONPATH, also
by the server's child processes.
"""

import importlib.abc
import sys
from typing import Any


class _DeclareOperators(importlib.abc.MetaPathFinder):
    library: Any = None

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name != "torchvision":
            return
        sys.meta_path.remove(self)
        import torch

        type(self).library = library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, _DeclareOperators())
