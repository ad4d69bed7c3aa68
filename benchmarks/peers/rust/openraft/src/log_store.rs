//! The log: raft-log, which tells of a record once its worker has called fdatasync.

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{Entry as RaftLogEntry, OptionalSend};
use raft_log::api::raft_log_writer::RaftLogWriter;
use raft_log::codeq::{Decode, Encode, OffsetWriter};
use raft_log::{Callback, Config, RaftLog, Types};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use crate::types::{Cluster, Entry, LogId, Payload, Vote};

/// How long its worker waits for more before it syncs. By itself raft-log waits a millisecond, most of a lone
/// writer's latency, and with many writers openraft gathers by itself.
const GATHERING: Duration = Duration::from_micros(50);

/// A value of openraft in the form that raft-log writes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stored<T>(pub T);

impl<T: Serialize> Encode for Stored<T> {
    fn encode<W: Write>(&self, writer: W) -> io::Result<usize> {
        let mut writer = OffsetWriter::new(writer);
        bincode::serialize_into(&mut writer, &self.0).map_err(io::Error::other)?;
        Ok(writer.offset())
    }
}

impl<T: DeserializeOwned> Decode for Stored<T> {
    fn decode<R: Read>(reader: R) -> io::Result<Self> {
        bincode::deserialize_from(reader)
            .map(Stored)
            .map_err(io::Error::other)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogTypes;

impl Types for LogTypes {
    type LogId = Stored<LogId>;
    type LogPayload = Stored<Payload>;
    type Vote = Stored<Vote>;
    type Callback = Flushed;
    type UserData = String;

    fn log_index(log_id: &Self::LogId) -> u64 {
        log_id.0.index
    }

    fn payload_size(payload: &Self::LogPayload) -> u64 {
        match &payload.0 {
            Payload::Normal(record) => record.0.len() as u64,
            _ => 64,
        }
    }
}

pub enum Flushed {
    Entries(IOFlushed<Cluster>),
    Waiting(oneshot::Sender<io::Result<()>>),
}

impl Callback for Flushed {
    fn send(self, result: io::Result<()>) {
        match self {
            Flushed::Entries(flushed) => flushed.io_completed(result),
            Flushed::Waiting(sender) => drop(sender.send(result)),
        }
    }
}

#[derive(Clone)]
pub struct LogStore(Arc<Mutex<RaftLog<LogTypes>>>);

impl LogStore {
    pub fn open(folder: &str) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let mut config = Config::new(folder);
        config.wal.flush_batch_wait = Some(GATHERING);
        Ok(Self(Arc::new(Mutex::new(RaftLog::open(Arc::new(config))?))))
    }

    fn log(&self) -> MutexGuard<'_, RaftLog<LogTypes>> {
        self.0.lock().expect("no holder of this lock panics")
    }

    async fn synced<F>(&self, change: F) -> io::Result<()>
    where
        F: FnOnce(&mut RaftLog<LogTypes>) -> io::Result<()>,
    {
        let (sender, receiver) = oneshot::channel();
        {
            let mut log = self.log();
            change(&mut log)?;
            log.flush(true, Some(Flushed::Waiting(sender)))?;
        }
        receiver.await.map_err(io::Error::other)?
    }
}

impl RaftLogReader<Cluster> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let first = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index + 1,
            Bound::Unbounded => 0,
        };
        let stop = match range.end_bound() {
            Bound::Included(index) => index + 1,
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        let log = self.log();
        log.read(first, stop)
            .map(|read| read.map(|(id, payload)| Entry::new(id.0, payload.0)))
            .collect()
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.log().log_state().vote().map(|vote| vote.0.clone()))
    }
}

impl RaftLogStorage<Cluster> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Cluster>> {
        let log = self.log();
        let state = log.log_state();
        Ok(LogState {
            last_purged_log_id: state.purged().map(|id| id.0.clone()),
            last_log_id: state.last().map(|id| id.0.clone()),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let vote = Stored(vote.clone());
        self.synced(|log| log.save_vote(vote).map(drop)).await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Cluster>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut log = self.log();
        log.append(
            entries
                .into_iter()
                .map(|RaftLogEntry { log_id, payload }| (Stored(log_id), Stored(payload))),
        )?;
        log.flush(true, Some(Flushed::Entries(callback)))
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> io::Result<()> {
        let first_index = last_log_id.map_or(0, |id| id.index + 1);
        self.synced(|log| log.truncate(first_index).map(drop)).await
    }

    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        self.synced(|log| log.purge(Stored(log_id)).map(drop)).await
    }
}
