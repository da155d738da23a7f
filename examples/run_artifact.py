"""Load a compiled model and run it once.

python -m examples.run_artifact resnet18-tuned
"""

import sys

import numpy as np
import tunefarm_runtime

model = tunefarm_runtime.load(sys.argv[1])
rng = np.random.default_rng(0)
outputs = model(*[spec.draw(rng) for spec in model.inputs])
for spec, output in zip(model.outputs, model.to_numpy(outputs), strict=True):
    print(spec.name, output.shape, output.ravel()[:5])
