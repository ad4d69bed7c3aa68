// Package load is what every load client here has in common: its flags, a closed loop with a warm-up,
// and the JSON lines that the runner reads.
//
// A program is called as `CLIENT prepare|run -servers A,B,C [flags]`. `prepare` makes what the log needs
// (a stream, a topic, a queue) and returns once a first record has been acknowledged. `run` prints
// {"event":"began"} when the window opens and the result when it closes; the runner reads the servers'
// CPU time at these two lines.
package load

import (
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// PrepareTimeout is how long three members may take to be ready for a first record.
const PrepareTimeout = 60 * time.Second

// Options are the flags.
type Options struct {
	Servers  []string
	Writers  int // connections
	InFlight int // operations under way on each
	Batch    int // records in an operation
	Body     []byte
	seconds  float64
	warmUp   float64
}

// A Writer runs operations until meter.Running() is false; it must not return while any is under way
// that it would still count. It has its own connection.
type Writer func(meter *Meter) error

// Main runs the program and ends the process.
func Main(prepare func(Options) error, open func(Options) ([]Writer, error)) {
	if len(os.Args) < 2 || (os.Args[1] != "prepare" && os.Args[1] != "run") {
		fail(fmt.Errorf("usage: %s prepare|run -servers A,B,C [flags]", os.Args[0]))
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	var options Options
	servers := flags.String("servers", "", "addresses, comma between")
	flags.IntVar(&options.Writers, "writers", 1, "writers, a connection each")
	flags.IntVar(&options.InFlight, "in-flight", 1, "operations under way on each connection")
	flags.IntVar(&options.Batch, "batch", 1, "records in an operation")
	bodyBytes := flags.Int("body-bytes", 1024, "size of a record")
	flags.Float64Var(&options.seconds, "seconds", 5, "length of the measured window")
	flags.Float64Var(&options.warmUp, "warm-up", 1, "seconds before it")
	_ = flags.Parse(os.Args[2:])
	options.Servers = strings.Split(*servers, ",")
	// Random: nothing on the way could make it smaller.
	options.Body = make([]byte, *bodyBytes)
	_, _ = rand.Read(options.Body)

	if os.Args[1] == "prepare" {
		fail(prepare(options))
		return
	}
	writers, err := open(options)
	fail(err)
	fail(run(options, writers))
	// Not an orderly close of each connection: the window is over, and the servers are stopped anyway.
	os.Exit(0)
}

// UntilReady calls try again and again until it succeeds or PrepareTimeout has passed.
func UntilReady(try func() error) error {
	deadline := time.Now().Add(PrepareTimeout)
	for {
		err := try()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// ---------------------------------------------------------------- the window

type window struct {
	stopped atomic.Bool
	// Nanoseconds since `zero`, so that a meter compares numbers; 0 while not yet known.
	zero  time.Time
	began atomic.Int64
	ended atomic.Int64
}

// Meter counts the operations of one writer. Its methods may be called from several goroutines.
type Meter struct {
	window    *window
	mutex     sync.Mutex
	latencies []time.Duration
	records   int
}

// Running is false once the window has closed.
func (m *Meter) Running() bool { return !m.window.stopped.Load() }

// Count notes that an operation of so many records has been acknowledged now.
func (m *Meter) Count(sent time.Time, records int) {
	now := time.Now()
	at, began, ended := now.Sub(m.window.zero).Nanoseconds(), m.window.began.Load(), m.window.ended.Load()
	if began == 0 || at < began || (ended != 0 && at > ended) {
		return
	}
	m.mutex.Lock()
	m.latencies = append(m.latencies, now.Sub(sent))
	m.records += records
	m.mutex.Unlock()
}

// Loop runs one operation after the other: all that a writer with one in flight does.
func Loop(meter *Meter, records int, operation func() error) error {
	for meter.Running() {
		sent := time.Now()
		if err := operation(); err != nil {
			return err
		}
		meter.Count(sent, records)
	}
	return nil
}

// Loops runs `count` loops at once on one connection.
func Loops(meter *Meter, count, records int, operation func() error) error {
	failed := make(chan error, count)
	for range count {
		go func() { failed <- Loop(meter, records, operation) }()
	}
	for range count {
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

// Result is the line that `run` ends with.
type Result struct {
	Seconds             float64 `json:"seconds"`
	Operations          int     `json:"operations"`
	Records             int     `json:"records"`
	OperationsPerSecond float64 `json:"operations_per_second"`
	RecordsPerSecond    float64 `json:"records_per_second"`
	P50Ms               float64 `json:"p50_ms"`
	P99Ms               float64 `json:"p99_ms"`
}

func run(options Options, writers []Writer) error {
	window := &window{zero: time.Now()}
	meters := make([]*Meter, len(writers))
	failed := make(chan error, len(writers))
	for i, writer := range writers {
		meters[i] = &Meter{window: window}
		go func() {
			if err := writer(meters[i]); err != nil {
				failed <- err
			}
		}()
	}
	// A load with an error in it is no measurement: the first one ends it.
	wait := func(seconds float64) error {
		select {
		case err := <-failed:
			return err
		case <-time.After(time.Duration(seconds * float64(time.Second))):
			return nil
		}
	}
	if err := wait(options.warmUp); err != nil {
		return err
	}
	window.began.Store(time.Since(window.zero).Nanoseconds())
	fmt.Println(`{"event":"began"}`)
	if err := wait(options.seconds); err != nil {
		return err
	}
	window.ended.Store(time.Since(window.zero).Nanoseconds())
	window.stopped.Store(true)
	seconds := float64(window.ended.Load()-window.began.Load()) / 1e9
	return json.NewEncoder(os.Stdout).Encode(resultOf(meters, seconds))
}

func resultOf(meters []*Meter, seconds float64) Result {
	result := Result{Seconds: seconds}
	var latencies []time.Duration
	for _, meter := range meters {
		meter.mutex.Lock()
		latencies = append(latencies, meter.latencies...)
		result.Records += meter.records
		meter.mutex.Unlock()
	}
	result.Operations = len(latencies)
	result.OperationsPerSecond = float64(result.Operations) / seconds
	result.RecordsPerSecond = float64(result.Records) / seconds
	if len(latencies) > 0 {
		slices.Sort(latencies)
		at := func(share float64) float64 {
			return float64(latencies[int(share*float64(len(latencies)-1))]) / 1e6
		}
		result.P50Ms, result.P99Ms = at(0.50), at(0.99)
	}
	return result
}
