// The load client of NATS JetStream: acknowledged publishes to one stream with three replicas.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"quorumlog.example/peers/load"
)

const (
	streamName = "bench"
	subject    = "bench"
)

func main() { load.Main(prepare, open) }

func prepare(options load.Options) error {
	return load.UntilReady(func() error {
		for _, server := range options.Servers {
			conn, err := nats.Connect(server)
			if err != nil {
				return err
			}
			conn.Close()
		}
		conn, err := nats.Connect(options.Servers[0])
		if err != nil {
			return err
		}
		defer conn.Close()
		js, err := jetstream.New(conn)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		stream, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
			Name:              streamName,
			Subjects:          []string{subject},
			Storage:           jetstream.FileStorage,
			Replicas:          3,
			AllowBatchPublish: true,
		})
		if err != nil {
			return err
		}
		if _, err := js.Publish(ctx, subject, options.Body); err != nil {
			return err
		}
		info, err := stream.Info(ctx)
		if err != nil {
			return err
		}
		current := 0
		for _, replica := range info.Cluster.Replicas {
			if replica.Current {
				current++
			}
		}
		if current != len(options.Servers)-1 {
			return fmt.Errorf("only %d replicas follow the stream's leader", current)
		}
		return nil
	})
}

// leaderOf finds the server that leads the stream: any other would pay for one more hop.
func leaderOf(servers []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, server := range servers {
		conn, err := nats.Connect(server, nats.DontRandomize(), nats.IgnoreDiscoveredServers())
		if err != nil {
			return "", err
		}
		defer conn.Close()
		js, err := jetstream.New(conn)
		if err != nil {
			return "", err
		}
		stream, err := js.Stream(ctx, streamName)
		if err != nil {
			return "", err
		}
		if stream.CachedInfo().Cluster.Leader == conn.ConnectedServerName() {
			return server, nil
		}
	}
	return "", errors.New("no server leads the stream")
}

func open(options load.Options) ([]load.Writer, error) {
	leader, err := leaderOf(options.Servers)
	if err != nil {
		return nil, err
	}
	writers := make([]load.Writer, options.Writers)
	for number := range writers {
		// It must neither wander to another server nor hide a lost connection.
		conn, err := nats.Connect(leader, nats.NoReconnect(), nats.IgnoreDiscoveredServers())
		if err != nil {
			return nil, err
		}
		switch {
		case options.Batch > 1:
			writers[number] = fastIngest(conn, options)
		case options.InFlight > 1:
			writers[number] = publishAsync(conn, options)
		default:
			js, err := jetstream.New(conn)
			if err != nil {
				return nil, err
			}
			writers[number] = func(meter *load.Meter) error {
				return load.Loop(meter, 1, func() error {
					_, err := js.Publish(context.Background(), subject, options.Body)
					return err
				})
			}
		}
	}
	return writers, nil
}

// publishAsync keeps InFlight publishes of single records under way.
func publishAsync(conn *nats.Conn, options load.Options) load.Writer {
	type sent struct {
		at     time.Time
		future jetstream.PubAckFuture
	}
	return func(meter *load.Meter) error {
		// `pending` bounds what is under way; the client's own bound would end the load with an error.
		js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(2*options.InFlight))
		if err != nil {
			return err
		}
		// In order: an acknowledgement that is noted late by overtaking is late by microseconds.
		pending := make(chan sent, options.InFlight)
		failed := make(chan error, 1)
		go func() {
			for next := range pending {
				select {
				case <-next.future.Ok():
					meter.Count(next.at, 1)
				case err := <-next.future.Err():
					failed <- err
					return
				}
			}
		}()
		for meter.Running() {
			at := time.Now()
			future, err := js.PublishAsync(subject, options.Body)
			if err != nil {
				return err
			}
			select {
			case pending <- sent{at, future}:
			case err := <-failed:
				return err
			}
		}
		return nil
	}
}
