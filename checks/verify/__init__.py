"""Staged parity of an exported model with a network computed in numpy straight from the checkpoint."""
