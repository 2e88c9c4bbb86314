"""Loads the executor into each Python process as soon as it has imported torch.

This folder is on PYTHONPATH under ``with_env.sh --emulate-cuda``, so that scripts, and
the processes that they start, need no change.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType


class _TorchLoader(importlib.abc.Loader):
    """torch's own loader, and then the executor."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        executor = ctypes.CDLL(os.environ["EMULATED_CUDA_EXECUTOR"])

        def follow_allocator() -> None:
            # The others do not tell what they do, and say so by an exception.
            if module.cuda.get_allocator_backend() == "native":
                executor.emulated_cuda_follow_allocator()

        # The caching allocator is there only once CUDA is initialized.
        module.cuda._lazy_call(follow_allocator)


class _TorchFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch":
            return None
        # Stays for the next time: who asks for a spec need not import it.
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _TorchLoader(spec.loader)
        return spec


if "EMULATED_CUDA_EXECUTOR" in os.environ:
    sys.meta_path.insert(0, _TorchFinder())
