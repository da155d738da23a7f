"""Check LLVM IR before it is compiled into this process."""

from __future__ import annotations

import re

from core.library_check import SymbolError, check_names

_DECLARED = re.compile(r'^declare\b[^@\n]*@"?([^("\n]+)', re.MULTILINE)
_ASSEMBLER = re.compile(
    r"\basm\b (sideeffect |alignstack |inteldialect |unwind )*\"|^module asm", re.MULTILINE
)


def check_llvm(source: str) -> None:
    """Check the symbols that LLVM IR refers to, and that it has no inline assembly. Raises SymbolError."""
    if _ASSEMBLER.search(source):
        raise SymbolError("the program has inline assembly in it")
    check_names(name for name in _DECLARED.findall(source) if not name.startswith("llvm."))
