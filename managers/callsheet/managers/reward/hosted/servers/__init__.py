"""Hosted models on inference servers that give their memory back and take it again: SGLang and vLLM."""
