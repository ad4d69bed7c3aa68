//! What the cluster is made of: a record is bytes, applying it gives nothing.

use std::fmt;

use bytes::Bytes;
use openraft::type_config::alias;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record(pub Bytes);

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

openraft::declare_raft_types!(pub Cluster: D = Record, R = ());

pub type LogId = alias::LogIdOf<Cluster>;
pub type Vote = alias::VoteOf<Cluster>;
pub type Payload = alias::PayloadOf<Cluster>;
pub type Entry = alias::EntryOf<Cluster>;
pub type Snapshot = alias::SnapshotOf<Cluster, ()>;
pub type SnapshotMeta = alias::SnapshotMetaOf<Cluster>;
pub type StoredMembership = alias::StoredMembershipOf<Cluster>;
