package pooler

import (
	"bytes"
	"testing"
)

func TestACancelKeyFindsItsClientAndNobodyElse(t *testing.T) {
	var r cancelRegistry
	for _, tt := range []struct{ minor, length int }{{0, shortKey}, {2, longKey}} {
		c := &clientConn{}
		pid, key := r.issue(c, tt.minor)
		if len(key) != tt.length || pid == 0 || pid >= 1<<31 {
			t.Errorf("protocol 3.%d: pid %d, key of %d bytes, want %d", tt.minor, pid, len(key), tt.length)
		}
		wrong := bytes.Clone(key)
		wrong[len(wrong)-1] ^= 1
		for name, k := range map[string][]byte{"wrong": wrong, "short": key[:len(key)-1], "long": append(bytes.Clone(key), 0), "empty": nil} {
			if r.find(pid, k) != nil {
				t.Errorf("a %s key found the client", name)
			}
		}
		if r.find(pid^1, key) != nil {
			t.Error("another pid found the client")
		}
		if r.find(pid, key) != c {
			t.Error("the key did not find its client")
		}
		r.revoke(pid)
		if r.find(pid, key) != nil {
			t.Error("a revoked key found the client")
		}
	}
	if len(r.byID) != 0 {
		t.Errorf("%d keys are left", len(r.byID))
	}
}

func TestASemaphoreBoundsItsHolders(t *testing.T) {
	s := newSemaphore(2)
	if first, second, third := s.tryAcquire(), s.tryAcquire(), s.tryAcquire(); !first || !second || third {
		t.Fatal("a semaphore of 2 did not let exactly 2 in")
	}
	s.release()
	if !s.tryAcquire() {
		t.Fatal("a released place was not given")
	}
	if !newSemaphore(0).tryAcquire() {
		t.Fatal("a semaphore of 0 would block for ever")
	}
}
