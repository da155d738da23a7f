"""Everything that touches TVM: import models, read subgraphs, lower programs, build, run, verify, package."""

import compiler.tvm_import  # noqa: F401 - before a module of the compiler imports TVM
