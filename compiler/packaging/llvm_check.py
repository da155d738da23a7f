"""Check LLVM IR before it is compiled into this process."""

from __future__ import annotations

import re

from core.library_check import SymbolError, check_names

# Both patterns begin with text that every match has, which is found quickly.
_DECLARED = re.compile(r'\ndeclare\b[^@\n]*@"?([^("\n]+)')
_ASSEMBLER = re.compile(r"asm (sideeffect |alignstack |inteldialect |unwind )*\"|\nmodule asm")


def check_llvm(source: str) -> None:
    """Check the symbols that LLVM IR refers to, and that it has no inline assembly. Raises SymbolError."""
    source = f"\n{source}"
    if _ASSEMBLER.search(source):
        raise SymbolError("the program has inline assembly in it")
    check_names(name for name in _DECLARED.findall(source) if not name.startswith("llvm."))
