"""Which launches are compiled ahead of time, one file a kernel family; `tools/kernels.py` reads them."""
