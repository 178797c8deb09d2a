"""Detectron checkpoints: configuration, weights, and the network that the two make."""
