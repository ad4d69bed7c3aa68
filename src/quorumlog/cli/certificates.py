"""A small CA in a directory: `ca.crt`, `ca.key`, and a certificate and a key for each name.

DIR/ca.crt  ca.key      member-n0.crt  member-n0.key      user-alice.crt  user-alice.key
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

from quorumlog.config import check_name
from quorumlog.errors import ConfigError, the_extra
from quorumlog.net.tls import MEMBER, USER, Principal

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise ConfigError(f"certificates need cryptography ({error}), {the_extra('tls')}") from None

CA_DAYS, LEAF_DAYS = 3650, 365
_EARLIER = timedelta(hours=1)
"""Clocks of machines differ."""
_LONGEST_CN = 64


class Pair(NamedTuple):
    cert: Path
    key: Path


def init(directory: Path, cluster: str, days: int = CA_DAYS) -> Pair:
    """`cluster`: NAME. Raises ConfigError."""
    check_name("--cluster", cluster)
    pair = Pair(directory / "ca.crt", directory / "ca.key")
    _refuse_to_overwrite(pair)
    key = ec.generate_private_key(ec.SECP256R1())
    # The NAME of a CA is in its own certificate, so that each later command knows it.
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster),
            x509.NameAttribute(NameOID.COMMON_NAME, f"quorumlog CA {cluster}"[:_LONGEST_CN]),
        ]
    )
    extensions = [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_usage(is_ca=True), True),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
    ]
    _write(pair, _signed(name, key.public_key(), name, key, days, extensions), key)
    return pair


def member(
    directory: Path,
    member_id: str,
    hosts: Sequence[str],
    days: int = LEAF_DAYS,
    starts: datetime | None = None,
) -> Pair:
    """`hosts`: names and addresses at which clients reach the member. `starts`: None: now. Raises
    ConfigError."""
    check_name("--id", member_id)
    if not hosts:
        raise ConfigError("--host is missing: clients check the host name that they connect to")
    return _issue(directory, MEMBER, member_id, [_host(host) for host in hosts], days, starts)


def client(directory: Path, user: str, days: int = LEAF_DAYS) -> Pair:
    """Raises ConfigError."""
    check_name("--user", user)
    return _issue(directory, USER, user, [], days)


def renew(directory: Path, cert: Path, days: int = LEAF_DAYS) -> None:
    """In the place of `cert`, with the same names and its key; also by another CA of the same cluster.
    Raises ConfigError."""
    old = _read_certificate(cert)
    ca, ca_key = _authority(directory)
    if old.issuer != ca.subject:
        raise ConfigError(f"{cert} is not of the cluster of {directory / 'ca.crt'}")
    kept = [
        (each.value, each.critical)
        for each in old.extensions
        if not isinstance(each.value, x509.AuthorityKeyIdentifier)
    ]
    kept.append((_signer(ca_key), False))
    new = _signed(old.subject, old.public_key(), ca.subject, ca_key, days, kept)
    _replace(cert, new.public_bytes(serialization.Encoding.PEM))


def _issue(
    directory: Path,
    kind: str,
    name: str,
    hosts: list[x509.GeneralName],
    days: int,
    starts: datetime | None = None,
) -> Pair:
    ca, ca_key = _authority(directory)
    organization = ca.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    if not organization:
        raise ConfigError(
            f"{directory / 'ca.crt'} names no cluster; make a new one with `quorumlog ca init`"
        )
    if "/" in name or name in (".", ".."):
        raise ConfigError(f"{name!r} cannot be the name of a file; choose another")
    pair = Pair(directory / f"{kind}-{name}.crt", directory / f"{kind}-{name}.key")
    _refuse_to_overwrite(pair)
    key = ec.generate_private_key(ec.SECP256R1())
    uri = str(Principal(str(organization[0].value), kind, name))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_LONGEST_CN])])
    # A member dials and is dialled.
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if kind == MEMBER:
        usages.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
    extensions = [
        (x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri), *hosts]), False),
        (x509.ExtendedKeyUsage(usages), False),
        (_usage(is_ca=False), True),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (_signer(ca_key), False),
    ]
    new = _signed(subject, key.public_key(), ca.subject, ca_key, days, extensions, starts)
    _write(pair, new, key)
    return pair


def _signed(
    subject: x509.Name,
    public_key: Any,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    days: int,
    extensions: Iterable[tuple[x509.ExtensionType, bool]],
    starts: datetime | None = None,
) -> x509.Certificate:
    """`extensions`: each with whether it is critical."""
    starts = starts or datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts - _EARLIER)
        .not_valid_after(starts + timedelta(days=days))
    )
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, is_critical)
    return builder.sign(issuer_key, hashes.SHA256())


def _signer(ca_key: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError(f"--host {host!r} is neither a host name nor an address") from None


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    ca = _read_certificate(directory / "ca.crt")
    path = directory / "ca.key"
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: this is not a key of `quorumlog ca init`")
    return ca, key


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        hint = "; make a CA with `quorumlog ca init`" if path.name == "ca.crt" else ""
        raise ConfigError(f"{path} is not there{hint}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or 'no certificate'}") from None


def _refuse_to_overwrite(pair: Pair) -> None:
    for path in pair:
        if path.exists():
            raise ConfigError(f"{path} exists already and is not overwritten: delete it, or `renew` it")


def _write(pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    pair.key.parent.mkdir(exist_ok=True)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _create(pair.key, pem, 0o600)
    _create(pair.cert, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _create(path: Path, data: bytes, mode: int) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _replace(path: Path, data: bytes) -> None:
    """A process that reads it meanwhile reads the old one or the new one."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    _create(beside, data, 0o644)
    beside.replace(path)
