"""Makes a scorer from the settings of its manager."""

from __future__ import annotations

import structlog
from callsheet.managers.models.config_file import read_config
from callsheet.managers.models.transformer import ScoringModel, initialise
from callsheet.managers.models.weights import read_state, shapes
from callsheet.managers.reward.scorer import Scorer
from callsheet.managers.reward.settings import RewardSettings

log = structlog.get_logger(__name__)


def load_scorer(settings: RewardSettings) -> Scorer:
    """Loads the scoring model.

    Raises:
        WeightsError: The weights cannot be used.
    """
    scorer = Scorer(_model(settings), device=settings.device, max_batch_tokens=settings.max_batch_tokens)
    log.info("scorer ready", device=settings.device)
    return scorer


def _model(settings: RewardSettings) -> ScoringModel:
    if settings.weights is None:
        model = ScoringModel(settings.shape)
        initialise(model, settings.seed)
        return model
    model = ScoringModel(read_config(settings.weights))
    model.load_state_dict(read_state(settings.weights, shapes(model)))
    return model
