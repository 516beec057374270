"""The scripted engine for the contract suite of drivers: a script of random tokens, so that it never runs out."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from callsheet.managers.inference import tokenizer
from callsheet.managers.inference.scripted_engine.driver import ScriptedEngineDriver
from callsheet.managers.inference.scripted_engine.script import EngineScript, ScriptedReply
from callsheet.managers.inference.scripted_engine.vocabulary import ByteVocabulary

from tests.support.engine_subject import Subject

CONTEXT_LENGTH = 16_384


@asynccontextmanager
async def scripted_subject(place: Path) -> AsyncIterator[Subject]:
    """A scripted engine with the demo's bytes."""

    def expected(seed: int, tokens: tuple[int, ...], output: tuple[int, ...]) -> list[float]:
        # Any token but the end of a turn is as likely as any other.
        return [-math.log(tokenizer.VOCABULARY_SIZE - 1)] * len(output)

    script = EngineScript(
        replies=(ScriptedReply(random_tokens=CONTEXT_LENGTH, repeat=True),), context_length=CONTEXT_LENGTH
    )
    driver = ScriptedEngineDriver(script, ByteVocabulary(), max_requests=64)
    try:
        yield Subject(
            driver=driver,
            weights=lambda seed: place,
            other_shape=lambda: place,
            weights_file="",
            expected=expected,
            text=tokenizer.decode,
            context_length=CONTEXT_LENGTH,
            most_requests=64,
            cached_of_100=0,
            tolerance=1e-9,
            lengthy=800,
            wakes_whole=True,
        )
    finally:
        await driver.close()
