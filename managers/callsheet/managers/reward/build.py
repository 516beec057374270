"""Puts a reward manager's executor together from its settings."""

from __future__ import annotations

import structlog
from callsheet.managers.executor import Executor
from callsheet.managers.models.transformer import ScoringModel, initialise
from callsheet.managers.models.weights import read_config, read_state, shapes
from callsheet.managers.reward.executor import RewardExecutor, ScorerExecutor, ScorerOptions
from callsheet.managers.reward.scorer import Scorer
from callsheet.managers.reward.settings import RewardSettings

log = structlog.get_logger(__name__)


def build_reward_executor(settings: RewardSettings, test_suite: Executor | None = None) -> RewardExecutor:
    """Loads the scoring model and returns the executor for `run_manager`.

    Args:
        settings: The scoring model.
        test_suite: Runs test suites that need no trajectory's sandbox; None where this manager runs none.

    Raises:
        ValueError: A setting breaks its rule.
        WeightsError: The weights cannot be used.
    """
    scorer = Scorer(_load(settings), device=settings.device, max_batch_tokens=settings.max_batch_tokens)
    capabilities = {"weights": "random" if settings.weights is None else "file", "device": settings.device}
    options = ScorerOptions(
        slots=settings.slots,
        reserved={"gpu": settings.gpus} if settings.gpus else None,
        capabilities=capabilities,
    )
    log.info("scorer ready", test_suites=test_suite is not None, **capabilities)
    return RewardExecutor(ScorerExecutor(scorer, options), test_suite)


def _load(settings: RewardSettings) -> ScoringModel:
    if settings.weights is None:
        model = ScoringModel(settings.shape)
        initialise(model, settings.seed)
        return model
    model = ScoringModel(read_config(settings.weights))
    model.load_state_dict(read_state(settings.weights, shapes(model)))
    return model
