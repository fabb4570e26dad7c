"""A limit in seconds of work: while this thread waits, nothing counts, up to a point."""

from __future__ import annotations

import threading
import time

from fissile.select.clock import CROWDED, Clock


def work(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_waiting_is_no_work():
    clock = Clock(0.1)
    time.sleep(0.12)
    assert not clock.is_late and clock.left_s <= CROWDED * 0.1


def test_work_of_other_threads_is_none():
    clock = Clock(0.2)
    other = threading.Thread(target=work, args=(0.25,))
    other.start()
    other.join()
    assert not clock.is_late


def test_work_ends_it():
    clock = Clock(0.05)
    work(0.06)
    assert clock.is_late and clock.left_s == 0.0


def test_waiting_for_too_long_ends_it():
    clock = Clock(0.02)
    time.sleep(0.02 * CROWDED + 0.01)
    assert clock.is_late
