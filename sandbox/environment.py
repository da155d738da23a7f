"""Choose the environment variables of children that process untrusted models or code."""

from __future__ import annotations

from collections.abc import Mapping

_NAMES = frozenset(
    (
        *("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("CC", "CXX"),
    )
)
_PREFIXES = (
    *("LC_", "PYTHON", "TVM_", "OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "BLIS_", "MALLOC_", "QEMU_"),
    *("CUDA_", "NVIDIA_", "HIP_", "ROCR_", "HSA_", "ZIG_"),
)


def allowed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return only the variables with which a child finds its programs and libraries.

    Other variables may be secrets. The scheduler's environment has the passwords of the database and the
    broker, a worker's has its token.
    """
    return {
        name: value for name, value in environment.items() if name in _NAMES or name.startswith(_PREFIXES)
    }
