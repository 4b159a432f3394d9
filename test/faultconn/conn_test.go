package faultconn

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func TestAWrappedWriteIsCutAtTheBoundary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		c := Wrap(a, Client, Fault{At: BeforeMessage(ToServer, 2), Action: Cut})
		got := make(chan []byte)
		go func() {
			all, _ := io.ReadAll(b)
			got <- all
		}()
		n, err := c.Write(join(startup(), typed('Q', "one"), typed('Q', "two")))
		want := join(startup(), typed('Q', "one"))
		if !errors.Is(err, ErrInjected) || n != len(want) {
			t.Errorf("Write: %d, %v", n, err)
		}
		if all := <-got; !bytes.Equal(all, want) {
			t.Errorf("the peer got %q, want %q", all, want)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a broken connection can be read")
		}
		b.Close()
	})
}

func TestAStalledReadEndsAtReleaseDeadlineOrClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		release := make(chan struct{})
		c := Wrap(a, Client,
			Fault{At: BeforeByte(ToClient, 2), Action: Stall, Release: release},
			Fault{At: BeforeByte(ToClient, 4), Action: Stall})
		go func() { _, _ = b.Write([]byte("abcdef")) }()
		buf := make([]byte, 10)
		if n, err := c.Read(buf); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		start := time.Now()
		_ = c.SetReadDeadline(start.Add(3 * time.Second))
		if _, err := c.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Fatal(err, time.Since(start))
		}
		_ = c.SetReadDeadline(time.Time{})
		time.AfterFunc(2*time.Second, func() { close(release) })
		if n, err := c.Read(buf); n != 2 || err != nil || string(buf[:2]) != "cd" || time.Since(start) != 5*time.Second {
			t.Fatal(n, err, time.Since(start))
		}
		time.AfterFunc(time.Second, func() { c.Close() })
		if _, err := c.Read(buf); !errors.Is(err, net.ErrClosed) {
			t.Fatal(err)
		}
		b.Close()
	})
}

func TestFragmentsAreSingleBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		c := Wrap(a, Server, Fault{At: BeforeByte(ToServer, 3), Action: Fragment}, Fault{At: BeforeByte(ToClient, 0), Action: Fragment, Size: 2})
		go func() { _, _ = b.Write([]byte("abcdef")) }()
		var sizes []int
		for total := 0; total < 6; {
			n, err := c.Read(make([]byte, 10))
			if err != nil {
				t.Fatal(err)
			}
			sizes = append(sizes, n)
			total += n
		}
		if len(sizes) != 4 || sizes[0] != 3 {
			t.Errorf("reads of %v bytes, want 3 1 1 1", sizes)
		}
		go func() { _, _ = c.Write([]byte("uvwxy")) }()
		for want := 5; want > 0; {
			n, err := b.Read(make([]byte, 10))
			if err != nil || n > 2 {
				t.Fatal(n, err)
			}
			want -= n
		}
		c.Close()
		b.Close()
	})
}

func TestAHalfCloseOfTheIncomingDirectionIsAnEOF(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		c := Wrap(a, Client, Fault{At: BeforeByte(ToClient, 1), Action: HalfClose})
		go func() { _, _ = b.Write([]byte("ab")) }()
		all, err := io.ReadAll(c)
		if string(all) != "a" || err != nil {
			t.Errorf("got %q, %v", all, err)
		}
		go func() { _, _ = io.ReadFull(b, make([]byte, 2)) }()
		if _, err := c.Write([]byte("ok")); err != nil {
			t.Error("the other direction must go on:", err)
		}
		c.Close()
		b.Close()
	})
}
