"""How much generations write."""

from __future__ import annotations

from callsheet.scheduler.core.model import ActionRequest

# Tokens that generations are expected to write before any has ended; counts as one that did.
FIRST_GUESS_TOKENS = 256.0
# Weight that what was seen keeps when another generation ends.
FADING = 0.99
# Room set aside for an answer, as a multiple of the expected one; few are longer, and an engine can do with less.
MARGIN = 2.0
MOST_LABELS = 65_536


class OutputLengths:
    """Mean lengths of answers by job and label; old ones fade."""

    def __init__(self) -> None:
        """Starts with nothing seen."""
        self._seen: dict[tuple[str, str], tuple[float, float]] = {}

    def expected(self, request: ActionRequest) -> float:
        """Tokens that a generation is expected to write, at most those that it may."""
        written, count = self._seen.get((request.key.job_id, request.label), (FIRST_GUESS_TOKENS, 1.0))
        most = request.generation.max_new_tokens if request.generation is not None else 0
        return min(written / count, float(most))

    def room(self, request: ActionRequest) -> int:
        """Tokens of a KV cache to set aside for a generation."""
        size = request.generation
        if size is None:
            return 0
        return size.prompt_tokens + min(int(MARGIN * self.expected(request)) + 1, size.max_new_tokens)

    def observe(self, request: ActionRequest, tokens: int) -> None:
        """Learns from a generation that ended."""
        key = (request.key.job_id, request.label)
        if key not in self._seen and len(self._seen) >= MOST_LABELS:
            self._seen.clear()
        written, count = self._seen.get(key, (FIRST_GUESS_TOKENS, 1.0))
        self._seen[key] = (FADING * written + tokens, FADING * count + 1.0)
