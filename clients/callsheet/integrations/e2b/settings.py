"""Settings of the facade."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Annotated

from callsheet.integrations.sandboxes.settings import ServedFacade
from callsheet.options.declaration import AtLeast, Setting


@dataclass(frozen=True, slots=True)
class E2bSettings(ServedFacade):
    """How the facade works.

    Attributes:
        default_templates: E2B's own names of its default templates, which take the facade's image.
        most_processes: Commands that may run at once in one sandbox.
    """

    auth_token: Annotated[
        str | None,
        Setting("The API key that clients must have.", variable="CALLSHEET_FACADE_TOKEN", secret=True),
    ] = field(default=None, repr=False)
    job_id: Annotated[
        str, Setting("The job of all sandboxes of this facade.", default_text="e2b- and a random suffix")
    ] = field(default_factory=lambda: f"e2b-{secrets.token_hex(4)}")
    user: Annotated[str, Setting("User of all commands.", default_text="the sandbox's own")] = ""
    working_directory: Annotated[
        str, Setting("Directory of relative paths; made if missing.", default_text="the sandbox's own")
    ] = ""
    timeout_s: Annotated[
        int,
        Setting("Life of a sandbox whose client names none.", flag="--default-timeout", metavar="SECONDS", least=1),
    ] = 300
    longest_timeout_s: Annotated[
        int, Setting("The longest life of a sandbox.", flag="--longest-timeout", metavar="SECONDS", least=1)
    ] = 86_400
    default_templates: tuple[str, ...] = ("base", "code-interpreter-v1")
    most_processes: Annotated[int, AtLeast(1)] = 64
