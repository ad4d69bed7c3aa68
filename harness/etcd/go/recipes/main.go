// What programs in Go do with clientv3 and its recipes; each step panics if it does not hold.
//
//	recipes SERVERS
//	recipes SERVERS CA USER PASSWORD
//
// It prints a line for each step that held; the second one is in users.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

const (
	workers  = 4
	rounds   = 10
	accounts = 3
	deposit  = 100
	deadline = 90 * time.Second
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(holds bool, words string) {
	if !holds {
		panic(words)
	}
}

func get(ctx context.Context, client *clientv3.Client, key string) string {
	found, err := client.Get(ctx, key)
	must(err)
	if len(found.Kvs) == 0 {
		return ""
	}
	return string(found.Kvs[0].Value)
}

// Only the holder reads and writes the counter, so no addition is lost.
func mutex(ctx context.Context, client *clientv3.Client) {
	var group sync.WaitGroup
	for range workers {
		group.Add(1)
		go func() {
			defer group.Done()
			session, err := concurrency.NewSession(client, concurrency.WithTTL(30))
			must(err)
			defer session.Close()
			lock := concurrency.NewMutex(session, "recipes/mutex")
			for range rounds {
				must(lock.Lock(ctx))
				count, _ := strconv.Atoi(get(ctx, client, "recipes/counter"))
				held := clientv3.OpPut("recipes/counter", strconv.Itoa(count+1))
				done, err := client.Txn(ctx).If(lock.IsOwner()).Then(held).Commit()
				must(err)
				check(done.Succeeded, "a holder is not the owner")
				must(lock.Unlock(ctx))
			}
		}()
	}
	group.Wait()
	check(get(ctx, client, "recipes/counter") == strconv.Itoa(workers*rounds), "additions are lost")
	first, err := concurrency.NewSession(client, concurrency.WithTTL(30))
	must(err)
	second, err := concurrency.NewSession(client, concurrency.WithTTL(30))
	must(err)
	held := concurrency.NewMutex(first, "recipes/held")
	must(held.Lock(ctx))
	err = concurrency.NewMutex(second, "recipes/held").TryLock(ctx)
	check(errors.Is(err, concurrency.ErrLocked), "a lock is held twice")
	must(first.Close()) // revokes the lease, which frees the lock
	must(concurrency.NewMutex(second, "recipes/held").Lock(ctx))
	must(second.Close())
}

func election(ctx context.Context, client *clientv3.Client) {
	first, err := concurrency.NewSession(client, concurrency.WithTTL(30))
	must(err)
	second, err := concurrency.NewSession(client, concurrency.WithTTL(30))
	must(err)
	defer second.Close()
	one, two := concurrency.NewElection(first, "recipes/led"), concurrency.NewElection(second, "recipes/led")
	seen := two.Observe(ctx)
	must(one.Campaign(ctx, "one"))
	check(string((<-seen).Kvs[0].Value) == "one", "the first is not observed")
	must(one.Proclaim(ctx, "one, still"))
	check(string((<-seen).Kvs[0].Value) == "one, still", "a proclamation is not observed")
	won := make(chan error, 1)
	go func() { won <- two.Campaign(ctx, "two") }()
	must(one.Resign(ctx))
	must(<-won)
	led, err := one.Leader(ctx)
	must(err)
	check(string(led.Kvs[0].Value) == "two", "the second does not lead")
	must(first.Close())
	must(two.Resign(ctx))
	_, err = two.Leader(ctx)
	check(errors.Is(err, concurrency.ErrElectionNoLeader), "somebody leads")
}

// Transfers between accounts leave their sum as it is, at any isolation that forbids lost updates.
func stm(ctx context.Context, client *clientv3.Client) {
	account := func(number int) string { return fmt.Sprintf("recipes/account/%d", number%accounts) }
	for number := range accounts {
		_, err := client.Put(ctx, account(number), strconv.Itoa(deposit))
		must(err)
	}
	var group sync.WaitGroup
	for worker := range workers {
		group.Add(1)
		go func() {
			defer group.Done()
			for round := range rounds {
				from, to := account(worker+round), account(worker+round+1)
				_, err := concurrency.NewSTM(client, func(s concurrency.STM) error {
					source, _ := strconv.Atoi(s.Get(from))
					target, _ := strconv.Atoi(s.Get(to))
					s.Put(from, strconv.Itoa(source-1))
					s.Put(to, strconv.Itoa(target+1))
					return nil
				}, concurrency.WithIsolation([]concurrency.Isolation{
					concurrency.SerializableSnapshot, concurrency.Serializable,
				}[round%2]), concurrency.WithAbortContext(ctx))
				must(err)
			}
		}()
	}
	group.Wait()
	sum := 0
	for number := range accounts {
		balance, _ := strconv.Atoi(get(ctx, client, account(number)))
		sum += balance
	}
	check(sum == accounts*deposit, fmt.Sprintf("the sum is %d", sum))
}

// A watch goes on over compactions, and one from before a compaction is told so.
func watch(ctx context.Context, client *clientv3.Client) {
	first, err := client.Put(ctx, "recipes/watched/0", "0")
	must(err)
	told := client.Watch(ctx, "recipes/watched/", clientv3.WithPrefix(), clientv3.WithPrevKV(),
		clientv3.WithFragment(), clientv3.WithRev(first.Header.Revision))
	for number := range rounds {
		_, err := client.Put(ctx, "recipes/watched/"+strconv.Itoa(number%2), strconv.Itoa(number))
		must(err)
	}
	gone, err := client.Delete(ctx, "recipes/watched/1")
	must(err)
	var events []*clientv3.Event
	for len(events) < rounds+2 {
		response := <-told
		must(response.Err())
		events = append(events, response.Events...)
	}
	last := events[len(events)-1]
	check(last.Type == mvccpb.DELETE && string(last.PrevKv.Value) == strconv.Itoa(rounds-1), "a deletion")
	_, err = client.Compact(ctx, gone.Header.Revision)
	must(err)
	for { // another member may not have compacted yet, as in etcd
		watching, stop := context.WithCancel(ctx)
		old, goesOn := <-client.Watch(watching, "recipes/watched/0", clientv3.WithRev(first.Header.Revision))
		stop()
		check(goesOn, "a watch from before a compaction")
		if errors.Is(old.Err(), rpctypes.ErrCompacted) && old.CompactRevision == gone.Header.Revision {
			break
		}
	}
	_, err = client.Get(ctx, "recipes/watched/0", clientv3.WithRev(first.Header.Revision))
	check(errors.Is(err, rpctypes.ErrCompacted), fmt.Sprintf("not compacted: %v", err))
}

func leases(ctx context.Context, client *clientv3.Client) {
	lease, err := client.Grant(ctx, 10)
	must(err)
	kept, err := client.KeepAlive(ctx, lease.ID)
	must(err)
	for range 2 {
		answer, goesOn := <-kept
		check(goesOn && answer.TTL == lease.TTL, "a lease is not kept alive")
	}
	_, err = client.Put(ctx, "recipes/leased", "v", clientv3.WithLease(lease.ID))
	must(err)
	told, err := client.TimeToLive(ctx, lease.ID, clientv3.WithAttachedKeys())
	must(err)
	check(len(told.Keys) == 1 && told.TTL > 0 && told.GrantedTTL == lease.TTL, "another time to live")
	_, err = client.Revoke(ctx, lease.ID)
	must(err)
	check(get(ctx, client, "recipes/leased") == "", "a key outlives its lease")
	_, err = client.Revoke(ctx, lease.ID)
	check(errors.Is(err, rpctypes.ErrLeaseNotFound), fmt.Sprintf("not gone: %v", err))
}

func main() {
	if len(os.Args) > 2 {
		users(os.Args[1], os.Args[2], os.Args[3], os.Args[4])
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(os.Args[1], ","), DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
	})
	must(err)
	defer client.Close()
	for _, step := range []struct {
		name string
		does func(context.Context, *clientv3.Client)
	}{{"mutex", mutex}, {"election", election}, {"stm", stm}, {"watch", watch}, {"leases", leases}} {
		step.does(ctx, client)
		fmt.Println(step.name)
	}
}
