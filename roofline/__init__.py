"""What work costs and how long it takes."""
