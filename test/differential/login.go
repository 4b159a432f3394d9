package differential

import (
	"context"
	"crypto/md5"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/xdg-go/scram"
)

// dial logs in and returns the bare connection with what the server reported.
// pgconn cannot do this: on a slow start it leaves a reader behind that takes
// the first bytes of the session with it.
func dial(ctx context.Context, url string, limit time.Duration) (conn net.Conn, params map[string]string, err error) {
	cfg, err := pgconn.ParseConfig(url)
	if err != nil {
		return nil, nil, err
	}
	network, address := pgconn.NetworkAddress(cfg.Host, cfg.Port)
	dialer := net.Dialer{Timeout: limit}
	if conn, err = dialer.DialContext(ctx, network, address); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return nil, nil, err
	}
	if cfg.TLSConfig != nil {
		var answer [1]byte
		if _, err := conn.Write([]byte{0, 0, 0, 8, 4, 210, 22, 47}); err != nil { // SSLRequest
			return nil, nil, err
		}
		if _, err := io.ReadFull(conn, answer[:]); err != nil || answer[0] != 'S' {
			return nil, nil, fmt.Errorf("SSLRequest was answered %q: %w", answer, err)
		}
		conn = tls.Client(conn, cfg.TLSConfig)
	}
	startup := &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": cfg.User}}
	if cfg.Database != "" {
		startup.Parameters["database"] = cfg.Database
	}
	maps.Copy(startup.Parameters, cfg.RuntimeParams)
	params = make(map[string]string)
	l := login{conn: conn, user: cfg.User, password: cfg.Password, params: params}
	if err := l.run(startup); err != nil {
		return nil, nil, err
	}
	return conn, params, conn.SetDeadline(time.Time{})
}

// login is one conversation up to the first ReadyForQuery.
type login struct {
	conn           net.Conn
	user, password string
	params         map[string]string
	scram          *scram.ClientConversation
}

func (l *login) run(startup *pgproto3.StartupMessage) error {
	if err := l.send(startup); err != nil {
		return err
	}
	s := side{conn: l.conn}
	for {
		r, err := s.next()
		if err != nil {
			return err
		}
		switch r.kind {
		case 'R':
			err = l.authenticate(r.body)
		case 'S':
			var m pgproto3.ParameterStatus
			err = m.Decode(r.body)
			l.params[m.Name] = m.Value
		case 'E':
			return errors.New(r.String())
		case 'Z':
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (l *login) send(m pgproto3.FrontendMessage) error {
	b, err := m.Encode(nil)
	if err != nil {
		return err
	}
	_, err = l.conn.Write(b)
	return err
}

// authenticate answers one Authentication message (manual, "Message Formats").
func (l *login) authenticate(body []byte) (err error) {
	if len(body) < 4 {
		return fmt.Errorf("authentication message of %d bytes", len(body))
	}
	kind, data := binary.BigEndian.Uint32(body), body[4:]
	switch kind {
	case pgproto3.AuthTypeOk:
		return nil
	case pgproto3.AuthTypeCleartextPassword:
		return l.send(&pgproto3.PasswordMessage{Password: l.password})
	case pgproto3.AuthTypeMD5Password:
		inner := md5.Sum([]byte(l.password + l.user))
		outer := md5.Sum(append([]byte(hex.EncodeToString(inner[:])), data...))
		return l.send(&pgproto3.PasswordMessage{Password: "md5" + hex.EncodeToString(outer[:])})
	case pgproto3.AuthTypeSASL:
		client, err := scram.SHA256.NewClient(l.user, l.password, "")
		if err != nil {
			return err
		}
		l.scram = client.NewConversation()
		first, err := l.scram.Step("")
		if err != nil {
			return err
		}
		return l.send(&pgproto3.SASLInitialResponse{AuthMechanism: "SCRAM-SHA-256", Data: []byte(first)})
	case pgproto3.AuthTypeSASLContinue, pgproto3.AuthTypeSASLFinal:
		if l.scram == nil {
			return errors.New("SASL message without a start")
		}
		next, err := l.scram.Step(string(data))
		if err != nil || kind == pgproto3.AuthTypeSASLFinal {
			return err
		}
		return l.send(&pgproto3.SASLResponse{Data: []byte(next)})
	}
	return fmt.Errorf("authentication method %d is not supported", kind)
}
