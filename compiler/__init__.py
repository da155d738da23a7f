"""Everything that touches TVM: import models, read subgraphs, lower programs, build, run, verify, package."""
