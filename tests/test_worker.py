"""The computing thread: order, outcomes, closing, and a loop that stays free."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator

import pytest

from p2pnode.worker import Urgency, Worker
from tests.net.fakes import until


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


class Gate:
    """A job that holds the thread until it is opened, so that others queue up behind it."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self.entered = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self._opened.wait(30)

    def open(self) -> None:
        self._opened.set()


async def test_jobs_run_by_urgency_and_then_in_order_of_arrival(worker: Worker) -> None:
    ran: list[str] = []
    gate = Gate()
    first = worker.submit(Urgency.BACKGROUND, gate)
    await asyncio.to_thread(gate.entered.wait, 30)
    waiting = [
        worker.submit(urgency, ran.append, name)
        for name, urgency in (
            ("file 1", Urgency.BACKGROUND),
            ("slot 1", Urgency.COMPUTE),
            ("slot 2", Urgency.COMPUTE),
            ("sum 1", Urgency.EXCHANGE),
            ("file 2", Urgency.BACKGROUND),
            ("sum 2", Urgency.EXCHANGE),
        )
    ]
    assert ran == []  # one thread: nothing overtakes the running job
    gate.open()
    await asyncio.gather(first, *waiting)
    assert ran == ["sum 1", "sum 2", "slot 1", "slot 2", "file 1", "file 2"]


async def test_results_and_arguments(worker: Worker) -> None:
    assert await worker.submit(Urgency.COMPUTE, divmod, 7, 2) == (3, 1)
    assert await worker.submit(Urgency.COMPUTE, int, "ff", base=16) == 255
    thread = await worker.submit(Urgency.COMPUTE, threading.current_thread)
    assert thread is not threading.current_thread()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
async def test_an_exception_reaches_the_waiter(worker: Worker, error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await worker.submit(Urgency.COMPUTE, fail)
    assert caught.value is error
    assert await worker.submit(Urgency.COMPUTE, int, "7") == 7  # the thread lives on


async def test_cancelled_jobs_are_skipped(worker: Worker) -> None:
    ran: list[int] = []
    gate = Gate()
    holding = worker.submit(Urgency.COMPUTE, gate)
    await asyncio.to_thread(gate.entered.wait, 30)
    jobs = [worker.submit(Urgency.COMPUTE, ran.append, n) for n in range(3)]
    jobs[1].cancel()
    gate.open()
    await asyncio.gather(holding, jobs[0], jobs[2])
    assert ran == [0, 2]


async def test_a_running_job_that_is_cancelled_harms_nobody(worker: Worker) -> None:
    problems: list[dict] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    gate = Gate()
    running = worker.submit(Urgency.COMPUTE, gate)
    await asyncio.to_thread(gate.entered.wait, 30)
    running.cancel()
    gate.open()
    assert await worker.submit(Urgency.COMPUTE, int, "7") == 7
    assert running.cancelled()
    assert problems == []


async def test_close_drops_what_is_queued() -> None:
    worker = Worker()
    ran: list[int] = []
    gate = Gate()
    running = worker.submit(Urgency.COMPUTE, gate)
    await asyncio.to_thread(gate.entered.wait, 30)
    queued = worker.submit(Urgency.EXCHANGE, ran.append, 1)
    closing = asyncio.create_task(asyncio.to_thread(worker.close, 30.0))
    # The order to stop is in the queue before the gate opens, or the test would show nothing.
    await until(lambda: worker._jobs.qsize() == 2)
    gate.open()
    await closing
    await running
    assert ran == []
    assert not queued.done()
    assert not worker._thread.is_alive()


async def test_close_does_not_wait_for_ever() -> None:
    worker = Worker()
    gate = Gate()
    worker.submit(Urgency.COMPUTE, gate)
    await asyncio.to_thread(gate.entered.wait, 30)
    worker.close(timeout=0.01)
    assert worker._thread.is_alive()
    assert worker._thread.daemon  # so that it cannot hold up the end of the process
    gate.open()


def test_a_loop_that_closed_meanwhile_is_no_fault() -> None:
    worker = Worker()
    gate = Gate()

    async def abandon() -> None:
        worker.submit(Urgency.COMPUTE, gate)
        await asyncio.to_thread(gate.entered.wait, 30)

    asyncio.run(abandon())
    gate.open()

    async def again() -> int:
        return await worker.submit(Urgency.COMPUTE, int, "7")

    assert asyncio.run(again()) == 7
    worker.close()


async def test_the_loop_runs_while_a_job_computes(worker: Worker) -> None:
    """Hashing releases the GIL, as the kernels do: the loop gets turns before the job is done."""
    text = bytes(1 << 20)
    stop = threading.Event()

    def compute() -> int:
        rounds = 0
        while not stop.is_set():
            hashlib.sha256(text).digest()
            rounds += 1
        return rounds

    job = worker.submit(Urgency.COMPUTE, compute)
    for _ in range(200):
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert not job.done()
    stop.set()
    assert await job > 0
