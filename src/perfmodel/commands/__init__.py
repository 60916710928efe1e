"""One file a command, imported when the command runs."""
