"""Members that are not where they should be."""

from __future__ import annotations

from p2pnode.protocol.attendance import PATIENCE, Attendance, Sign

ME, ANN, BEN, CAT = (bytes([byte]) * 32 for byte in b"mabc")
ALL = (ME, ANN, BEN, CAT)


def test_nothing_is_odd_where_everybody_is_shown() -> None:
    attendance = Attendance(ME)
    for now in (0.0, 1_000.0):
        assert attendance.look(ALL, ALL, {ANN}, now) == {}
    assert attendance.next_deadline() is None


def test_signs_are_told_once_and_only_if_they_last() -> None:
    attendance = Attendance(ME)
    assert attendance.look(ALL, {ME, ANN}, {BEN}, 0.0) == {}
    assert attendance.next_deadline() == PATIENCE
    assert attendance.look(ALL, {ME, ANN}, {BEN}, PATIENCE - 1) == {}
    told = attendance.look(ALL, {ME, ANN}, {BEN}, PATIENCE)
    assert told == {Sign.HIDDEN: [BEN], Sign.MISSING: [CAT]}
    assert attendance.look(ALL, {ME, ANN}, {BEN}, 10 * PATIENCE) == {}
    assert attendance.next_deadline() is None


def test_whoever_was_seen_again_is_told_of_again() -> None:
    attendance = Attendance(ME)
    for start in (0.0, 1_000.0):
        attendance.look(ALL, {ANN, BEN}, (), start)
        assert attendance.look(ALL, {ANN, BEN}, (), start + PATIENCE) == {Sign.MISSING: [CAT]}
        attendance.look(ALL, ALL, (), start + PATIENCE + 1)


def test_a_sign_that_changes_must_last_anew() -> None:
    attendance = Attendance(ME)
    attendance.look((ANN,), (), (), 0.0)
    assert attendance.look((ANN,), (), {ANN}, PATIENCE - 1) == {}
    assert attendance.look((ANN,), (), {ANN}, PATIENCE + 1) == {}
    assert attendance.look((ANN,), (), {ANN}, 2 * PATIENCE) == {Sign.HIDDEN: [ANN]}


def test_without_a_server_nothing_can_be_said() -> None:
    attendance = Attendance(ME)
    attendance.look(ALL, (), (), 0.0)
    assert attendance.look(ALL, None, (), PATIENCE) == {}
    assert attendance.look(ALL, (), (), PATIENCE + 1) == {}
