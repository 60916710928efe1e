"""What models are: specs, the tensor inventory and storage formats."""
