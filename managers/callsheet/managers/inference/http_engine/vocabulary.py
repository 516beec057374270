"""How many token ids a served model has, where its server does not tell."""

from __future__ import annotations

import json
from pathlib import Path


def vocabulary_of(model_path: str) -> int | None:
    """Reads the `vocab_size` of a model directory; None where it cannot be read from here.

    Args:
        model_path: As the server was given it: a directory of its machine, or a name on a hub.
    """
    try:
        config = json.loads((Path(model_path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    parts = [config, config.get("text_config")] if isinstance(config, dict) else []
    sizes = (part.get("vocab_size") for part in parts if isinstance(part, dict))
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)
