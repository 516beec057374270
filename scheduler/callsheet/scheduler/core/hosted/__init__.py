"""Hosted services: rollouts of weights, and the load that their managers are told."""
