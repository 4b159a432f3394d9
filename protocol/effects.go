package protocol

import "strings"

// Effects is the set of things that a text of SQL may do to the session that
// runs it, beyond reading and writing tables. It errs on the side of more: a
// bit that is not set did not appear in the text; a bit that is set may have
// been in a statement that is never reached.
type Effects uint64

// The effects.
const (
	// EffectUnknown: something that the scanner has no rule for. Treat it as
	// everything at once.
	EffectUnknown           Effects = 1 << iota
	EffectSet                       // SET, SET SESSION, RESET name, set_config()
	EffectSetLocal                  // SET LOCAL: gone with the transaction
	EffectSetRole                   // SET|RESET ROLE, SET|RESET SESSION AUTHORIZATION
	EffectResetAll                  // RESET ALL
	EffectListen                    // LISTEN
	EffectUnlisten                  // UNLISTEN name
	EffectUnlistenAll               // UNLISTEN *
	EffectNotify                    // NOTIFY, pg_notify()
	EffectPrepare                   // PREPARE name
	EffectExecute                   // EXECUTE name, CREATE TABLE … AS EXECUTE
	EffectDeallocate                // DEALLOCATE name
	EffectDeallocateAll             // DEALLOCATE ALL
	EffectDiscardAll                // DISCARD ALL
	EffectDiscardPlans              // DISCARD PLANS
	EffectDiscardTemp               // DISCARD TEMP
	EffectDiscardSequences          // DISCARD SEQUENCES
	EffectTemp                      // temporary objects are created, or pg_temp is named
	EffectDeclare                   // DECLARE: a cursor until the end of the transaction
	EffectDeclareHold               // DECLARE … WITH HOLD: a cursor that stays
	EffectClose                     // CLOSE name
	EffectCloseAll                  // CLOSE ALL
	EffectLoad                      // LOAD
	EffectAdvisoryLock              // session-level advisory locks
	EffectAdvisoryUnlock            // pg_advisory_unlock(), …_shared()
	EffectAdvisoryUnlockAll         // pg_advisory_unlock_all()
	EffectSeed                      // setseed()
	EffectSequenceSet               // nextval(), setval(): what currval() will say
	EffectSequenceRead              // currval(), lastval()
	EffectTxBegin                   // BEGIN, START TRANSACTION
	EffectTxModes                   // … with isolation level or other modes
	EffectTxEnd                     // COMMIT, END, ROLLBACK, ABORT, PREPARE TRANSACTION
	EffectTxChain                   // … AND CHAIN
	EffectTxPrepared                // the three commands of two-phase commit
	EffectSavepoint                 // SAVEPOINT, RELEASE, ROLLBACK TO
	EffectCopyIn                    // COPY … FROM STDIN
	EffectCopyOut                   // COPY … TO STDOUT
	EffectNoBlock                   // refused inside a transaction block (VACUUM, CREATE DATABASE, …)

	effectsEnd
)

// LeavesState are the effects after which a server connection holds something
// of this session outside of any transaction. It must not serve another
// session before it was reset.
const LeavesState = EffectUnknown | EffectSet | EffectSetRole | EffectListen | EffectPrepare |
	EffectTemp | EffectDeclareHold | EffectLoad | EffectAdvisoryLock | EffectSeed

var effectNames = [...]string{
	"unknown", "set", "set local", "set role", "reset all", "listen", "unlisten", "unlisten all", "notify",
	"prepare", "execute", "deallocate", "deallocate all", "discard all", "discard plans", "discard temp",
	"discard sequences", "temp", "declare", "declare with hold", "close", "close all", "load",
	"advisory lock", "advisory unlock", "advisory unlock all", "setseed", "sequence set", "sequence read",
	"begin", "transaction modes", "end", "chain", "prepared transaction", "savepoint",
	"copy in", "copy out", "no transaction block",
}

// Has reports whether any of the given effects is in the set.
func (e Effects) Has(any Effects) bool { return e&any != 0 }

// Describe names the effects for logs and the console, in a fixed order;
// "none" for the empty set.
func (e Effects) Describe() string {
	if e == 0 {
		return "none"
	}
	var names []string
	for i, name := range effectNames {
		if e.Has(1 << i) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// String is Describe.
func (e Effects) String() string { return e.Describe() }

// Class is the kind of a statement by its leading words.
type Class uint8

// The classes. ClassNone is an empty text, ClassUnknown a statement that does
// not start like any that the scanner knows.
const (
	ClassNone Class = iota
	ClassUnknown
	ClassSelect // also VALUES, TABLE, WITH and a parenthesis
	ClassInsert
	ClassUpdate
	ClassDelete
	ClassMerge
	ClassExplain
	ClassShow
	ClassCopy
	ClassBegin // also START TRANSACTION
	ClassCommit
	ClassRollback
	ClassSavepoint
	ClassRelease
	ClassRollbackTo
	ClassTwoPhase
	ClassSet
	ClassReset
	ClassDiscard
	ClassPrepare
	ClassExecute
	ClassDeallocate
	ClassListen
	ClassUnlisten
	ClassNotify
	ClassDeclare
	ClassFetch // also MOVE
	ClassClose
	ClassLoad
	ClassCall
	ClassDo
	ClassLock
	ClassTruncate
	ClassMaintenance // VACUUM, ANALYZE, REINDEX, CLUSTER, CHECKPOINT, REFRESH
	ClassCreate
	ClassAlter
	ClassDrop
	ClassGrant // also REVOKE, REASSIGN
	ClassOther // COMMENT, SECURITY LABEL, IMPORT FOREIGN SCHEMA
)

var classNames = [...]string{
	"none", "unknown", "select", "insert", "update", "delete", "merge", "explain", "show", "copy",
	"begin", "commit", "rollback", "savepoint", "release", "rollback to", "two-phase",
	"set", "reset", "discard", "prepare", "execute", "deallocate", "listen", "unlisten", "notify",
	"declare", "fetch", "close", "load", "call", "do", "lock", "truncate", "maintenance",
	"create", "alter", "drop", "grant", "other",
}

func (c Class) String() string { return classNames[c] }
