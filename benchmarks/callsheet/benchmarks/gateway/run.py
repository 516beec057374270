"""Runs the gateway benchmark."""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from callsheet.benchmarks.gateway.check import differences
from callsheet.benchmarks.gateway.controls import Controls
from callsheet.benchmarks.gateway.harness import play
from callsheet.benchmarks.gateway.in_process import InProcessGateway
from callsheet.benchmarks.gateway.model import make_model
from callsheet.benchmarks.gateway.plan import KEY, PlannedConversation, plan_conversations
from callsheet.benchmarks.gateway.report import GatewayReport
from callsheet.benchmarks.gateway.settings import GatewayBenchSettings
from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.benchmarks.measuring.statistics import ratio
from callsheet.gateway.conversations.samples import Sample
from callsheet.gateway.renderers.loading import load_renderer
from callsheet.managers.inference.scripted_engine.driver import ScriptedEngineDriver
from callsheet.managers.inference.scripted_engine.script import Script
from callsheet.managers.inference.scripted_engine.vocabulary import TokenizerVocabulary
from tokenizers import Tokenizer

PROGRESS_EVERY = 200


async def run_gateway_bench(settings: GatewayBenchSettings, progress: Callable[[str], None]) -> GatewayReport:
    """Plays all conversations and compares their samples with the engine's record."""
    begun = time.monotonic()
    machine = describe_machine()
    with tempfile.TemporaryDirectory() as place:
        make_model(Path(place), settings.seed)
        vocabulary = TokenizerVocabulary(Path(place))
        renderer = load_renderer(place)
        tokenizer = Tokenizer.from_file(f"{place}/tokenizer.json")
    plans = plan_conversations(settings, vocabulary.encode)
    replies = tuple(call.reply for plan in plans for call in plan.calls)
    engine = ScriptedEngineDriver(Script(replies=replies, key=re.compile(KEY)), vocabulary)
    gateway = InProcessGateway(renderer, engine)
    controls = Controls(renderer, tokenizer)
    for number, plan in enumerate(plans, start=1):
        whole = await play(plan, gateway)
        controls.add(plan, whole, gateway.calls[plan.name])
        if number % PROGRESS_EVERY == 0:
            progress(f"{number} of {len(plans)} conversations")
    await engine.close()
    wall_s = time.monotonic() - begun
    return _report(settings, plans, gateway, machine=machine, controls=controls, wall_s=wall_s)


def _report(
    settings: GatewayBenchSettings,
    plans: Sequence[PlannedConversation],
    gateway: InProcessGateway,
    *,
    machine: Mapping[str, object],
    controls: Controls,
    wall_s: float,
) -> GatewayReport:
    calls = [call for plan in plans for call in gateway.calls[plan.name]]
    samples = {plan.name: gateway.samples(plan.name) for plan in plans}
    found = {plan.name: differences(gateway.calls[plan.name], samples[plan.name]) for plan in plans}
    rows, row_calls = _rows([plan for plan in plans if not plan.branches], samples)
    branched_rows, branched_calls = _rows([plan for plan in plans if plan.branches], samples)
    in_calls = sum(len(call.prompt) + len(call.reply) for call in calls)
    in_samples = sum(len(sample.token_ids) for each in samples.values() for sample in each)
    return GatewayReport(
        settings=settings,
        machine=machine,
        calls=len(calls),
        tokens=sum(len(call.reply) for call in calls),
        drift=dict(Counter(call.drift.value for call in calls)),
        differences={name: texts for name, texts in found.items() if texts},
        retokenized=controls.retokenized / len(plans),
        rendered_anew=controls.rendered_anew / len(plans),
        rows=rows,
        row_calls=row_calls,
        branched_rows=branched_rows,
        branched_calls=branched_calls,
        repeated_tokens=ratio(in_calls, in_samples),
        call_ms=gateway.seconds / len(calls) * 1000,
        wall_s=wall_s,
    )


def _rows(plans: Sequence[PlannedConversation], samples: Mapping[str, Sequence[Sample]]) -> tuple[int, int]:
    return sum(len(samples[plan.name]) for plan in plans), sum(len(plan.calls) for plan in plans)
