"""An interrupt that was swallowed comes again."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from trainer import interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_swallowed_interrupt_is_raised_again(number):
    before = signal.getsignal(number)
    with interrupts.obeyed():
        interrupts.check()
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
    assert signal.getsignal(number) is before
    with interrupts.obeyed():
        interrupts.check()  # another run's
