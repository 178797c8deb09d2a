"""Looking at anything that people hand over: what it is, and whether it is right."""
