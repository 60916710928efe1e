"""What machines can do: specs of GPUs and systems, with a source for every number."""
