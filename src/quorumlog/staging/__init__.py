"""Rows that several processes write together, each once: staged, listed in a manifest, replayed.

A log has no transactions. A task that writes a part of a batch appends it to the log's staging group,
which has no readers. The committer of the batch appends a manifest there, as a producer of its own; then
the rows that the manifest lists are appended to the log, as entries of a second producer. A row's
sequence number follows from the manifests, so any process may repeat every step.

Read in this order: `manifests` (contents and identity of a batch, and their order), `client_logs` (the
groups through clients), `commits` (the steps of a task and the driver).
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
