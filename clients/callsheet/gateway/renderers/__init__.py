"""Renderers: the tokenizers and chat templates of models."""
