package oracle

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
)

// A marker is "m", four hexadecimal digits that name its client, and 128
// random bits: a value that nobody else can send by chance, and that names its
// owner wherever it turns up.
const markerLen = 1 + 4 + 32

func newMarker(rng *rand.Rand, client int) string {
	return fmt.Sprintf("m%04x%016x%016x", client, rng.Uint64(), rng.Uint64())
}

// owner names the client whose marker is the first one inside b.
func owner(b []byte) string {
	for i := 0; i+markerLen <= len(b); i++ {
		if b[i] != 'm' || !isHex(b[i+1:i+markerLen]) {
			continue
		}
		id, _ := strconv.ParseUint(string(b[i+1:i+5]), 16, 16)
		return strconv.FormatUint(id, 10)
	}
	return "unknown"
}

func isHex(b []byte) bool {
	for _, c := range b {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// payload is marker repeated to exactly n bytes, as rpad(”, n, marker) is.
func payload(marker string, n int) []byte {
	return bytes.Repeat([]byte(marker), n/len(marker)+1)[:n]
}

// logUniform draws sizes so that each magnitude up to limit is as likely.
func logUniform(rng *rand.Rand, limit int) int {
	return int(math.Exp(rng.Float64()*math.Log(float64(limit)+1))) - 1
}

// difference describes got against want: empty when they are equal.
func difference(got, want []byte) string {
	if bytes.Equal(got, want) {
		return ""
	}
	at := 0
	for at < len(got) && at < len(want) && got[at] == want[at] {
		at++
	}
	from := max(0, at-markerLen)
	return fmt.Sprintf("got %d bytes, want %d, differing from byte %d on: got %.80q (marker of client %s), want %.80q",
		len(got), len(want), at, got[from:], owner(got[from:]), want[min(from, len(want)):])
}
