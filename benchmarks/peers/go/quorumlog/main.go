// The load client of quorumlog: appends of one record, or of a batch, encoded anew for each request.
package main

import (
	"fmt"
	"time"

	"quorumlog.example/peers/load"
)

func main() { load.Main(prepare, open) }

func prepare(options load.Options) error {
	return load.UntilReady(func() error {
		conn, err := dialLeader(options)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// dialLeader tries every member: the one that takes an append leads.
func dialLeader(options load.Options) (*connection, error) {
	err := fmt.Errorf("no servers")
	for _, server := range options.Servers {
		var conn *connection
		if conn, err = dial(server); err != nil {
			continue
		}
		if err = conn.append(1, options.Body, 1); err == nil {
			if _, err = conn.receive(); err == nil {
				return conn, nil
			}
		}
		conn.Close()
	}
	return nil, err
}

func open(options load.Options) ([]load.Writer, error) {
	leader, err := dialLeader(options)
	if err != nil {
		return nil, err
	}
	defer leader.Close()
	writers := make([]load.Writer, options.Writers)
	for number := range writers {
		conn, err := dial(leader.RemoteAddr().String())
		if err != nil {
			return nil, err
		}
		writers[number] = func(meter *load.Meter) error {
			if options.InFlight == 1 {
				return load.Loop(meter, options.Batch, func() error {
					if err := conn.append(1, options.Body, options.Batch); err != nil {
						return err
					}
					_, err := conn.receive()
					return err
				})
			}
			return pipelined(conn, options, meter)
		}
	}
	return writers, nil
}

// pipelined keeps InFlight requests under way on one connection.
func pipelined(conn *connection, options load.Options, meter *load.Meter) error {
	free := make(chan uint64, options.InFlight)
	// When the request with this number was sent; the number is used again once it is answered.
	sentAt := make([]time.Time, options.InFlight+1)
	for number := range options.InFlight {
		free <- uint64(number + 1)
	}
	failed := make(chan error, 1)
	go func() {
		for {
			number, err := conn.receive()
			if err != nil {
				failed <- err
				return
			}
			meter.Count(sentAt[number], options.Batch)
			free <- number
		}
	}()
	for meter.Running() {
		select {
		case number := <-free:
			sentAt[number] = time.Now()
			if err := conn.append(number, options.Body, options.Batch); err != nil {
				return err
			}
		case err := <-failed:
			return err
		}
	}
	return nil
}
