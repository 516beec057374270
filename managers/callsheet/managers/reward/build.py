"""Builds a reward manager's executor from its settings. Torch is imported when the model is loaded."""

from __future__ import annotations

from callsheet.managers.executor import Executor
from callsheet.managers.models.config_file import check_weights
from callsheet.managers.models.first_use import FirstUse
from callsheet.managers.reward.executor import RewardExecutor, ScorerExecutor
from callsheet.managers.reward.hosted.settings import HostedSettings
from callsheet.managers.reward.scores import Scores
from callsheet.managers.reward.settings import RewardSettings


def build_reward_executor(
    settings: RewardSettings, test_suite: Executor | None = None, hosted: HostedSettings | None = None
) -> RewardExecutor:
    """Returns the executor for `run_manager`, with the model loaded unless that is left to the first request.

    Args:
        settings: The scoring model; unused where models are hosted.
        test_suite: Runs test suites that need no trajectory's sandbox; None where this manager runs none.
        hosted: The models to host, if any.

    Raises:
        ValueError: A setting breaks its rule, or a hosted model cannot be used.
        WeightsError: The weights cannot be used. Where loading is left to the first request, tensors are read then.
    """
    if hosted is not None and hosted.all_models:
        from callsheet.managers.reward.hosted.executor import HostedModelsExecutor

        return RewardExecutor(HostedModelsExecutor(hosted), test_suite)
    config = settings.shape if settings.weights is None else check_weights(settings.weights)
    scorer = FirstUse(lambda: _load(settings)) if settings.load_at_first_use else FirstUse.of(_load(settings))
    return RewardExecutor(ScorerExecutor(scorer, config, settings), test_suite)


def _load(settings: RewardSettings) -> Scores:
    from callsheet.managers.reward.scorer import load_scorer

    return load_scorer(settings)
