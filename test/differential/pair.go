package differential

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// maxReply bounds one message's announced length: more is a broken stream.
const maxReply = 64 << 20

// side is one of a client's two connections.
type side struct {
	name    string
	conn    net.Conn
	params  map[string]string // ParameterStatus at login
	tracker tracker
	// notes are notifications: they may come at any time, so they are compared
	// as a whole at the end of a section.
	notes []string
}

// pair is one client: the same session twice.
type pair struct {
	cfg     Config
	id      int
	holders chan struct{}
	sides   [2]*side // direct, proxy
	// sinceConnect is what the present sessions have been sent, for the report.
	sinceConnect []step
}

// run plays a script and returns the first difference.
func (p *pair) run(ctx context.Context, s script) error {
	defer p.hangUp()
	for i, sec := range s {
		if err := p.section(ctx, i, sec); err != nil || ctx.Err() != nil {
			return err
		}
	}
	return nil
}

func (p *pair) section(ctx context.Context, index int, sec section) error {
	if sec.holds {
		select {
		case p.holders <- struct{}{}:
			defer func() { <-p.holders }()
		case <-ctx.Done():
			return nil
		}
	}
	for i, st := range sec.steps {
		if ctx.Err() != nil {
			return nil
		}
		if err := p.connect(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		p.sinceConnect = append(p.sinceConnect, st)
		if err := p.step(index, i, st); err != nil {
			return err
		}
	}
	if err := p.compareNotes(ctx, index, len(sec.steps)-1); err != nil {
		return err
	}
	if p.cfg.Reconnect {
		p.hangUp()
	}
	return nil
}

// connect logs in on both sides, unless they are, and compares what the
// servers report about themselves.
func (p *pair) connect(ctx context.Context) error {
	if p.sides[0] != nil {
		return nil
	}
	p.sinceConnect = nil
	for i, url := range []string{p.cfg.Direct, p.cfg.Proxy} {
		name := [...]string{"direct", "proxy"}[i]
		conn, params, err := dial(ctx, url, p.cfg.Hang)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return p.mismatch(-1, -1, fmt.Sprintf("%s: connect: %v", name, err), nil, nil)
		}
		p.sides[i] = &side{name: name, conn: conn, params: params}
	}
	if d, x := p.sides[0].params, p.sides[1].params; !maps.Equal(d, x) {
		return p.mismatch(-1, -1, fmt.Sprintf("ParameterStatus at login: direct %v, proxy %v", d, x), nil, nil)
	}
	return nil
}

func (p *pair) hangUp() {
	for i, s := range p.sides {
		if s != nil {
			_, _ = s.conn.Write([]byte{'X', 0, 0, 0, 4})
			s.conn.Close()
			p.sides[i] = nil
		}
	}
}

// step sends to both sides, then reads and compares both replies.
func (p *pair) step(section, index int, st step) error {
	wire, err := encode(st.messages)
	if err != nil {
		return fmt.Errorf("differential: %w", err)
	}
	var got [2][]reply
	var problem string
	for i, s := range p.sides {
		for _, m := range st.messages {
			s.tracker.sent(m)
		}
		// Written beside the reading: a long pipeline and its long answer must
		// not wait for each other.
		deadline := time.Now().Add(p.cfg.Hang)
		_ = s.conn.SetDeadline(deadline)
		written := make(chan error, 1)
		go func() { written <- writePieces(s.conn, wire, st.pieces) }()
		var readErr error
		got[i], readErr = s.read()
		if readErr != nil {
			_ = s.conn.SetWriteDeadline(time.Unix(1, 0))
		}
		if writeErr := <-written; readErr == nil && writeErr != nil && !closed(got[i]) {
			readErr = writeErr
		}
		if readErr != nil && problem == "" {
			problem = fmt.Sprintf("%s, at message %d of the reply: %v", s.name, len(got[i]), readErr)
		}
	}
	if problem == "" {
		problem = compare(got[0], got[1])
	}
	if problem != "" {
		return p.mismatch(section, index, problem, got[0], got[1])
	}
	if closed(got[0]) {
		p.hangUp()
	}
	return nil
}

func closed(r []reply) bool { return len(r) > 0 && r[len(r)-1].kind == 0 }

// compare describes the first difference; "" means none.
func compare(direct, proxy []reply) string {
	for i := range max(len(direct), len(proxy)) {
		switch {
		case i >= len(direct):
			return fmt.Sprintf("message %d: direct has no more, proxy sends %s", i, proxy[i])
		case i >= len(proxy):
			return fmt.Sprintf("message %d: direct sends %s, proxy has no more", i, direct[i])
		case !direct[i].equal(proxy[i]):
			return fmt.Sprintf("message %d: direct sends %s, proxy sends %s", i, direct[i], proxy[i])
		}
	}
	return ""
}

// read collects replies until they are complete. Notifications are put aside.
func (s *side) read() (all []reply, err error) {
	for !s.tracker.complete() {
		r, err := s.next()
		if err != nil {
			var netErr net.Error
			if errors.As(err, &netErr) && netErr.Timeout() {
				return all, errors.New("hang: no further message came")
			}
			// The end of the connection is an answer like others.
			return append(all, reply{}), nil
		}
		if !s.tracker.received(r.kind) {
			return append(all, r), fmt.Errorf("%s came unasked", r)
		}
		if r.kind == 'A' {
			s.notes = append(s.notes, r.String())
			continue
		}
		all = append(all, r)
	}
	return all, nil
}

// next reads one message.
func (s *side) next() (reply, error) {
	var header [5]byte
	if _, err := io.ReadFull(s.conn, header[:]); err != nil {
		return reply{}, err
	}
	length := binary.BigEndian.Uint32(header[1:])
	if length < 4 || length > maxReply {
		return reply{}, fmt.Errorf("message %q announces %d bytes", header[0], length)
	}
	body := make([]byte, length-4)
	if _, err := io.ReadFull(s.conn, body); err != nil {
		return reply{}, err
	}
	return normalise(reply{header[0], body}), nil
}

// compareNotes waits until the proxy has delivered as many notifications as
// the server did directly, and compares them.
func (p *pair) compareNotes(ctx context.Context, section, index int) error {
	if p.sides[0] == nil || p.sides[1] == nil {
		return nil
	}
	direct, proxy := p.sides[0], p.sides[1]
	until := time.Now().Add(min(p.cfg.Hang, 2*time.Second))
	for len(proxy.notes) < len(direct.notes) && ctx.Err() == nil {
		_ = proxy.conn.SetReadDeadline(until)
		r, err := proxy.next()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil || !proxy.tracker.received(r.kind) {
			return p.mismatch(section, index, fmt.Sprintf("while waiting for notifications: %s, %v", r, err), nil, nil)
		}
		if r.kind == 'A' {
			proxy.notes = append(proxy.notes, r.String())
		}
	}
	slices.Sort(direct.notes)
	slices.Sort(proxy.notes)
	d, x := direct.notes, proxy.notes
	direct.notes, proxy.notes = nil, nil
	if !slices.Equal(d, x) {
		return p.mismatch(section, index, fmt.Sprintf("notifications: direct %s, proxy %s", strings.Join(d, ", "), strings.Join(x, ", ")), nil, nil)
	}
	return nil
}

func encode(messages []pgproto3.FrontendMessage) (wire []byte, err error) {
	for _, m := range messages {
		if wire, err = m.Encode(wire); err != nil {
			return nil, err
		}
	}
	return wire, nil
}

// writePieces writes p in n pieces of about the same size.
func writePieces(conn net.Conn, p []byte, n int) error {
	size := len(p)/max(1, n) + 1
	for piece := range slices.Chunk(p, size) {
		if _, err := conn.Write(piece); err != nil {
			return err
		}
	}
	return nil
}
