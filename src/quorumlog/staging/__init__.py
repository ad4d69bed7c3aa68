"""Rows that several processes write together, each once: staged, listed in a manifest, replayed.

A log has no transactions. Whoever writes a part of a batch appends it to the staging group of the log,
where nobody reads it. Who commits the batch appends a manifest there, as a producer of its own; then the
rows that the manifest lists are appended to the log, as entries of a second producer. The number of a
row in that one follows from the manifests, so every step may be repeated by anyone.

Read in this order: `manifests` (what is said of a batch), `sink_errors`, `manifest_rules` (which may
follow which), `row_digests` (what a batch is recognised by), `staged_appends` (what a task does),
`sink_logs` (both groups, as a commit sees them), `commits` (what the driver does), `client_logs` (the
groups through clients).
"""

from quorumlog.staging.client_logs import open_sink_logs
from quorumlog.staging.commits import SinkCommits
from quorumlog.staging.manifest_rules import BatchRules
from quorumlog.staging.manifests import Batch, Manifest, RowRange, StandingManifest
from quorumlog.staging.row_digests import RowDigest
from quorumlog.staging.sink_errors import (
    BatchDiffers,
    BatchOutOfOrder,
    ManifestUnknown,
    ProducerIdInUse,
    RowsGone,
    RowsNotHeld,
    SinkRefused,
)
from quorumlog.staging.staged_appends import stage

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
    "StandingManifest",
    "open_sink_logs",
    "stage",
]
