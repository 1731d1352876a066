"""Stand-in for the kernel package of SGLang, of which no CPU build is published.

SGLang imports names from it at start-up and, on a CPU without AMX, calls none of them for a plain Llama or Qwen
model served with `--attention-backend torch_native`. A call would raise, and say so.
"""

from typing import Any, NoReturn

__version__ = "0.0.0"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: object, **_options: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name}: no kernels are installed on this machine")

    return missing
