"""Stand-ins for two packages that SGLang imports and that have no build for a machine without a GPU.

SGLang 0.5.23 imports names of sgl_kernel (CUDA kernels) and of torchvision when it starts. On a CPU without AMX every
layer of a text model runs in torch itself, so the names are imported and never used. On a machine without a GPU, and
there alone, `scripts/setup --sglang` puts this file on the path of .venv-sglang and imports it in every process of it.
The finder is asked last, so a package that is installed is never hidden by it.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PACKAGES = {"sgl_kernel": "0.4.10", "torchvision": "0.0.0"}
"""What is stood in for, and the version that SGLang shall find there."""


class _Named(type):
    """A class for any name: it can be imported, subclassed and written into a type; a call says what is missing."""

    def __getattr__(cls, name: str) -> "_Named":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(name, (), {"__module__": f"{cls.__module__}.{cls.__name__}"})

    def __call__(cls, *args: object, **kwargs: object) -> object:
        raise NotImplementedError(
            f"{cls.__module__}.{cls.__name__} is only a name on this machine: SGLang runs here without a GPU, and this "
            "model or option needs what it does. Use a machine with a GPU, or another option."
        )


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> _Named:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(name, (), {"__module__": self.__name__})


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__version__"] = PACKAGES[module.__name__.partition(".")[0]]


sys.meta_path.append(_Finder())
