//! A member of three that embeds openraft with raft-log for its log. Its port for clients takes what the load
//! client in ../../go/embedded says. Called as `openraft-member ID FOLDER CLIENT-ADDRESS RAFT-ADDRESS,...`.

mod log_store;
mod network;
mod state_machine;
mod types;

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::StreamExt;
use openraft::base::BoxStream;
use openraft::errors::Fatal;
use openraft::raft::WriteResult;
use openraft::{BasicNode, Config, Raft, SnapshotPolicy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::log_store::LogStore;
use crate::network::Network;
use crate::state_machine::Counter;
use crate::types::{Cluster, Record};

type Member = Raft<Cluster, Counter>;
type Written = Result<WriteResult<Cluster>, Fatal<Cluster>>;

const BATCHES_UNDER_WAY: usize = 4096;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, id, folder, client_address, raft_addresses] = arguments.as_slice() else {
        return Err(format!(
            "usage: {} ID FOLDER CLIENT-ADDRESS RAFT-ADDRESSES",
            arguments[0]
        )
        .into());
    };
    let id: u64 = id.parse()?;
    let members: BTreeMap<u64, BasicNode> = (1..)
        .zip(raft_addresses.split(',').map(BasicNode::new))
        .collect();
    let config = Config {
        heartbeat_interval: 100,
        election_timeout_min: 1000,
        election_timeout_max: 2000,
        // The log is kept, as the others' is.
        snapshot_policy: SnapshotPolicy::Never,
        ..Default::default()
    };
    let raft_listener = TcpListener::bind(&members[&id].addr).await?;
    let client_listener = TcpListener::bind(client_address).await?;
    let config = Arc::new(config.validate()?);
    let member = Member::new(
        id,
        config,
        Network,
        LogStore::open(folder)?,
        Counter::default(),
    )
    .await?;
    let peers = member.clone();
    tokio::spawn(async move {
        while let Ok((conn, _)) = raft_listener.accept().await {
            tokio::spawn(network::serve(peers.clone(), conn));
        }
    });
    if id == 1 {
        member.initialize(members).await?;
    }
    loop {
        let (conn, _) = client_listener.accept().await?;
        let member = member.clone();
        tokio::spawn(async move {
            let _ = serve(member, conn).await;
        });
    }
}

/// Takes what one client has sent as one write of many, and answers in its order.
async fn serve(member: Member, mut conn: TcpStream) -> io::Result<()> {
    conn.set_nodelay(true)?;
    if !member.is_leader() {
        return conn.write_u8(1).await;
    }
    conn.write_u8(0).await?;
    let (mut reader, mut writer) = conn.into_split();
    let (sender, mut batches) =
        mpsc::channel::<(usize, BoxStream<'static, Written>)>(BATCHES_UNDER_WAY);
    tokio::spawn(async move {
        while let Some((count, mut written)) = batches.recv().await {
            let mut answers = Vec::with_capacity(count);
            while let Some(result) = written.next().await {
                answers.push(if matches!(result, Ok(Ok(_))) { 0u8 } else { 3 });
            }
            answers.resize(count, 3);
            if writer.write_all(&answers).await.is_err() {
                break;
            }
        }
    });
    let mut buffer = BytesMut::with_capacity(1 << 16);
    while reader.read_buf(&mut buffer).await? > 0 {
        let records = whole_records(&mut buffer);
        if !records.is_empty() {
            let count = records.len();
            let written = member
                .client_write_many(records)
                .await
                .map_err(io::Error::other)?;
            if sender.send((count, written)).await.is_err() {
                break;
            }
        }
    }
    Ok(())
}

/// Those that have come in full; what is left stays in the buffer.
fn whole_records(buffer: &mut BytesMut) -> Vec<Record> {
    let mut records = Vec::new();
    while buffer.len() >= 4 {
        let length = u32::from_be_bytes(buffer[..4].try_into().expect("four bytes")) as usize;
        if buffer.len() < 4 + length {
            buffer.reserve(4 + length - buffer.len());
            break;
        }
        buffer.advance(4);
        // A copy: a record that is kept must not keep the whole buffer.
        records.push(Record(Bytes::copy_from_slice(&buffer[..length])));
        buffer.advance(length);
    }
    records
}
