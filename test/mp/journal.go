package mp

import (
	"bufio"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
)

// journalBound is how much of a log is kept; the oldest half goes first.
const journalBound = 64 << 20

// journal keeps what the process has printed.
type journal struct {
	mu struct {
		sync.Mutex
		text  []byte
		more  chan struct{} // closed and replaced at each line
		ended bool
	}
}

// follow reads r to its end.
func (j *journal) follow(r io.Reader) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		j.add(line, err != nil)
		if err != nil {
			return
		}
	}
}

func (j *journal) add(line string, last bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.mu.text) > journalBound {
		j.mu.text = append(j.mu.text[:0], j.mu.text[journalBound/2:]...)
	}
	j.mu.text = append(j.mu.text, line...)
	j.mu.ended = j.mu.ended || last
	if j.mu.more != nil {
		close(j.mu.more)
		j.mu.more = nil
	}
}

// since is the log from a position on, and a channel that is closed when there
// is more.
func (j *journal) since(from int) (text string, ended bool, more <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.more == nil {
		j.mu.more = make(chan struct{})
	}
	return string(j.mu.text[min(from, len(j.mu.text)):]), j.mu.ended, j.mu.more
}

func (j *journal) tail(n int) string {
	text, _, _ := j.since(0)
	return text[max(0, len(text)-n):]
}

// Log is what the process has printed.
func (in *Instance) Log() string {
	text, _, _ := in.log.since(0)
	return text
}

// LogPosition is where the log ends now, for WaitLog.
func (in *Instance) LogPosition() int {
	in.log.mu.Lock()
	defer in.log.mu.Unlock()
	return len(in.log.mu.text)
}

// WaitLog waits for a line of the log after position from that contains all
// parts, which are separated by "…", and returns it.
func (in *Instance) WaitLog(tb testing.TB, from int, parts string, limit time.Duration) string {
	tb.Helper()
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		text, ended, more := in.log.since(from)
		for line := range strings.Lines(text) {
			if strings.HasSuffix(line, "\n") && hasAll(line, strings.Split(parts, "…")) {
				return line
			}
		}
		if ended {
			tb.Fatalf("multipooler has ended without a line with %q:\n%s", parts, in.log.tail(4<<10))
		}
		select {
		case <-more:
		case <-late.C:
			tb.Fatalf("no line with %q in multipooler's log within %v:\n%s", parts, limit, in.log.tail(4<<10))
		}
	}
}

func hasAll(line string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(line, p) {
			return false
		}
	}
	return true
}
