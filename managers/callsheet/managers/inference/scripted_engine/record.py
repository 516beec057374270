"""Writes the requests and answers of a scripted engine to a file, for tests that compare them with other records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from callsheet.managers.inference.driver import GenerateRequest, Generation

RecordGeneration = Callable[[GenerateRequest, Generation], None]


def record_to(file: Path) -> RecordGeneration:
    """Returns a function that adds a line to a file for each generation, also for those that were aborted."""

    def record(request: GenerateRequest, generation: Generation) -> None:
        line = json.dumps(generation_record(request, generation), separators=(",", ":"))
        with file.open("a", encoding="utf-8") as opened:
            opened.write(line + "\n")

    return record


def generation_record(request: GenerateRequest, generation: Generation) -> dict[str, Any]:
    """Returns what is written of a generation."""
    return {
        "request_id": request.request_id,
        "prompt_token_ids": list(request.prompt_token_ids),
        "token_ids": list(generation.token_ids),
        "log_probs": list(generation.log_probs),
        "versions": [[span.version, span.begin, span.end] for span in generation.version_spans],
        "finish_reason": generation.finish_reason.value,
    }
