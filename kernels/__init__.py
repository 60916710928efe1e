"""Triton kernels, with the torch code each is checked against; imports torch and triton only.

`gemm`, `attention`, `speculative` and `support` hold one kernel family a file. `table` chooses launch configurations
from `data/`, `device` says what is computed on, `checks` refuses bad input.
"""
