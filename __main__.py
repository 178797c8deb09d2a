"""`python -m roiline` is `roiline`."""

from __future__ import annotations

from roiline.cli import main

main()
