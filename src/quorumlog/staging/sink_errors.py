"""Why a batch is not committed. Nothing of it has come into the log then."""

from __future__ import annotations

from quorumlog.errors import Refused


class SinkRefused(Refused):
    """The log has nothing of this batch that it did not have before."""


class BatchDiffers(SinkRefused):
    """The batch id stands already, with other rows."""

    code = 470


class ProducerIdInUse(SinkRefused):
    """Another query has written the newest batch under this producer id."""

    code = 471


class BatchOutOfOrder(SinkRefused):
    """The batch id is older than the newest that stands, or leaves some out."""

    code = 472


class RowsNotHeld(SinkRefused):
    """The staged rows may be deleted by now, since nobody held them: they have to be staged again."""

    code = 473


class RowsGone(SinkRefused):
    """A manifest stands whose rows are not there, or the log and its staging group have not one past."""

    code = 474


class ManifestUnknown(SinkRefused):
    """What should be a manifest cannot be read."""

    code = 475
