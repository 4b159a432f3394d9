package endtoend

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/multipooler/multipooler/test/mp"
)

const (
	// rowBytes is a row of the big data, rows how many make 2 GiB of them. The
	// wire adds to that.
	rowBytes = 32 << 10
	rows     = 2 << 30 / rowBytes
	// memoryLimit is the issue's.
	memoryLimit = 100 << 20
)

// discarded reads everything r has until a message of the given type and counts
// the bytes of bodies.
func (r *raw) discarded(until byte) (total int64) {
	r.tb.Helper()
	buf := make([]byte, 1<<20)
	have, skip, header := 0, 0, 5
	for {
		_ = r.conn.SetReadDeadline(time.Now().Add(rawLimit))
		n, err := r.conn.Read(buf[have:])
		if err != nil {
			r.tb.Fatal(err)
		}
		p := buf[:have+n]
		for len(p) > 0 {
			if skip > 0 {
				k := min(skip, len(p))
				p, skip = p[k:], skip-k
				continue
			}
			if len(p) < header {
				break
			}
			size := int(p[1])<<24 | int(p[2])<<16 | int(p[3])<<8 | int(p[4])
			switch p[0] {
			case 'E':
				r.tb.Fatalf("an error: %.300q", p)
			case until:
				if len(p) == size+1 {
					return total
				}
			}
			total += int64(size) - 4
			skip, p = size-4, p[header:]
		}
		have = copy(buf, p)
	}
}

func TestDataOfAnySizePassesInBoundedMemory(t *testing.T) {
	in, s := front(t, slots(3), trusting)
	psql(t, s, s.URL("app", "app"), "-c", "CREATE UNLOGGED TABLE big (raw bytea)")
	defer psql(t, s, s.URL("app", "app"), "-c", "DROP TABLE big")
	count := rows
	if testing.Short() {
		count = rows / 16
	}
	want := int64(count) * rowBytes
	from := strings.NewReplacer("ROWS", strconv.Itoa(count), "BYTES", strconv.Itoa(rowBytes))
	t.Run("a result", func(t *testing.T) {
		r := loginRaw(t, in.Addr())
		r.send(&pgproto3.Query{String: from.Replace("SELECT t FROM (SELECT repeat('x', BYTES) AS t) x, generate_series(1, ROWS)")})
		if got := r.discarded('Z'); got < want {
			t.Errorf("%d bytes of %d", got, want)
		}
	})
	t.Run("COPY OUT", func(t *testing.T) {
		r := loginRaw(t, in.Addr())
		r.send(&pgproto3.Query{String: from.Replace("COPY (SELECT t FROM (SELECT repeat('x', BYTES) AS t) x, generate_series(1, ROWS)) TO STDOUT (FORMAT binary)")})
		if got := r.discarded('Z'); got < want {
			t.Errorf("%d bytes of %d", got, want)
		}
	})
	t.Run("COPY IN", func(t *testing.T) {
		r := loginRaw(t, in.Addr())
		// Binary, and the server keeps nothing: its work is not what is tested.
		r.send(&pgproto3.Query{String: "COPY big FROM STDIN (FORMAT binary) WHERE raw IS NULL"})
		r.expect("G")
		const perWrite = 32
		row := binary.BigEndian.AppendUint32([]byte{0, 1}, rowBytes)
		message, err := (&pgproto3.CopyData{Data: append(row, make([]byte, rowBytes)...)}).Encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		chunk := bytes.Repeat(message, perWrite)
		r.send(&pgproto3.CopyData{Data: []byte("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00")})
		for range count / perWrite {
			r.sendBytes(chunk)
		}
		r.send(&pgproto3.CopyData{Data: []byte{0xff, 0xff}}, &pgproto3.CopyDone{})
		if got := r.reply(); got != "C(COPY 0) Z(I)" {
			t.Error(got)
		}
		if got := in.Metric(t, "multipooler_bytes_total", `direction="received"`); got < float64(want) {
			t.Errorf("%v bytes received", got)
		}
	})
	peak := in.PeakMemory(t)
	t.Logf("%d MiB each way, peak %.1f MiB", want>>20, float64(peak)/(1<<20))
	if peak > memoryLimit && !mp.RaceDetector { // memory under it says nothing
		t.Errorf("multipooler used %d MiB", peak>>20)
	}
	if got := in.Metric(t, "multipooler_bytes_total", `direction="sent"`); got < 2*float64(want) {
		t.Errorf("%v bytes sent", got)
	}
}

func TestAReaderThatStopsIsNobodyElsesMatter(t *testing.T) {
	in, s := front(t, slots(3), trusting, "--event-loops=1")
	stalled := loginRaw(t, in.Addr())
	_ = stalled.conn.(*net.TCPConn).SetReadBuffer(64 << 10)
	const size = 200 << 20
	stalled.send(&pgproto3.Query{String: "SELECT repeat('x', 1048576) FROM generate_series(1, 200)"})
	untilRunning(t, s, "repeat('x', 1048576)", 1)
	// It reads nothing for ten seconds, or as long as the others need.
	until := time.Now().Add(10 * time.Second)
	if testing.Short() {
		until = time.Now().Add(2 * time.Second)
	}
	worst, n := time.Duration(0), 0
	other := loginRaw(t, in.Addr())
	for ; time.Now().Before(until) || n < 1000; n++ {
		start := time.Now()
		if got := other.query("SELECT 'goes on'"); got != "T D(goes on) C(SELECT 1) Z(I)" {
			t.Fatal(got)
		}
		worst = max(worst, time.Since(start))
	}
	if worst > 2*time.Second {
		t.Errorf("another client waited %v", worst)
	}
	// What nobody reads is not read from the server either.
	if peak := in.PeakMemory(t); peak > memoryLimit && !mp.RaceDetector {
		t.Errorf("multipooler used %d MiB", peak>>20)
	}
	if got := in.Metric(t, "multipooler_bytes_total", `direction="sent"`); got > size/2 {
		t.Errorf("%v bytes were taken of the server for a client that does not read", got)
	}
	untilRunning(t, s, "repeat('x', 1048576)", 1)
	if got := stalled.discarded('Z'); got < size-(1<<20) {
		t.Errorf("%d bytes came in the end", got)
	}
	t.Logf("%d queries beside it, the slowest took %v", n, worst)
}

func TestAReaderThatStopsForTooLongIsCut(t *testing.T) {
	in, _ := front(t, slots(1), trusting, "--client-stall-timeout=300ms")
	stalled, other := loginRaw(t, in.Addr()), loginRaw(t, in.Addr())
	stalled.send(&pgproto3.Query{String: "SELECT repeat('x', 1048576) FROM generate_series(1, 200)"})
	if got := other.value("SELECT 'the slot is free'"); got != "the slot is free" {
		t.Error(got)
	}
	in.WaitLog(t, 0, `"client disconnected"…"reason":"client_stall_timeout"`, limitOfRest)
	_ = stalled.conn.SetReadDeadline(time.Now().Add(rawLimit))
	if n, err := io.Copy(io.Discard, stalled.conn); n > 100<<20 {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// A client that sends and does not read, and a server that does the same, would
// be a deadlock in a pooler that does one thing at a time.
func TestAPipelineOfAnyLengthDoesNotDeadlock(t *testing.T) {
	in, _ := front(t, slots(1), trusting)
	r := loginRaw(t, in.Addr())
	const n, width = 20_000, 2000
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sent := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < n && err == nil && ctx.Err() == nil; i += 100 {
			var batch []pgproto3.FrontendMessage
			for range 100 {
				batch = append(batch, parse("", "SELECT repeat('y', "+strconv.Itoa(width)+")"), bind(""), execute)
			}
			err = r.trySend(append(batch, syncNow)...)
		}
		sent <- err
	}()
	rows := 0
	for syncs := 0; syncs < n/100; {
		switch m := r.next(); m[0] {
		case 'D':
			rows++
		case 'Z':
			syncs++
		case 'E':
			t.Fatal(m)
		}
	}
	if err := <-sent; err != nil || rows != n {
		t.Errorf("%d rows of %d, %v", rows, n, err)
	}
}
