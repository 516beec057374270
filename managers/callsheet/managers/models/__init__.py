"""Torch models that the inference and the reward manager share."""
