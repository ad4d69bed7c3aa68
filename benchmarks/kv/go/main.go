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
	_, err = etcd.Put(ctx, "key", value)
	must(err)
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
					_, err := etcd.Put(ctx, key, value)
					must(err)
					done.Add(1)
				case "txn":
					puts := make([]clientv3.Op, putsOfTxn)
					for i := range puts {
						puts[i] = clientv3.OpPut(fmt.Sprintf("%s/%d", key, i), value)
					}
					_, err := etcd.Txn(ctx).Then(puts...).Commit()
					must(err)
					done.Add(putsOfTxn)
				case "get":
					_, err := etcd.Get(ctx, "key")
					must(err)
					done.Add(1)
				}
			}
		}()
	}
	group.Wait()
	fmt.Println(done.Load(), time.Since(begin).Seconds())
}
