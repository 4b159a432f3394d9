package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// settle is left to a proxy before its memory is read: the garbage
	// collector of a Go process gives back what logins needed in this time,
	// PgBouncer has no such delay.
	settle = 3 * time.Second
	// openers log in at once; more would measure a login storm.
	openers = 16
	// idleRounds is how often a memory row is repeated, with fresh processes.
	idleRounds = 2
)

// measureIdle runs the memory rows: fresh processes each time, since memory
// that a process once had shapes what it has later.
func (b *bench) measureIdle(ctx context.Context, results []*result) error {
	rounds := min(idleRounds, max(1, b.opts.rounds/2)) // one in a quick run
	for round := range rounds {
		for _, res := range results {
			names := slices.DeleteFunc(b.names(), func(n string) bool { return n == "direct" })
			if round%2 == 1 {
				slices.Reverse(names)
			}
			for _, name := range names {
				targets, stop, err := b.targets(ctx, idle, name)
				if err != nil {
					return err
				}
				s, err := b.idleClients(ctx, res.row, targets[0])
				stop()
				if err != nil {
					return fmt.Errorf("%s, %s: %w", res.row.name, name, err)
				}
				res.samples[name] = append(res.samples[name], s)
			}
		}
		say("memory: round %d of %d", round+1, rounds)
	}
	return nil
}

// idleClients opens the clients, has each run one query, and returns what each
// added to the proxy's memory.
func (b *bench) idleClients(ctx context.Context, r row, t target) (sample, error) {
	// One pool of server connections first, so that it is not counted.
	warm, err := openClients(ctx, t.addr, poolSize*2, r.tls)
	if err != nil {
		return nil, err
	}
	defer closeAll(warm)
	time.Sleep(settle)
	rss0, pss0, err := memoryOf(t.proc.pid())
	if err != nil {
		return nil, err
	}
	start := time.Now()
	clients, err := openClients(ctx, t.addr, b.opts.clients, r.tls)
	defer closeAll(clients)
	if err != nil {
		return nil, err
	}
	took := time.Since(start)
	time.Sleep(settle)
	rss1, pss1, err := memoryOf(t.proc.pid())
	if err != nil {
		return nil, err
	}
	n := float64(len(clients))
	return sample{memory: (pss1 - pss0) / n, rss: (rss1 - rss0) / n, "logins/s": n / took.Seconds()}, nil
}

// openClients logs n clients in and runs one query on each. On an error the
// ones that are open are returned as well.
func openClients(ctx context.Context, addr string, n int, secure bool) ([]net.Conn, error) {
	conns := make([]net.Conn, n)
	errs := make([]error, openers)
	var next atomic.Int64
	var failed atomic.Bool
	var workers sync.WaitGroup
	for w := range openers {
		workers.Go(func() {
			for !failed.Load() && ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if conns[i], errs[w] = openClient(ctx, addr, secure); errs[w] != nil {
					failed.Store(true)
				}
			}
		})
	}
	workers.Wait()
	conns = slices.DeleteFunc(conns, func(c net.Conn) bool { return c == nil })
	return conns, errors.Join(append(errs, context.Cause(ctx))...)
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		c.Close()
	}
}

// openClient is the smallest client there is: no goroutine, no buffer, so that
// thousands of them weigh nothing on the machine that is measured.
func openClient(ctx context.Context, addr string, secure bool) (conn net.Conn, err error) {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	if conn, err = dialer.DialContext(ctx, "tcp", addr); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			conn.Close()
			conn = nil
		}
	}()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return conn, err
	}
	if secure {
		if _, err := conn.Write([]byte{0, 0, 0, 8, 4, 210, 22, 47}); err != nil { // SSLRequest
			return conn, err
		}
		var answer [1]byte
		if _, err := io.ReadFull(conn, answer[:]); err != nil || answer[0] != 'S' {
			return conn, fmt.Errorf("SSLRequest was answered %q, %w", answer, err)
		}
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	}
	startup := binary.BigEndian.AppendUint32(nil, 3<<16)
	startup = append(startup, "user\x00"+trusted+"\x00database\x00"+database+"\x00\x00"...)
	startup = append(binary.BigEndian.AppendUint32(nil, uint32(len(startup)+4)), startup...)
	query := append([]byte{'Q', 0, 0, 0, 13}, "select 1\x00"...)
	for _, message := range [][]byte{startup, query} {
		if _, err := conn.Write(message); err != nil {
			return conn, err
		}
		if err := readUntilReady(conn); err != nil {
			return conn, err
		}
	}
	return conn, conn.SetDeadline(time.Time{})
}

func readUntilReady(conn net.Conn) error {
	var header [5]byte
	for {
		if _, err := io.ReadFull(conn, header[:]); err != nil {
			return err
		}
		body := make([]byte, binary.BigEndian.Uint32(header[1:])-4)
		if _, err := io.ReadFull(conn, body); err != nil {
			return err
		}
		switch header[0] {
		case 'E':
			return fmt.Errorf("server says %q", body)
		case 'Z':
			return nil
		}
	}
}
