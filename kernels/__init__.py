"""Triton kernels; imports torch and triton only."""
