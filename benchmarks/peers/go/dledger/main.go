// The load client of DLedger: single entries through its own port, batches through that of Member.java.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"quorumlog.example/peers/load"
)

const group = "bench"

func main() { load.Main(prepare, open) }

// member is one of -servers, which lists HOST:PORT/BATCHPORT of n0, n1, n2.
type member struct {
	id, address, batchAddress string
}

func membersOf(servers []string) []member {
	members := make([]member, len(servers))
	for number, server := range servers {
		address, batchPort, _ := strings.Cut(server, "/")
		host, _, _ := strings.Cut(address, ":")
		members[number] = member{fmt.Sprintf("n%d", number), address, host + ":" + batchPort}
	}
	return members
}

// leaderOf asks every member; all have to be there and to agree.
func leaderOf(members []member) (member, error) {
	var found member
	for _, asked := range members {
		conn, err := dial(asked.address)
		if err != nil {
			return found, err
		}
		defer conn.Close()
		body, err := json.Marshal(request{Group: group, RemoteID: asked.id})
		if err != nil {
			return found, err
		}
		answer, err := conn.call(codeMetadata, body)
		if err != nil {
			return found, err
		}
		for _, other := range members {
			if other.id == answer.LeaderID && found.id == "" {
				found = other
			}
		}
		if found.id == "" || found.id != answer.LeaderID {
			return found, errors.New("no member leads")
		}
	}
	return found, nil
}

func prepare(options load.Options) error {
	return load.UntilReady(func() error {
		leader, err := leaderOf(membersOf(options.Servers))
		if err != nil {
			return err
		}
		conn, err := dial(leader.address)
		if err != nil {
			return err
		}
		defer conn.Close()
		return appendOne(conn, leader, options.Body)
	})
}

func appendOne(conn *connection, leader member, record []byte) error {
	body, err := json.Marshal(request{group, leader.id, record})
	if err != nil {
		return err
	}
	answer, err := conn.call(codeAppend, body)
	return check(answer, err)
}

func check(answer response, err error) error {
	if err == nil && answer.Code != codeSuccess {
		return fmt.Errorf("DLedger answered %d", answer.Code)
	}
	return err
}

func open(options load.Options) ([]load.Writer, error) {
	leader, err := leaderOf(membersOf(options.Servers))
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(request{group, leader.id, options.Body})
	if err != nil {
		return nil, err
	}
	writers := make([]load.Writer, options.Writers)
	for number := range writers {
		if options.Batch > 1 {
			conn, err := net.Dial("tcp", leader.batchAddress)
			if err != nil {
				return nil, err
			}
			writers[number] = batches(conn, options)
			continue
		}
		conn, err := dial(leader.address)
		if err != nil {
			return nil, err
		}
		writers[number] = func(meter *load.Meter) error {
			if options.InFlight == 1 {
				return load.Loop(meter, 1, func() error { return check(conn.call(codeAppend, body)) })
			}
			return pipelined(conn, body, options.InFlight, meter)
		}
	}
	return writers, nil
}

// pipelined keeps `window` single appends under way on one connection.
func pipelined(conn *connection, body []byte, window int, meter *load.Meter) error {
	free := make(chan uint32, window)
	// When the append with this number was sent; the number is used again once it is answered.
	sentAt := make([]time.Time, window)
	for number := range window {
		free <- uint32(number)
	}
	failed := make(chan error, 1)
	go func() {
		for {
			number, answer, err := conn.receive()
			if err = check(answer, err); err != nil {
				failed <- err
				return
			}
			meter.Count(sentAt[number], 1)
			free <- number
		}
	}()
	for meter.Running() {
		select {
		case number := <-free:
			sentAt[number] = time.Now()
			if err := conn.send(codeAppend, number, body); err != nil {
				return err
			}
		case err := <-failed:
			return err
		}
	}
	return nil
}

// batches keeps InFlight batches of Batch records under way; they are answered in order.
func batches(conn net.Conn, options load.Options) load.Writer {
	frame := binary.BigEndian.AppendUint32(nil, uint32(options.Batch))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(options.Body)))
	for range options.Batch {
		frame = append(frame, options.Body...)
	}
	return func(meter *load.Meter) error {
		sent := make(chan time.Time, options.InFlight)
		failed := make(chan error, 1)
		go func() {
			reader := bufio.NewReader(conn)
			var code [4]byte
			for {
				if _, err := io.ReadFull(reader, code[:]); err != nil {
					failed <- err
					return
				}
				answer := response{Code: int(int32(binary.BigEndian.Uint32(code[:])))}
				if err := check(answer, nil); err != nil {
					failed <- err
					return
				}
				meter.Count(<-sent, options.Batch)
			}
		}()
		for meter.Running() {
			select {
			case sent <- time.Now():
			case err := <-failed:
				return err
			}
			if _, err := conn.Write(frame); err != nil {
				return err
			}
		}
		return nil
	}
}
