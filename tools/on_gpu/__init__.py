"""Measure the GPU of a bare machine: python3 and torch are all it needs. Run by ``tools/on_gpu.sh``; see ``app``."""
