"""detectron2 checkpoints and configurations as models."""
