"""What of the environment a child sees that handles strangers' models or runs strangers' code.

Anything else may be a secret: the scheduler has the database's and the broker's passwords in its environment,
a worker its token.
"""

from __future__ import annotations

from collections.abc import Mapping

_PASSED = frozenset(
    (
        *("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("CC", "CXX"),
    )
)
_PREFIXES = (
    *("LC_", "PYTHON", "TVM_", "OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "BLIS_", "MALLOC_", "QEMU_"),
    *("CUDA_", "NVIDIA_", "HIP_", "ROCR_", "HSA_", "ZIG_"),
)


def passed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a child needs to find its programs and libraries, and nothing else."""
    return {
        name: value for name, value in environment.items() if name in _PASSED or name.startswith(_PREFIXES)
    }
