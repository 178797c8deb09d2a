"""A model file made to run on a device."""
