"""Matrix products: dense, FP8, INT8 and 4-bit weights."""
