"""Compile kernels ahead of time for architectures that are not there, read what the compiler made, and judge it."""
