"""Detectron checkpoints and configurations."""
