"""Runs the gateway benchmark."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from callsheet.benchmarks.gateway.check import differences
from callsheet.benchmarks.gateway.controls import Controls
from callsheet.benchmarks.gateway.in_process import play_in_process
from callsheet.benchmarks.gateway.model import make_model
from callsheet.benchmarks.gateway.plan import PlannedConversation, plan_conversations
from callsheet.benchmarks.gateway.played import Played
from callsheet.benchmarks.gateway.report import GatewayReport
from callsheet.benchmarks.gateway.settings import GatewayBenchSettings
from callsheet.benchmarks.gateway.through_gateway import play_through_gateway
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.benchmarks.measuring.statistics import ratio
from callsheet.gateway.conversations.samples import Sample
from callsheet.gateway.renderers.loading import load_renderer
from callsheet.managers.inference.scripted_engine.vocabulary import TokenizerVocabulary
from tokenizers import Tokenizer


async def run_gateway_bench(settings: GatewayBenchSettings, progress: Progress) -> GatewayReport:
    """Plays all conversations and compares their samples with the engine's record."""
    begun = time.monotonic()
    machine = describe_machine()
    with tempfile.TemporaryDirectory() as place:
        model = Path(place)
        make_model(model, settings.seed)
        vocabulary = TokenizerVocabulary(model)
        renderer = load_renderer(place)
        controls = Controls(renderer, Tokenizer.from_file(str(model / "tokenizer.json")))
        plans = plan_conversations(settings, vocabulary.encode)
        if settings.in_process:
            played = await play_in_process(plans, renderer, vocabulary, progress)
        else:
            played = await play_through_gateway(plans, model, vocabulary, kills=settings.kills, progress=progress)
    progress("comparing")
    for plan in plans:
        controls.add(plan, played.whole[plan.name], played.calls[plan.name])
    return _report(settings, plans, played, controls, machine=machine, wall_s=time.monotonic() - begun)


def _report(
    settings: GatewayBenchSettings,
    plans: Sequence[PlannedConversation],
    played: Played,
    controls: Controls,
    *,
    machine: Mapping[str, object],
    wall_s: float,
) -> GatewayReport:
    calls = [call for plan in plans for call in played.calls[plan.name]]
    found = {plan.name: differences(played.calls[plan.name], played.samples[plan.name]) for plan in plans}
    rows, row_calls = _rows([plan for plan in plans if not plan.branches], played.samples)
    branched_rows, branched_calls = _rows([plan for plan in plans if plan.branches], played.samples)
    in_calls = sum(len(call.prompt) + len(call.reply) for call in calls)
    in_samples = sum(len(sample.token_ids) for each in played.samples.values() for sample in each)
    return GatewayReport(
        settings=settings,
        machine=machine,
        calls=len(calls),
        tokens=sum(len(call.reply) for call in calls),
        drift=dict(Counter(call.drift.value for call in calls)),
        differences={name: texts for name, texts in found.items() if texts},
        sampled_again=played.sampled_again,
        kills=played.kills,
        retokenized=controls.retokenized / len(plans),
        rendered_anew=controls.rendered_anew / len(plans),
        rows=rows,
        row_calls=row_calls,
        branched_rows=branched_rows,
        branched_calls=branched_calls,
        repeated_tokens=ratio(in_calls, in_samples),
        call_ms=played.seconds / len(calls) * 1000,
        wall_s=wall_s,
    )


def _rows(plans: Sequence[PlannedConversation], samples: Mapping[str, Sequence[Sample]]) -> tuple[int, int]:
    return sum(len(samples[plan.name]) for plan in plans), sum(len(plan.calls) for plan in plans)
