"""Files of exported programs without PyTorch: only the description of their inputs."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence


def program(inputs: Mapping[str, Sequence[int | str]], limit: int | None = None, writes: str = "") -> bytes:
    """The file of an exported program: a dimension is an extent or the text of its formula.

    The operator `writes` has the buffer b_keys, of (1, 64), as its first argument.
    """

    def tensor(dims: Sequence[int | str]) -> object:
        formulas = [{"as_expr": {"expr_str": dim, "hint": {"as_int": 3}}} for dim in dims]
        return {
            "dtype": 5,
            "sizes": [
                {"as_int": d} if isinstance(d, int) else f for d, f in zip(dims, formulas, strict=True)
            ],
        }

    of_user = [{"user_input": {"arg": {"as_tensor": {"name": name}}}} for name in inputs]
    buffer = {"buffer": {"arg": {"name": "b_keys"}, "buffer_name": "keys", "persistent": True}}
    arguments = [
        {"name": "self", "arg": {"as_tensor": {"name": "b_keys"}}},
        {"name": "dim", "arg": {"as_int": 1}},
    ]
    described = {
        "graph_module": {
            "graph": {
                "tensor_values": {name: tensor(dims) for name, dims in {"b_keys": (1, 64), **inputs}.items()},
                "nodes": [{"target": f"torch.ops.aten.{writes or 'relu.default'}", "inputs": arguments}],
            },
            "signature": {"input_specs": [buffer, *of_user], "output_specs": [{"user_output": {}}]},
        },
        "range_constraints": {"s58": {"min_val": 0, "max_val": limit}},
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/models/model.json", json.dumps(described))
    return file.getvalue()


S58, S77 = (f"Symbol('{name}', positive=True, integer=True)" for name in ("s58", "s77"))
