"""The parts that people import and type: the client, the `tunefarm` command and the embedded stack."""

from typing import TYPE_CHECKING, Any

from tunefarm.tuning import tune

if TYPE_CHECKING:
    from tunefarm_runtime import InferenceSession

__all__ = ["InferenceSession", "tune"]


def __getattr__(name: str) -> Any:
    """Load `InferenceSession` from the package tunefarm-runtime when it is first used."""
    if name != "InferenceSession":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from tunefarm_runtime import InferenceSession
    except ImportError as error:
        raise ImportError(
            "tunefarm.InferenceSession needs a package: pip install tunefarm-runtime"
        ) from error
    return InferenceSession
