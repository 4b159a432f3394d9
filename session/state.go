package session

// Phase is where a session is in its life.
type Phase uint8

// The phases. A session without a server connection is in PhaseReady or, while
// a local error skips the rest of a batch, has Skipping set.
const (
	PhaseLogin Phase = iota // authenticated; the reported parameters are not known yet
	PhaseReady              // takes messages
	PhaseEnded              // terminal
)

// Mode is the pool mode: for how long a session keeps a server connection.
type Mode uint8

// The pool modes.
const (
	ModeTransaction Mode = iota
	ModeSession
	ModeStatement
)

// State is all of a session that outlives a server connection, as one
// serialisable value. Session.Detachable and New move a session that holds no
// server connection between loops and processes.
type State struct {
	ID       uint64 `json:"id"`
	User     string `json:"user"`
	Database string `json:"database"`
	Mode     Mode   `json:"mode"`
	Phase    Phase  `json:"phase"`
	// Skipping: an error of multipooler's own ended a batch; all up to the
	// next Sync is ignored, as PostgreSQL does.
	Skipping bool `json:"skipping,omitempty"`
	// AppName is the client's application_name: cosmetic, it never decides
	// which server connection is taken.
	AppName string `json:"application_name,omitempty"`
	// Startup are the settings of the startup packet, to be interned anew.
	Startup []Setting `json:"startup,omitempty"`
	// Protocol is the minor version in use, 0 or 2.
	Minor int `json:"minor,omitempty"`
	// CancelPID and CancelKey are the session's own cancel key.
	CancelPID uint32 `json:"cancel_pid"`
	CancelKey []byte `json:"cancel_key"`
	// Unnamed is the Parse message of the unnamed statement, if the session
	// has one.
	Unnamed []byte `json:"unnamed,omitempty"`
	// UnnamedNumber counts the session's unnamed statements.
	UnnamedNumber uint64 `json:"unnamed_number,omitempty"`
	// StringsOff: standard_conforming_strings is off.
	StringsOff bool `json:"standard_conforming_strings_off,omitempty"`
	// Told is what the client knows of the server's parameters. It is kept in
	// the Session and filled in by Detachable.
	Told []Setting `json:"told,omitempty"`
	// UnsafeEncoding: statements cannot be read in the client's encoding.
	UnsafeEncoding bool `json:"unsafe_encoding,omitempty"`
	// TempPath: the startup packet names pg_temp, which may be in a search_path.
	TempPath bool `json:"temp_path,omitempty"`
	// Left counts the bytes still to come of a message of which the session
	// has taken the beginning; they are dropped.
	Left int `json:"left,omitempty"`
}
