package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A program that logs in goes on while members are lost and come back: it puts a key again and again, over
// all its endpoints in turn, and watches it. Whenever it is told a line on its standard input, it puts ten
// more, has seen them all by its watch, keeps a lease alive once more, and prints the line.
func users(servers, ca, name, password string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*deadline)
	defer cancel()
	certificate, err := os.ReadFile(ca)
	must(err)
	roots := x509.NewCertPool()
	check(roots.AppendCertsFromPEM(certificate), "no certificate in "+ca)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(servers, ","), DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
		Username: name, Password: password, TLS: &tls.Config{RootCAs: roots},
	})
	must(err)
	defer client.Close()
	lease, err := client.Grant(ctx, 60)
	must(err)
	told := client.Watch(ctx, "users/counter")
	puts, seen := 0, 0
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		for range 10 {
			puts++
			put(ctx, client, strconv.Itoa(puts))
		}
		for seen < puts {
			response, goesOn := <-told
			check(goesOn, "the watch has ended")
			must(response.Err())
			for _, event := range response.Events {
				value, _ := strconv.Atoi(string(event.Kv.Value))
				check(value == seen || value == seen+1, fmt.Sprintf("%d is told behind %d", value, seen))
				seen = value
			}
		}
		for {
			answer, err := client.KeepAliveOnce(ctx, lease.ID)
			if err == nil {
				check(answer.TTL == lease.TTL, "a lease is not kept alive")
				break
			}
			check(ctx.Err() == nil && !errors.Is(err, rpctypes.ErrLeaseNotFound), err.Error())
		}
		fmt.Println(input.Text())
	}
}

// Of a value that may be put twice.
func put(ctx context.Context, client *clientv3.Client, value string) {
	for {
		_, err := client.Put(ctx, "users/counter", value)
		if err == nil {
			return
		}
		known := status.Code(err)
		var words rpctypes.EtcdError
		if errors.As(err, &words) {
			known = words.Code()
		}
		check(ctx.Err() == nil && known == codes.Unavailable, fmt.Sprintf("%v: %v", known, err))
	}
}
