"""Switches off gRPC's own support of forks, before gRPC is imported.

With it a forked child of a process that is connected dies by SIGSEGV now and then, whether it uses gRPC or not. Without
it the child lives, and `callsheet.client.session.channel` refuses to connect there.
"""

from __future__ import annotations

import logging
import os
import sys

_NAME = "GRPC_ENABLE_FORK_SUPPORT"
_ON = frozenset({"1", "true", "yes", "on", "t", "y"})

logger = logging.getLogger("callsheet.client")


def switch_off() -> None:
    """Sets the variable that gRPC reads, unless the user has; warns if gRPC has read it already."""
    said = os.environ.get(_NAME)
    if said is None:
        os.environ[_NAME] = "false"
    # What gRPC took where nothing was said is "on" in its Python packages.
    was_on = said is None or said.lower() in _ON
    if was_on and "grpc._cython.cygrpc" in sys.modules:
        logger.warning(
            "gRPC was imported with its support of forks before callsheet.client: forked children of this process may "
            "die by SIGSEGV. Import callsheet.client first, or set %s=false",
            _NAME,
        )


switch_off()
