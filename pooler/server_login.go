package pooler

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/multipooler/multipooler/auth"
	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/session"
)

// maxLoginMessage bounds a message of a server during login, maxLogin all of
// them: the time for it alone would let a server fill the memory.
const (
	maxLoginMessage = 64 << 10
	maxLogin        = 1 << 20
)

// loginServer runs the startup phase (manual, 55.2.1) until ReadyForQuery.
func (p *Pooler) loginServer(t *target, key connpool.Key, d *dialled, conn io.ReadWriter, endPoint []byte) error {
	binding := auth.BindingPrefer
	switch t.live.Load().ChannelBinding {
	case "disable":
		binding = auth.BindingDisable
	case "require":
		binding = auth.BindingRequire
	}
	secret := t.secretFor(key.User, p.users.Load())
	if secret.Kind() == auth.KindNone {
		if r := t.lookup(routeKey{key.Database, key.User, key.Startup}); r != nil && r.keys.Load() != nil {
			secret = *r.keys.Load()
		}
	}
	conv := auth.NewServerLogin(key.User, secret, auth.ServerLoginOptions{EndPoint: endPoint, Binding: binding})
	if _, err := conn.Write(protocol.AppendStartup(nil, protocol.Protocol30, startupParams(t, key))); err != nil {
		return err
	}
	in := bufio.NewReaderSize(conn, 4<<10)
	admitted := false
	for total := 0; ; {
		typ, body, err := readLoginMessage(in)
		if err != nil {
			return err
		}
		if total += protocol.HeaderLen + len(body); total > maxLogin {
			return fmt.Errorf("the server sent more than %d bytes during login", maxLogin)
		}
		switch typ {
		case protocol.MsgAuthentication:
			if admitted {
				return session.ErrProtocol
			}
			m, err := protocol.ReadAuthentication(body)
			if err != nil {
				return err
			}
			reply, done, err := conv.Step(uint32(m.Type), m.Data)
			if err != nil {
				return fmt.Errorf("log in to the server: %w", err)
			}
			admitted = admitted || done
			if len(reply) > 0 {
				if _, err := conn.Write(reply); err != nil {
					return err
				}
			}
		case protocol.MsgParameterStatus:
			name, value, err := protocol.ReadParameterStatus(body)
			if err != nil {
				return err
			}
			d.params = d.params.With(string(name), string(value))
		case protocol.MsgBackendKeyData:
			m, err := protocol.ReadBackendKeyData(body)
			if err != nil {
				return err
			}
			d.pid, d.key = m.PID, append([]byte(nil), m.Key...)
		case protocol.MsgErrorResponse:
			return &DialError{Cause: errors.New("the server refused the login"), Said: protocol.Fields(body).ToError()}
		case protocol.MsgReadyForQuery:
			if !admitted || in.Buffered() > 0 {
				return session.ErrProtocol
			}
			d.method = conv.Method()
			return nil
		case protocol.MsgNoticeResponse, protocol.MsgNegotiateProtocolVersion:
		default:
			return session.ErrProtocol
		}
	}
}

// startupParams is what a server connection of this pool starts with.
func startupParams(t *target, key connpool.Key) []protocol.Param {
	params := []protocol.Param{{Name: "user", Value: key.User}, {Name: "database", Value: key.Database}}
	if options := t.live.Load().Options; options != "" {
		params = append(params, protocol.Param{Name: "options", Value: options})
	}
	return append(params, decode(key.Startup)...)
}

func readLoginMessage(in *bufio.Reader) (protocol.Type, []byte, error) {
	head, err := in.Peek(protocol.HeaderLen)
	if err != nil {
		return 0, nil, err
	}
	typ, size, _, err := protocol.BackendHeader(head)
	if err != nil {
		return 0, nil, err
	}
	if size > maxLoginMessage {
		return 0, nil, fmt.Errorf("the server sent a message of %d bytes during login", size)
	}
	buf := make([]byte, protocol.HeaderLen+size)
	if _, err := io.ReadFull(in, buf); err != nil {
		return 0, nil, err
	}
	return typ, buf[protocol.HeaderLen:], nil
}
