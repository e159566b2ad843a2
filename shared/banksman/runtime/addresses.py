"""The addresses that a fetch may reach: public unicast, including IPv4 addresses embedded in IPv6 ones."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from banksman.contracts.urls import Url, UrlRefused, literal_address, parse_url

Address = IPv4Address | IPv6Address

# https://www.iana.org/assignments/iana-ipv4-special-registry
_REFUSED_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
        "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
        "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        # Azure's metadata and DNS service has this public address in every virtual network:
        # https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16
        "168.63.129.16/32",
    )
)  # fmt: skip

_GLOBAL_UNICAST_V6 = IPv6Network("2000::/3")
# https://www.iana.org/assignments/iana-ipv6-special-registry
_REFUSED_V6 = tuple(
    IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "3fff::/20", "2620:4f:8000::/48")
)
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")

_IPV4_PREFIXES = (
    IPv6Network("::ffff:0:0/96"),  # mapped
    IPv6Network("::ffff:0:0:0/96"),  # translated
    IPv6Network("64:ff9b::/96"),  # NAT64
    IPv6Network("::/96"),  # compatible
)
_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
_ISATAP_INTERFACES = (0x00005EFE, 0x02005EFE)
_LOW_32_BITS = 0xFFFFFFFF
_LOCAL_DOMAINS = frozenset({"localhost", "local", "internal", "localdomain", "arpa", "lan", "intranet"})


def is_public(address: Address) -> bool:
    """Return whether the address, and each IPv4 address embedded in it, is public unicast."""
    match address:
        case IPv4Address():
            return not any(address in network for network in _REFUSED_V4)
        case IPv6Address():
            return _is_public_v6(address)


def _is_public_v6(address: IPv6Address) -> bool:
    embedded = tuple(_embedded(address))
    if not all(is_public(each) for each in embedded):
        return False
    if any(address in network for network in _IPV4_PREFIXES):
        return True
    if address in _LOCAL_NAT64 or address not in _GLOBAL_UNICAST_V6:
        return False
    return address in _SIX_TO_FOUR or not any(address in network for network in _REFUSED_V6)


def _embedded(address: IPv6Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses that packets to an IPv6 address can reach."""
    number = int(address)
    if any(address in network for network in _IPV4_PREFIXES):
        yield IPv4Address(number & _LOW_32_BITS)
    if address in _SIX_TO_FOUR:
        yield IPv4Address((number >> 80) & _LOW_32_BITS)
    if address in _TEREDO:
        # RFC 4380 stores the client's address with all bits inverted.
        yield IPv4Address(number & _LOW_32_BITS ^ _LOW_32_BITS)
    if (number >> 32) & _LOW_32_BITS in _ISATAP_INTERFACES:
        yield IPv4Address(number & _LOW_32_BITS)


def is_local_name(host: str) -> bool:
    """Return whether the host of a `Url` is a name that only a local network resolves."""
    if literal_address(host) is not None:
        return False
    return "." not in host or host.rpartition(".")[2] in _LOCAL_DOMAINS


def may_be_public(host: str) -> bool:
    """Return whether the host of a `Url` may be public; a name is known only after its look-up."""
    address = literal_address(host)
    return is_public(address) if address is not None else not is_local_name(host)


def public_url(text: str) -> Url:
    """Parse a URL for a client that is not ours; raise `UrlRefused` if its host cannot be public."""
    url = parse_url(text)
    if not may_be_public(url.host):
        raise UrlRefused(f"{url.host!r} is not a public host")
    return url
