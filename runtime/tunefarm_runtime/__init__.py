"""Run models that tunefarm has compiled: a few megabytes, beside NumPy.

model = tunefarm_runtime.load("resnet18-tuned")
(logits,) = model(image)
"""

from tunefarm_runtime.errors import LoadError, NoSuchSize, RunError
from tunefarm_runtime.model import Model, Timing, load
from tunefarm_runtime.session import InferenceSession

__all__ = ["InferenceSession", "LoadError", "Model", "NoSuchSize", "RunError", "Timing", "load"]
