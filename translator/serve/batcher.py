"""One thread that translates for many: what waits goes in batches, and nobody waits for a slow one."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Kind = TypeVar("Kind")
Unit = TypeVar("Unit")

# Tokens up to which sentences are short: they go together whatever their lengths, and are soon done.
SHORT = 40
# Seconds for which a batch of longer ones may keep others waiting; then what is much shorter goes first.
PATIENCE = 0.2


class Full(Exception):
    """As much waits as may."""


class Abandoned(Exception):
    """Nobody waits any more for the batch in work."""


@dataclass(eq=False)
class _Order(Generic[Kind, Unit]):
    """Units of one kind that are asked for together."""

    kind: Kind
    units: Sequence[Unit]
    sizes: Sequence[int]
    future: Future[list[Any]] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.answers: list[Any] = [None] * len(self.units)
        self.missing = len(self.units)
        self.waiting = deque(sorted(range(len(self.units)), key=lambda i: self.sizes[i]))  # the shortest first

    @property
    def next_size(self) -> int:
        return self.sizes[self.waiting[0]]

    def answer(self, number: int, answer: Any) -> None:
        self.answers[number] = answer
        self.missing -= 1
        if not self.missing and self.future.set_running_or_notify_cancel():
            self.future.set_result(self.answers)

    def fail(self, error: Exception) -> None:
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


@dataclass
class _Batch(Generic[Kind, Unit]):
    """Units in work, each an order's, by its number there."""

    kind: Kind
    units: list[tuple[_Order[Kind, Unit], int]]
    longest: int
    started: float = field(default_factory=time.monotonic)


class Batcher(Generic[Kind, Unit]):
    """Orders of any number of units, translated in one thread, in batches of one kind and of like length.

    Orders take turns: of each goes one unit at a time, so that an order of many never keeps one of few waiting. A batch
    of long ones that takes more than `PATIENCE` is interrupted, between two steps of its search, for units of at most half its
    length, and so are these: nothing waits long for what is much longer. The longest loses time, but never stands still.
    """

    def __init__(
        self, translate: Callable[[Kind, list[Unit]], Sequence[Any]], *, size: Callable[[Unit], int], batch_tokens: int,
        most_waiting: int,
    ) -> None:
        """`translate`: the answers to units, for which it calls `give_way` between its steps; `size`: a unit's tokens."""
        self._translate = translate
        self._size = size
        self._batch_tokens = batch_tokens
        self._most_waiting = most_waiting
        self._orders: list[_Order[Kind, Unit]] = []  # with units that wait, the next one's turn first
        self._stack: list[_Batch[Kind, Unit]] = []  # in work: each has interrupted the one before
        self._changed = threading.Condition()
        self._closed = False
        self.units_done = self.batches_done = 0
        self._thread = threading.Thread(target=self._work, name="batcher")
        self._thread.start()

    def submit(self, kind: Kind, units: Sequence[Unit]) -> Future[list[Any]]:
        """The answers to some units, to come, unless it is cancelled; Full where too many wait already."""
        order = _Order(kind, units, [self._size(unit) for unit in units])
        with self._changed:
            waiting = self._count_waiting()
            if self._closed or (waiting and waiting + len(units) > self._most_waiting):  # a single order may be larger
                raise Full
            self._orders.append(order)
            self._changed.notify()
        return order.future

    @property
    def waiting(self) -> int:
        with self._changed:
            return self._count_waiting()

    def close(self) -> None:
        """Take no more orders, cancel those that wait, and end."""
        with self._changed:
            self._closed = True
            for order in (*self._orders, *(order for batch in self._stack for order, _ in batch.units)):
                order.future.cancel()
            self._changed.notify()
        self._thread.join()

    def give_way(self) -> None:
        """For the work in progress to call between two steps: others may go first, or it ends with Abandoned."""
        batch = self._stack[-1]
        if all(order.future.cancelled() for order, _ in batch.units):
            raise Abandoned
        if batch.longest <= SHORT or time.monotonic() - batch.started <= PATIENCE:
            return
        if urgent := self._take(batch.longest // 2):
            self._run(urgent)

    def _count_waiting(self) -> int:
        return sum(len(order.waiting) for order in self._orders if not order.future.done())

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._orders or self._closed)
                if self._closed:
                    return
            if batch := self._take(math.inf):
                self._run(batch)

    def _take(self, longest: float) -> _Batch[Kind, Unit] | None:
        """The next batch, of units no longer than that: one of the first order's, and those of others that go with it."""
        with self._changed:
            self._orders = [order for order in self._orders if not order.future.done()]
            first = next((order for order in self._orders if order.next_size <= longest), None)
            if first is None:
                return None
            longest = min(longest, max(SHORT, 2 * first.next_size))
            batch: _Batch[Kind, Unit] = _Batch(first.kind, [], 0)
            turns = deque([first, *(o for o in self._orders if o.kind == first.kind and o is not first)])
            while turns:
                order = turns.popleft()
                widest = max(batch.longest, order.next_size)
                if batch.units and (order.next_size > longest or (len(batch.units) + 1) * widest > self._batch_tokens):
                    continue
                batch.longest = widest
                batch.units.append((order, order.waiting.popleft()))
                if order.waiting:
                    turns.append(order)
            served = {order for order, _ in batch.units}
            self._orders = sorted((o for o in self._orders if o.waiting), key=lambda order: order in served)
            self._stack.append(batch)
            return batch

    def _run(self, batch: _Batch[Kind, Unit]) -> None:
        """Work at what `_take` has put on the stack."""
        try:
            answers = self._translate(batch.kind, [order.units[number] for order, number in batch.units])
        except Abandoned:
            return
        except Exception as error:  # whatever it is, it is those who asked for this batch who are told
            for order, _ in batch.units:
                order.fail(error)
        else:
            for (order, number), answer in zip(batch.units, answers, strict=True):
                order.answer(number, answer)
            self.units_done += len(batch.units)
            self.batches_done += 1
        finally:
            with self._changed:
                self._stack.pop()
