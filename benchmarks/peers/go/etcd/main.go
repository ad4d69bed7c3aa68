// The load client of etcd: puts of distinct keys, or transactions of many.
package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"quorumlog.example/peers/load"
)

func main() { load.Main(prepare, open) }

func connect(endpoints ...string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints:   endpoints,
		DialTimeout: 5 * time.Second,
		Logger:      zap.NewNop(),
	})
}

func prepare(options load.Options) error {
	return load.UntilReady(func() error {
		for _, server := range options.Servers {
			client, err := connect(server)
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			if _, err := client.Put(ctx, "prepare", string(options.Body)); err != nil {
				return err
			}
		}
		return nil
	})
}

// leaderOf finds who leads: a connection to a follower would pay for one more hop.
func leaderOf(servers []string) (string, error) {
	client, err := connect(servers...)
	if err != nil {
		return "", err
	}
	defer client.Close()
	for _, server := range servers {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		status, err := client.Status(ctx, server)
		cancel()
		if err != nil {
			return "", err
		}
		if status.Leader == status.Header.MemberId {
			return server, nil
		}
	}
	return "", errors.New("no member of etcd leads")
}

func open(options load.Options) ([]load.Writer, error) {
	leader, err := leaderOf(options.Servers)
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	value := string(options.Body)
	run := time.Now().UnixNano()
	writers := make([]load.Writer, options.Writers)
	for number := range writers {
		client, err := connect(leader)
		if err != nil {
			return nil, err
		}
		// The first request makes the connection.
		if _, err := client.Get(ctx, "prepare"); err != nil {
			return nil, err
		}
		var written atomic.Int64
		put := func() clientv3.Op {
			key := fmt.Sprintf("%x/%d/%d", run, number, written.Add(1))
			return clientv3.OpPut(key, value)
		}
		operation := func() error {
			_, err := client.Do(ctx, put())
			return err
		}
		if options.Batch > 1 {
			operation = func() error {
				puts := make([]clientv3.Op, options.Batch)
				for i := range puts {
					puts[i] = put()
				}
				_, err := client.Txn(ctx).Then(puts...).Commit()
				return err
			}
		}
		writers[number] = func(meter *load.Meter) error {
			return load.Loops(meter, options.InFlight, options.Batch, operation)
		}
	}
	return writers, nil
}
