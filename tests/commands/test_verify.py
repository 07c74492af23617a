"""`verify`: an honest run passes; one flipped bit is named, wherever it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from p2pnode.cli import main
from p2pnode.commands.verify import verify
from p2pnode.errors import ArithmeticUnsoundError, DataError, LedgerError, UsageError
from p2pnode.node_config import TextChoice
from p2pnode.protocol.identity import Identity
from p2pnode.signatures import Signatures, file_of, sign
from p2pnode.train.arithmetic import kernels
from p2pnode.train.checkpoint import load
from p2pnode.train.ledger_lines import NOTHING, Entry, Line, entry_digest, read_lines
from tests.harness.jobs import Bench
from tests.train.helpers import load_kernels, loaded_once

STEPS = 6


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "load", loaded_once)


class Run:
    """A finished run of one node in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []

    @property
    def ledger(self) -> Path:
        return next(self.folder.glob("*.ledger"))

    def checkpoint(self, step: int) -> Path:
        return next(self.folder.glob(f"run-*{step:04d}.safetensors"))

    def verify(self, first: int | None = None, last: int | None = None, **more: Any) -> str:
        self.said = []
        options = {"text": TextChoice(), "threads": 1} | more
        assert verify(self.folder, first=first, last=last, say=self.said.append, **options) == 0
        return "\n".join(self.said)

    def forge(self, change: Callable[[Entry], Entry]) -> None:
        """Another ledger, whole in itself, as one who writes all digests anew can make."""
        digest, raw = NOTHING, b""
        for line, _ in list(read_lines(self.ledger)):
            entry = change(line.entry)
            digest = entry_digest(digest, entry)
            raw += msgspec.json.encode(Line(digest.hex(), entry), order="sorted") + b"\n"
        self.ledger.write_bytes(raw)


def trained(folder: Path, disturb: Callable[[Bench, int], None] | None = None) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "load", load_kernels)  # the faults go into kernels of their own
        bench = Bench(folder, every=2, eval_every=3)
    bench.folder._keep = STEPS
    for step in range(1, STEPS + 1):
        if disturb is not None:
            disturb(bench, step)
        bench.advance(step)
    return Run(folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    trained(folder)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Run:
    return Run(Path(shutil.copytree(finished, tmp_path / "run")))


def test_an_honest_run_passes(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    said = run.verify()
    state = load(run.checkpoint(6)).hash().hex()
    assert "Computing steps 1 to 6 again, from the first state" in said
    assert "Steps 1 to 6 come out as the ledger says, bit for bit" in said
    assert state in said
    assert "from the checkpoint of step 2" in run.verify(4, 5)
    assert "Computing steps 3 to 5" in "\n".join(run.said)
    assert main(["verify", str(run.folder), "--steps", "6:"]) == 0
    assert "from the checkpoint of step 4" in capsys.readouterr().out


def test_without_checkpoints_it_begins_at_the_first_state(run: Run) -> None:
    for path in run.folder.glob("*.safetensors"):
        path.unlink()
    assert "from the first state" in run.verify(5, 5)


def test_one_flipped_bit_in_a_checkpoint_is_named(run: Run) -> None:
    path, state = run.checkpoint(4), load(run.checkpoint(4))
    raw = bytearray(path.read_bytes())
    tensor = next(t for t in state.layout.tensors if t.name == "layers.1.k")
    start = len(raw) - 12 * state.layout.size
    at = start + 4 * (2 * state.layout.size + tensor.start + 9)  # its second moment, value 9
    raw[at] ^= 4
    path.write_bytes(raw)
    with pytest.raises(LedgerError, match=r"step-00000004\.safetensors is not state 4: layers.1.k"):
        run.verify()
    assert "second moment differs in 1 of 1024 values, first at 9: bits" in "\n".join(run.said)
    with pytest.raises(LedgerError):
        run.verify(6)  # it is not begun from
    assert "from the checkpoint of step 2" in "\n".join(run.said)


def test_a_checkpoint_of_another_run_under_its_name_is_named(run: Run, tmp_path: Path) -> None:
    other = Bench(tmp_path / "other", seed=99, eval_every=3)
    run.checkpoint(2).write_bytes(bytes(other.trainer.snapshot()))
    with pytest.raises(LedgerError, match="schedule or settings differ"):
        run.verify()
    run.checkpoint(2).write_bytes(b"nothing")
    with pytest.raises(LedgerError, match="cannot be read"):
        run.verify(1, 3)


def test_one_flipped_bit_in_the_ledger_is_named(run: Run) -> None:
    raw = bytearray(run.ledger.read_bytes())
    fourth = [i for i, byte in enumerate(raw) if byte == 10][2] + 1
    raw[raw.index(b'"loss":', fourth) + 8] ^= 1
    run.ledger.write_bytes(raw)
    with pytest.raises(LedgerError, match="damaged at step 4"):
        run.verify()


@pytest.mark.parametrize(
    ("field", "said"),
    [("loss", "all tensors, loss"), ("evidence", "slots' evidence"), ("state", "state hash")],
)
def test_a_ledger_written_anew_is_named(run: Run, field: str, said: str) -> None:
    def change(entry: Entry) -> Entry:
        if entry.step != 4:
            return entry
        value: Any = entry.loss ^ 1 if field == "loss" else "f" * 64
        return msgspec.structs.replace(entry, **{field: value})

    run.forge(change)
    with pytest.raises(LedgerError, match=f"Step 4 did not come out.*{said}"):
        run.verify()
    assert "come out as the ledger says" in run.verify(1, 3)


def test_a_false_heldout_loss_is_named(run: Run) -> None:
    run.forge(
        lambda entry: msgspec.structs.replace(entry, heldout=(1, 2)) if entry.heldout else entry
    )
    with pytest.raises(LedgerError, match="held-out loss of step 3"):
        run.verify()


def flip_gradient(tensor: str) -> Callable[[Bench, int], None]:
    """A worker whose gradient of one tensor is wrong in one bit, at step 5."""

    def disturb(bench: Bench, step: int) -> None:
        grid = bench.trainer.kernels.grid
        if step != 5:
            return
        names = iter(bench.trainer.tensors)

        def wrong(*args: Any) -> Any:
            q, clamped, largest = grid(*args)
            if next(names, None) == tensor:
                q[3] ^= 1
            return q, clamped, largest

        bench.trainer.kernels.grid = wrong  # type: ignore[method-assign]

    return disturb


def flip_state(tensor: str, vector: str) -> Callable[[Bench, int], None]:
    """A bit of memory that flips while step 5 is applied."""

    def disturb(bench: Bench, step: int) -> None:
        adam = bench.trainer.kernels.adam
        if step != 5:
            return

        def wrong(*args: Any) -> Any:
            out = adam(*args)
            t = bench.trainer.committed.layout.tensors[bench.trainer.tensors.index(tensor)]
            out["wmv".index(vector)].view(np.uint32)[t.start] ^= 1
            bench.trainer.kernels.adam = adam  # type: ignore[method-assign]
            return out

        bench.trainer.kernels.adam = wrong  # type: ignore[method-assign]

    return disturb


@pytest.mark.parametrize(
    ("disturb", "named"),
    [
        (flip_gradient("layers.1.up"), r"layers\.1\.up, sum of the slots' gradients \(a slot's"),
        (flip_state("layers.0.q", "w"), r"layers\.0\.q, Adam, weights \(the slots' gradients are"),
        (flip_state("norm", "m"), r"norm, Adam, first moment \(the slots"),
        (flip_state("embed", "v"), r"embed, Adam, second moment \(the slots"),
    ],
)
def test_one_bit_that_flipped_in_a_worker_is_named(
    disturb: Callable[[Bench, int], None], named: str, tmp_path: Path
) -> None:
    run = trained(tmp_path / "run", disturb)
    with pytest.raises(LedgerError, match=f"Step 5 did not come out.*differs first in {named}"):
        run.verify()
    assert "come out as the ledger says" in run.verify(1, 4)


def test_a_verifier_that_computes_wrong_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_wrong(*, reference: bool = False) -> Any:
        ops = load_kernels(reference=reference)
        if not reference:
            swiglu = ops.swiglu

            def wrong(*args: Any) -> Any:
                out = swiglu(*args)
                out.reshape(-1)[0] += np.float32(1)
                return out

            monkeypatch.setattr(ops, "swiglu", wrong, raising=True)
        return ops

    monkeypatch.setattr(kernels, "load", load_wrong)
    with pytest.raises(ArithmeticUnsoundError, match="this machine that computes step 1 wrong"):
        run.verify()


def test_signatures_are_checked(run: Run) -> None:
    lines = [line for line, _ in read_lines(run.ledger)]
    config = lines[0].entry.config
    assert config is not None
    run_id = config.run_id()
    alice, bob = Identity(b"a" * 32), Identity(b"b" * 32)
    signatures = Signatures(file_of(run.ledger))
    assert "Nobody has signed" in run.verify(6)
    signatures.add(sign(alice, run_id, 4, bytes.fromhex(lines[3].digest)))
    signatures.add(sign(bob, run_id, 9, bytes(32)))  # it was further
    assert "up to step 4" in run.verify(6)
    signatures.add(sign(bob, run_id, 5, bytes(32)))
    with pytest.raises(LedgerError, match="signed another ledger up to step 5"):
        run.verify(6)
    signatures.cut(4)
    assert "up to step 4" in run.verify(6)
    forged = msgspec.structs.replace(sign(bob, run_id, 3, bytes(32)), step=4)
    signatures.add(forged)
    with pytest.raises(LedgerError, match="did not sign what stands there"):
        run.verify(6)


def test_what_cannot_be_verified_is_a_sentence(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for first, last in ((0, 3), (5, 4), (1, 7)):
        with pytest.raises(UsageError, match="has steps 1 to 6"):
            verify(run.folder, first=first or -1, last=last, text=TextChoice(), threads=1)
    text = tmp_path / "text.txt"
    text.write_text("other text " * 5_000, encoding="utf-8")
    with pytest.raises(DataError):
        run.verify(text=TextChoice(str(text)))
    (tmp_path / "empty").mkdir()
    assert main(["verify", str(tmp_path / "empty")]) == 18
    assert "holds no ledger (run-….ledger).\n" in capsys.readouterr().err
    below = tmp_path / "runs" / "demo-1" / "node-1"
    shutil.copytree(run.folder, below)
    for command, code in (("verify", 18), ("generate", 10)):
        assert main([command, str(tmp_path / "runs")]) == code
        assert f"; {below} does." in capsys.readouterr().err
    shutil.copy(run.ledger, run.folder / "run-00000000.ledger")
    assert main(["verify", str(run.folder)]) == 2
    assert "the ledgers of 2 runs" in capsys.readouterr().err
    assert main(["verify", str(run.ledger), "--steps", "6:6"]) == 0
    with pytest.raises(SystemExit):
        main(["verify", str(run.folder), "--steps", "6-7"])
