"""Makes a scorer from the settings of its manager."""

from __future__ import annotations

import structlog
from callsheet.managers.models.transformer import ScoringModel
from callsheet.managers.models.weights import load_model
from callsheet.managers.reward.scorer import Scorer
from callsheet.managers.reward.settings import RewardSettings

log = structlog.get_logger(__name__)


def load_scorer(settings: RewardSettings) -> Scorer:
    """Loads the scoring model.

    Raises:
        WeightsError: The weights cannot be used.
    """
    model = load_model(ScoringModel, settings.weights, settings.shape, settings.seed)
    scorer = Scorer(model, device=settings.device, max_batch_tokens=settings.max_batch_tokens)
    log.info("scorer ready", device=settings.device)
    return scorer
