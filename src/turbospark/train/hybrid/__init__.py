"""A small qwen3_5 trunk with an MTP head, from texts to a GGUF file: `python -m turbospark.train.hybrid --help`."""
