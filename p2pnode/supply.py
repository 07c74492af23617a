"""Whether the text of the slots to come is here, while it is fetched during a run.

The event loop asks and never waits for a source; threads of the data set fetch. May import: worker,
train, ui.events, config.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from p2pnode.config import RunConfig
from p2pnode.train.data import Dataset
from p2pnode.ui.events import Event, Info, Warn
from p2pnode.worker import Urgency, Worker

GRACE_SECONDS = 2.0
"""Text that takes longer than this to come is called lacking: others get the work meanwhile."""


class Supply:
    """The text of one run at one node. All methods are called on the event loop."""

    def __init__(
        self,
        dataset: Dataset,
        config: RunConfig,
        worker: Worker,
        tell: Callable[[bool], object],
        show: Callable[[Event], object],
    ) -> None:
        """`tell` is called when text is lacking for a while (True), and when it is here again."""
        self._dataset = dataset
        self._config = config
        self._worker = worker
        self._tell = tell
        self._show = show
        self._loop = asyncio.get_running_loop()
        self._step = -1
        self._here = asyncio.Event()
        self._told = False
        self._timer: asyncio.TimerHandle | None = None
        if dataset.remote:
            dataset.in_run(self._arrived)
        else:
            self._here.set()

    def go_to(self, step: int) -> None:
        """The slots that are computed next are those of this step (from 1)."""
        if step != self._step and self._dataset.remote:
            first, self._step = self._step < 0, step
            if not first:  # else it is not known yet what the step needs
                self._look()
            job = self._worker.submit(
                Urgency.EXCHANGE, self._dataset.fetch_ahead, step - 1, self._config
            )
            job.add_done_callback(self._fetching)

    async def here(self) -> None:
        """Wait until the text of the step is here."""
        await self._here.wait()

    def close(self) -> None:
        """Nothing is fetched any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._dataset.in_run(None)

    def _fetching(self, job: asyncio.Future[None]) -> None:
        if not job.cancelled():
            self._look()

    def _arrived(self) -> None:
        """In any thread."""
        try:
            self._loop.call_soon_threadsafe(self._look)
        except RuntimeError:  # the loop has closed: nobody waits any more
            return

    def _look(self) -> None:
        if self._dataset.lacks(self._step - 1, self._config):
            self._here.clear()
            if self._timer is None:
                self._timer = self._loop.call_later(GRACE_SECONDS, self._say)
            return
        self._here.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._told:
            self._told = False
            self._show(Info(text="The text is here; this machine takes work again."))
            self._tell(False)

    def _say(self) -> None:
        self._told = True
        reason = self._dataset.problem or "it takes long to come."
        self._show(
            Warn(
                text=f"The text of step {self._step} is not here: {reason} Others that have it get "
                "this machine's work; if nobody has, the run waits. It is tried again and again."
            )
        )
        self._tell(True)
