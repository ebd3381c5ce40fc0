"""Stands for SGLang's compiled kernels, of which there is no build for CPU: importing works, calling one fails with its name.

SGLang imports names from here in modules that a CPU server loads but whose kernels it never calls with `--attention-backend torch_native`.
"""

from collections.abc import Callable


def __getattr__(name: str) -> Callable[..., object]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: object, **_named: object) -> object:
        raise RuntimeError(f"sgl_kernel.{name} is not built for CPU")

    return missing
