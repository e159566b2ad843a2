"""The address policy for all forms in which an IPv6 address embeds an IPv4 address."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from banksman.runtime.addresses import Address, is_public

PRIVATE = st.one_of(
    *(
        st.ip_addresses(v=4, network=network)
        for network in ("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
                        "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4")
    )
)  # fmt: skip


def carriers(address: IPv4Address) -> dict[str, IPv6Address]:
    number = int(address)
    return {
        "mapped": IPv6Address(0xFFFF << 32 | number),
        "translated": IPv6Address(0xFFFF << 48 | number),
        "compatible": IPv6Address(number),
        "nat64": IPv6Address((0x64FF9B << 96) | number),
        "local nat64": IPv6Address((0x64FF9B0001 << 80) | number),
        "6to4": IPv6Address((0x2002 << 112) | number << 80 | 1),
        "teredo": IPv6Address((0x20010000 << 96) | (number ^ 0xFFFFFFFF)),
        "isatap": IPv6Address((0x2600 << 112) | 0x5EFE << 32 | number),
        "isatap, unique": IPv6Address((0x2600 << 112) | 0x02005EFE << 32 | number),
    }


@given(PRIVATE)
def test_no_private_address_is_public_in_any_form(address: IPv4Address) -> None:
    assert not is_public(address)
    assert {name for name, carrier in carriers(address).items() if is_public(carrier)} == set()


def carries_no_ipv4(address: Address) -> bool:
    return int(address) >> 32 not in (0, 0xFFFF, 0xFFFF << 16, 0x64FF9B << 64)


def outside_global_unicast(address: Address) -> bool:
    return int(address) >> 125 != 1


@given(st.ip_addresses(v=6).filter(outside_global_unicast).filter(carries_no_ipv4))
def test_only_global_unicast_addresses_are_public(address: Address) -> None:
    assert not is_public(address)


PUBLIC = (
    "1.1.1.1", "93.184.215.14", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "2a00:1450::1",
    "::ffff:1.1.1.1", "64:ff9b::1.1.1.1", "2002:101:101::1",
)  # fmt: skip
SPECIAL = (
    "168.63.129.16", "192.0.0.192", "100.100.100.200", "::", "::1", "fe80::1", "fd00:ec2::254", "ff02::1",
    "2001:db8::1", "3fff::1", "2001:10::1", "5f00::1", "64:ff9b:1::808:808", "203.0.113.5",
)  # fmt: skip


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_public(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize("text", SPECIAL)
def test_special_addresses_are_not_public(text: str) -> None:
    assert not is_public(ip_address(text))
