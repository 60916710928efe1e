"""Weight files (safetensors, GGUF): their headers, read with care, and the models they hold."""
