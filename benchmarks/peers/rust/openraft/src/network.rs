//! What members say to each other: frames of a length and bincode. The first byte of a connection says what
//! goes over it: appends, any number of which may be under way, or votes.

use std::io;

use futures_util::{FutureExt, Stream, StreamExt, stream};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, VoteRequest,
    VoteResponse,
};
use openraft::{BasicNode, OptionalSend, Raft};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::state_machine::Counter;
use crate::types::{Cluster, Snapshot, Vote};

const APPENDS: u8 = b'a';
const VOTES: u8 = b'v';

type Append = AppendEntriesRequest<Cluster>;
type Appended = StreamAppendResult<Cluster>;
type Failure = RPCError<Cluster>;

async fn send<T: Serialize>(writer: &mut (impl AsyncWrite + Unpin), message: &T) -> io::Result<()> {
    let mut frame = vec![0; 4];
    bincode::serialize_into(&mut frame, message).map_err(io::Error::other)?;
    let length = frame.len() as u32 - 4;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    writer.write_all(&frame).await
}

async fn receive<T: DeserializeOwned>(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let mut frame = vec![0; reader.read_u32().await? as usize];
    reader.read_exact(&mut frame).await?;
    bincode::deserialize(&frame).map_err(io::Error::other)
}

pub struct Network;

impl RaftNetworkFactory<Cluster> for Network {
    type Network = Link;

    async fn new_client(&mut self, _target: u64, node: &BasicNode) -> Link {
        Link {
            address: node.addr.clone(),
            open: None,
        }
    }
}

pub struct Link {
    address: String,
    open: Option<(u8, TcpStream)>,
}

impl Link {
    async fn connect(&self, kind: u8) -> Result<TcpStream, Failure> {
        let connected = async {
            let mut conn = TcpStream::connect(&self.address).await?;
            conn.set_nodelay(true)?;
            conn.write_u8(kind).await?;
            Ok(conn)
        };
        connected
            .await
            .map_err(|error: io::Error| Unreachable::new(&error).into())
    }

    async fn call<Q: Serialize, A: DeserializeOwned>(
        &mut self,
        kind: u8,
        request: &Q,
    ) -> Result<A, Failure> {
        let mut conn = match self.open.take() {
            Some((open_kind, conn)) if open_kind == kind => conn,
            _ => self.connect(kind).await?,
        };
        let answered = async {
            send(&mut conn, request).await?;
            receive(&mut conn).await
        };
        let answer = answered
            .await
            .map_err(|error: io::Error| NetworkError::new(&error))?;
        self.open = Some((kind, conn));
        Ok(answer)
    }
}

impl RaftNetworkV2<Cluster> for Link {
    type SnapshotData = ();

    async fn append_entries(
        &mut self,
        request: Append,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Cluster>, Failure> {
        let appended: Appended = self.call(APPENDS, &request).await?;
        Ok(appended.into())
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<Appended, Failure>>, Failure>>
    where
        S: Stream<Item = Append> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let (reader, mut writer) = self.connect(APPENDS).await?.into_split();
            // Ends with the stream of answers, which owns it.
            let mut sending = JoinSet::new();
            sending.spawn(async move {
                let mut input = input;
                while let Some(request) = input.next().await {
                    if send(&mut writer, &request).await.is_err() {
                        break;
                    }
                }
                // An open half would have the member wait for more.
                let _ = writer.shutdown().await;
            });
            let answers = stream::unfold(
                (BufReader::new(reader), sending),
                |(mut reader, sending)| async move {
                    match receive::<Appended>(&mut reader).await {
                        Ok(answer) => Some((Ok(answer), (reader, sending))),
                        Err(error)
                            if error.kind() == io::ErrorKind::UnexpectedEof
                                && sending.is_empty() =>
                        {
                            None
                        }
                        Err(error) => {
                            Some((Err(NetworkError::new(&error).into()), (reader, sending)))
                        }
                    }
                },
            );
            Ok(Box::pin(answers) as BoxStream<'s, _>)
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Cluster>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Cluster>, Failure> {
        self.call(VOTES, &request).await
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote,
        _snapshot: Snapshot,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Cluster>, StreamingError<Cluster>> {
        unreachable!("no snapshot is ever made")
    }
}

/// Answers one connection of another member.
pub async fn serve(raft: Raft<Cluster, Counter>, mut conn: TcpStream) -> io::Result<()> {
    conn.set_nodelay(true)?;
    let kind = conn.read_u8().await?;
    let (reader, mut writer) = conn.into_split();
    let mut reader = BufReader::with_capacity(1 << 16, reader);
    if kind == VOTES {
        loop {
            let request = receive(&mut reader).await?;
            let response = raft.vote(request).await.map_err(io::Error::other)?;
            send(&mut writer, &response).await?;
        }
    }
    let requests = stream::unfold(reader, |mut reader| async move {
        receive::<Append>(&mut reader)
            .await
            .ok()
            .map(|request| (request, reader))
    });
    let mut answers = Box::pin(raft.stream_append(requests.fuse()).fuse());
    while let Some(answer) = answers.next().await {
        // Those that are there already go in one write.
        let mut ready = Vec::new();
        send(&mut ready, &answer.map_err(io::Error::other)?).await?;
        while let Some(Some(answer)) = answers.next().now_or_never() {
            send(&mut ready, &answer.map_err(io::Error::other)?).await?;
        }
        writer.write_all(&ready).await?;
    }
    Ok(())
}
