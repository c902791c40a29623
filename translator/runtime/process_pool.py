"""Work shared among processes, its answers in the order of the questions."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from typing import Protocol, TypeVar

from translator.runtime.console import log
from translator.runtime.errors import UserError

# Answers for each worker that may wait for an earlier one.
AHEAD = 2
# Seconds without an answer after which that is told: one takes seconds, or with a large model some minutes.
PATIENCE = 600

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class InOrder(Protocol):
    """A way to have questions answered by what `make` makes, in their order."""

    def __call__(self, make: Callable[[], Callable[[Question], Answer]], questions: Iterable[Question]) -> Iterator[Answer]: ...


def alone(make: Callable[[], Callable[[Question], Answer]], questions: Iterable[Question]) -> Iterator[Answer]:
    """The answer to each question, in this process."""
    return map(make(), questions)


def in_order(
    make: Callable[[], Callable[[Question], Answer]], questions: Iterable[Question], *, workers: int, remedy: str
) -> Iterator[Answer]:
    """The answer to each question, by what `make` makes in each of so many processes; 1: in this one.

    Neither questions nor answers pile up: a few for each worker are on their way at a time. UserError with a `remedy` where a
    worker dies; one that only hangs may have been stopped on purpose: it is waited for, and that is told.
    """
    if workers == 1:
        yield from alone(make, questions)
        return
    questions = iter(questions)
    begun = list(islice(questions, workers))  # who would have none is not started
    with answering(make, workers=len(begun), remedy=remedy) as answers:
        yield from answers(chain(begun, questions))


@contextmanager
def answering(
    make: Callable[[], Callable[[Question], Answer]], *, workers: int, remedy: str
) -> Iterator[Callable[[Iterable[Question]], Iterator[Answer]]]:
    """What answers questions as `in_order` does, by processes that stay: again, once all answers of a call have come."""
    with _started(workers) as pipes:
        for pipe in pipes:
            with _surviving(remedy):
                pipe.send(make)
        yield lambda questions: _answers(questions, pipes, remedy)


def _answers(questions: Iterable[Question], pipes: Sequence[Connection], remedy: str) -> Iterator[Answer]:
    numbered, wanted, idle = enumerate(questions), 0, list(pipes)
    busy: dict[Connection, int] = {}
    answers: dict[int, Answer] = {}
    while True:
        while idle and len(answers) < AHEAD * len(pipes) and (asked := next(numbered, None)):
            with _surviving(remedy):
                idle[-1].send(asked[1])
            busy[idle.pop()] = asked[0]
        if wanted in answers:
            yield answers.pop(wanted)
            wanted += 1
        elif not busy:
            return
        else:
            while not (ready := wait(busy, PATIENCE)):
                log(f"warning: for {PATIENCE / 60:g} minutes none of the {len(pipes)} workers has answered; still waiting")
            for pipe in ready:
                assert isinstance(pipe, Connection)  # for the type checker
                with _surviving(remedy):
                    answer, error = pipe.recv()
                if error is not None:
                    raise error
                answers[busy.pop(pipe)] = answer
                idle.append(pipe)


@contextmanager
def _started(workers: int) -> Iterator[list[Connection]]:
    """A pipe to each of so many processes, which are ended at the end."""
    context = multiprocessing.get_context("spawn")  # a fork would copy a half of OpenMP's threads
    pipes, processes = [], []
    try:
        # Processes inherit what is blocked: Ctrl-C is the parent's to answer.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(workers):
                pipe, its_end = context.Pipe()
                pipes.append(pipe)
                process = context.Process(target=_work, args=(its_end,), daemon=True)
                process.start()
                processes.append(process)
                its_end.close()  # so that it closes when the process dies
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield pipes
    finally:
        for process in processes:
            process.kill()
            process.join()


@contextmanager
def _surviving(remedy: str) -> Iterator[None]:
    try:
        yield
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
            except Exception as error:  # is the parent's to tell
                error.add_note(traceback.format_exc())  # which does not go through a pipe by itself
                pipe.send((None, error))
