package mp

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// HTTP gets a path such as /readyz; code 0 means that nobody answers.
func (in *Instance) HTTP(tb testing.TB, path string) (code int, body string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+in.HTTPAddr+path, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// Metric is the sum of all samples of a metric whose labels contain each of the
// given ones, such as `result="ok"`. A metric that is not served fails the test.
func (in *Instance) Metric(tb testing.TB, name string, labels ...string) float64 {
	tb.Helper()
	code, text := in.HTTP(tb, "/metrics")
	if code != http.StatusOK {
		tb.Fatalf("/metrics answered %d", code)
	}
	sum, found := 0.0, false
	for line := range strings.Lines(text) {
		metric, value, ok := cutSample(strings.TrimSpace(line))
		own, labelText, _ := strings.Cut(metric, "{")
		if !ok || own != name || !hasAll(labelText, labels) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			tb.Fatalf("%s: %v", line, err)
		}
		sum, found = sum+v, true
	}
	if !found {
		tb.Fatalf("/metrics has no %s with %q", name, labels)
	}
	return sum
}

// cutSample cuts a line of the text format at its last space.
func cutSample(line string) (metric, value string, ok bool) {
	i := strings.LastIndexByte(line, ' ')
	if i < 0 || strings.HasPrefix(line, "#") {
		return "", "", false
	}
	return line[:i], line[i+1:], true
}
