"""Rows that several processes write together, each once: staged, listed in a manifest, replayed.

A log has no transactions. A task that writes a part of a batch appends it to the staging group of the
log, where nobody reads it. Who commits the batch appends a manifest there, as a producer of its own;
then the rows that the manifest lists are appended to the log, as entries of a second producer. The
number of a row in that one follows from the manifests, so every step may be repeated by anyone.

Read in this order: `manifests` (what is said of a batch, what it is recognised by, and which may follow
which), `commits` (what a task and the driver do), `client_logs` (the groups through clients).
"""

from quorumlog.staging.client_logs import open_sink_logs
from quorumlog.staging.commits import SinkCommits, stage
from quorumlog.staging.manifests import (
    Batch,
    BatchDiffers,
    BatchOutOfOrder,
    BatchRules,
    Manifest,
    ManifestUnknown,
    NewestManifest,
    ProducerIdInUse,
    RowDigest,
    RowRange,
    RowsGone,
    RowsNotHeld,
    SinkRefused,
)

__all__ = [
    "Batch",
    "BatchDiffers",
    "BatchOutOfOrder",
    "BatchRules",
    "Manifest",
    "ManifestUnknown",
    "ProducerIdInUse",
    "RowDigest",
    "RowRange",
    "RowsGone",
    "RowsNotHeld",
    "SinkCommits",
    "SinkRefused",
    "NewestManifest",
    "open_sink_logs",
    "stage",
]
