"""Quantizers on real weights, and the theory of their error beside what is measured; needs torch."""
