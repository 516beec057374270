"""Settings of the SGLang driver's own. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from callsheet.options.declaration import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SGLangSettings:
    """Settings of this driver only."""

    vocabulary_size: Annotated[
        int | None,
        Setting(
            "Token ids of the model; a server dies of an id beyond them.",
            default_text="read from the config.json of the server's model path",
            least=1,
        ),
    ] = None
    keep_kv: Annotated[
        bool, Setting("Keep the KV of running requests in updates of mode keep, instead of computing it anew.")
    ] = False
    original_log_probs: Annotated[
        bool, Setting("The server runs with SGLANG_RETURN_ORIGINAL_LOGPROB: log-probabilities before temperature.")
    ] = False
    attach_timeout: Annotated[float, Setting("Seconds to wait for the server to be ready at the start.", least=0)] = (
        900.0
    )
    request_timeout: Annotated[
        float | None,
        Setting(
            "Seconds of one request, after which it fails and is tried elsewhere.",
            default_text="none; 600 for one half of a pair, which tells by silence alone that the other half is gone",
            least=1,
        ),
    ] = None
