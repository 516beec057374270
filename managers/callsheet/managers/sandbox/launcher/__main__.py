"""Starts the launcher."""

from __future__ import annotations

import os
import sys

if not __package__:
    # Run as a directory: its parent is where the package is found.
    sys.path[0] = os.path.dirname(sys.path[0])
    __package__ = os.path.basename(os.path.dirname(os.path.abspath(__file__)))

from .loop import main

main()
