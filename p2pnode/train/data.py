"""What text each slot reads: a pure function of (manifest, tokenizer, seed, step, slot).

The text is cut into disjoint windows of seq_len + 1 tokens. Some are held out for good; the others
are read in the order of a keyed permutation, a new one each epoch, so that no window comes twice in
an epoch and nothing but integers decides which comes when.

May import: manifest, permute, tokenizer, windows, sources, config, limits, errors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from p2pnode.config import RunConfig
from p2pnode.errors import DataError, SourceAwayError
from p2pnode.limits import LIMITS
from p2pnode.sources.listing import Skipped
from p2pnode.train.manifest import Manifest
from p2pnode.train.permute import mix64
from p2pnode.train.tokenizer import Tokenizer, probe
from p2pnode.train.windows import Text, Tokens, UnitText, token_hash

_LEAST_WINDOWS = 20
"""Of so many, one is held out."""
_AHEAD_STEPS = 64
"""Steps whose text is fetched ahead: minutes, for what takes seconds to come."""


class Dataset:
    """The text of a run with its manifest. See `open_data`."""

    def __init__(
        self,
        manifest: Manifest,
        text: Text,
        tokenizer: Tokenizer,
        contents: tuple[bytes, ...] = (),
        skipped: Skipped | None = None,
    ) -> None:
        self.manifest = manifest
        self.tokenizer = tokenizer
        self.skipped = skipped or Skipped()
        self._text = text
        self._contents = contents

    @property
    def description(self) -> str:
        """One line for people."""
        if self.manifest.kind == "builtin":
            return "built-in English text"
        left_out = f"left out: {self.skipped}"
        if self.manifest.kind == "table":
            groups = self.manifest.groups
            return (
                f"{len(groups)} row groups of {len(self.manifest.files)} files, "
                f"{sum(group.rows for group in groups)} rows, "
                f"{sum(group.tokens for group in groups)} tokens ({left_out})"
            )
        encoded = self.manifest.encoded
        tokens = f", {encoded.tokens} tokens" if encoded is not None else ""
        return f"{len(self.manifest.files)} files, {self.manifest.size} bytes{tokens} ({left_out})"

    def matches(self, manifest: Manifest) -> bool:
        """True if this is exactly the text of `manifest`."""
        return self.manifest == manifest

    def check(self, run: RunConfig) -> None:
        """Raise DataError if this is not the run's text or too little for one step of it."""
        if run.tokenizer != self.tokenizer.name or run.model.vocab < self.tokenizer.vocabulary:
            raise DataError(
                f"The run reads text with another tokenizer than the one here "
                f"({run.tokenizer[:12]}, not {self.tokenizer.name[:12]}), or has too small a "
                f"vocabulary for it ({run.model.vocab}, of {self.tokenizer.vocabulary} tokens)."
            )
        if run.probe and run.probe != probe(self.tokenizer):
            raise DataError(
                "The tokenizer encodes otherwise here than at the host: the versions of the "
                "package `tokenizers` differ. Install the same one on both machines."
            )
        if self.manifest.hash() != run.data:
            raise DataError(
                "The text here is not the text of the run: "
                f"its manifest is {self.manifest.hash()[:12]}, the run's is {run.data[:12]}."
            )
        training, heldout = self._text.counts(run.model.seq_len + 1)
        needed = run.slots * run.micro_batch
        if training < needed or heldout < 1:
            least = max(needed * _LEAST_WINDOWS // (_LEAST_WINDOWS - 1) + 1, _LEAST_WINDOWS)
            tokens = least * (run.model.seq_len + 1)
            raise DataError(
                f"The text is too small: {self.manifest.size} bytes; one step of this run reads "
                f"{needed} pieces of {run.model.seq_len + 1} tokens, so at least {tokens} tokens "
                "are needed (with the byte tokenizer, bytes)."
            )

    # Slots

    def slot(self, step: int, slot: int, run: RunConfig) -> tuple[Tokens, Tokens]:
        """Inputs and targets of one training slot, each int32 [micro_batch, seq_len].

        Raises DataError, SourceAwayError if the text is not here and cannot be had now.
        """
        length = run.model.seq_len + 1
        return _slot([self._text.training(i, length) for i in self._windows(step, slot, run)])

    def heldout_slot(self, index: int, run: RunConfig) -> tuple[Tokens, Tokens]:
        """Inputs and targets of held-out slot `index`, as `slot`; short texts come round again."""
        length = run.model.seq_len + 1
        _, heldout = self._text.counts(length)
        first = index * run.micro_batch
        return _slot(
            [self._text.heldout((first + i) % heldout, length) for i in range(run.micro_batch)]
        )

    def token_hash(self, step: int, slot: int, run: RunConfig) -> bytes | None:
        """Of a training slot (see `windows.token_hash`); None if its text is not here now. Raises
        DataError."""
        try:
            return token_hash(*self.slot(step, slot, run))
        except SourceAwayError:
            return None

    def check_intact(self) -> None:
        """Raise DataError if the text in memory is not what was read any more."""
        if not self._text.intact():
            raise DataError(
                "The run's text has changed in this machine's memory, which is damaged. The others "
                "go on without it; have its memory tested before it takes part again."
            )

    def _windows(self, step: int, slot: int, run: RunConfig) -> list[int]:
        """The training windows of a slot."""
        length = run.model.seq_len + 1
        training, _ = self._text.counts(length)
        first = (step * run.slots + slot) * run.micro_batch
        found = []
        for position in range(first, first + run.micro_batch):
            epoch, index = divmod(position, training)
            found.append(self._text.place(index, length, _key(run, epoch)))
        return found

    # Text that is fetched while the run goes on

    def prepare(self, run: RunConfig) -> None:
        """Fetch what has to be here before the first step: the held-out text. Raises DataError,
        SourceAwayError."""
        if isinstance(self._text, UnitText) and run.eval_every:
            windows = run.eval_slots * run.micro_batch
            units = self._text.heldout_units(windows, run.model.seq_len + 1)
            self._text.units.keep(units)
            for unit in units:
                self._text.units.get(unit)

    def fetch_ahead(self, step: int, run: RunConfig) -> None:
        """Fetch in the background what this step and the next ones may need. Returns at once."""
        if not isinstance(self._text, UnitText):
            return
        last = max(step, min(step + _AHEAD_STEPS, run.steps - 1))
        self._text.units.want(self._units(step, last, run))

    @property
    def remote(self) -> bool:
        """Whether text is fetched while the run goes on."""
        return isinstance(self._text, UnitText)

    def lacks(self, step: int, run: RunConfig) -> bool:
        """Whether some text that this step may need is not here yet. Answers at once, after a
        `fetch_ahead` of the step."""
        text = self._text
        if not isinstance(text, UnitText):
            return False
        return any(not text.units.has(unit) for unit in self._units(step, step, run))

    def _units(self, first_step: int, last_step: int, run: RunConfig) -> list[int]:
        """Units that these steps may need, soonest first."""
        assert isinstance(self._text, UnitText)
        length = run.model.seq_len + 1
        training, _ = self._text.counts(length)
        windows = run.slots * run.micro_batch
        first = first_step * windows
        last = (last_step + 1) * windows - 1
        found: dict[int, None] = {}
        for epoch in range(first // training, last // training + 1):
            start = max(first - epoch * training, 0)
            stop = min(last - epoch * training, training - 1)
            found |= dict.fromkeys(self._text.units_of(start, stop, length, _key(run, epoch)))
            if len(found) == len(self.manifest.groups):
                break  # all there is
        return list(found)

    @property
    def problem(self) -> str:
        """Why text that is fetched ahead does not come; empty if it does."""
        return self._text.units.problem if isinstance(self._text, UnitText) else ""

    def in_run(self, notify: Callable[[], object] | None) -> None:
        """From now on `slot` waits for no source: it raises SourceAwayError for text that was not
        fetched ahead, and `notify` is called, in any thread, when text has come or could not be
        had. None: the run is over, nothing is fetched ahead any more."""
        if isinstance(self._text, UnitText):
            self._text.units.in_run(notify)

    # Handing it on

    def blob(self) -> bytes:
        """The tokenizer file, then the text unless that is too large, for a peer that lacks them:
        files in manifest order, or ids of row groups. DataError if there is nothing to send."""
        if self.manifest.kind == "builtin":
            raise DataError("The built-in text is made by each node, not transferred.")
        if not self.manifest.blob_size:
            raise DataError(
                f"The text has {self.manifest.size} bytes; at most {LIMITS.shared_data_bytes} are "
                "sent to peers. Copy the files to the other machines and give --data there."
            )
        parts = [self.tokenizer.file]
        if self.manifest.shared:
            if isinstance(self._text, UnitText):
                parts += [self._text.units.get(i) for i in range(len(self.manifest.groups))]
            else:
                parts += self._contents
        return b"".join(parts)


def _key(run: RunConfig, epoch: int) -> int:
    return mix64(run.seed ^ mix64(epoch))


def _slot(windows: list[Tokens]) -> tuple[Tokens, Tokens]:
    ids = np.stack(windows)
    return np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])
