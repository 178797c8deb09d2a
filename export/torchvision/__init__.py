"""torchvision's detection models: a checkpoint, and what it cannot tell as options, into one model file."""
