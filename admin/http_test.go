package admin

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func newTestHTTP(state *State, src Source) *HTTP {
	return NewHTTP(HTTPConfig{
		State: state, Source: src, Version: "1.2.3",
		Registry: NewRegistry(NewMetrics(MetricsConfig{Source: src, Version: "1.2.3"})),
		Now:      func() time.Time { return noon },
	})
}

func readyState() *State {
	s := &State{}
	s.SetConfigured(true)
	s.SetListening(true)
	return s
}

func get(h *HTTP, method, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.Handler().ServeHTTP(w, httptest.NewRequest(method, path, http.NoBody))
	return w
}

func TestProbesThroughTheLifeOfAProcess(t *testing.T) {
	state := &State{}
	h := newTestHTTP(state, fullSource())
	const (
		noConfig = `{"name":"configuration","reason":"the configuration was not read yet or is not valid"}`
		noListen = `{"name":"listeners","reason":"not every listener is bound"}`
		drain    = `{"name":"draining","reason":"the process is shutting down"}`
		filling  = `{"name":"reservoir","reason":"filling, 3 of 10"}`
		down     = `{"name":"server_down:main","reason":"connection refused"}`
		strict   = `{"name":"strict","reason":"exhausted"}`
	)
	steps := []struct {
		name           string
		do             func()
		ready, started string
	}{
		{
			"before the configuration", func() {},
			`503 {"ready":false,"reasons":[` + noConfig + `,` + noListen + `]}`,
			`503 {"started":false,"reasons":[` + noConfig + `,` + noListen + `]}`,
		},
		{
			"configured, filling the reservoir", func() {
				state.SetConfigured(true)
				state.Set(Condition{Name: "reservoir", Reason: "filling, 3 of 10", Effect: NotStarted})
			},
			`503 {"ready":false,"reasons":[` + noListen + `,` + filling + `]}`,
			`503 {"started":false,"reasons":[` + noListen + `,` + filling + `]}`,
		},
		{
			"listening, still filling", func() { state.SetListening(true) },
			`503 {"ready":false,"reasons":[` + filling + `]}`,
			`503 {"started":false,"reasons":[` + filling + `]}`,
		},
		{
			"filled", func() { state.Clear("reservoir") },
			`200 {"ready":true,"reasons":[]}`,
			`200 {"started":true,"reasons":[]}`,
		},
		{
			"a server is down: still ready, and said", func() {
				state.Set(Condition{Name: "server_down:main", Reason: "connection refused"})
			},
			`200 {"ready":true,"reasons":[],"notes":[` + down + `]}`,
			`200 {"started":true,"reasons":[]}`,
		},
		{
			"a condition that takes the instance out", func() {
				state.Set(Condition{Name: "strict", Reason: "exhausted", Effect: NotReady})
			},
			`503 {"ready":false,"reasons":[` + strict + `],"notes":[` + down + `]}`,
			`200 {"started":true,"reasons":[]}`,
		},
		{
			"filling again later is a note", func() {
				state.Clear("strict")
				state.Set(Condition{Name: "reservoir", Reason: "filling, 3 of 10", Effect: NotStarted})
			},
			`200 {"ready":true,"reasons":[],"notes":[` + filling + `,` + down + `]}`,
			`200 {"started":true,"reasons":[]}`,
		},
		{
			"draining", func() {
				state.Clear("reservoir")
				state.Clear("server_down:main")
				state.SetDraining()
				state.SetListening(false)
			},
			`503 {"ready":false,"reasons":[` + drain + `]}`,
			`200 {"started":true,"reasons":[]}`,
		},
	}
	for _, s := range steps {
		s.do()
		for path, want := range map[string]string{"/readyz": s.ready, "/startupz": s.started, "/livez": `200 {"live":true}`} {
			w := get(h, "GET", path)
			if got := strings.TrimSpace(itoa(w.Code) + " " + w.Body.String()); got != want {
				t.Errorf("%s: %s gave %s\nwant %s", s.name, path, got, want)
			}
		}
	}
}

func itoa(n int) string { return Int(int64(n)).String() }

func TestProcessThatDrainsBeforeItStartedNeverStarted(t *testing.T) {
	s := &State{}
	s.SetConfigured(true)
	s.SetDraining()
	if st := s.Status(); st.Started() || st.Ready() || st.Word() != "draining" {
		t.Errorf("got %+v", st)
	}
}

func TestStatusWords(t *testing.T) {
	s := &State{}
	if got := s.Status().Word(); got != "starting" {
		t.Errorf("got %q", got)
	}
	s = readyState()
	if got := s.Status().Word(); got != "ready" {
		t.Errorf("got %q", got)
	}
	s.Set(Condition{Name: "x", Effect: NotReady})
	if got := s.Status().Word(); got != "not ready" {
		t.Errorf("got %q", got)
	}
}

func TestStatusPageShowsPoolsAndEscapesNames(t *testing.T) {
	src := fullSource()
	src.pools[0].User = "<script>alert(1)</script>"
	state := readyState()
	state.Set(Condition{Name: "server_down:main", Reason: "connection refused"})
	w := get(newTestHTTP(state, src), "GET", "/")
	body := w.Body.String()
	for _, want := range []string{
		"multipooler 1.2.3: ready", "<td>alice", "&lt;script&gt;", "server_down:main: connection refused",
		`class="hot">13`, "66 clients, 13 of them waiting; 168 server connections", "40 active, 30 idle, 20 dialing, 50 draining, 10 free of 150",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%q is missing in\n%s", want, body)
		}
	}
	for _, banned := range []string{"<script>", "http://", "https://", "src="} {
		if strings.Contains(body, banned) {
			t.Errorf("the page contains %q", banned)
		}
	}
	if csp := w.Header().Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") {
		t.Errorf("Content-Security-Policy is %q", csp)
	}
}

func TestStatusPageIsBounded(t *testing.T) {
	src := &fakeSource{}
	for i := range maxPageRows + 7 {
		src.pools = append(src.pools, PoolRow{Database: "d", User: itoa(i), ClientsIdle: 1})
	}
	body := get(newTestHTTP(readyState(), src), "GET", "/").Body.String()
	if n := strings.Count(body, "<tr><td>"); n != maxPageRows || !strings.Contains(body, "7 more pools") || !strings.Contains(body, "207 clients") {
		t.Errorf("%d rows", n)
	}
	if body := get(newTestHTTP(readyState(), &fakeSource{}), "GET", "/").Body.String(); !strings.Contains(body, "No client has connected yet") {
		t.Error("the empty page does not say that it is empty")
	}
}

func TestMetricsEndpoint(t *testing.T) {
	w := get(newTestHTTP(readyState(), fullSource()), "GET", "/metrics")
	for _, want := range []string{`multipooler_clients{pool="alice@shop",state="waiting"} 13`, "go_goroutines", "promhttp_metric_handler_requests_total"} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s is missing", want)
		}
	}
}

func TestOnlyGETAndKnownPaths(t *testing.T) {
	h := newTestHTTP(readyState(), fullSource())
	for _, tt := range []struct {
		method, path string
		code         int
	}{
		{"GET", "/nonsense", 404},
		{"GET", "/readyz/x", 404},
		{"POST", "/readyz", 405},
		{"DELETE", "/", 405},
		{"HEAD", "/readyz", 200},
	} {
		if got := get(h, tt.method, tt.path).Code; got != tt.code {
			t.Errorf("%s %s gave %d, want %d", tt.method, tt.path, got, tt.code)
		}
	}
}

// pipeListener hands out the ends of pipes.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (l *pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- server
	return client
}

func TestServerStopsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ln := newPipeListener()
		done := make(chan error)
		go func() { done <- newTestHTTP(readyState(), fullSource()).Run(ctx, ln) }()

		c := ln.dial()
		defer c.Close()
		go io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		resp.Body.Close()

		start := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
		if took := time.Since(start); took > httpStopTimeout {
			t.Errorf("stopping took %v", took)
		}
	})
}

func TestSlowHeadersAreCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ln := newPipeListener()
		done := make(chan error)
		go func() { done <- newTestHTTP(readyState(), fullSource()).Run(ctx, ln) }()
		c := ln.dial()
		defer c.Close()
		start := time.Now()
		go io.WriteString(c, "GET /livez HTTP/1.1\r\n")
		_, _ = io.ReadAll(c)
		if took := time.Since(start); took != httpHeaderTimeout {
			t.Errorf("cut off after %v, want %v", took, httpHeaderTimeout)
		}
		cancel()
		<-done
	})
}

func TestServerReportsABrokenListener(t *testing.T) {
	ln := newPipeListener()
	ln.Close()
	if err := newTestHTTP(readyState(), fullSource()).Run(t.Context(), ln); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Run returned %v", err)
	}
}

func TestLimitListenerSeatsOnlySoMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newPipeListener()
		ln := newLimitListener(inner, 1)
		accepted := make(chan net.Conn, 2)
		var last error
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				c, err := ln.Accept()
				if last = err; err != nil {
					return
				}
				accepted <- c
			}
		}()
		a := inner.dial()
		defer a.Close()
		first := <-accepted
		go func() { b := inner.dial(); b.Close() }()
		synctest.Wait()
		if len(accepted) != 0 {
			t.Error("a second connection was accepted")
		}
		first.Close()
		first.Close() // gives its seat back once
		second := <-accepted
		synctest.Wait()
		ln.Close()
		<-ended
		if !errors.Is(last, net.ErrClosed) {
			t.Errorf("Accept returned %v", last)
		}
		second.Close()
	})
}
