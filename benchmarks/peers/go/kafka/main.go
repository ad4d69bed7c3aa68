// The load client of Kafka: acknowledged records for a topic of one partition on three brokers.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"quorumlog.example/peers/load"
)

const topic = "bench"

// As Kafka's own producer has it (batch.size) unless told otherwise; franz-go's is a megabyte.
const defaultBatchBytes = 16 << 10

// What a record takes in a batch beside its body, at most.
const recordOverheadBytes = 32

func main() { load.Main(prepare, open) }

func connect(servers []string, options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(servers...),
		kgo.DefaultProduceTopic(topic),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	}, options...)...)
}

func prepare(options load.Options) error {
	return load.UntilReady(func() error {
		client, err := connect(options.Servers)
		if err != nil {
			return err
		}
		defer client.Close()
		admin := kadm.NewClient(client)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		brokers, err := admin.ListBrokers(ctx)
		if err != nil {
			return err
		}
		if len(brokers) != len(options.Servers) {
			return fmt.Errorf("only %d brokers have joined", len(brokers))
		}
		_, err = admin.CreateTopic(ctx, 1, int16(len(brokers)), nil, topic)
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return err
		}
		topics, err := admin.ListTopics(ctx, topic)
		if err != nil {
			return err
		}
		if inSync := len(topics[topic].Partitions[0].ISR); inSync != len(brokers) {
			return fmt.Errorf("only %d replicas are in sync", inSync)
		}
		return client.ProduceSync(ctx, &kgo.Record{Value: options.Body}).FirstErr()
	})
}

func open(options load.Options) ([]load.Writer, error) {
	ctx := context.Background()
	writers := make([]load.Writer, options.Writers)
	for number := range writers {
		// One record at a time has nothing to wait for; in bulk, what Kafka's own producer waits.
		linger := time.Duration(0)
		if options.InFlight > 1 {
			linger = 5 * time.Millisecond
		}
		batchBytes := defaultBatchBytes
		if options.Batch > 1 {
			batchBytes = options.Batch * (len(options.Body) + recordOverheadBytes)
		}
		client, err := connect(
			options.Servers,
			kgo.MaxBufferedRecords(options.InFlight*options.Batch),
			kgo.ProducerBatchMaxBytes(int32(batchBytes)),
			kgo.ProducerLinger(linger))
		if err != nil {
			return nil, err
		}
		// The first record finds the partition's leader and makes the connection to it.
		if err := client.ProduceSync(ctx, &kgo.Record{Value: options.Body}).FirstErr(); err != nil {
			return nil, err
		}
		writers[number] = func(meter *load.Meter) error {
			if options.InFlight == 1 {
				return load.Loop(meter, 1, func() error {
					return client.ProduceSync(ctx, &kgo.Record{Value: options.Body}).FirstErr()
				})
			}
			return produce(ctx, client, meter, options.Body)
		}
	}
	return writers, nil
}

// produce keeps as many records under way as the client buffers: Produce waits beyond that.
func produce(ctx context.Context, client *kgo.Client, meter *load.Meter, body []byte) error {
	failed := make(chan error, 1)
	for meter.Running() {
		sent := time.Now()
		client.Produce(ctx, &kgo.Record{Value: body}, func(_ *kgo.Record, err error) {
			if err == nil {
				meter.Count(sent, 1)
				return
			}
			select {
			case failed <- err:
			default:
			}
		})
		select {
		case err := <-failed:
			return err
		default:
		}
	}
	return nil
}
