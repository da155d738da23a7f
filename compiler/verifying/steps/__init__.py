"""Split models of every format into operators, to compare them one by one."""
