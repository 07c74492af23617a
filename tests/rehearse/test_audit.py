"""Gradients that only an audit finds wrong: taken back everywhere, and as often as is stated."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from p2pnode.errors import PeerError
from p2pnode.protocol import audit as audit_module
from p2pnode.protocol import effects as ef
from p2pnode.protocol.audit import Auditor
from p2pnode.protocol.chain import END, Chain
from p2pnode.protocol.ending import Finish
from p2pnode.protocol.identity import Identity, PeerId, short_id
from p2pnode.rehearse import toy
from p2pnode.rehearse.defects import Defects
from p2pnode.rehearse.oracle import over, undetected
from tests.harness.calm import Recorder

Patch = pytest.MonkeyPatch
SLOTS, STEPS = 6, 5
RIGHT = toy.undisturbed(SLOTS, STEPS)[STEPS]


LIES = {"wrong_gradient_at": "gradient of slot", "hides_at": "told the check another checksum"}
"""What only an audit finds, and how it is named."""


def lie(
    count: int, sick: int, step: int, rate: float, seed: int = 1, what: str = "wrong_gradient_at"
) -> Recorder:
    """A run in which one machine's work of a step is wrong in all that it says of it."""
    defects = {sick: Defects(**{what: step})}
    run = Recorder(count, slots=SLOTS, steps=STEPS, defects=defects, seed=seed)
    run.world.audit = rate
    run.world.run(300.0, lambda: over(run.world))
    return run


def ends(run: Recorder, sick: int) -> set[bytes | None]:
    """Final hashes of the sound machines; None for one that did not finish."""
    sound = [node for number, node in enumerate(run.nodes) if number != sick]
    return {node.finished.state_hash if node.finished else None for node in sound}


def found_everywhere(count: int, sick: int, step: int, what: str = "wrong_gradient_at") -> None:
    run = lie(count, sick, step, 1.0, what=what)
    assert ends(run, sick) == {RIGHT}
    liar = run.nodes[sick]
    assert not undetected(run.world)
    assert liar.failed is not None
    texts = [text for text in run.reports(ef.Kind.REFUSED) if short_id(liar.me) in text]
    assert any(LIES[what] in text for text in texts)
    for node in run.nodes:
        if node is not liar:
            assert liar.me in node.chain.excluded
            assert node.chain.newest.step == step - 1


@pytest.mark.parametrize("what", LIES)
@pytest.mark.parametrize(
    ("count", "sick", "step"), [(2, 0, 2), (2, 1, 1), (3, 0, 5), (3, 2, 3), (5, 1, 4)]
)
def test_wrong_work_is_taken_back_everywhere(count: int, sick: int, step: int, what: str) -> None:
    found_everywhere(count, sick, step, what)


@pytest.mark.parametrize("what", LIES)
def test_without_audits_nothing_finds_it(what: str) -> None:
    run = lie(3, 1, 3, 0.0, what=what)
    assert undetected(run.world)
    (end,) = ends(run, 1)
    assert end not in (None, RIGHT)


def test_they_are_found_as_often_as_stated() -> None:
    """One wrong set among three nodes at a rate of 0.3: each of the two others may draw it."""
    runs, rate = 36, 0.3
    found = 0
    for seed in range(runs):
        run = lie(3, seed % 3, 1 + seed % STEPS, rate, seed)
        caught = not undetected(run.world)
        assert (ends(run, seed % 3) == {RIGHT}) == caught, "who detects it ends with the right hash"
        found += caught
    expected = 1 - (1 - rate) ** 2
    spread = (runs * expected * (1 - expected)) ** 0.5
    assert abs(found - runs * expected) < 3 * spread, f"{found} of {runs}"


def attempt(count: int, sick: int, step: int, what: str = "wrong_gradient_at") -> bool:
    """Whether all is as it should be; a core, or a chain, that cannot go on is not."""
    try:
        found_everywhere(count, sick, step, what)
    except (AssertionError, PeerError):
        return False
    return True


def audits_are_not_compared(patch: Patch) -> None:
    patch.setattr(audit_module, "_wrong_slots", lambda *_: ())


def right_bytes_are_not_weighed(patch: Patch) -> None:
    patch.setattr(Auditor, "_weigh", lambda self: self._right.clear())


def the_run_goes_back_too_little(patch: Patch) -> None:
    rewind = Chain.rewind

    def mutant(
        self: Chain, signer: Identity, step: int, state: bytes, culprits: Sequence[PeerId]
    ) -> Chain:
        return rewind(self, signer, step + 1, state, culprits)

    patch.setattr(Chain, "rewind", mutant)


def discarded_states_are_kept(patch: Patch) -> None:
    patch.setattr(Chain, "discarded_after", lambda self, older: END)


def the_culprit_stays(patch: Patch) -> None:
    patch.setattr(Chain, "excluded", ())


def the_end_does_not_wait_for_audits(patch: Patch) -> None:
    patch.setattr(Finish, "_audits_go_on", lambda self: False)


def nobody_hears_of_it(patch: Patch) -> None:
    patch.setattr(Auditor, "_tell", lambda self: None)


@pytest.mark.parametrize(
    "mutant",
    [
        audits_are_not_compared,
        right_bytes_are_not_weighed,
        the_run_goes_back_too_little,
        discarded_states_are_kept,
        the_culprit_stays,
        the_end_does_not_wait_for_audits,
        nobody_hears_of_it,
    ],
    ids=lambda mutant: mutant.__name__,
)
def test_without_the_rule_it_fails(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    outcomes = [attempt(*which) for which in ((3, 2, 3), (3, 0, 5), (2, 1, 1))]
    outcomes += [attempt(3, 2, 3, "hides_at")]
    assert not all(outcomes)
