"""Models of transformers in the torch engine: any causal language model in the format of Hugging Face."""
