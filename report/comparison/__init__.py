"""`roiline compare`: two reports, two runs or two result files, and what differs beyond the spread."""
