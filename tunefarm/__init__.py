"""The parts that people import and type: the client, the `tunefarm` command and the embedded stack."""

from tunefarm.tuning import tune

__all__ = ["tune"]
