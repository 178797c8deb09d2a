"""A gallery: one page over all pictures of a run that filters by class and score, and shows what differs from another run."""
