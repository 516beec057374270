"""How a command ends on signals."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from callsheet.deploy.signals import interrupt_on_terminate


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("interrupts", [signal.default_int_handler, signal.SIG_IGN], ids=["heard", "ignored"])
def test_sigterm_is_an_interrupt(interrupts: signal.Handlers) -> None:
    signal.signal(signal.SIGINT, interrupts)
    interrupt_on_terminate()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
