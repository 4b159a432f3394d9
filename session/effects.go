package session

import (
	"bytes"
	"encoding/binary"

	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/protocol"
)

// pinsOf says which effects of a statement keep the session on its server
// connection. Default deny: an effect that is not listed here is harmless only
// because somebody has shown why.
//
//   - SET LOCAL, DECLARE without hold, savepoints and transactions end with the
//     transaction, and so does every portal.
//   - EXECUTE, DEALLOCATE, UNLISTEN, CLOSE, DISCARD and the unlock functions
//     only use or remove what a pin already protects; on a clean connection
//     they find nothing.
//   - RESET ALL and DISCARD ALL undo the alignment: resets.
var pinsOf = [...]struct {
	effect protocol.Effects
	pin    Pin
}{
	{protocol.EffectUnknown, PinUnknown},
	{protocol.EffectSet | protocol.EffectSetRole, PinSet},
	{protocol.EffectListen, PinListen},
	{protocol.EffectPrepare, PinPrepared},
	{protocol.EffectTemp, PinTemp},
	{protocol.EffectDeclareHold, PinCursor},
	{protocol.EffectLoad, PinLoad},
	{protocol.EffectAdvisoryLock, PinLock},
	{protocol.EffectSequenceSet | protocol.EffectSequenceRead, PinSequence},
	{protocol.EffectSeed, PinSeed},
}

// pinning are all effects that pin.
const pinning = protocol.EffectUnknown | protocol.EffectSet | protocol.EffectSetRole | protocol.EffectListen |
	protocol.EffectPrepare | protocol.EffectTemp | protocol.EffectDeclareHold | protocol.EffectLoad |
	protocol.EffectAdvisoryLock | protocol.EffectSequenceSet | protocol.EffectSequenceRead | protocol.EffectSeed

// resetting are the effects that undo the alignment.
const resetting = protocol.EffectResetAll | protocol.EffectDiscardAll

func (s *Session) scanOptions() protocol.ScanOptions {
	return protocol.ScanOptions{StandardConforming: !s.state.StringsOff}
}

// read scans a statement. A statement that has waited for a server connection
// was read when it came.
func (s *Session) read(sc *protocol.Scanner, sql []byte, whole bool) (v protocol.Verdict) {
	if s.judged {
		s.judged = false
		return s.verdict
	}
	sc.Reset(s.scanOptions())
	sc.Feed(sql)
	if whole {
		v = sc.Finish()
	}
	return v
}

// classOf is what a statement borrows for.
func classOf(v protocol.Verdict) connpool.Class {
	if v.Effects.Has(protocol.EffectTxBegin) {
		return connpool.Reserved
	}
	return connpool.Regular
}

// apply draws the consequences of a statement that has been sent. text is the
// statement, nil when it is not at hand any more.
func (s *Session) apply(v protocol.Verdict, text []byte) {
	if s.state.UnsafeEncoding {
		s.pin(PinEncoding | PinUnknown)
	}
	if v.Backslash && s.setting && s.srv.led.len() > 1 {
		s.pin(PinUnknown) // read with an option that may have changed on the way
	}
	if v.Effects.Has(protocol.EffectSet | protocol.EffectSetLocal | resetting) {
		s.setting = true
	}
	if s.state.TempPath || v.Effects.Has(protocol.EffectSetLocal) && (text == nil || namesTemp(text)) {
		s.pin(PinTemp) // what is created without a schema may be temporary
	}
	if !v.Effects.Has(pinning) {
		return
	}
	var p Pin
	for _, e := range pinsOf {
		if v.Effects.Has(e.effect) {
			p |= e.pin
		}
	}
	if v.Effects.Has(protocol.EffectSet) {
		// A setting with a dot in its name may be new: DISCARD ALL leaves it
		// defined, with an empty value that others would see. What name
		// set_config gets is not known, and U&"…" may hide the dot.
		if text == nil || bytes.ContainsAny(text, ".&") || bytes.Contains(bytes.ToLower(text), []byte("set_config")) {
			s.custom = true
		}
		// RESET name goes back to the server's default, not to the client's
		// startup packet.
		s.realignDue = s.settings != nil
	}
	s.pin(p)
}

// namesTemp tells whether the text says pg_temp, also inside a string: in a
// search_path it is what a CREATE TABLE without a schema goes to.
func namesTemp[T ~string | ~[]byte](text T) bool {
	return bytes.Contains(bytes.ToLower([]byte(text)), []byte("pg_temp"))
}

// queryEntry is the ledger entry of a simple Query.
func queryEntry(v protocol.Verdict) entry {
	e := entry{kind: replyQuery}
	if v.Effects.Has(resetting) {
		e.resets = resetPart
		if v.Statements == 1 && v.Effects == protocol.EffectResetAll {
			e.resets = resetSettings
		}
		if v.Statements == 1 && v.Effects == protocol.EffectDiscardAll {
			e.resets = resetAll
		}
	}
	return e
}

// resetBy: a statement that resets the session has succeeded.
func (s *Session) resetBy(what reset) {
	s.realignDue = s.settings != nil
	if what == resetAll && s.srv.led.empty() && s.left == 0 && s.pins&unresettable == 0 && !s.custom {
		s.pins &= clean
		s.srv.dirty = false
	}
}

// usage is what has run on a server connection since the session has it, as far
// as currval and lastval are concerned.
type usage uint8

const (
	untouched usage = iota
	begun           // nothing but BEGIN
	touched         // something that may have used a sequence
)

// use notes a statement that is sent.
func (s *Session) use(v protocol.Verdict) {
	switch {
	case s.used == touched:
	case v.Statements == 1 && v.First == protocol.ClassBegin:
		s.used = begun
	default:
		s.used = touched
	}
}

// rerun notes a Bind: of a BEGIN that was just parsed, or of a statement that
// came from elsewhere.
func (s *Session) rerun() {
	if s.used == untouched {
		s.used = touched
	}
}

// ownPlan is the name of multipooler's own statement and portal in a batch.
const ownPlan = "multipooler_sequences"

// foreignSequences keeps currval and lastval of somebody else from a client
// whose first statement on this connection asks for them. In a batch it must
// neither end the batch nor touch what is unnamed.
func (s *Session) foreignSequences(v protocol.Verdict, extended bool) {
	srv := s.srv
	if s.used == touched || !v.Effects.Has(protocol.EffectSequenceRead) ||
		srv.lastUser == s.state.ID || srv.lastUser == 0 || srv.status == protocol.TxFailed {
		return
	}
	const sql = "DISCARD SEQUENCES"
	if !extended && !srv.batch {
		srv.unnamed = unnamedTag{}
		srv.led.push(entry{kind: replyQuery, how: swallow})
		s.host.ToServer(protocol.AppendQuery(nil, sql))
		return
	}
	for _, kind := range [...]replyKind{replyParse, replyBind, replyExecute, replyClose} {
		srv.led.push(entry{kind: kind, how: inject})
	}
	buf := protocol.AppendParse(nil, ownPlan, sql, nil)
	buf = protocol.AppendBind(buf, ownPlan, ownPlan, nil, nil, nil)
	buf = protocol.AppendExecute(buf, ownPlan, 0)
	s.host.ToServer(protocol.AppendClose(buf, protocol.KindStatement, ownPlan))
}

// harmlessFunctions are the functions that drivers call by FunctionCall: large
// objects, whose descriptors end with the transaction (pg_proc.dat).
var harmlessFunctions = map[uint32]bool{
	715: true, 764: true, 952: true, 953: true, 954: true, 955: true, 956: true, 957: true, 958: true,
	964: true, 1004: true, 3170: true, 3171: true, 3172: true, 3457: true, 3458: true, 3459: true, 3460: true,
}

func harmlessFunction(body []byte) bool {
	return len(body) >= 4 && harmlessFunctions[binary.BigEndian.Uint32(body)]
}
