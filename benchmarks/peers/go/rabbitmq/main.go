// The load client of RabbitMQ: persistent messages to one quorum queue, each confirmed.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"quorumlog.example/peers/load"
)

const queue = "bench"

func main() { load.Main(prepare, open) }

func connect(server string) (*amqp.Connection, error) {
	return amqp.Dial("amqp://guest:guest@" + server + "/")
}

func prepare(options load.Options) error {
	return load.UntilReady(func() error {
		// A node listens once it has joined the others. Only then is the queue declared: its members are
		// the nodes of that moment.
		channels := make([]*amqp.Channel, len(options.Servers))
		for number, server := range options.Servers {
			conn, err := connect(server)
			if err != nil {
				return err
			}
			defer conn.Close()
			if channels[number], err = conn.Channel(); err != nil {
				return err
			}
		}
		// Its leader is on the node that declares it.
		first := channels[0]
		_, err := first.QueueDeclare(queue, true, false, false, false, amqp.Table{
			"x-queue-type":                "quorum",
			"x-quorum-initial-group-size": len(options.Servers),
		})
		if err != nil {
			return err
		}
		for _, channel := range channels[1:] {
			if _, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil); err != nil {
				return fmt.Errorf("a node has not joined: %w", err)
			}
		}
		if err := first.Confirm(false); err != nil {
			return err
		}
		return publishOne(first, options.Body)
	})
}

func message(body []byte) amqp.Publishing {
	return amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body}
}

func publishOne(channel *amqp.Channel, body []byte) error {
	ctx := context.Background()
	confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false, message(body))
	if err != nil {
		return err
	}
	if !confirm.Wait() {
		return errors.New("RabbitMQ refused a message")
	}
	return nil
}

func open(options load.Options) ([]load.Writer, error) {
	writers := make([]load.Writer, options.Writers)
	for number := range writers {
		conn, err := connect(options.Servers[0])
		if err != nil {
			return nil, err
		}
		channel, err := conn.Channel()
		if err != nil {
			return nil, err
		}
		if err := channel.Confirm(false); err != nil {
			return nil, err
		}
		writers[number] = func(meter *load.Meter) error {
			if options.InFlight == 1 {
				return load.Loop(meter, 1, func() error { return publishOne(channel, options.Body) })
			}
			return pipelined(channel, options, meter)
		}
	}
	return writers, nil
}

// pipelined keeps InFlight messages unconfirmed; the client hands confirms over in order.
func pipelined(channel *amqp.Channel, options load.Options, meter *load.Meter) error {
	sent := make(chan time.Time, options.InFlight)
	failed := make(chan error, 1)
	confirms := channel.NotifyPublish(make(chan amqp.Confirmation, options.InFlight))
	go func() {
		for confirm := range confirms {
			if !confirm.Ack {
				failed <- errors.New("RabbitMQ refused a message")
				return
			}
			meter.Count(<-sent, 1)
		}
		failed <- errors.New("RabbitMQ closed the channel")
	}()
	ctx := context.Background()
	for meter.Running() {
		select {
		case sent <- time.Now():
		case err := <-failed:
			return err
		}
		if err := channel.PublishWithContext(ctx, "", queue, false, false, message(options.Body)); err != nil {
			return err
		}
	}
	return nil
}
