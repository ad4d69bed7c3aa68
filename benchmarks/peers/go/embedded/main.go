// The load client of members that embed a Raft library (dragonboat, openraft): a record is its length, four
// bytes big endian, and its bytes; each is answered in turn by a zero byte, or another for a failure. Who
// leads says so with a zero byte as a connection opens.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"quorumlog.example/peers/load"
)

const answerTimeout = 5 * time.Second

func main() { load.Main(prepare, open) }

func prepare(options load.Options) error {
	return load.UntilReady(func() error {
		conn, err := dialLeader(options.Servers)
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(answerTimeout))
		if _, err := conn.Write(frameOf(options.Body)); err != nil {
			return err
		}
		return receive(bufio.NewReader(conn))
	})
}

func dialLeader(servers []string) (net.Conn, error) {
	failed := errors.New("no member leads")
	for _, server := range servers {
		conn, err := net.Dial("tcp", server)
		if err != nil {
			failed = err
			continue
		}
		_ = conn.SetReadDeadline(time.Now().Add(answerTimeout))
		if err := receive(bufio.NewReaderSize(conn, 16)); err == nil {
			_ = conn.SetReadDeadline(time.Time{})
			return conn, nil
		}
		conn.Close()
	}
	return nil, failed
}

func frameOf(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func receive(reader *bufio.Reader) error {
	answer, err := reader.ReadByte()
	if err == nil && answer != 0 {
		return fmt.Errorf("the member answered %d", answer)
	}
	return err
}

func open(options load.Options) ([]load.Writer, error) {
	leader, err := dialLeader(options.Servers)
	if err != nil {
		return nil, err
	}
	defer leader.Close()
	frame := frameOf(options.Body)
	writers := make([]load.Writer, options.Writers)
	for number := range writers {
		conn, err := dialLeader([]string{leader.RemoteAddr().String()})
		if err != nil {
			return nil, err
		}
		writers[number] = func(meter *load.Meter) error {
			reader := bufio.NewReader(conn)
			if options.InFlight > 1 {
				return pipelined(conn, reader, frame, options.InFlight, meter)
			}
			return load.Loop(meter, 1, func() error {
				if _, err := conn.Write(frame); err != nil {
					return err
				}
				return receive(reader)
			})
		}
	}
	return writers, nil
}

// pipelined keeps so many records under way on one connection; answers come in the order of the records.
func pipelined(conn net.Conn, reader *bufio.Reader, frame []byte, inFlight int, meter *load.Meter) error {
	sent := make(chan time.Time, inFlight)
	failed := make(chan error, 1)
	go func() {
		for at := range sent {
			if err := receive(reader); err != nil {
				failed <- err
				return
			}
			meter.Count(at, 1)
		}
	}()
	writer := bufio.NewWriterSize(conn, 64<<10)
	for meter.Running() {
		select {
		case sent <- time.Now():
			if _, err := writer.Write(frame); err != nil {
				return err
			}
			continue
		default:
		}
		// All are under way: what is buffered must go before an answer can come.
		if err := writer.Flush(); err != nil {
			return err
		}
		select {
		case sent <- time.Now():
			if _, err := writer.Write(frame); err != nil {
				return err
			}
		case err := <-failed:
			return err
		}
	}
	return nil
}
