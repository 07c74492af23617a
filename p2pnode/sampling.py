"""Text that the model writes while it is trained, to be looked at.

Made from a copy of the weights, one token a job of the computing thread and in no hurry, so that
neither the event loop nor a step waits for it; while one is being made, others are left out.
May import: worker, train, ui.events, errors. All methods are called on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from p2pnode.errors import P2PNodeError
from p2pnode.train import tokenizer as tokenizers
from p2pnode.train.arithmetic import kernels
from p2pnode.train.generate import generate
from p2pnode.train.state import State
from p2pnode.ui.events import Event, Sample, Warn
from p2pnode.worker import Urgency, Worker

TOKENS = 100
"""Length of a sample."""


class Samples:
    """Makes samples of one run: the same text at every node for the same prompt."""

    def __init__(
        self, folder: Path, prompt: str, *, worker: Worker, show: Callable[[Event], None]
    ) -> None:
        """`folder`: where the run's tokenizer is."""
        self._folder = folder
        self._prompt = prompt
        self._worker = worker
        self._show = show
        self._busy = False

    async def take(self, state: State, ops: kernels.Kernels) -> None:
        """Make one from `state`, of which only the weights are needed, and show it."""
        if self._busy:
            return
        self._busy = True
        text = self._prompt
        try:
            pieces = await self._worker.submit(Urgency.BACKGROUND, self._begin, state, ops)
            while (piece := await self._worker.submit(Urgency.BACKGROUND, next, pieces, "")) != "":
                text += piece
        except P2PNodeError as error:  # an unusual prompt or tokenizer must not end a run
            self._show(Warn(text=f"No sample of step {state.step}: {error}"))
        else:
            self._show(Sample(step=state.step, text=text))
        finally:
            self._busy = False

    def _begin(self, state: State, ops: kernels.Kernels) -> Iterator[str]:
        tokenizer = tokenizers.beside(state.config.tokenizer, self._folder)
        return generate(state, tokenizer, self._prompt, max_new=TOKENS, ops=ops)
