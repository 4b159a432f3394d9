package fidelity

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/xdg-go/scram"

	"github.com/multipooler/multipooler/test/faultconn"
)

// patience is how long a conversation may wait for one message before it counts
// as hanging.
const patience = 30 * time.Second

// turn is what a client sends at once, and the message it then waits for.
type turn struct {
	send  []pgproto3.FrontendMessage
	until byte
	count int
}

func ask(sql string) turn {
	return turn{[]pgproto3.FrontendMessage{&pgproto3.Query{String: sql}}, 'Z', 1}
}

func batch(sql string, more ...pgproto3.FrontendMessage) []pgproto3.FrontendMessage {
	return append([]pgproto3.FrontendMessage{
		&pgproto3.Parse{Query: sql}, &pgproto3.Describe{ObjectType: 'S'}, &pgproto3.Bind{}, &pgproto3.Execute{},
	}, more...)
}

// conversation has something of everything. Its replies do not depend on what
// was done before, and in the end the session has state that no reset undoes,
// so that its server connection is not used again.
var conversation = []turn{
	ask("select 'simple'; select i from generate_series(1, 3) i"),
	{batch("select 'extended'", &pgproto3.Sync{}), 'Z', 1},
	{slices.Concat(
		batch("select 'first'"), batch("select 1/0"), batch("select 'never'", &pgproto3.Sync{}),
		batch("select 'second'", &pgproto3.Sync{}),
	), 'Z', 2},
	{batch("select 'flushed'", &pgproto3.Flush{}), 'C', 1},
	{[]pgproto3.FrontendMessage{&pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{}}, 'Z', 1},
	ask("copy (select repeat('out', 5000) from generate_series(1, 2)) to stdout"),
	{[]pgproto3.FrontendMessage{&pgproto3.Query{String: "copy faults from stdin"}}, 'G', 1},
	{[]pgproto3.FrontendMessage{
		&pgproto3.CopyData{Data: []byte("1\n2\n")}, &pgproto3.CopyData{Data: []byte("3\n")}, &pgproto3.CopyDone{},
	}, 'Z', 1},
	ask("begin"),
	{batch("insert into faults values (4)", &pgproto3.Sync{}), 'Z', 1},
	ask("savepoint a; select 'inside'"),
	ask("commit"),
	ask("select setseed(0.5)"),
}

// talker is one client of a conversation.
type talker struct {
	conn     net.Conn
	password string
	heard    [][]byte // messages since the login
	passed   [2]int64 // messages by faultconn.Direction, the login's included
}

// talk logs in to url and runs the conversation. It returns what was heard
// after the login, up to the error that ended it.
func talk(url *url.URL, turns []turn) (t talker, err error) {
	if t.conn, err = net.DialTimeout("tcp", url.Host, patience); err != nil {
		return t, err
	}
	defer t.conn.Close()
	t.password, _ = url.User.Password()
	if err := t.login(url.User.Username(), strings.TrimPrefix(url.Path, "/")); err != nil {
		return t, fmt.Errorf("login: %w", err)
	}
	for i, turn := range turns {
		if err := t.take(turn); err != nil {
			return t, fmt.Errorf("turn %d: %w", i, err)
		}
	}
	return t, t.send(&pgproto3.Terminate{})
}

func (t *talker) take(turn turn) error {
	if err := t.send(turn.send...); err != nil {
		return err
	}
	for n := turn.count; n > 0; {
		m, err := t.next()
		if err != nil {
			return err
		}
		t.heard = append(t.heard, m)
		switch {
		case m[0] == turn.until:
			n--
		case m[0] == 'E' && !bytes.Contains(m, []byte("C22012")): // division by zero is part of it
			return said(m)
		}
	}
	return nil
}

func (t *talker) send(all ...pgproto3.FrontendMessage) (err error) {
	var b []byte
	for _, m := range all {
		if b, err = m.Encode(b); err != nil {
			return err
		}
	}
	t.passed[faultconn.ToServer] += int64(len(all))
	_, err = t.conn.Write(b)
	return err
}

// next reads one message: its type and its body.
func (t *talker) next() ([]byte, error) {
	if err := t.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	var header [5]byte
	if _, err := io.ReadFull(t.conn, header[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(header[1:])
	if size < 4 || size > 1<<20 {
		return nil, fmt.Errorf("message %q announces %d bytes", header[0], size)
	}
	m := make([]byte, 1+size-4)
	m[0] = header[0]
	t.passed[faultconn.ToClient]++
	_, err := io.ReadFull(t.conn, m[1:])
	return m, err
}

// saidError is an error that the server or multipooler has sent.
type saidError struct{ severity, code, message string }

func (e *saidError) Error() string { return e.severity + " " + e.code + " " + e.message }

func said(m []byte) error {
	var r pgproto3.ErrorResponse
	if err := r.Decode(m[1:]); err != nil {
		return err
	}
	return &saidError{r.Severity, r.Code, r.Message}
}

func (t *talker) login(user, database string) error {
	err := t.send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{
		// A setting, so that server connections must be aligned.
		"user": user, "database": database, "extra_float_digits": "2",
	}})
	if err != nil {
		return err
	}
	client, err := scram.SHA256.NewClient(user, t.password, "")
	if err != nil {
		return err
	}
	proof := client.NewConversation()
	for {
		m, err := t.next()
		if err != nil {
			return err
		}
		switch m[0] {
		case 'E':
			return said(m)
		case 'Z':
			return nil
		case 'R':
			if err := t.authenticate(proof, m[1:]); err != nil {
				return err
			}
		}
	}
}

func (t *talker) authenticate(proof *scram.ClientConversation, body []byte) error {
	if len(body) < 4 {
		return errors.New("authentication message without a kind")
	}
	kind, data := binary.BigEndian.Uint32(body), string(body[4:])
	if kind == pgproto3.AuthTypeSASL {
		data = ""
	}
	var next string
	var err error
	if kind != pgproto3.AuthTypeOk {
		if next, err = proof.Step(data); err != nil {
			return err
		}
	}
	switch kind {
	case pgproto3.AuthTypeSASL:
		return t.send(&pgproto3.SASLInitialResponse{AuthMechanism: "SCRAM-SHA-256", Data: []byte(next)})
	case pgproto3.AuthTypeSASLContinue:
		return t.send(&pgproto3.SASLResponse{Data: []byte(next)})
	}
	return nil
}
