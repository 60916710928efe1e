"""Quantization: what a format saves, and which width each tensor should have under a budget."""
