"""Run models that tunefarm has compiled: a few megabytes, beside NumPy.

model = tunefarm_runtime.load("resnet18-tuned")
(logits,) = model(image)
"""

from importlib.metadata import version

from tunefarm_runtime.errors import LoadError, NoSuchSize, RunError
from tunefarm_runtime.model import Model, Timing, load
from tunefarm_runtime.session import (
    ExecutionMode,
    GraphOptimizationLevel,
    InferenceSession,
    SessionOptions,
    get_available_providers,
)

__version__ = version("tunefarm-runtime")
__all__ = [
    "ExecutionMode",
    "GraphOptimizationLevel",
    "InferenceSession",
    "LoadError",
    "Model",
    "NoSuchSize",
    "RunError",
    "SessionOptions",
    "Timing",
    "get_available_providers",
    "load",
]
