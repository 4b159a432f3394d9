package pgserver

import (
	"bufio"
	"io"
	"strings"
	"sync"
)

// logBound is how much of the server's log is kept; the oldest half goes first.
const logBound = 1 << 20

// serverLog keeps the newest lines of the server's stderr over all restarts.
type serverLog struct {
	mu struct {
		sync.Mutex
		text    []byte
		dropped int // bytes that were forgotten in front of text
	}
}

// follow reads r until every process that holds the other end is gone, and
// closes ready at the first line that contains marker.
func (l *serverLog) follow(r io.Reader, marker string, ready chan<- struct{}) {
	lines := bufio.NewReader(r)
	waiting := true
	for {
		line, err := lines.ReadString('\n')
		l.add(line)
		if waiting && strings.Contains(line, marker) {
			waiting = false
			close(ready)
		}
		if err != nil {
			return
		}
	}
}

func (l *serverLog) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.text = append(l.mu.text, line...)
	if over := len(l.mu.text) - logBound; over > 0 {
		cut := over + logBound/2
		l.mu.dropped += cut
		l.mu.text = append(l.mu.text[:0], l.mu.text[cut:]...)
	}
}

// since returns what was written after position from, and the position now.
func (l *serverLog) since(from int) (string, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := l.mu.dropped + len(l.mu.text)
	return string(l.mu.text[min(max(from-l.mu.dropped, 0), len(l.mu.text)):]), end
}
