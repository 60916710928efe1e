"""Times that were measured: a recorded table of operator times of one GPU and engine, or of whole steps, interpolated.

What the table holds is taken from it; what lies between its rows is interpolated; the rest is calibrated, and each time
says which of the three it is.
"""
