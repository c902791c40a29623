"""Worker processes that share work; their answers come in the order of the questions.

Not `concurrent.futures`: its semaphores outlive a parent that is killed, and so do its workers.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, TypeVar

from translator.runtime.console import log
from translator.runtime.errors import UserError

AHEAD = 2  # answers for each worker that may wait for an earlier one
PATIENCE = 600  # seconds without an answer before a warning: one takes seconds, or with a large model some minutes

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Make = Callable[[], Callable[[Question], Answer]]


class InOrder(Protocol):
    """A function that yields the answers to questions in their order, by what `make` makes."""

    def __call__(self, make: Make[Question, Answer], questions: Iterable[Question]) -> Iterator[Answer]: ...


def alone(make: Make[Question, Answer], questions: Iterable[Question]) -> Iterator[Answer]:
    """Yield the answer to each question, in this process."""
    return map(make(), questions)


def in_order(make: Make[Question, Answer], questions: Iterable[Question], *, workers: int, remedy: str) -> Iterator[Answer]:
    """Yield the answer to each question, by what `make` makes in each of the worker processes; 1: in this process.

    A few questions for each worker are on their way at a time. Raise UserError with a `remedy` where a worker dies. One that
    hangs may have been stopped on purpose: wait for it, with a warning.
    """
    if workers == 1:
        yield from alone(make, questions)
        return
    questions = iter(questions)
    first = list(islice(questions, workers))  # no more workers than questions
    with answering(make, workers=len(first), remedy=remedy) as answers:
        yield from answers(chain(first, questions))


@contextmanager
def answering(make: Make[Question, Answer], *, workers: int, remedy: str) -> Iterator[Callable[..., Iterator[Answer]]]:
    """Yield a function that answers questions as `in_order` does, call after call, by the same workers."""
    context = multiprocessing.get_context("spawn")  # a fork would copy a half of OpenMP's threads
    pipes, processes = [], []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which workers inherit: Ctrl-C is for the parent
    try:
        try:
            for _ in range(workers):
                pipe, its_end = context.Pipe()
                process = context.Process(target=_work, args=(its_end,), daemon=True)
                process.start()
                its_end.close()  # so that it closes when the process dies
                pipes.append(pipe)
                processes.append(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for pipe in pipes:
            _exchange(partial(pipe.send, make), remedy)
        yield partial(_answers, pipes, remedy)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _answers(pipes: list[Connection], remedy: str, questions: Iterable[Question]) -> Iterator[Any]:
    numbered, next_number, idle = enumerate(questions), 0, list(pipes)
    busy: dict[Connection, int] = {}
    answers: dict[int, Any] = {}
    while True:
        while idle and len(answers) < AHEAD * len(pipes) and (asked := next(numbered, None)):
            busy[idle[-1]], question = asked
            _exchange(partial(idle.pop().send, question), remedy)
        if next_number in answers:
            yield answers.pop(next_number)
            next_number += 1
        elif not busy:
            return
        else:
            while not (ready := wait(busy, PATIENCE)):
                log(f"warning: for {PATIENCE / 60:g} minutes none of the {len(pipes)} workers has answered; still waiting")
            for pipe in ready:
                assert isinstance(pipe, Connection)  # for the type checker
                answer, error = _exchange(pipe.recv, remedy)
                if error is not None:
                    raise error
                answers[busy.pop(pipe)] = answer
                idle.append(pipe)


def _exchange(send_or_receive: Callable[[], Any], remedy: str) -> Any:
    try:
        return send_or_receive()
    except (EOFError, OSError) as error:
        raise UserError(f"a worker was killed, perhaps for want of memory; {remedy}") from error


def _work(pipe: Connection) -> None:
    """Answer questions until the pipe is closed, by the parent or with it."""
    with suppress(EOFError, OSError):
        make, answer = pipe.recv(), None
        while True:
            question = pipe.recv()
            try:
                answer = answer or make()
                pipe.send((answer(question), None))
            except Exception as error:  # the parent raises it
                error.add_note(traceback.format_exc())  # which a pipe does not carry
                pipe.send((None, error))
