package pooler

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func empty(e *emptied) bool {
	select {
	case <-e.ch:
		return true
	default:
		return false
	}
}

func TestTheLastClientOfADrainIsNoticedHoweverItGoes(t *testing.T) {
	for name, last := range map[string]func(p *Pooler){
		"a login that came to nothing": func(p *Pooler) { p.loggingIn.Store(1); p.loginOver() },
		"a session":                    func(p *Pooler) { p.clients.Store(0); p.checkEmpty() },
	} {
		p := &Pooler{noClients: newEmptied()}
		p.clients.Store(0)
		last(p)
		if empty(p.noClients) {
			t.Errorf("%s: noticed without a drain", name)
		}
		p.draining.Store(true)
		last(p)
		if !empty(p.noClients) {
			t.Errorf("%s: not noticed", name)
		}
	}
}

func TestALoginThatBecomesASessionIsCountedAllTheTime(t *testing.T) {
	p := &Pooler{noClients: newEmptied()}
	p.draining.Store(true)
	p.loggingIn.Store(1)
	p.clients.Add(1) // admit
	p.loginOver()
	if empty(p.noClients) {
		t.Fatal("nobody was left between login and session")
	}
}

func TestServersAreAwaitedOnlyOnceTheEndHasBegun(t *testing.T) {
	s := serverSet{empty: newEmptied()}
	a, b := &serverConn{}, &serverConn{}
	s.add(a)
	s.remove(a)
	if empty(s.empty) {
		t.Fatal("empty before the end")
	}
	s.add(b)
	s.closing()
	if empty(s.empty) {
		t.Fatal("empty with a server connection")
	}
	s.remove(b)
	s.remove(b)
	if !empty(s.empty) {
		t.Fatal("the last one was not noticed")
	}
}

func TestAWaitEndsWithTimeContextOrEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended, end := context.WithCancel(t.Context())
		end()
		done := make(chan struct{})
		close(done)
		for _, tt := range []struct {
			ctx  context.Context
			done chan struct{}
			want time.Duration
		}{{t.Context(), nil, time.Minute}, {ended, nil, 0}, {t.Context(), done, 0}} {
			began := time.Now()
			wait(tt.ctx, time.Minute, tt.done)
			if got := time.Since(began); got != tt.want {
				t.Errorf("waited %v, want %v", got, tt.want)
			}
		}
	})
}
