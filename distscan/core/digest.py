"""A short number that tells texts apart. A hash of ``hashlib`` would load OpenSSL: 3 ms a rank."""

_PRIME = 2**63 - 25  # the largest prime of 63 bits


def digest(data: bytes) -> int:
    """Return the remainder of bytes, as one integer, by a prime (Karp and Rabin, 1987).

    Two random texts have the same digest with probability 2^-63. Texts that differ in at most 7
    neighbouring bytes never have. The digest is no protection against texts that are made to match.

    >>> digest(b"") == digest(bytes(1))
    False
    """
    return int.from_bytes(data + b"\x01", "little") % _PRIME
