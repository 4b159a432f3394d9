package session

import (
	"testing"

	"github.com/multipooler/multipooler/protocol"
)

// BenchmarkFeedRows walks a buffer of result rows; bytes per second, to be held
// against the cost of moving them through the kernel (about 1 GB/s).
func BenchmarkFeedRows(b *testing.B) {
	var buf []byte
	row := make([]byte, 100)
	for len(buf) < 64<<10 {
		buf = protocol.AppendMessage(buf, protocol.MsgCopyData, row)
	}
	sv := NewServer(nil)
	sv.sess = New(Config{Host: discardHost{}})
	sv.led.push(entry{kind: replyQuery})
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		if n, err := sv.Feed(buf); n != len(buf) || err != nil {
			b.Fatal(n, err)
		}
	}
}

// discardHost takes bytes and does nothing else.
type discardHost struct{ Host }

func (discardHost) ToClient([]byte) {}
