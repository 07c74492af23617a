"""From a connection's address and headers to what is limited together and who may meet.

Public addresses here are real ones: those set aside for documentation are, rightly, not public.
"""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from signaling.grouping import PRIVATE_GROUP, Origin, origin_of, parse_network

PROXY = "10.0.0.2"
PROXIES = (parse_network("10.0.0.2"), parse_network("9.9.9.0/24"), parse_network("fd00::/8"))
OTHER_HOUSEHOLD = "8.8.4.4"
MINE = "5.6.7.8"
PROXY_ORIGIN = Origin(PROXY, None, "proxy")
XFF, FORWARDED = "X-Forwarded-For", "Forwarded"


def origin(address, *headers, proxies=(), group_private=False):
    return origin_of(address, CIMultiDict(headers), proxies, group_private=group_private)


def behind_proxy(*headers):
    return origin(PROXY, *headers, proxies=PROXIES)


def public(address):
    return Origin(address, address)


# Without a proxy


def test_public_ipv4_addresses_group_one_by_one():
    assert origin(MINE) == public(MINE)
    assert origin("5.6.7.9") != origin(MINE)


def test_ipv6_groups_by_the_first_64_bits():
    home = Origin("2a00:1450:1:2::/64", "2a00:1450:1:2::/64")
    assert origin("2a00:1450:1:2::a") == origin("2a00:1450:1:2::b") == home
    assert origin("2a00:1450:1:2:c:d:e:f") == home, "a new privacy address keeps the group"
    assert origin("2a00:1450:1:3::a").group != home.group


def test_ipv4_inside_ipv6_is_ipv4():
    assert origin(f"::ffff:{MINE}") == public(MINE)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "::1",
        "::ffff:127.0.0.1",
        "10.1.2.3",
        "172.17.0.1",
        "192.168.1.5",
        "169.254.3.4",
        "fe80::1%eth0",
        "fd12:3456::1",
        "100.64.0.1",
        "100.127.255.254",
        "0.0.0.0",
        "192.0.2.1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "64:ff9b::808:808",
        "2002:a00:1::1",
        "224.0.0.1",
        "ff02::1",
        "",
        "not an address",
    ],
)
def test_addresses_that_are_not_public_form_no_group(address):
    found = origin(address)
    assert found.group is None
    assert found.no_group == "private"


def test_they_form_one_group_if_the_operator_says_so():
    for address in ("127.0.0.1", "192.168.1.5", "192.168.1.6", "100.64.0.1", "fe80::1"):
        found = origin(address, group_private=True)
        assert found.group == PRIVATE_GROUP
    assert origin(MINE, group_private=True) == public(MINE)
    assert origin("192.168.1.5", group_private=True).key == "192.168.1.5", "limits stay apart"


# Headers that nobody vouches for


@pytest.mark.parametrize(
    "header",
    [
        (XFF, OTHER_HOUSEHOLD),
        (XFF, f"1.1.1.1, {OTHER_HOUSEHOLD}"),
        (FORWARDED, f"for={OTHER_HOUSEHOLD}"),
        (FORWARDED, 'for="[2a00:1450:1:2::a]:99"'),
    ],
)
def test_client_cannot_choose_its_address(header):
    found = origin(MINE, header, proxies=PROXIES)
    assert found.key == MINE
    assert found.group is None, "behind a proxy that nobody named, strangers share the address"
    assert found.no_group == "proxy"
    assert origin("192.168.1.5", header, group_private=True).group is None


def test_several_header_lines_do_not_help_either():
    lines = [(XFF, "1.1.1.1"), (XFF, OTHER_HOUSEHOLD), (FORWARDED, f"for={OTHER_HOUSEHOLD}")]
    assert origin(MINE, *lines).key == MINE


# Behind a proxy that the operator named


@pytest.mark.parametrize(
    "value",
    [
        MINE,
        f" {MINE} ",
        f"{MINE}:4711",
        f"[{MINE}]",
        f"::ffff:{MINE}",
        f"[::ffff:{MINE}]:80",
        f"{OTHER_HOUSEHOLD}, {MINE}",
        f"{OTHER_HOUSEHOLD},, {MINE} ,",
        f"junk, {MINE}",
        f"{OTHER_HOUSEHOLD}, {MINE}, 9.9.9.1, fd00::7",
        f"9.9.9.9, {MINE}, [fd00::7]:443",
        "x" * 10_000 + f", {MINE}",
        "1.1.1.1," * 1000 + MINE,
    ],
)
def test_rightmost_address_that_is_no_proxy_counts(value):
    assert behind_proxy((XFF, value)) == public(MINE)


@pytest.mark.parametrize(
    "value",
    [
        "",
        " , ,",
        "junk",
        f"{OTHER_HOUSEHOLD}, junk",
        f"{OTHER_HOUSEHOLD}, unknown",
        f"{OTHER_HOUSEHOLD}, 010.1.2.3",
        f"{OTHER_HOUSEHOLD}, {MINE}:x",
        f"{OTHER_HOUSEHOLD}, {MINE}:123456",
        f"{OTHER_HOUSEHOLD}, [{MINE}",
        f"{OTHER_HOUSEHOLD}, [{MINE}]x",
        f"{OTHER_HOUSEHOLD}, 1.2.3",
        f"{OTHER_HOUSEHOLD}, {MINE} {MINE}",
        f"{OTHER_HOUSEHOLD}, " + "1" * 10_000,
        f"{PROXY}, 9.9.9.9",
        "\x00",
        "١.٢.٣.٤",
    ],
)
def test_anything_unclear_is_the_address_of_the_proxy(value):
    assert behind_proxy((XFF, value)) == PROXY_ORIGIN


def test_no_header_is_the_address_of_the_proxy():
    assert behind_proxy() == PROXY_ORIGIN
    assert origin(PROXY, proxies=PROXIES, group_private=True) == PROXY_ORIGIN


def test_header_lines_count_in_their_order():
    assert behind_proxy((XFF, OTHER_HOUSEHOLD), (XFF, MINE)) == public(MINE)
    assert behind_proxy((XFF, MINE), (XFF, "9.9.9.9")) == public(MINE)


def test_two_households_behind_one_proxy_stay_apart():
    assert behind_proxy((XFF, "2a00:1450:1:2::a")).group == "2a00:1450:1:2::/64"
    assert behind_proxy((XFF, "2a00:1450:1:2::b")).group == "2a00:1450:1:2::/64"
    assert behind_proxy((XFF, "2a00:1450:1:3::a")).group == "2a00:1450:1:3::/64"


def test_private_address_that_a_proxy_reports_forms_no_group():
    assert behind_proxy((XFF, "172.17.0.1")) == Origin("172.17.0.1", None, "private")


@pytest.mark.parametrize(
    "value",
    [
        f"for={MINE}",
        f'For="{MINE}:80"',
        f"by=9.9.9.9;for={MINE};proto=https",
        f'proto=https ; for="{MINE}"; host="example.org"',
        f"for={OTHER_HOUSEHOLD}, for={MINE}",
        f'for={OTHER_HOUSEHOLD}, for={MINE}, for="[fd00::7]:9"',
    ],
)
def test_forwarded_header(value):
    assert behind_proxy((FORWARDED, value)) == public(MINE)


@pytest.mark.parametrize(
    "value",
    [
        "for=unknown",
        "for=_hidden",
        "proto=https",
        f"for={MINE};for={OTHER_HOUSEHOLD}",
        f"{MINE}",
        # What follows stands inside one quoted text, which a client chose.
        f'for={MINE};host="a, for={OTHER_HOUSEHOLD}"',
        f'for={MINE};host="a, for={OTHER_HOUSEHOLD};x="',
        rf'for={MINE};host="a\", for={OTHER_HOUSEHOLD};x=\"b"',
        f'for="{OTHER_HOUSEHOLD}, for={MINE}"',
    ],
)
def test_unusual_forwarded_header_is_the_address_of_the_proxy(value):
    assert behind_proxy((FORWARDED, value)) == PROXY_ORIGIN


def test_headers_that_disagree_count_for_nothing():
    """A proxy writes one of them and may pass the other on as the client wrote it."""
    assert behind_proxy((XFF, MINE), (FORWARDED, f"for={OTHER_HOUSEHOLD}")) == PROXY_ORIGIN
    assert behind_proxy((FORWARDED, f"for={MINE}"), (XFF, OTHER_HOUSEHOLD)) == PROXY_ORIGIN
    assert behind_proxy((XFF, MINE), (FORWARDED, "junk")) == PROXY_ORIGIN
    assert behind_proxy((XFF, MINE), (FORWARDED, f"for={MINE}")) == public(MINE)


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_header_text_breaks_it_or_moves_a_client_left_of_what_the_proxy_wrote(one, two):
    behind_proxy((XFF, one), (FORWARDED, two))
    assert behind_proxy((XFF, one), (XFF, MINE)) == public(MINE)
    assert behind_proxy((XFF, f"{one}, {MINE}")) == public(MINE)
    found = behind_proxy((FORWARDED, f"{one}, for={MINE}"))
    assert found == public(MINE)


@given(st.ip_addresses())
def test_every_address_has_one_short_key_and_a_group_only_if_public(address):
    found = origin(str(address))
    assert len(found.key) <= 45
    assert found.group in (None, found.key)
    if address.is_private or address.is_loopback or address.is_link_local:
        assert found.group is None
    ipaddress.ip_network(found.key)


@pytest.mark.parametrize("text", ["10.0.0.0/8", "192.0.2.7", "fd00::/8", "::1"])
def test_networks_of_proxies(text):
    assert parse_network(text) == ipaddress.ip_network(text)


@pytest.mark.parametrize("text", ["", "proxy", "10.0.0.1/8", "10.0.0.0/33", "10.0.0"])
def test_networks_that_are_none(text):
    with pytest.raises(ValueError, match="no address range"):
        parse_network(text)
