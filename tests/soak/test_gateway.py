"""What a gateway exports is what the engine sampled, token for token, over kills of the gateway."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from callsheet.managers.inference.scripted_engine.vocabulary import TokenizerVocabulary
from tokenizers import Tokenizer

from tests.soak.gateway_play import play_through_gateway
from tests.soak.planned_conversations import PlannedConversation, plan_conversations
from tests.support.chat_model import make_model
from tests.support.measurements import Measured
from tests.support.sample_check import EngineCall, differences

SEED = 0
LEAST_CALLS_A_ROW = 5
LEAST_DRIFT = 0.2
"""In fewer conversations tokens would come back from their text as they were: these would be too easy."""


async def test_samples_are_what_the_engine_sampled(nightly: bool, measured: Measured, tmp_path: Path) -> None:
    count, kills, shortened = (1000, 3, 0.02) if nightly else (16, 2, 0.2)
    make_model(tmp_path, SEED)
    vocabulary = TokenizerVocabulary(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    plans = plan_conversations(count, SEED, vocabulary.encode, shortened=shortened)
    played = await play_through_gateway(plans, tmp_path, vocabulary, kills=kills)
    calls = [call for each in played.calls.values() for call in each]
    single = [plan for plan in plans if not plan.branches]
    calls_a_row = sum(len(plan.calls) for plan in single) / sum(len(played.samples[plan.name]) for plan in single)
    drift = sum(drifts(plan, played.calls[plan.name], tokenizer) for plan in plans) / count
    prompts = Counter(call.drift.value for call in calls)
    measured(
        f"{count:,} conversations, {kills} kills, {sum(len(call.reply) for call in calls):,} sampled tokens of "
        f"{len(calls):,} calls ({', '.join(f'{number:,} {name}' for name, number in prompts.items())}), "
        f"{calls_a_row:.1f} calls a row without branches; {drift:.1%} drift if text is tokenised again"
    )
    found = {name: differences(played.calls[name], samples) for name, samples in played.samples.items()}
    assert {name: texts for name, texts in found.items() if texts} == {}
    assert played.generations == len(calls), "a call was sampled twice"
    assert prompts["realigned"]
    assert calls_a_row >= LEAST_CALLS_A_ROW
    assert drift >= LEAST_DRIFT


def drifts(plan: PlannedConversation, calls: Sequence[EngineCall], tokenizer: Tokenizer) -> bool:
    """Whether the tokens of a call that others continue differ once their text is tokenised again.

    Nothing else is changed: no template is at work. Other gateways make the next prompt of text.
    """
    for place in {call.after for call in plan.calls if call.after is not None}:
        tokens = [*calls[place].prompt, *calls[place].reply]
        text = tokenizer.decode(tokens, skip_special_tokens=False)
        if tokenizer.encode(text, add_special_tokens=False).ids != tokens:
            return True
    return False
