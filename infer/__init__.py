"""A dataset run: roidb, pictures, engine, results."""
