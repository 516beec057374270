from __future__ import annotations

import pytest
from callsheet.managers.inference.settings import InferenceSettings, on_cores

CORES = (0, 2, 4, 1, 3)


@pytest.mark.parametrize(("threads", "cores"), [(1, (3,)), (2, (1, 3)), (3, (4, 1, 3)), (4, (2, 4, 1, 3))])
def test_the_last_cores_of_the_node(threads: int, cores: tuple[int, ...]) -> None:
    settings = on_cores(InferenceSettings(threads=threads), CORES)
    assert (settings.threads, settings.cores) == (threads, cores)


@pytest.mark.parametrize("threads", [5, 6])
def test_all_that_there_are_or_more(threads: int) -> None:
    with pytest.raises(ValueError, match=f"engine threads: {threads} of 5"):
        on_cores(InferenceSettings(threads=threads), CORES)


@pytest.mark.parametrize("threads", [0, -1])
def test_none(threads: int) -> None:
    with pytest.raises(ValueError, match=f"threads: {threads}"):
        InferenceSettings(threads=threads)
