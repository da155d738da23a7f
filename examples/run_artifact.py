"""Load a compiled model and run it once. Needs TVM's runtime only.

python -m examples.run_artifact resnet18-tuned
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

folder = Path(sys.argv[1])
manifest = json.loads((folder / "manifest.json").read_text())
os.environ.setdefault("TVM_NUM_THREADS", str(manifest["threads"]))  # TVM's own guess is half the cores
device = tvm.cuda() if json.loads(manifest["target"])["kind"] == "cuda" else tvm.cpu()
model = relax.VirtualMachine(tvm.runtime.load_module(str(folder / "model.so")), device)
rng = np.random.default_rng(0)
inputs = [rng.standard_normal(spec["shape"]).astype(spec["dtype"]) for spec in manifest["inputs"]]
outputs = model["main"](*[tvm.runtime.tensor(value, device) for value in inputs])
for spec, output in zip(
    manifest["outputs"], outputs if len(manifest["outputs"]) > 1 else [outputs], strict=True
):
    print(spec["name"], output.shape, output.numpy().ravel()[:5])
