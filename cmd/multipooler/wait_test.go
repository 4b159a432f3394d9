package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaitAsksUntilTheAnswerIsGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, began := 0, time.Now()
		err := waitFor(t.Context(), "x", func(context.Context, string) error {
			if asked++; asked < 4 {
				return errors.New("not yet")
			}
			return nil
		})
		if err != nil || time.Since(began) != 3*waitInterval {
			t.Fatalf("%v after %s", err, time.Since(began))
		}
	})
}

func TestWaitGivesUpExactlyAtItsTimeoutWithTheLastAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second+time.Millisecond)
		defer stop()
		began := time.Now()
		err := waitFor(ctx, "x", func(context.Context, string) error { return errors.New("503: listeners are not bound") })
		if err == nil || !strings.Contains(err.Error(), "503") || time.Since(began) != 5*time.Second+time.Millisecond {
			t.Fatalf("%v after %s", err, time.Since(began))
		}
	})
}

func TestWaitSpeaksHTTP(t *testing.T) {
	var ready atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/startupz" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		if ready.CompareAndSwap(false, true) {
			http.Error(w, "listeners are not bound", http.StatusServiceUnavailable)
		}
	}))
	defer srv.Close()
	if err := ask(t.Context(), srv.URL+"/startupz"); err == nil || !strings.Contains(err.Error(), "listeners are not bound") {
		t.Errorf("got %v", err)
	}
	addr := strings.TrimPrefix(srv.URL, "http://")
	stdout, stderr, code := capture(t, func(o, e *os.File) exitCode {
		return dispatch([]string{"wait", "--timeout", "10s", "--http-listen", addr}, nil, o, e)
	})
	if code != exitDrained || stdout != "started\n" {
		t.Fatalf("%d, %s%s", code, stdout, stderr)
	}
	srv.Close()
	_, stderr, code = capture(t, func(o, e *os.File) exitCode {
		return dispatch([]string{"wait", "--timeout=1ms", "--http-listen", addr}, nil, o, e)
	})
	if code != exitFailed || !strings.Contains(stderr, "not started after 1ms") {
		t.Fatalf("%d, %s", code, stderr)
	}
}

func TestWaitAsksThisMachine(t *testing.T) {
	for _, tt := range []struct{ listen, want string }{
		{"127.0.0.1:9632", "http://127.0.0.1:9632/startupz"},
		{":9632", "http://localhost:9632/startupz"},
		{"0.0.0.0:9632", "http://localhost:9632/startupz"},
		{"[::]:9632", "http://localhost:9632/startupz"},
		{"[fe80::1]:9632", "http://[fe80::1]:9632/startupz"},
	} {
		if got, err := startupURL(tt.listen); err != nil || got != tt.want {
			t.Errorf("%s: got %s, %v", tt.listen, got, err)
		}
	}
}
