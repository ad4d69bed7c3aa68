//! A state machine with nothing in it: the log is what is measured. It makes no snapshot.

use std::io;

use futures_util::{Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};

use crate::types::{Cluster, LogId, Snapshot, SnapshotMeta, StoredMembership};

#[derive(Clone, Default)]
pub struct Counter {
    applied: Option<LogId>,
    membership: StoredMembership,
}

impl RaftSnapshotBuilder<Cluster> for Counter {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        Err(io::Error::other("no snapshots"))
    }
}

impl RaftStateMachine<Cluster> for Counter {
    type SnapshotData = ();
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.applied.clone(), self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Cluster>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            if let EntryPayload::Membership(membership) = entry.payload {
                self.membership = StoredMembership::new(Some(entry.log_id.clone()), membership);
            }
            self.applied = Some(entry.log_id);
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, _meta: &SnapshotMeta, _snapshot: ()) -> io::Result<()> {
        Err(io::Error::other("no snapshots"))
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        Ok(None)
    }
}
