// The load client of etcd: so many goroutines on one client, each with one request on its way.
//
//	etcd-kv-load SERVERS put|txn|get CLIENTS SECONDS VALUE_BYTES
//
// It prints how many puts or gets there were, and in how many seconds.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const putsOfTxn = 100

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Again, if it failed: a busy machine may elect, and twice is once. Only a minute of failures ends the run.
func until(ask func() error) {
	for begin := time.Now(); ; {
		err := ask()
		if err == nil {
			return
		}
		if time.Since(begin) > time.Minute {
			panic(err)
		}
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	must(err)
	return value
}

func main() {
	kind, clients, seconds := os.Args[2], number(os.Args[3]), number(os.Args[4])
	value := strings.Repeat("v", number(os.Args[5]))
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(os.Args[1], ","), DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
	})
	must(err)
	defer etcd.Close()
	ctx := context.Background()
	until(func() error {
		_, err := etcd.Put(ctx, "key", value)
		return err
	})
	var done atomic.Int64
	var group sync.WaitGroup
	begin := time.Now()
	end := begin.Add(time.Duration(seconds) * time.Second)
	for client := range clients {
		group.Add(1)
		go func() {
			defer group.Done()
			for n := 0; time.Now().Before(end); n++ {
				key := fmt.Sprintf("%04d/%06d", client, n%1000)
				switch kind {
				case "put":
					until(func() error {
						_, err := etcd.Put(ctx, key, value)
						return err
					})
					done.Add(1)
				case "txn":
					puts := make([]clientv3.Op, putsOfTxn)
					for i := range puts {
						puts[i] = clientv3.OpPut(fmt.Sprintf("%s/%d", key, i), value)
					}
					until(func() error {
						_, err := etcd.Txn(ctx).Then(puts...).Commit()
						return err
					})
					done.Add(putsOfTxn)
				case "get":
					until(func() error {
						_, err := etcd.Get(ctx, "key")
						return err
					})
					done.Add(1)
				}
			}
		}()
	}
	group.Wait()
	fmt.Println(done.Load(), time.Since(begin).Seconds())
}
