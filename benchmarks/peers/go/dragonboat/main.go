// A member of three that embeds dragonboat with its tan log. Its port for clients takes what the load client
// in ../embedded says. Called as `dragonboat-member ID FOLDER CLIENT-ADDRESS RAFT-ADDRESS,RAFT-ADDRESS,...`.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/client"
	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/logger"
	"github.com/lni/dragonboat/v4/plugin/tan"
	"github.com/lni/dragonboat/v4/statemachine"
)

const (
	shard          = 1
	proposeTimeout = 10 * time.Second
	mostUnderWay   = 4096 // of one connection
)

// counter is a state machine with nothing in it: the log is what is measured.
type counter struct{ applied uint64 }

func (c *counter) Update(statemachine.Entry) (statemachine.Result, error) {
	c.applied++
	return statemachine.Result{Value: c.applied}, nil
}

func (c *counter) Lookup(any) (any, error) { return c.applied, nil }

func (c *counter) SaveSnapshot(w io.Writer, _ statemachine.ISnapshotFileCollection, _ <-chan struct{}) error {
	return binary.Write(w, binary.LittleEndian, c.applied)
}

func (c *counter) RecoverFromSnapshot(r io.Reader, _ []statemachine.SnapshotFile, _ <-chan struct{}) error {
	return binary.Read(r, binary.LittleEndian, &c.applied)
}

func (c *counter) Close() error { return nil }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 5 {
		return fmt.Errorf("usage: %s ID FOLDER CLIENT-ADDRESS RAFT-ADDRESSES", os.Args[0])
	}
	id, err := strconv.ParseUint(os.Args[1], 10, 64)
	if err != nil {
		return err
	}
	for _, name := range []string{"raft", "rsm", "transport", "grpc", "dragonboat", "tan"} {
		logger.GetLogger(name).SetLevel(logger.ERROR)
	}
	members := map[uint64]string{}
	for i, address := range strings.Split(os.Args[4], ",") {
		members[uint64(i+1)] = address
	}
	host := config.NodeHostConfig{
		NodeHostDir:    os.Args[2],
		RTTMillisecond: 20,
		RaftAddress:    members[id],
	}
	host.Expert.LogDBFactory = tan.Factory
	node, err := dragonboat.NewNodeHost(host)
	if err != nil {
		return err
	}
	create := func(uint64, uint64) statemachine.IStateMachine { return &counter{} }
	// An election after 50 to 100 of the units above. No snapshots: the log is kept, as the others' is.
	replica := config.Config{ReplicaID: id, ShardID: shard, ElectionRTT: 50, HeartbeatRTT: 5, CheckQuorum: true}
	if err := node.StartReplica(members, false, create, replica); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", os.Args[3])
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			_ = serve(node, id, conn)
		}()
	}
}

// serve answers in the order in which records come, any number of which may be under way.
func serve(node *dragonboat.NodeHost, id uint64, conn net.Conn) error {
	leader, _, known, err := node.GetLeaderID(shard)
	if err != nil || !known || leader != id {
		_, err := conn.Write([]byte{1})
		return err
	}
	if _, err := conn.Write([]byte{0}); err != nil {
		return err
	}
	session := node.GetNoOPSession(shard)
	underWay := make(chan *dragonboat.RequestState, mostUnderWay)
	defer close(underWay)
	go answer(conn, underWay)
	reader := bufio.NewReaderSize(conn, 64<<10)
	var head [4]byte
	for {
		if _, err := io.ReadFull(reader, head[:]); err != nil {
			return err
		}
		// A proposal keeps its bytes.
		body := make([]byte, binary.BigEndian.Uint32(head[:]))
		if _, err := io.ReadFull(reader, body); err != nil {
			return err
		}
		state, err := propose(node, session, body)
		if err != nil {
			_, _ = conn.Write([]byte{2})
			return err
		}
		underWay <- state
	}
}

// propose waits while the library is busy: that is its word for a full queue.
func propose(node *dragonboat.NodeHost, session *client.Session, body []byte) (*dragonboat.RequestState, error) {
	ctx, cancel := context.WithTimeout(context.Background(), proposeTimeout)
	defer cancel()
	for {
		state, err := node.Propose(session, body, proposeTimeout)
		if err != dragonboat.ErrSystemBusy {
			return state, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(time.Millisecond):
		}
	}
}

func answer(conn net.Conn, underWay <-chan *dragonboat.RequestState) {
	writer := bufio.NewWriter(conn)
	for state := range underWay {
		code := byte(0)
		if result := <-state.ResultC(); !result.Completed() {
			code = 3
		}
		state.Release()
		_ = writer.WriteByte(code)
		if len(underWay) == 0 {
			_ = writer.Flush()
		}
	}
}
