package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"quorumlog.example/peers/load"
)

// Fast-ingest publishing: one endless batch, whose messages are not answered one by one; the server
// acknowledges every so many of them, up to a sequence number. No released Go client has it, so this
// speaks the protocol as the server's getFastBatch reads it: the reply subject of each message is
// INBOX.BATCH.FLOW.GAP.SEQUENCE.OPERATION.$FI.
const (
	startBatch  = 0
	appendBatch = 1
)

type flow struct {
	Type     string          `json:"type"`
	Sequence uint64          `json:"seq"`
	Messages uint64          `json:"msgs"`
	Error    json.RawMessage `json:"error"`
}

// fastIngest wants an acknowledgement for every Batch messages (the server may give more) and keeps
// InFlight times as many unacknowledged.
func fastIngest(conn *nats.Conn, options load.Options) load.Writer {
	return func(meter *load.Meter) error {
		batch := strings.ReplaceAll(nats.NewInbox(), "_INBOX.", "")
		prefix := fmt.Sprintf("_INBOX.%s.%s.%d.fail", batch, batch, options.Batch)
		answers, err := conn.SubscribeSync(prefix + ".>")
		if err != nil {
			return err
		}
		if err := answers.SetPendingLimits(-1, -1); err != nil {
			return err
		}
		window := uint64(options.Batch * options.InFlight)
		// When each unacknowledged message was sent, by sequence number.
		sentAt := make([]time.Time, window)
		var sent, acknowledged uint64
		receive := func() error {
			message, err := answers.NextMsg(10 * time.Second)
			if err != nil {
				return err
			}
			var answer flow
			if err := json.Unmarshal(message.Data, &answer); err != nil {
				return err
			}
			if answer.Type != "ack" {
				return fmt.Errorf("fast ingest: %s", message.Data)
			}
			if answer.Sequence > acknowledged {
				// The latency is that of the oldest message that this answers: none waited longer.
				meter.Count(sentAt[(acknowledged+1)%window], int(answer.Sequence-acknowledged))
				acknowledged = answer.Sequence
			}
			return nil
		}
		send := func(operation int) error {
			sent++
			sentAt[sent%window] = time.Now()
			reply := fmt.Sprintf("%s.%d.%d.$FI", prefix, sent, operation)
			return conn.PublishRequest(subject, reply, options.Body)
		}
		// The rest may follow once the server has taken the batch.
		if err := send(startBatch); err != nil {
			return err
		}
		if err := receive(); err != nil {
			return err
		}
		for meter.Running() {
			if sent-acknowledged < window {
				if err := send(appendBatch); err != nil {
					return err
				}
			} else if err := receive(); err != nil {
				return err
			}
		}
		return nil
	}
}
