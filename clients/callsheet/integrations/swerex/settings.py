"""Settings of the facade."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from typing import Annotated

from callsheet.integrations.sandboxes.settings import ServedFacade
from callsheet.options.declaration import AtLeast, Setting

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names of runtimes; they are a part of trajectory ids."""


@dataclass(frozen=True, slots=True)
class FacadeSettings(ServedFacade):
    """How the facade works.

    Attributes:
        max_unpacked_bytes: What the files of an uploaded directory may have together.
    """

    auth_token: Annotated[
        str | None,
        Setting("The auth_token that clients must have.", variable="CALLSHEET_FACADE_TOKEN", secret=True),
    ] = field(default=None, repr=False)
    job_id: Annotated[
        str, Setting("The job of all sandboxes of this facade.", default_text="swe-rex- and a random suffix")
    ] = field(default_factory=lambda: f"swe-rex-{secrets.token_hex(4)}")
    idle_timeout_s: Annotated[
        float | None,
        Setting(
            "Seconds without a request after which a sandbox ends.",
            flag="--idle-timeout",
            metavar="SECONDS",
            default_text="the scheduler's",
            least=1,
        ),
    ] = None
    max_unpacked_bytes: Annotated[int, AtLeast(1)] = 256 << 20
