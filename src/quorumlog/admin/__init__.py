"""The admin port of a server: health, metrics, and a page. It changes nothing."""

from quorumlog.admin.port import AdminPort
from quorumlog.admin.process import LogProcess, Process

__all__ = ["AdminPort", "LogProcess", "Process"]
