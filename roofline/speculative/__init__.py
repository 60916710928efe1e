"""Speculative decoding: what a draft saves, what it costs on this GPU at this batch, and when it pays."""
