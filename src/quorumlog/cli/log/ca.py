"""quorumlog ca: certificates for members and users, for tests, demos and small clusters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from quorumlog.cli.options import App, argument, option
from quorumlog.cli.output import out

if TYPE_CHECKING:
    from quorumlog.cli.certificates import Pair

Directory = Annotated[Path, option("Directory of the CA and the certificates.", "DIR", name="--dir")]
Days = Annotated[int, option("Days of validity.", min=1, max=36_500)]

ca_app = App(
    "Make certificates with a CA of your own: for tests, demos and small clusters (extra `tls`).",
    "quorumlog ca init --cluster orders --dir tls",
)


@ca_app.command("init", has_json=False)
def init(
    cluster: Annotated[str, option("Name in the identity of every member and user.", "NAME")],
    directory: Directory = Path("tls"),
    days: Days = 3650,
) -> None:
    """Make a CA. Keep its key on a machine that runs no server.

    Example: quorumlog ca init --cluster orders --dir tls
    """
    from quorumlog.cli import certificates

    _print(certificates.init(directory, cluster, days))


@ca_app.command("member", has_json=False)
def member(
    member_id: Annotated[str, option("Id of the member.", "ID", name="--id")],
    host: Annotated[
        list[str], option("Host name or address at which clients reach it; may be repeated.", "HOST")
    ],
    directory: Directory = Path("tls"),
    days: Days = 365,
) -> None:
    """Make certificate and key of a member or a broker.

    Example: quorumlog ca member --id n0 --host 10.0.0.1 --host db0.example.com --dir tls
    """
    from quorumlog.cli import certificates

    _print(certificates.member(directory, member_id, host, days))


@ca_app.command("client", has_json=False)
def client(
    user: Annotated[str, option("Name of the user.", "USER")],
    directory: Directory = Path("tls"),
    days: Days = 365,
) -> None:
    """Make certificate and key of a user of the cluster.

    Example: quorumlog ca client --user alice --dir tls
    """
    from quorumlog.cli import certificates

    _print(certificates.client(directory, user, days))


@ca_app.command("renew", has_json=False)
def renew(
    cert: Annotated[Path, argument("Certificate to renew.", "CERT")],
    directory: Directory = Path("tls"),
    days: Days = 365,
) -> None:
    """Renew a certificate, with the same names and key. Running members read it by themselves.

    Example: quorumlog ca renew tls/member-n0.crt --dir tls
    """
    from quorumlog.cli import certificates

    certificates.renew(directory, cert, days)
    out().print(str(cert), soft_wrap=True)


def _print(pair: Pair) -> None:
    for path in pair:
        out().print(str(path), soft_wrap=True)
