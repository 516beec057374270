"""Starts the agent, or the program that unpacks archives for it."""

from __future__ import annotations

import os
import sys

if not __package__:
    # Run as a file: the package is found beside the directory that it is in.
    directory = os.path.dirname(os.path.abspath(__file__))
    sys.path.append(os.path.dirname(directory))
    __package__ = os.path.basename(directory)

if sys.argv[1] == "unpack":
    from .archives import main
else:
    from .loop import main

main()
