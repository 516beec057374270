"""Settings of the driver's own. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from callsheet.options.declaration import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAISettings:
    """Settings of this driver only, because such a server reports little about itself."""

    served_name: Annotated[
        str | None, Setting("Name of the model on the server.", default_text="the first that it lists")
    ] = None
    vocabulary_size: Annotated[int | None, Setting("Token ids of the model.", default_text="not checked", least=1)] = (
        None
    )
    context_length: Annotated[
        int | None, Setting("The most tokens of a sequence.", default_text="as the server lists it", least=1)
    ] = None
    sequences: Annotated[int | None, Setting("Requests at once.", default_text="as --slots says", least=1)] = None
    attach_timeout: Annotated[float, Setting("Seconds to wait for the server to be ready at the start.", least=0)] = (
        900.0
    )
