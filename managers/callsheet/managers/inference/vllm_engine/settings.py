"""Settings of the vLLM driver's own. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from callsheet.options.declaration import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMSettings:
    """Settings of this driver only."""

    vocabulary_size: Annotated[
        int | None,
        Setting(
            "Token ids of the model.", default_text="read from the config.json of the server's model path", least=1
        ),
    ] = None
    keep_kv: Annotated[
        bool, Setting("Keep the KV of running requests in updates of mode keep, instead of computing it anew.")
    ] = False
    attach_timeout: Annotated[float, Setting("Seconds to wait for the server to be ready at the start.", least=0)] = (
        900.0
    )
