"""Room codes: strength, typing slips, normal form, derivation."""

import hashlib

import pytest

from p2pnode.errors import RoomCodeError
from p2pnode.protocol import code
from p2pnode.protocol.code import CODE_WORDS, Invite, check_code, generate_code, parse_invite
from p2pnode.protocol.wordlist import WORDS


def one_slip(word: str) -> set[str]:
    """Everything one typing slip away from a word."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    cuts = [(word[:i], word[i:]) for i in range(len(word) + 1)]
    return {
        *(a + b[1:] for a, b in cuts if b),
        *(a + b[1] + b[0] + b[2:] for a, b in cuts if len(b) > 1),
        *(a + c + b[1:] for a, b in cuts if b for c in letters),
        *(a + c + b for a, b in cuts for c in letters),
    } - {word}


def test_word_list_is_large_and_distinct():
    assert len(WORDS) == len(set(WORDS)) == len({word[:4] for word in WORDS}) == 1024
    assert all(word.isascii() and word.islower() and 4 <= len(word) <= 6 for word in WORDS)


def test_no_slip_turns_a_word_into_another():
    words = set(WORDS)
    assert not [word for word in WORDS if one_slip(word) & words]


def test_word_list_is_frozen():
    digest = hashlib.sha256(" ".join(WORDS).encode()).hexdigest()
    assert digest == "af5e956973cfa6abb0ca1cd4b5ef422b5817c078633e49063efb70db48190295", (
        "codes given out already would change their checksum"
    )


def test_generated_codes_pass_and_differ():
    codes = {generate_code() for _ in range(200)}
    assert len(codes) == 200
    assert all(check_code(made) == made for made in codes)
    assert {len(made.split("-")) for made in codes} == {CODE_WORDS}


def test_case_spaces_and_hyphens_do_not_matter():
    made = generate_code()
    shouted = "  " + made.upper().replace("-", " \u2013 ") + "\n"
    assert check_code(shouted) == made


def test_slip_in_a_generated_code_names_the_word():
    words = generate_code().split("-")
    wrong = words[2][:-1] + "qq"
    with pytest.raises(RoomCodeError, match=f"word 3, '{wrong}'"):
        check_code("-".join([*words[:2], wrong, *words[3:]]))


def test_swapped_words_fail_the_checksum():
    caught = total = 0
    for _ in range(100):
        words = generate_code().split("-")
        words[0], words[1] = words[1], words[0]
        if words[0] == words[1]:
            continue
        total += 1
        try:
            check_code("-".join(words))
        except RoomCodeError as error:
            caught += "do not belong together" in str(error)
    assert caught >= total - 2  # ten bits of checksum: one in 1,024 passes


def test_missing_word_is_reported():
    with pytest.raises(RoomCodeError, match="7 words, not 6"):
        check_code(generate_code().rpartition("-")[0])


@pytest.mark.parametrize(
    "weak",
    ["password", "hunter2", "2026-11-29", "aaaa aaaa aaaa aaaa", "room1", "qwertyuiopasdfghjkl"],
)
def test_weak_codes_of_ones_own_are_refused(weak):
    with pytest.raises(RoomCodeError, match="could be guessed"):
        check_code(weak)


@pytest.mark.parametrize(
    ("own", "normal"),
    [
        ("Correct Horse Battery Staple", "correct-horse-battery-staple"),
        ("a7f3k9q2m1x", "a7f3k9q2m1x"),
        (
            "Gr\u00fcner_Wald \u00fcber M\u00fcnchen im Regen",
            "gr\u00fcner-wald-\u00fcber-m\u00fcnchen-im-regen",
        ),
        ("Ｆｕｌｌ　Width　letters　count　too", "full-width-letters-count-too"),
    ],
)
def test_strong_codes_of_ones_own_are_normalised(own, normal):
    assert check_code(own) == normal == check_code(normal)


@pytest.mark.parametrize("bad", ["", "  - -", "x" * 129, "abc\x1b[2Jdefghijkl mnopqr stuvw xyzab"])
def test_unusable_codes_are_refused(bad):
    with pytest.raises(RoomCodeError):
        check_code(bad)


def test_invite_holds_code_and_server():
    made = generate_code()
    invite = parse_invite(f" {made}@http://example.org:8765 ")
    assert invite == Invite(made, "http://example.org:8765")
    assert parse_invite(str(invite)) == invite
    assert parse_invite(made) == Invite(made, None)
    assert made not in repr(invite), "a log must not hold the code"


def test_derivation_is_pinned_and_separates_room_and_secret():
    keys = code.derive("correct-horse-battery-staple")
    both = hashlib.scrypt(
        b"correct-horse-battery-staple",
        salt=b"p2pnode/1 room code",
        n=2**17,
        r=8,
        p=1,
        maxmem=2**28,
        dklen=64,
    )
    assert (keys.room, keys.secret) == (both[:32], both[32:])
    assert keys.secret.hex() not in repr(keys)
    assert repr(keys.secret) not in repr(keys)
